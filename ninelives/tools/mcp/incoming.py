"""What an MCP server sends, within bounds. Owns: the size of one message, and which of the listed tools can be used.
Refuses to know: what a message means, and how a server is connected.

Theory of operation. The `mcp` package reads an HTTP answer whole before it parses it, and it refuses a whole list for
one tool that it cannot parse. So both are handled before the package sees them. bound_answers() puts a BoundedBody
around each answer: it passes on whole events, or a whole body. One that is too long becomes an error that answers the
request, and the rest is not read. CheckedStream takes tools that cannot be used out of lists, and notes why."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ninelives.tools.base import Threads

MESSAGE_BYTES = 8 * 1_048_576
SCHEMA_BYTES = 32_768
MAX_TOOLS = 200
MAX_LEFT_OUT = 50
"""Tools that cannot be used, of which the reason is kept."""
TOO_LONG = f"it sent a message of more than {MESSAGE_BYTES} bytes"
_COMPRESSED = "it sent a compressed answer, although it was asked for a plain one"
_INTERNAL_ERROR = -32603
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The ends of a server-sent event."""


class BoundedBody:
    """The body of an HTTP answer, read no further than one message may be long."""

    def __init__(self, response: Any) -> None:
        self._stream = response.stream
        self._request = response.request
        kind = response.headers.get("content-type", "").lower()
        self._is_events = kind.startswith("text/event-stream")
        length = response.headers.get("content-length", "0")
        too_long = not self._is_events and length.isdecimal() and int(length) > MESSAGE_BYTES
        packed = response.headers.get("content-encoding", "identity").lower() != "identity"
        response.headers.pop("content-encoding", None)  # or the error below would be unpacked
        self._refusal = _COMPRESSED if packed else TOO_LONG if too_long else ""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._refusal:
            yield self._error(self._refusal)
            return
        waiting = bytearray()
        async for chunk in self._stream:
            seen = max(0, len(waiting) - 3)
            waiting += chunk
            if self._is_events and (end := _end_of_events(waiting, seen)):
                yield bytes(waiting[:end])
                del waiting[:end]
            if len(waiting) > MESSAGE_BYTES:
                yield self._error(TOO_LONG)
                return
        yield bytes(waiting)

    async def aclose(self) -> None:
        """Close the answer."""
        await self._stream.aclose()

    def _error(self, reason: str) -> bytes:
        """An answer to the request that says why there is none. Nothing for a stream that answers no request."""
        try:
            asked = msgspec.json.decode(self._request.content or b"{}").get("id")
        except (msgspec.DecodeError, AttributeError):
            asked = None
        if asked is None:
            return b""
        error = {"code": _INTERNAL_ERROR, "message": reason}
        data = msgspec.json.encode({"jsonrpc": "2.0", "id": asked, "error": error})
        return b"event: message\ndata: " + data + b"\n\n" if self._is_events else data


def _end_of_events(data: bytearray, start: int) -> int:
    """Where the last whole event ends; 0 if none does. Looks only behind `start`."""
    return max((found + len(end) for end in _ENDS if (found := data.rfind(end, start)) >= 0), default=0)


def bound_answers(client: Any) -> None:
    """Bound all answers that this client of httpx (or httpx2, which mcp 2 uses) reads."""
    library: Any = importlib.import_module(type(client).__module__.partition(".")[0])
    body = type("HttpxBoundedBody", (BoundedBody, library.AsyncByteStream), {})

    async def bound(response: Any) -> None:
        response.stream = body(response)

    client.headers["accept-encoding"] = "identity"
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks.get("response", ()), bound]}


class CheckedStream:
    """The stream of messages that a session reads. Tools that cannot be used are taken out of lists."""

    def __init__(self, stream: Any, threads: Threads, left_out: dict[str, str]) -> None:
        """`left_out` gets the names of such tools, and why they cannot be used."""
        self._stream = stream
        self._threads = threads
        self._left_out = left_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> CheckedStream:
        return self

    async def __anext__(self) -> Any:
        return await self._checked(await self._stream.__anext__())

    async def receive(self) -> Any:
        """The next message."""
        return await self._checked(await self._stream.receive())

    async def __aenter__(self) -> CheckedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    async def _checked(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        result = getattr(getattr(message, "root", message), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            result["tools"] = await self._usable(result["tools"])
        return item

    async def _usable(self, tools: list[Any]) -> list[Any]:
        for tool in tools[MAX_TOOLS:][:MAX_LEFT_OUT]:
            self._leave_out(tool, f"the server has more than {MAX_TOOLS} tools")
        tools = tools[:MAX_TOOLS]
        # jsonschema takes about 3 ms for a schema, too long for the loop if there are many.
        faults = await self._threads.run(lambda: [tool_fault(tool) for tool in tools])
        for tool, fault in zip(tools, faults, strict=True):
            if fault:
                self._leave_out(tool, fault)
        return [tool for tool, fault in zip(tools, faults, strict=True) if not fault]

    def _leave_out(self, tool: object, fault: str) -> None:
        if len(self._left_out) < MAX_LEFT_OUT:
            self._left_out[_name_of(tool)] = fault


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name[:64] if isinstance(name, str) and name else "a tool without a name"


def tool_fault(tool: object) -> str:
    """Why a tool cannot be offered to a model; empty if it can. Blocks for some milliseconds."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        return "it has no name"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "its schema does not describe an object"
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
        return f"its schema has more than {SCHEMA_BYTES} bytes"
    jsonschema: Any = importlib.import_module("jsonschema")
    types: Any = importlib.import_module("mcp.types")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        types.Tool.model_validate(tool)
    except (jsonschema.SchemaError, RecursionError) as error:
        return f"its schema is not valid: {_first_line(error)}"
    except ValueError as error:
        return f"its description is not valid: {_first_line(error)}"
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

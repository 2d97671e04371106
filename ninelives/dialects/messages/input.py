"""The conversation that a caller resends. Owns: the blocks that it may have, and how they become chat messages, the one
form in which history is kept. Calls that a server made come back as blocks of the assistant. Each becomes a call and
its result; a call without a result is left out. Thoughts and unknown kinds of blocks are left out too, because clients
send new kinds every month. Refuses to know: the rest of the request."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.core.spec import Message
from ninelives.dialects.messages.blocks import Block

ROLES = ("user", "assistant", "system")
RESUME = "Your response above was cut off mid-stream. Resume directly from where it stops"
"""How Claude Code asks for the rest of an answer that broke off. It does not repeat its request: it appends the blocks
that it got whole, and this sentence."""
_SERVER_CALLS = ("mcp_tool_use", "server_tool_use")
_RESULT = "_tool_result"


def checked_messages(messages: list[Message], max_parts: int) -> list[Message]:
    """The messages, each with a role and text or blocks."""
    if not messages:
        raise _wrong("messages must not be empty.")
    parts = 0
    for n, message in enumerate(messages):
        content = message.get("content")
        if message.get("role") not in ROLES:
            raise _wrong(f"messages.{n}.role must be user or assistant.")
        if not isinstance(content, str | list):
            raise _wrong(f"messages.{n}.content must be text or blocks.")
        for k, block in enumerate(content if isinstance(content, list) else ()):
            _check(block, f"messages.{n}.content.{k}")
            parts += 1
    if parts > max_parts:
        words = f"There are {parts} blocks; the limit is {max_parts}: send less, or raise limits.parts."
        raise ClientError("too_many_parts", words, param="messages")
    return messages


class Resumed(Struct, frozen=True):
    """A request for the rest of an answer that broke off."""

    messages: list[Message]
    """Those of the first try."""
    call: str = ""
    """The last server call that the caller has; empty if it has none."""
    finished: bool = False
    """It has the result of that call too."""


def resumed(messages: list[Message]) -> Resumed | None:
    """The first try of a conversation that only asks for the rest of its last answer, or None."""
    if messages[-1]["role"] != "user" or not _texts(_blocks(messages[-1])).startswith(RESUME):
        return None
    if len(messages) < 3 or messages[-2]["role"] != "assistant":
        return Resumed(messages[:-1])
    for block in reversed(_blocks(messages[-2])):
        if block["type"] in _SERVER_CALLS:
            return Resumed(messages[:-2], str(block["id"]))
        if str(block["type"]).endswith(_RESULT):
            return Resumed(messages[:-2], str(block["tool_use_id"]), finished=True)
    return Resumed(messages[:-2])


def _wrong(words: str) -> ClientError:
    return ClientError("invalid_value", words, param="messages")


def _check(block: object, where: str) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise _wrong(f"{where} must be a block with a type.")
    kind = block["type"]
    if kind == "text":
        _check_text(block, where, "text", may_be_empty=True)
    elif kind in ("tool_use", *_SERVER_CALLS):
        _check_text(block, where, "id")
        _check_text(block, where, "name")
        _check_object(block.get("input", {}), f"{where}.input")
    elif kind == "tool_result" or kind.endswith(_RESULT):
        _check_text(block, where, "tool_use_id")
    elif kind in ("image", "document"):
        _check_object(block.get("source"), f"{where}.source")


def _check_text(block: Block, where: str, name: str, *, may_be_empty: bool = False) -> None:
    value = block.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise _wrong(f"{where}.{name} must be a string.")


def _check_object(value: object, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object.")


def system_text(given: str | list[Block] | None) -> str | None:
    """The system prompt, from text or text blocks."""
    if isinstance(given, str) or given is None:
        return given or None
    texts = [block.get("text") for block in given if block.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise ClientError("invalid_value", "system must be text or text blocks.", param="system")
    return "\n\n".join(str(text) for text in texts if text) or None


def messages_of(given: list[Message]) -> list[Message]:
    """The conversation as chat messages."""
    results: dict[str, Block] = {}
    for message in given:
        for block in _blocks(message):
            if str(block["type"]).endswith(_RESULT):
                results[str(block["tool_use_id"])] = block
    messages: list[Message] = []
    for message in given:
        if message["role"] == "assistant":
            messages += _Assistant(results).read(_blocks(message))
        elif message["role"] == "system":
            messages.append({"role": "system", "content": _texts(_blocks(message))})
        else:
            messages += _user(_blocks(message))
    return messages


def _blocks(message: Message) -> list[Block]:
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


class _Assistant:
    """Builds messages from blocks of the assistant: text, then calls, then the results of server calls."""

    def __init__(self, results: dict[str, Block]) -> None:
        self._results = results
        self._made: list[Message] = []
        self._texts: list[str] = []
        self._calls: list[object] = []
        self._given: list[Message] = []

    def read(self, blocks: list[Block]) -> list[Message]:
        """The blocks as messages."""
        for block in blocks:
            kind = block["type"]
            if kind == "text" and block["text"]:
                if self._calls:
                    self._flush()
                self._texts.append(str(block["text"]))
            elif kind == "tool_use":
                self._calls.append(_call(block))
            elif kind in _SERVER_CALLS and block["id"] in self._results:
                self._calls.append(_call(block))
                self._given.append(_tool(block["id"], _output(self._results[str(block["id"])])[0]))
        self._flush()
        return self._made

    def _flush(self) -> None:
        if self._texts or self._calls:
            message: Message = {"role": "assistant", "content": "\n\n".join(self._texts) or None}
            if self._calls:
                message["tool_calls"] = self._calls
            self._made += [message, *self._given]
        self._texts, self._calls, self._given = [], [], []


def _call(block: Block) -> Block:
    arguments = msgspec.json.encode(block.get("input", {})).decode()
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _tool(call_id: object, output: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def _user(blocks: list[Block]) -> list[Message]:
    """Results of the caller's tools first, as they must follow their calls; then text and images of the user."""
    messages: list[Message] = []
    parts: list[Block] = []
    for block in blocks:
        if block["type"] == "tool_result":
            output, shown = _output(block)
            failed = block.get("is_error") is True
            messages.append(_tool(block["tool_use_id"], f"Error: {output}" if failed else output))
            parts += shown
        else:
            parts += _parts(block)
    if all(part["type"] == "text" for part in parts):
        text = "\n".join(str(part["text"]) for part in parts)
        return [*messages, {"role": "user", "content": text}] if parts else messages
    return [*messages, {"role": "user", "content": parts}]


def _output(block: Block) -> tuple[str, list[Block]]:
    """A result as text, and its images. A tool message holds text only, so images follow as a user message."""
    content = block.get("content")
    if isinstance(content, list):
        parts = [part for inner in content if isinstance(inner, dict) for part in _parts(inner)]
        text = "\n".join(str(part["text"]) for part in parts if part["type"] == "text")
        if content and not parts:
            text = msgspec.json.encode(content).decode()
    else:
        parts = []
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode() if content else ""
    shown = [part for part in parts if part["type"] != "text"]
    return text, shown


def _parts(block: Block) -> list[Block]:
    match block.get("type"):
        case "text":
            return [{"type": "text", "text": str(block.get("text") or "")}]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _image(_source(block))}}]
        case "document":
            return _document(_source(block), str(block.get("title") or "document"))
        case "search_result":
            inner = block.get("content")
            texts = _texts(inner) if isinstance(inner, list) else ""
            head = f"{block.get('title') or ''} {block.get('source') or ''}"
            return [{"type": "text", "text": f"{head}\n{texts}".strip()}]
        case _:
            return []


def _source(block: Block) -> Block:
    source = block.get("source")
    if not isinstance(source, dict):
        raise _wrong(f"A block of type {block['type']} has no source.")
    return source


def _image(source: Block) -> str:
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return f"data:{source.get('media_type') or 'image/png'};base64,{source['data']}"
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return str(source["url"])
    raise _wrong("An image must come as base64 or by url: file ids are not known here.")


def _document(source: Block, title: str) -> list[Block]:
    match source.get("type"), source.get("data"), source.get("content"):
        case "text", str() as text, _:
            return [{"type": "text", "text": f"{title}:\n{text}"}]
        case "base64", str() as data, _:
            url = f"data:{source.get('media_type') or 'application/pdf'};base64,{data}"
            return [{"type": "file", "file": {"filename": title, "file_data": url}}]
        case "content", _, str() as text:
            return [{"type": "text", "text": f"{title}:\n{text}"}]
        case "content", _, list() as inner:
            return [part for block in inner if isinstance(block, dict) for part in _parts(block)]
        case _:
            raise _wrong("A document must come as text, base64 or content: urls and file ids are not read here.")


def _texts(blocks: list[Block]) -> str:
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))

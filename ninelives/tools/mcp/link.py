"""The connection to one MCP server. Owns: connecting, the list of the server's tools, noticing a loss, reconnecting
with growing pauses, and one call. Uses the official `mcp` package (1.24 or later, or 2), which load() imports and
nothing before it. Refuses to know: effects, models, and what a result means.

Theory of operation. One task per server holds the connection. It opens transport and session, lists the tools, and
waits until the connection is lost or the list has changed. The transport, a call or the regular ping may find the
connection broken: they call `_drop`, and the task starts over. The last list stays valid meanwhile, and
a call waits a moment for the connection to come back. A call in progress when the connection is lost ends at once as
CallLost, because its outcome is unknown. A call that was never sent ends as NotCalled."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from ninelives.tools.base import Threads
from ninelives.tools.mcp.incoming import MAX_TOOLS, CheckedStream, bound_answers
from ninelives.tools.mcp.stdio import Program, Stdio

CONNECT_S = 30.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
STEADY_S = 10.0
"""After a connection of this length the pauses begin again with the first."""
WAIT_S = 10.0
"""How long a call waits for a connection."""
PING_S = 60.0
"""How often a server is pinged. A program is pinged only while it has no call, as it may do one thing at a time."""
LIST_GAP_S = 1.0
MAX_PAGES = 20
DESCRIPTION_CHARS = 2_000
CONNECTION_CLOSED = -32000
"""The package's own error code. Servers use it for other errors too."""
BROKE = "the connection broke"
CALL_KEY = "ninelives/call_id"
"""The key of the call's id in `_meta`. The id is the same when the call is repeated after a crash."""

_NO_SESSION = re.compile(r"session (terminated|not found|expired)|no valid session", re.IGNORECASE)


def load() -> None:
    """Import the package, and what it would otherwise import during the first call."""
    for name in ("mcp", "mcp.types", "mcp.client.streamable_http", "mcp.shared.message", "jsonschema"):
        importlib.import_module(name)


class ListedTool(Struct, frozen=True):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, object]
    read_only: bool = False
    idempotent: bool = False
    open_world: bool = False


class McpAddress(Struct, frozen=True):
    """How to reach a server: as a program, or by URL."""

    program: Program | None = None
    url: str = ""
    headers: Mapping[str, str] = {}


class NotCalled(Exception):
    """The call was not sent. The text says why."""


class CallLost(Exception):
    """The call was sent, but no answer will come."""


class CallFailed(Exception):
    """The server answered with an error. The text is the server's."""


class CallOptions(Struct, frozen=True):
    """Id, time limit and progress callback of a call."""

    call_id: str
    seconds: float
    progress: Callable[[str], None]


class _NoSession(Exception):
    """The server does not know this session, so it did not process the request."""


class _Connection:
    """One connection, from its opening to its loss."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.session: Any = None
        self.stdio: Stdio | None = None


class McpLink:
    """A server, connected for as long as run() runs."""

    def __init__(
        self, address: McpAddress, threads: Threads, changed: Callable[[], None], notify: Callable[[], None]
    ) -> None:
        """`changed` is called when the list of tools has changed, `notify` when the server is lost or connected."""
        self._address = address
        self._threads = threads
        self._changed = changed
        self._notify = notify
        self.listed: tuple[ListedTool, ...] | None = None
        """Its tools. None if it was never connected."""
        self.left_out: dict[str, str] = {}
        """Tools that cannot be used, and why."""
        self.fault = "it is not connected yet"
        self.last_words = ""
        """What a program wrote to stderr before it was lost."""
        self.tried = asyncio.Event()
        """Set after the first attempt has succeeded or failed."""
        self._stopping = False
        self._calls = 0
        self._connection = _Connection()
        self._up = asyncio.Event()
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._relist = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._up.is_set()

    def stop(self) -> None:
        """Call before run() is cancelled. An error while the connection is closed may replace the cancellation: then
        run() ends instead of connecting again."""
        self._stopping = True

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        pause = FIRST_PAUSE_S
        while not self._stopping:
            began = time.monotonic()
            connection = self._connection = _Connection()
            try:
                await self._connect(connection)
            except Exception as error:  # the edge: foreign servers may raise anything; try again
                self._drop(connection, self._words(error))
                self.fault = self._words(error) if self.fault == BROKE else self.fault
            self._tell_fault(connection)
            self.tried.set()
            pause = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else pause
            await self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _connect(self, connection: _Connection) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_S):
                connection.session = await self._open(stack, connection)
                await self._list(connection.session)
            if not connection.lost.is_set():
                self.fault = ""
                self._up.set()
                self.tried.set()
                self._notify()
            try:
                await self._watch(connection)
            finally:
                self._drop(connection, BROKE)

    def _drop(self, connection: _Connection, fault: str) -> None:
        """Mark a connection as lost. The first reason counts."""
        if not connection.lost.is_set():
            connection.lost.set()
            self.fault = fault
            self.last_words = connection.stdio.last_words if connection.stdio is not None else ""
            if connection is self._connection:
                self._up.clear()

    def _tell_fault(self, connection: _Connection) -> None:
        """Tell why the connection is lost, unless that was asked for."""
        if self._stopping:
            return
        if connection.stdio is not None and connection.stdio.nonsense and connection.session is None:
            self.fault = f"{self.fault}; it printed what is no message: {connection.stdio.nonsense}"
        self._notify()

    def _words(self, error: BaseException) -> str:
        """The error in one line, without the URL: it may hold a password."""
        return _one_line(error).replace(self._address.url or "\0", "its url")

    async def _open(self, stack: AsyncExitStack, connection: _Connection) -> Any:
        """Open a session and initialize it."""
        mcp: Any = importlib.import_module("mcp")
        if self._address.program is not None:
            connection.stdio = Stdio(self._address.program, partial(self._drop, connection))
            read, write = await stack.enter_async_context(connection.stdio.streams())
        else:
            http: Any = importlib.import_module("mcp.client.streamable_http")
            client = await stack.enter_async_context(http.create_mcp_http_client(headers=dict(self._address.headers)))
            bound_answers(client)
            open_streams = http.streamable_http_client
            own_bound = "max_sse_event_size" in inspect.signature(open_streams).parameters  # mcp 2
            more = {"max_sse_event_size": None} if own_bound else {}
            streams = open_streams(self._address.url, http_client=client, **more)
            read, write, *_ = await stack.enter_async_context(streams)
        information = mcp.types.Implementation(name="ninelives", version="1")
        checked = CheckedStream(read, self._threads, self.left_out)
        session = mcp.ClientSession(checked, write, message_handler=self._on_message, client_info=information)
        await stack.enter_async_context(session)
        await session.initialize()
        return session

    async def _on_message(self, message: Any) -> None:
        """Handle a message that is no answer. A line that is no message comes as an exception, and is left out."""
        if getattr(getattr(message, "root", message), "method", "") == "notifications/tools/list_changed":
            self._relist.set()

    async def _watch(self, connection: _Connection) -> None:
        """Wait until the connection is lost, and keep the list current meanwhile."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._refresh_list(connection)), group.create_task(self._ping(connection))]
            await connection.lost.wait()
            for task in tasks:
                task.cancel()

    async def _refresh_list(self, connection: _Connection) -> None:
        while True:
            await self._relist.wait()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._list(connection.session)
            except Exception as error:  # the edge: foreign servers may raise anything
                self._drop(connection, self._words(error))
            await asyncio.sleep(LIST_GAP_S)

    async def _ping(self, connection: _Connection) -> None:
        """Ping regularly. Over HTTP a loss shows only when something is sent, and a program may hang."""
        while True:
            await asyncio.sleep(PING_S)
            if self._calls and self._address.program is not None:
                continue
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connection.session.send_ping()
            except Exception as error:  # the edge: foreign servers may raise anything
                busy = self._calls and self._address.program is not None  # a call began after the ping
                if not busy and not isinstance(_meaning(error), CallFailed):
                    self._drop(connection, self._words(error))

    async def _list(self, session: Any) -> None:
        self._relist.clear()
        self.left_out.clear()
        types: Any = importlib.import_module("mcp.types")
        found: list[ListedTool] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
            wire = page.model_dump(by_alias=True, mode="json", exclude_none=True)
            found += map(_listed, wire["tools"])
            cursor = wire.get("nextCursor")
            if not cursor or len(found) >= MAX_TOOLS:
                break
        if tuple(found[:MAX_TOOLS]) != self.listed:
            self.listed = tuple(found[:MAX_TOOLS])
            self._changed()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt. A waiting call ends the pause early."""
        await asyncio.sleep(min(seconds, FIRST_PAUSE_S))
        try:
            async with asyncio.timeout(seconds - FIRST_PAUSE_S):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def wait(self, seconds: float) -> None:
        """Wait until it is connected. Raises NotCalled if that takes too long."""
        await self._connected_within(min(WAIT_S, seconds))

    async def call(self, name: str, arguments: dict[str, object], options: CallOptions) -> dict[str, Any]:
        """Make a call and return the result as the server sent it.

        Raises NotCalled, CallLost, CallFailed or TimeoutError."""
        deadline = time.monotonic() + options.seconds
        for _ in range(2):
            connection = await self._connected_within(min(WAIT_S, deadline - time.monotonic()))
            timed = msgspec.structs.replace(options, seconds=deadline - time.monotonic())
            try:
                return await self._call_once(connection, name, arguments, timed)
            except _NoSession:  # the server was restarted and did not process the call
                self._drop(connection, "its session is over")
        raise NotCalled("its session is over")

    async def _connected_within(self, seconds: float) -> _Connection:
        self._waiting += 1
        self._wanted.set()
        try:
            async with asyncio.timeout(seconds):
                await self._up.wait()
        except TimeoutError as error:
            raise NotCalled(self.fault or "it does not answer") from error
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._wanted.clear()
        return self._connection

    async def _call_once(
        self, connection: _Connection, name: str, arguments: dict[str, object], options: CallOptions
    ) -> dict[str, Any]:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            options.progress(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        meta = {CALL_KEY: options.call_id}
        self._calls += 1
        call = asyncio.ensure_future(connection.session.call_tool(name, arguments, progress_callback=tell, meta=meta))
        lost = asyncio.ensure_future(connection.lost.wait())
        try:
            await asyncio.wait({call, lost}, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return self._outcome(connection, call)
            if lost.done():
                raise CallLost(self.fault)
            raise TimeoutError
        finally:
            self._calls -= 1
            call.cancel()
            lost.cancel()
            await asyncio.gather(call, lost, return_exceptions=True)

    def _outcome(self, connection: _Connection, call: asyncio.Future[Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = call.result().model_dump(by_alias=True, mode="json", exclude_none=True)
        except Exception as error:  # the edge: the package and foreign servers may raise anything
            meaning = _meaning(error)
            if isinstance(meaning, CallLost):
                self._drop(connection, self._words(error))
                meaning = CallLost(self.fault)
            raise meaning from error
        return result


def _meaning(error: Exception) -> Exception:
    """The meaning of an error of the package for a request."""
    code, text = getattr(getattr(error, "error", None), "code", None), str(error)
    if code is None and isinstance(error, (RuntimeError, ValueError)):
        return CallFailed(f"its answer is not valid: {text[:500]}")
    if code is None:
        return CallLost()
    if _NO_SESSION.search(text):
        return _NoSession()
    if code == CONNECTION_CLOSED and (text == "Connection closed" or text.startswith("SSE stream")):
        return CallLost()
    return CallFailed(text[:2000])


def _listed(wire: dict[str, Any]) -> ListedTool:
    hints = wire.get("annotations") or {}
    return ListedTool(
        name=wire["name"],
        description=(wire.get("description") or wire.get("title") or "")[:DESCRIPTION_CHARS],
        schema=wire.get("inputSchema") or {"type": "object"},
        read_only=hints.get("readOnlyHint") is True,
        idempotent=hints.get("idempotentHint") is True,
        open_world=hints.get("openWorldHint") is True,
    )


def _one_line(error: BaseException) -> str:
    """The error in one line. Of a group, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return f"{type(error).__name__}: {error}"[:300]

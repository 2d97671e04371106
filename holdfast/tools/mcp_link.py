"""The connection to one MCP server. Owns: connecting, the list of its tools, noticing that it is lost, connecting
again with longer and longer pauses, and one call over it. Speaks through the official `mcp` package (1.24 or later,
2 as well), which is imported by load() and not before. Refuses to know: effects, models and what a result
says.

Theory of operation. One task per server holds the connection: it opens transport and session, lists the tools, and
then waits until the connection is lost or the list has changed. Whoever finds the connection broken (the transport,
a call, the regular look at an HTTP server) says so through `_drop`, and the task starts over. What was listed last
stays listed meanwhile: a call waits a moment for the connection to come back. A call that is under way when the
connection is lost ends at once as Lost, for nobody knows what became of it; a call that was never sent as NotCalled."""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.tools.mcp_stdio import Program, Stdio

CONNECT_S = 30.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
STEADY_S = 10.0
"""A connection that held so long was no failure: the next pause is the first again."""
WAIT_S = 10.0
"""How long a call waits for a connection."""
LOOK_S = 60.0
"""How often an HTTP server is asked whether it is still there."""
LIST_GAP_S = 1.0
MAX_PAGES = 20
MAX_TOOLS = 200
CONNECTION_CLOSED = -32000
"""The package's own code; servers use it for other things too."""
BROKE = "the connection broke"
CALL_KEY = "holdfast/call_id"
"""In the `_meta` of a call: its id, the same when it is made again after a crash."""

_NO_SESSION = re.compile(r"session (terminated|not found|expired)|no valid session", re.IGNORECASE)


def load() -> None:
    """Import the package, and what it would import in the middle of a first call."""
    for name in ("mcp", "mcp.types", "mcp.client.streamable_http", "mcp.shared.message", "jsonschema"):
        importlib.import_module(name)


class Listed(Struct, frozen=True):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, object]
    read_only: bool = False
    idempotent: bool = False


class Where(Struct, frozen=True):
    """How a server is reached: as a program, or by URL."""

    program: Program | None = None
    url: str = ""
    headers: Mapping[str, str] = {}


class NotCalled(Exception):
    """Nothing was sent; the text says why."""


class Lost(Exception):
    """It was sent, and no answer will come."""


class Answered(Exception):
    """The server answered with an error; the text is its."""


class Asking(Struct, frozen=True):
    """How a call is made."""

    call_id: str
    seconds: float
    progress: Callable[[str], None]


class _NoSession(Exception):
    """The server does not know this session: what was sent was not looked at."""


class _Connection:
    """One connection, from the first word to its loss."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.session: Any = None


class Link:
    """A server that is connected to for as long as run() runs."""

    def __init__(self, where: Where, changed: Callable[[], None]) -> None:
        self._where = where
        self._changed = changed
        self.listed: tuple[Listed, ...] | None = None
        """What it has; None while it was never connected."""
        self.fault = "it is not connected yet"
        self.last_words = ""
        """What a program said on stderr before it ended."""
        self.noise = 0
        """Lines that were no messages."""
        self.tried = asyncio.Event()
        """Set when the first try has succeeded or failed."""
        self.ending = False
        """Set before run() is cancelled: an error on the way out then takes the place of nothing."""
        self._connection = _Connection()
        self._up = asyncio.Event()
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._relist = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Is there a connection now?"""
        return self._up.is_set()

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        pause = FIRST_PAUSE_S
        while not self.ending:
            began = time.monotonic()
            connection = self._connection = _Connection()
            try:
                await self._connect(connection)
            except Exception as error:  # the edge to a server of others: whatever it is, it is tried again
                self._drop(connection, _words(error))
                self.fault = _words(error) if self.fault == BROKE else self.fault
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
            try:
                await self._attend(connection)
            finally:
                self._drop(connection, BROKE)

    def _drop(self, connection: _Connection, fault: str, last_words: str = "") -> None:
        """A connection is no good any more. What was found first is what is told."""
        if not connection.lost.is_set():
            connection.lost.set()
            self.fault = fault
            self.last_words = last_words
            if connection is self._connection:
                self._up.clear()

    async def _open(self, stack: AsyncExitStack, connection: _Connection) -> Any:
        """A session that has shaken hands."""
        mcp: Any = importlib.import_module("mcp")
        if self._where.program is not None:
            stdio = Stdio(self._where.program, partial(self._drop, connection))
            read, write = await stack.enter_async_context(stdio.streams())
        else:
            http: Any = importlib.import_module("mcp.client.streamable_http")
            client = await stack.enter_async_context(http.create_mcp_http_client(headers=dict(self._where.headers)))
            streams = http.streamable_http_client(self._where.url, http_client=client)
            read, write, *_ = await stack.enter_async_context(streams)
        information = mcp.types.Implementation(name="holdfast", version="1")
        session = mcp.ClientSession(read, write, message_handler=self._hear, client_info=information)
        await stack.enter_async_context(session)
        await session.initialize()
        return session

    async def _hear(self, message: Any) -> None:
        """What a server says without being asked."""
        if isinstance(message, Exception):
            self.noise += 1
        elif getattr(getattr(message, "root", message), "method", "") == "notifications/tools/list_changed":
            self._relist.set()

    async def _attend(self, connection: _Connection) -> None:
        """Wait until the connection is lost; keep the list fresh meanwhile."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep_list(connection))]
            if self._where.program is None:
                tasks.append(group.create_task(self._look_after(connection)))
            await connection.lost.wait()
            for task in tasks:
                task.cancel()

    async def _keep_list(self, connection: _Connection) -> None:
        while True:
            await self._relist.wait()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._list(connection.session)
            except Exception as error:  # the edge to a server of others
                self._drop(connection, _words(error))
            await asyncio.sleep(LIST_GAP_S)

    async def _look_after(self, connection: _Connection) -> None:
        """HTTP has no connection that could break while nothing is asked, so something is."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connection.session.send_ping()
            except Exception as error:  # the edge to a server of others
                if not isinstance(_meaning(error), Answered):
                    self._drop(connection, _words(error))

    async def _list(self, session: Any) -> None:
        self._relist.clear()
        types: Any = importlib.import_module("mcp.types")
        found: list[Listed] = []
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
        """Wait before the next try; a call that waits for it shortens that."""
        await asyncio.sleep(min(seconds, FIRST_PAUSE_S))
        try:
            async with asyncio.timeout(seconds - FIRST_PAUSE_S):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def wait(self, seconds: float) -> None:
        """Until it is connected; NotCalled where it is not by then."""
        await self._ready(min(WAIT_S, seconds))

    async def call(self, name: str, arguments: dict[str, object], asking: Asking) -> dict[str, Any]:
        """The result of one call, as it came over the wire; NotCalled, Lost, Answered or TimeoutError."""
        deadline = time.monotonic() + asking.seconds
        for _ in range(2):
            connection = await self._ready(min(WAIT_S, deadline - time.monotonic()))
            asked = msgspec.structs.replace(asking, seconds=deadline - time.monotonic())
            try:
                return await self._ask(connection, name, arguments, asked)
            except _NoSession:  # the server is another one now, and has not looked at the call
                self._drop(connection, "its session is over")
        raise NotCalled("its session is over")

    async def _ready(self, seconds: float) -> _Connection:
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

    async def _ask(
        self, connection: _Connection, name: str, arguments: dict[str, object], asking: Asking
    ) -> dict[str, Any]:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            asking.progress(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        meta = {CALL_KEY: asking.call_id}
        call = asyncio.ensure_future(connection.session.call_tool(name, arguments, progress_callback=tell, meta=meta))
        lost = asyncio.ensure_future(connection.lost.wait())
        try:
            await asyncio.wait({call, lost}, timeout=asking.seconds, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return self._outcome(connection, call)
            if lost.done():
                raise Lost(self.fault)
            raise TimeoutError
        finally:
            call.cancel()
            lost.cancel()
            await asyncio.gather(call, lost, return_exceptions=True)

    def _outcome(self, connection: _Connection, call: asyncio.Future[Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = call.result().model_dump(by_alias=True, mode="json", exclude_none=True)
        except Exception as error:  # the edge to the package and to a server of others
            meaning = _meaning(error)
            if isinstance(meaning, Lost):
                self._drop(connection, _words(error))
                meaning = Lost(self.fault)
            raise meaning from error
        return result


def _meaning(error: Exception) -> Exception:
    """What an error of the package says about a request."""
    code, text = getattr(getattr(error, "error", None), "code", None), str(error)
    if code is None and isinstance(error, (RuntimeError, ValueError)):
        return Answered(f"its answer is not valid: {text[:500]}")
    if code is None:
        return Lost()
    if _NO_SESSION.search(text):
        return _NoSession()
    if code == CONNECTION_CLOSED and (text == "Connection closed" or text.startswith("SSE stream")):
        return Lost()
    return Answered(text[:2000])


def _listed(wire: dict[str, Any]) -> Listed:
    hints = wire.get("annotations") or {}
    return Listed(
        name=wire["name"],
        description=wire.get("description") or wire.get("title") or "",
        schema=wire.get("inputSchema") or {"type": "object"},
        read_only=hints.get("readOnlyHint") is True,
        idempotent=hints.get("idempotentHint") is True,
    )


def _words(error: BaseException) -> str:
    """What is wrong, in one line; of several errors the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return f"{type(error).__name__}: {error}"[:300]

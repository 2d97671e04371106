"""One connection of uvicorn, with five things that it lacks. Owns: the abort of streams that must break off, the word
that the caller has gone, a way to write a piece of a body without a task, one write for the head of an answer and its
first piece, and the deadline for the head of a request. Refuses to know: requests."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send


class Abortable:
    """The application can break the connection, and is told when the other side did (leaving.py)."""

    app: Any
    transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inner: ASGIApp = self.app
        self.app = self._abortable
        self._told: list[Callable[[], None]] = []

    def _abortable(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        extensions = scope.setdefault("extensions", {})
        extensions["holdfast.abort"] = self.transport.abort
        extensions["holdfast.left"] = self._watch
        cycle: Any = getattr(send, "__self__", None)
        extensions["holdfast.write"] = write_of(cycle)
        if hasattr(cycle, "chunked_encoding"):
            cycle.transport = HeadFirst(cycle)
        return self._inner(scope, receive, send)

    def _watch(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` when the connection is lost, until the returned function is called."""
        if self.transport.is_closing():  # connection_lost has come, or comes without a word from the caller
            told()
            return _nothing
        self._told.append(told)
        return lambda: self._told.remove(told) if told in self._told else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever watches."""
        super().connection_lost(exc)  # type: ignore[misc]
        watching, self._told = self._told, []
        for told in watching:
            told()


def _nothing() -> None:
    """The end of a watch that is over."""


class Impatient:
    """A connection whose request does not come is closed: uvicorn itself waits for the end of a head for ever."""

    head_s: float
    loop: Any
    cycle: Any
    transport: Any
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A deadline for the first head."""
        super().connection_made(transport)  # type: ignore[misc]
        self._timer = self.loop.call_later(self.head_s, self._give_up)

    def data_received(self, data: bytes) -> None:
        """A head is whole, or begins: the next deadline."""
        super().data_received(data)  # type: ignore[misc]
        if self._busy():
            self._drop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._drop_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._busy() and self.transport.get_protocol() is self:  # a websocket has a protocol of its own
            self.transport.close()


class HeadFirst:
    """The transport of an answer whose head has not gone: it waits for the first piece of the body, because a write to
    a socket costs a tenth of a small request. Where none comes at once, it goes alone; then this one is done."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport: Any = cycle.transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """The head, then the first piece."""
        if not self._head:
            self._head = data
            asyncio.get_running_loop().call_soon(self._go)
        else:
            self._head += data
            self._go()

    def close(self) -> None:
        """Nothing more comes."""
        self._go()
        self._transport.close()

    def _go(self) -> None:
        head, self._head = self._head, b""
        self._cycle.transport = self._transport
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


PIECE = 64 * 1024
"""The longest piece of a body that is written in one go."""


def write_of(cycle: Any) -> Callable[[bytes], bool]:
    """Writes a piece of the body of uvicorn's request `cycle` now, as its send() would; False where only send() can:
    before the head, after the end, while the line is full, where it is too long, or where the body is not chunked by
    us (h11)."""
    if not hasattr(cycle, "chunked_encoding"):
        return _cannot
    alive = weakref.ref(cycle)  # it has the scope, which has this

    def write(data: bytes) -> bool:
        cycle = alive()
        if cycle is None or cycle.flow.write_paused or cycle.disconnected:
            return False
        if cycle.response_complete or not cycle.chunked_encoding or len(data) > PIECE:
            return False
        transport = cycle.transport
        if transport.is_closing():  # the line broke a moment ago and uvicorn has not heard of it: a write would raise
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    return write


def _cannot(data: bytes) -> bool:
    return False


def protocol_of(base: type[Any], head_s: float) -> type[Any]:
    """uvicorn's protocol `base` with both."""
    return type("Connection", (Impatient, Abortable, base), {"head_s": head_s})

"""One connection of uvicorn, with additions. Owns: aborting a stream, calling back when the client disconnects, writing
a piece of a body without a task, sending the head with the first piece in one write, and closing after an early answer.
Refuses to know: what is requested, and the bounds of a connection (bounds.py). server.py lists the parts of uvicorn
that this relies on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninelives.http.edge.bounds import Bounded, ConnectionLimits, HeadBytes, Lingering
from ninelives.http.edge.early import CLOSE


class Abortable:
    """Lets the application abort the connection, and tells it when the client disconnects. Both are extensions of the
    ASGI scope, for stream.py and disconnect.py."""

    app: Any
    transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inner: ASGIApp = self.app
        self.app = self._with_extensions
        self._watchers: list[Callable[[], None]] = []

    def _with_extensions(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        extensions = scope.setdefault("extensions", {})
        extensions["ninelives.abort"] = self.transport.abort
        extensions["ninelives.disconnect"] = self._watch
        cycle: Any = getattr(send, "__self__", None)
        extensions["ninelives.write"] = write_of(cycle)
        if getattr(cycle, "more_body", False):  # the answer may come before the rest of the body
            send = self._closing(cycle, send)
        if hasattr(cycle, "chunked_encoding"):
            cycle.transport = HeadFirst(cycle)
        return self._inner(scope, receive, send)

    def _closing(self, cycle: Any, send: Send) -> Send:
        """A send() that closes the connection where the answer begins before the body has arrived. To read the rest of
        it would cost more than a new connection, and it may be endless."""
        cycle.transport = Lingering(
            cycle.transport, lambda: self.linger() if cycle.more_body else self.transport.close()
        )

        def send_early(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start" and cycle.more_body:
                message = {**message, "headers": [*(pair for pair in message["headers"] if pair != CLOSE), CLOSE]}
            return send(message)

        return send_early

    def linger(self) -> None:
        """See Bounded.linger."""
        raise NotImplementedError

    def _watch(self, on_disconnect: Callable[[], None]) -> Callable[[], None]:
        """Call `on_disconnect` when the connection is lost, until the returned function is called."""
        if self.transport.is_closing():  # connection_lost has run, or will run without the client's doing
            on_disconnect()
            return _nothing
        self._watchers.append(on_disconnect)
        return lambda: self._watchers.remove(on_disconnect) if on_disconnect in self._watchers else None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. Calls the watchers."""
        super().connection_lost(exc)  # type: ignore[misc]
        watchers, self._watchers = self._watchers, []
        for on_disconnect in watchers:
            on_disconnect()


def _nothing() -> None:
    """Ends a watch that is over."""


class HeadFirst:
    """Stands in for a response's transport until the head has gone out. It holds the head back for the first piece of
    the body, because a write to a socket costs a tenth of a small request. If no piece follows in the same turn of the
    event loop, the head goes alone. Then the real transport takes over."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport: Any = cycle.transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """The first call holds the head back, the second one sends both."""
        if not self._head:
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._head += data
            self._flush()

    def close(self) -> None:
        """Send what is held back, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        self._cycle.transport = self._transport
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


PIECE = 64 * 1024
"""The longest piece of a body that goes into one write (R13)."""


def write_of(cycle: Any) -> Callable[[bytes], bool]:
    """A function that writes a piece of the body of uvicorn's request `cycle` at once, as send() would. It returns
    False where only send() can do it: before the head, after the end, while the socket is full, for a long piece, or
    where uvicorn does not chunk the body itself (h11)."""
    if not hasattr(cycle, "chunked_encoding"):
        return _cannot
    alive = weakref.ref(cycle)  # the cycle has the scope, and the scope has this function

    def write(data: bytes) -> bool:
        cycle = alive()
        if cycle is None or cycle.flow.write_paused or cycle.disconnected:
            return False
        if cycle.response_complete or not cycle.chunked_encoding or len(data) > PIECE:
            return False
        transport = cycle.transport
        if transport.is_closing():  # the connection broke and uvicorn does not know it yet: write() would raise
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    return write


def _cannot(data: bytes) -> bool:
    return False


def protocol_of(base: type[Any], limits: ConnectionLimits) -> type[Any]:
    """uvicorn's protocol class `base` with the additions of this module and of bounds.py."""
    bounds = (Bounded, HeadBytes) if hasattr(base, "on_body") else (Bounded,)
    return type("Connection", (*bounds, Abortable, base), {"limits": limits})

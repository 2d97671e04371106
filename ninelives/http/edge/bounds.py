"""The bounds of a connection. Owns: how many connections there are, how long one may be silent, how long the head of a
request may be and take, and the end of a connection whose request was not read whole. Refuses to know: what is
requested. server.py lists the parts of uvicorn that this relies on.

Theory of operation. An answer may come before the request was read: 401, 413 or 431, for example. To read on would let
a stranger send gigabytes. To close at once would reset the connection, and the client would lose the answer. So the
connection lingers: it closes its own direction, drops what still comes for a moment and up to a bound, and is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ninelives.core.errors import NinelivesError
from ninelives.http.edge.early import early_answer, head_too_large, head_too_late, not_http, too_many_connections

LINGER_S = 2.0
LINGER_BYTES = 1024 * 1024
"""What a connection still takes, and drops, after an early answer."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """The bounds of all connections, and of one."""

    connections: int = 16_384
    idle_s: float = 10.0
    """The longest silence before the first byte."""
    head_s: float = 20.0
    """The longest time from the first byte of a head to its last."""
    head_bytes: int = 65_536


class Bounded:
    """Refuses a connection beyond the limit, a slow head, and what is not HTTP. Lingers after an early answer."""

    limits: ConnectionLimits
    cycle: Any
    flow: Any
    loop: Any
    server_state: Any
    transport: Any
    _timer: asyncio.TimerHandle | None = None
    _head_begun = False
    _left: int | None = None
    """The bytes that a lingering connection may still send. None: it does not linger."""
    _upgraded = False

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol. Where all connections are in use, the one that has been idle for longest gives way."""
        super().connection_made(transport)  # type: ignore[misc]
        state, most = self.server_state, self.limits.connections
        full = len(state.connections) > most and not state.close_longest_idle()
        state.idle[self] = None
        if full:
            self.refuse(too_many_connections(most))
        else:
            self._set_timer(self.limits.idle_s, self._silent)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A complete head ends the deadline, the first byte of the next one starts another."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.transport.abort()
            return
        super().data_received(data)  # type: ignore[misc]
        if self._busy():
            self._drop_timer()
            self._head_begun = False
            self.server_state.idle.pop(self, None)
        elif self._left is None and not self._head_begun and not self._upgraded:
            self._head_begun = True
            self._set_timer(self.limits.head_s, self._late)

    def on_response_complete(self) -> None:
        """See uvicorn. The connection waits for its next request."""
        super().on_response_complete()  # type: ignore[misc]
        if not self._busy() and not self.transport.is_closing():
            self.server_state.idle[self] = None

    def handle_websocket_upgrade(self, *args: Any) -> None:
        """See uvicorn. Another protocol takes over."""
        self._drop_timer()
        self._upgraded = True
        self.server_state.idle.pop(self, None)
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. Ends the deadline."""
        self._drop_timer()
        self.server_state.idle.pop(self, None)
        super().connection_lost(exc)  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:
        """See uvicorn. Answers in our own shape (A7)."""
        self.refuse(not_http())

    def refuse(self, error: NinelivesError) -> None:
        """Answer for the application, and close. Where a response has begun, nothing can be said any more."""
        if self._busy():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                return self.transport.abort()  # type: ignore[no-any-return]
        if not self.transport.is_closing():
            url: bytes = getattr(self, "url", b"")
            self.transport.write(early_answer(error, url, self.server_state.default_headers))
            self.linger()

    def linger(self) -> None:
        """Close our direction. Drop what comes within the bounds, then close the connection."""
        if self.transport.is_closing():
            return
        self._left = LINGER_BYTES
        self._set_timer(LINGER_S, self.give_way)
        self.transport.write_eof()
        self.flow.resume_reading()

    def give_way(self) -> None:
        """Close the connection, which is idle or lingers. What is written still goes out."""
        if self._left is None or self.transport.get_write_buffer_size():
            self.transport.close()
        else:
            self.transport.abort()

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self._drop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _silent(self) -> None:
        self._timer = None
        self.transport.close()

    def _late(self) -> None:
        self._timer = None
        self.refuse(head_too_late(self.limits.head_s))


class HeadBytes:
    """Bounds the bytes of a head, and of what is neither head nor body: chunk sizes, their extensions and trailers. The
    parser of httptools has no bound, and the time for one long header grows with the square of its length. h11 has a
    bound of its own."""

    limits: ConnectionLimits
    transport: Any
    _left: int | None
    _upgraded: bool
    _dry = 0
    """Bytes since the last head or piece of a body."""

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. The parser never sees more than a head may have."""
        most = self.limits.head_bytes
        while data and self._left is None and not self._upgraded and not self.transport.is_closing():
            piece, data = data[: most - self._dry], data[most - self._dry :]
            self._dry += len(piece)
            super().data_received(piece)  # type: ignore[misc]
            if self._dry >= most and self._left is None:
                return self.refuse(head_too_large(most))

    def refuse(self, error: NinelivesError) -> None:
        """See Bounded.refuse."""
        raise NotImplementedError

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._dry = 0
        super().on_headers_complete()  # type: ignore[misc]

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._dry = 0
        super().on_body(body)  # type: ignore[misc]


class Lingering:
    """Stands in for the transport of a response to a request that is not here in full. Its close() lingers."""

    __slots__ = ("_close", "_transport")

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close

    def close(self) -> None:
        """Close, gently."""
        self._close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

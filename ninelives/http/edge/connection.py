"""One connection of uvicorn, with additions. Owns: its bounds (how many connections there are, how long one may be
silent, how long the head of a request may be and take, how much of all answers may be unread), the end of a connection
whose request was not read whole,
aborting a stream, calling back when the client disconnects, writing a piece of a body without a task, and sending the
head with the first piece in one write. Refuses to know: what is requested. server.py lists the parts of uvicorn that
this relies on.

Theory of operation. An answer may come before the request was read: 401, 413 or 431, for example. To read on would let
a stranger send gigabytes. To close at once would reset the connection, and the client would lose the answer. So the
connection lingers: it closes its own direction, drops what still comes for a moment and up to a bound, and is gone."""

from __future__ import annotations

import asyncio
import socket
import time
import weakref
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ninelives.core.errors import NinelivesError
from ninelives.http.edge.early import (
    CLOSE,
    early_answer,
    head_too_large,
    head_too_late,
    not_http,
    too_many_connections,
)
from ninelives.http.edge.kept import (
    PIECE,
    AdoptedTransport,
    Custody,
    KeptStream,
    KeptTransport,
    Standing,
    chunked,
    standing,
)
from ninelives.http.edge.starting import StartingApp
from ninelives.http.edge.whole import LONG_ANSWER, HeadFirst, WholeSend
from ninelives.supervisor.custody import LeftClient
from ninelives.supervisor.kernel import consumed, written

LINGER_S = 2.0
LINGER_BYTES = 1024 * 1024
"""What a connection still takes, and drops, after an early answer."""
UNREAD_BYTES = 134_217_728
SENT_S = 0.01
"""A client is released when its answer is in the socket. Where that is full, it is looked at this often."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """The bounds of all connections, and of one."""

    connections: int = 16_384
    idle_s: float = 10.0
    """The longest silence before the first byte."""
    head_s: float = 20.0
    """The longest time from the first byte of a head to its last."""
    head_bytes: int = 65_536
    unread_bytes: int = UNREAD_BYTES
    """What clients may leave unread of whole answers, all together. Streams have a bound of their own (R13)."""


class ConnectionState(ServerState):
    """What connections share. Computes the date on demand, at most once a second, instead of by a timer."""

    def __init__(self, unread_bytes: int = UNREAD_BYTES) -> None:
        self._second = 0
        self.closes = False
        """The server stops: every response closes its connection."""
        self.idle: dict[Any, None] = {}
        """Connections that wait for a request, or linger after their last one, the one that waits for longest first."""
        self._most_unread = unread_bytes
        self.unread: dict[Any, int] = {}
        """Connections with a long answer that their client has not read, and how much of it there was."""
        super().__init__()

    def note_unread(self, connection: Any) -> None:
        """A connection has a long answer to send. Where clients leave too much unread, connections are cut: those that
        took nothing since the last look first, the oldest first."""
        known = {**self.unread, connection: 0}
        left = {each: size for each in known if (size := each.unread())}
        order = sorted(left, key=lambda each: left[each] < known[each])  # a sort keeps the order of equals
        total = sum(left.values())
        while total > self._most_unread and order:
            cut = order.pop(0)
            total -= left.pop(cut)
            cut.transport.abort()
        self.unread = left

    def close_longest_idle(self) -> bool:
        """Make room for another connection. False: all are in use."""
        for connection in self.idle:
            del self.idle[connection]
            connection.give_way()
            return True
        return False

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every response."""
        now = int(time.time())
        if now != self._second:
            self._second, self._date = now, [(b"date", formatdate(now, usegmt=True).encode())]
        return [*self._date, CLOSE] if self.closes else self._date

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._date = headers


class ClientConnection(HttpToolsProtocol):
    """Refuses a connection beyond the limit, a slow or long head, and what is not HTTP. Lingers after an early answer.
    Extensions of the ASGI scope: abort the connection, watch for its end, write a piece, take the body that is here."""

    limits: ConnectionLimits
    custody: Custody | None
    """Keeps the sockets of clients while they are answered. None: a killed server cuts them."""
    server_state: ConnectionState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application: ASGIApp = self.app
        self.app = self._run_application
        self._watchers: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._left: int | None = None
        """The bytes that a lingering connection may still send. None: it does not linger."""
        self._upgraded = False
        self._dry = 0
        """Bytes since data with the end of a head, or with a piece of a body."""
        self._slot: int | None = None
        """Where this client is kept: its slot."""
        self._kept: KeptTransport | None = None
        """The way of an answer to a client that is kept."""
        self._read: int | None = 0
        """How much was read from this connection, by all processes. To count costs less than to ask the kernel. None:
        not known."""

    # For the event loop

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol. Where all connections are in use, the one that has been idle for longest gives way."""
        super().connection_made(transport)
        state, most = self.server_state, self.limits.connections
        full = len(state.connections) > most and not state.close_longest_idle()
        state.idle[self] = None
        if full:
            self.refuse(too_many_connections(most))
        else:
            self._timer = self.loop.call_later(self.limits.idle_s, self._silent)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A complete head ends the deadline, the first byte of the next one starts another."""
        if self._kept is not None:  # the next request: it would be lost with this process, and the client not know it
            self._release()
        if self._read is not None:
            self._read += len(data)
        rest = self._parse(memoryview(data))
        if self._left is not None:
            self._left -= rest
            if self._left < 0:  # a client that sends more is cut
                self.transport.abort()
        elif self.cycle is not None and not self.cycle.response_complete:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._head_begun = False
            self.server_state.idle.pop(self, None)
        elif not self._head_begun and not self._upgraded:
            self._head_begun = True
            self._set_timer(self.limits.head_s, self._late)

    def _parse(self, data: memoryview) -> int:
        """Give data to the parser, and return how many bytes it was not given. It never sees more than a head may have:
        it has no bound, and the time for one long header grows with the square of its length. What is neither head nor
        body counts too: chunk sizes, their extensions and trailers."""
        most = self.limits.head_bytes
        while data and self._left is None and not self._upgraded and not self.transport.is_closing():
            piece, data = data[: most - self._dry], data[most - self._dry :]  # pieces are no copies
            cycle: Any = self.cycle
            size = 0 if cycle is None else len(cycle.body)
            super().data_received(piece)  # type: ignore[arg-type]
            came = self.cycle is not cycle or (cycle is not None and len(cycle.body) != size)
            self._dry = 0 if came else self._dry + len(piece)
            if self._dry >= most and self._left is None:
                self.refuse(head_too_large(most))
        return len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. Ends the deadline, and calls the watchers."""
        if self._timer is not None:
            self._timer.cancel()
        self.server_state.idle.pop(self, None)
        self.server_state.unread.pop(self, None)
        if self._slot is not None:
            self._release()
            self._give_up_slot()
        super().connection_lost(exc)
        watchers, self._watchers = self._watchers, []
        for on_disconnect in watchers:
            on_disconnect()

    def _set_timer(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        """Replace the deadline. None: there is none any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or then is None else self.loop.call_later(seconds, then)

    def _silent(self) -> None:
        self._timer = None
        self.transport.close()

    def _late(self) -> None:
        self._timer = None
        self.refuse(head_too_late(self.limits.head_s))

    # For uvicorn

    def on_response_complete(self) -> None:
        """See uvicorn. The connection waits for its next request."""
        if self._kept is not None:
            self._kept.end()
            self._release_when_sent(self._kept)
        if self.transport.get_write_buffer_size() > LONG_ANSWER:
            self.server_state.note_unread(self)
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.server_state.idle[self] = None

    def unread(self) -> int:
        """Bytes that the client has not taken."""
        return int(self.transport.get_write_buffer_size())

    def handle_websocket_upgrade(self, *args: Any) -> None:
        """See uvicorn. Another protocol takes over."""
        self._set_timer(None)
        self._upgraded = True
        self._give_up_slot()
        self.server_state.idle.pop(self, None)
        super().handle_websocket_upgrade(*args)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn. Answers in our own shape (A7)."""
        self.refuse(not_http())

    def _run_application(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The application of uvicorn: ours, with the extensions."""
        cycle: Any = send.__self__  # type: ignore[attr-defined]
        cycle_of = weakref.ref(cycle)  # a weak reference: the cycle has the scope, and the scope has these functions
        scope["extensions"] = extensions = {
            **scope.get("extensions", {}),
            "ninelives.abort": self.transport.abort,
            "ninelives.disconnect": self._watch,
            "ninelives.write": partial(write_piece, cycle_of),
        }
        if self.custody is not None:
            extensions["ninelives.keep"] = partial(self._keep, self.custody, cycle_of)
        if cycle.more_body:  # the answer may come before the rest of the body
            send = self._closing(cycle, send)
        else:
            extensions["ninelives.body"] = partial(take_body, cycle_of)
        app = self._application
        return (app.current if isinstance(app, StartingApp) else app)(scope, receive, WholeSend(cycle, send))

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

    def _watch(self, on_disconnect: Callable[[], None]) -> Callable[[], object]:
        """Call `on_disconnect` when the connection is lost, until the returned function is called."""
        if self.transport.is_closing():  # connection_lost has run, or will run without the client's doing
            on_disconnect()
            return lambda: None
        self._watchers.append(on_disconnect)
        return lambda: self._watchers.remove(on_disconnect) if on_disconnect in self._watchers else None

    # Clients that are kept

    def _keep(self, custody: Custody, cycle_of: Callable[[], Any], note: bytes) -> bool:
        """Keep this client until it has its answer: an extension of the ASGI scope. Call it before the head is sent.
        `note` is for the process that goes on. False: a crash cuts this client."""
        cycle: Any = cycle_of()
        transport = self.transport
        if cycle is None or cycle is not self.cycle or cycle.more_body or cycle.response_started or self.pipeline:
            return False
        sock = transport.get_extra_info("socket")
        if self.scheme != "http" or sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if transport.is_closing() or transport.get_write_buffer_size() or cycle.scope["http_version"] != "1.1":
            return False
        self._release()
        if self._slot is None:
            self._slot = custody.open(sock.fileno())
        try:
            base = written(sock.fileno())
        except OSError:  # the client is gone
            return False
        if self._slot is None or not custody.begin(self._slot, note, base, keep_alive=cycle.keep_alive):
            return False
        kept: Any = KeptTransport(cycle.transport, custody, self._slot)
        self._kept = cycle.transport = kept
        extensions: Any = cycle.scope["extensions"]
        extensions["ninelives.kept"] = _kept_stream(cycle_of, self._kept)
        return True

    def _release(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.release()

    def _give_up_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None and self.custody is not None:
            self.custody.release(slot)

    def _release_when_sent(self, kept: KeptTransport) -> None:
        if self._kept is not kept or self.transport.is_closing():  # connection_lost releases it
            return
        if self.transport.get_write_buffer_size() == 0:
            self._release()
            self._note_waiting()
        else:
            self.loop.call_later(SENT_S, self._release_when_sent, kept)

    def _note_waiting(self) -> None:
        """The connection waits for its next request. Where that has begun to come, a crash loses it."""
        if self.custody is None or self._slot is None or self._head_begun or self.pipeline or self._read is None:
            return
        self.custody.wait(self._slot, self._read)

    def adopt(self, slot: int, fd: int) -> None:
        """Go on with a connection of an earlier process, from its slot and its socket. Call it before the connection is
        made."""
        self._slot = slot
        try:
            self._read = consumed(fd)
        except OSError:  # the client is gone
            self._read = None

    def resume(self, left: LeftClient, app: ASGIApp) -> None:
        """Go on with the answer of a client that an earlier process left. `app` gets its note, and how it was left."""
        assert self.custody is not None
        self._set_timer(None)
        self.server_state.idle.pop(self, None)
        try:
            taken = written(left.sock.fileno()) - left.base
        except OSError:  # gone meanwhile
            taken = -1
        found = standing(left, taken)
        self.on_message_begin()
        scope: Any = self.scope
        scope.update(method="POST", path="", raw_path=b"", query_string=b"")
        scope["state"] = {"note": left.note}
        cycle: Any = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=left.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        if found == "begun":
            cycle.transport = self._kept = AdoptedTransport(self.transport, self.custody, left, taken)
        else:
            self._kept = KeptTransport(self.transport, self.custody, left.slot)
            cycle.transport = HeadFirst(cycle, self._kept)
        scope["extensions"] = {
            "ninelives.abort": self.transport.abort,
            "ninelives.disconnect": self._watch,
            "ninelives.kept": _kept_stream(weakref.ref(cycle), self._kept, found),
        }
        if found in ("begun", "anew"):
            self.cycle = cycle
            task = self.loop.create_task(cycle.run_asgi(app))
        else:
            task = self.loop.create_task(self._end_left(cycle, app, whole=found == "whole" and left.keep_alive))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _end_left(self, cycle: Any, app: ASGIApp, *, whole: bool) -> None:
        """Nothing is left to be sent, or nothing can be."""
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
        finally:
            self._release()
            if whole and not self.transport.is_closing():
                self.server_state.idle[self] = None
                self._timer = self.loop.call_later(self.limits.idle_s, self._silent)
            else:
                self.transport.abort()

    # The end of a connection

    def refuse(self, error: NinelivesError) -> None:
        """Answer for the application, and close. Where a response has begun, nothing can be said any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                return self.transport.abort()
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
        if self.transport.can_write_eof():  # TLS cannot close one direction
            self.transport.write_eof()
        self.flow.resume_reading()

    def give_way(self) -> None:
        """Close the connection, which is idle or lingers. What is written still goes out, if that takes no time."""
        if self._left is None or self.transport.get_write_buffer_size():
            self.transport.close()
            self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.abort()


def connection_class(limits: ConnectionLimits, custody: Custody | None = None) -> type[ClientConnection]:
    """The protocol class for uvicorn, with its bounds."""
    return type("ClientConnection", (ClientConnection,), {"limits": limits, "custody": custody})


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


def _kept_stream(cycle_of: Callable[[], Any], transport: KeptTransport, standing: Standing = "anew") -> KeptStream:
    return KeptStream(cycle_of, transport, partial(write_piece, cycle_of, kept=True), standing)


def take_body(cycle_of: Callable[[], Any]) -> bytes | None:
    """The body of a request that is here in full, as the receive() of uvicorn would give it, without a task's turn.
    None: the client is gone."""
    cycle = cycle_of()
    if cycle is None or cycle.disconnected:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.flow.resume_reading()
    return body


def write_piece(cycle_of: Callable[[], Any], data: bytes, *, kept: bool = False) -> bool:
    """Write a piece of the body of a request cycle of uvicorn at once, as its send() would; for a client that is kept,
    each frame is a chunk. Returns False where only send() can do it: before the head, after the end, while the socket
    is full, and for a long piece."""
    cycle = cycle_of()
    if cycle is None or cycle.flow.write_paused or cycle.disconnected:
        return False
    if cycle.response_complete or not cycle.chunked_encoding or len(data) > PIECE:
        return False
    if cycle.transport.is_closing():  # it broke and uvicorn does not know it yet: write() would raise
        return False
    cycle.transport.write(chunked(data) if kept else b"%x\r\n%b\r\n" % (len(data), data))
    return True

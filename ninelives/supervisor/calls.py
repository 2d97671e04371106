"""Model calls that outlive the server. Owns: connections to upstreams (dialling, TLS), passing bytes on in both
directions, and the bytes of each answer until the server has settled it. Refuses to know: HTTP, JSON and what is asked.

Theory of operation. A server sends one end of a socket pair. The supervisor dials, and joins both. Before each request
the server names the call. From then on the bytes of the answer are kept, beside being passed on. When the server dies,
the upstream goes on and its bytes are kept. The next server names the call, gets the answer from its first byte, and
skips what was told. A server that lives and closes a connection says so: that cancels the call."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CALL_BYTES = 8 * 1024 * 1024
"""Most bytes of one answer that are kept."""
ALL_BYTES = 64 * 1024 * 1024
"""Most bytes of all answers. Beyond it the oldest are not kept any more."""
UNCLAIMED_S = 60.0
"""How long an answer waits for the next server."""
NEXT_ADDRESS_S = 0.25
READ_BYTES = 64 * 1024
FULL_BYTES = 64 * 1024
"""A server that has so much to read yet slows its upstream."""
NAME_ERROR, TLS_ERROR, GONE = 10_001, 10_002, 2
"""Codes in place of an errno: the name is not known, TLS failed, the call is not held."""
ANSWER = struct.Struct("!i")
"""The first bytes on a socket pair: 0, or why there is no connection."""


Got = Callable[[bytes], None]
Full = Callable[[bool], None]
Gone = Callable[["SocketEnd"], None]


class UpstreamSide(asyncio.Protocol):
    """The end of a relay at the upstream."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._relay.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._relay.upstream_gone()


class SocketEnd:
    """An end of a relay that is a plain socket. It has what Relay needs of a transport of asyncio, and takes a third of
    its CPU: that is most of what a kept call costs."""

    def __init__(self, sock: socket.socket, got: Got, gone: Gone, full: Full) -> None:
        """`got` is given what is read. `gone` is called once, when the other side has closed, and after abort(). `full`
        is called with True when much waits to be written, and with False when that is over."""
        sock.setblocking(False)
        self._sock, self._fd = sock, sock.fileno()
        self._got, self._gone, self._full = got, gone, full
        self._loop = asyncio.get_running_loop()
        self._out = bytearray()
        self._ending = self._closed = False
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> bool:
        """Read once. False where there is nothing now."""
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if data:
            self._got(data)
        else:
            self.abort()
        return True

    def drain(self) -> None:
        """Read all that is there, and the end."""
        while not self._closed and self._read():
            continue

    def write(self, data: bytes) -> None:
        """Write now, or when the socket takes it."""
        if self._ending or self._closed:
            return
        if not self._out:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return self.abort()
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._fd, self._flush)
        was = len(self._out)
        self._out += data
        if was <= FULL_BYTES < len(self._out):
            self._full(True)

    def _flush(self) -> None:
        was = len(self._out)
        try:
            del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            return self.abort()
        if len(self._out) <= FULL_BYTES < was:
            self._full(False)
        if not self._out:
            self._loop.remove_writer(self._fd)
            if self._ending:
                self.abort()

    def pause_reading(self) -> None:
        """Read nothing for a while."""
        if not self._closed:
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Read on."""
        if not self._closed:
            self._loop.add_reader(self._fd, self._read)

    def is_closing(self) -> bool:
        """Nothing can be written any more."""
        return self._ending or self._closed

    def close(self) -> None:
        """Close when all is written."""
        self._ending = True
        if not self._out:
            self.abort()

    def abort(self) -> None:
        """Close now."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()
            self._loop.call_soon(self._gone, self)


class Relay:
    """One connection to an upstream, and the server that uses it."""

    def __init__(self, calls: Calls, number: tuple[int, int]) -> None:
        self._calls = calls
        self.number = number
        """The pid of its server, and what that server calls it."""
        self.call = ""
        self.due = 0
        """How much of the request is to come yet."""
        self.kept: list[bytes] = []
        self.size = 0
        self.server: SocketEnd | None = None
        self.upstream: asyncio.Transport | SocketEnd | None = None
        self.ended = False

    def begin(self, call: str, size: int) -> None:
        """The next bytes of the upstream are the answer of this call, whose request has `size` bytes."""
        self.forget()
        self.call, self.due = call, size

    def forget(self) -> None:
        """Keep nothing of the answer."""
        self._calls.held_bytes -= self.size
        self.call, self.kept, self.size = "", [], 0

    def answered(self, data: bytes) -> None:
        """Bytes of the upstream."""
        if self.call:
            self.kept.append(data)
            self.size += len(data)
            self._calls.grew(self, len(data))
        if self.server is not None:
            self.server.write(data)

    def asked(self, data: bytes) -> None:
        """Bytes of the server. What it said on its line before them counts first: it named the call there."""
        self._calls.listen()
        self.due -= len(data)
        if self.upstream is not None:
            self.upstream.write(data)

    def hold(self, pause: bool) -> None:
        """Stop reading from the upstream, or go on."""
        if self.upstream is not None and not self.upstream.is_closing():
            self.upstream.pause_reading() if pause else self.upstream.resume_reading()

    def hold_server(self, pause: bool) -> None:
        """Stop reading requests of the server, or go on."""
        if self.server is not None:
            self.server.pause_reading() if pause else self.server.resume_reading()

    def upstream_gone(self, _: object = None) -> None:
        """The upstream closed the connection. What it sent is still passed on."""
        self.ended, self.upstream = True, None
        if self.server is not None:
            self.server.close()

    def join(self, sock: socket.socket) -> SocketEnd:
        """The socket of a server as an end of this relay."""
        return SocketEnd(sock, self.asked, self.server_gone, self.hold)

    def server_gone(self, side: SocketEnd) -> None:
        """The server closed its end, or died. Who died did not say that it drops the call."""
        if side is not self.server:
            return
        self.server = None
        if self.call and self.due <= 0:
            self.hold(False)
            asyncio.get_running_loop().call_later(UNCLAIMED_S, self._unclaimed, self.number)
        else:
            self.close()

    def _unclaimed(self, number: tuple[int, int]) -> None:
        if self.server is None and self.number == number:
            self.close()

    def attach(self, side: SocketEnd, number: tuple[int, int]) -> None:
        """A new server takes the call: it gets the answer from its first byte."""
        old, self.server, self.number = self.server, side, number
        if old is not None:
            old.abort()
        self.hold(False)
        side.write(ANSWER.pack(0) + b"".join(self.kept))
        if self.ended:
            side.close()

    def close(self) -> None:
        """End both sides, and forget the answer."""
        self.forget()
        self._calls.relays.pop(self.number, None)
        for end in (self.upstream, self.server):
            if end is not None:
                end.abort()


class Calls:
    """All relays of a supervisor."""

    def __init__(self, listen: Callable[[], None]) -> None:
        """`listen` reads all that servers have said on their lines."""
        self.listen = listen
        self.relays: dict[tuple[int, int], Relay] = {}
        self.held_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: Any = None  # ssl.SSLContext: imported where it is used

    def held(self) -> list[str]:
        """The calls whose answers are kept. Their server is gone: one whose request did not come as a whole was not
        asked, and is closed."""
        for relay in [each for each in self.relays.values() if each.call and each.due > 0]:
            if relay.server is not None:
                relay.server.drain()
            if relay.due > 0:
                relay.close()
        return [relay.call for relay in self.relays.values() if relay.call]

    def grew(self, relay: Relay, size: int) -> None:
        """Keep within the bounds. A call that is not kept any more is one that a crash repeats."""
        self.held_bytes += size
        if relay.size > CALL_BYTES:
            self._let_go(relay)
        while self.held_bytes > ALL_BYTES:
            self._let_go(next(each for each in self.relays.values() if each.call))

    def _let_go(self, relay: Relay) -> None:
        if relay.server is None:
            relay.close()
        else:
            relay.forget()

    def obey(self, pid: int, message: dict[str, Any], fds: list[int]) -> None:
        """Do what a server asks."""
        if "dial" in message or "again" in message:
            self._spawn(pid, message, socket.socket(fileno=fds[0]))
        elif "begin" in message:
            self._begin((pid, message["begin"]), message["call"], message["size"])
        elif "drop" in message:
            relay = self.relays.get((pid, message["drop"]))
            if relay is not None:
                relay.close()
        elif "settle" in message:
            for relay in [each for each in self.relays.values() if each.call == message["settle"]]:
                relay.close() if relay.server is None else relay.forget()

    def _begin(self, number: tuple[int, int], call: str, size: int) -> None:
        for other in [each for each in self.relays.values() if call and each.call == call]:
            self._let_go(other)  # the call is made anew: the first answer is void
        if number in self.relays:
            self.relays[number].begin(call, size)

    def _spawn(self, pid: int, message: dict[str, Any], sock: socket.socket) -> None:
        work = self._dial(pid, message["dial"], sock) if "dial" in message else self._again(pid, message["again"], sock)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, pid: int, wish: dict[str, Any], sock: socket.socket) -> None:
        loop, relay = asyncio.get_running_loop(), Relay(self, (pid, wish["number"]))
        try:
            async with asyncio.timeout(wish["limit_s"]):
                transport, _ = await loop.create_connection(
                    lambda: UpstreamSide(relay),
                    wish["host"],
                    wish["port"],
                    ssl=self._context() if wish["tls_name"] else None,
                    server_hostname=wish["tls_name"] or None,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                )
        except (OSError, TimeoutError) as error:
            return _refuse(sock, error)
        dialled = transport.get_extra_info("socket")
        with suppress(OSError):
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        relay.upstream = transport
        if not wish["tls_name"]:
            try:
                own = socket.socket(fileno=os.dup(dialled.fileno()))
            except OSError as error:  # the upstream has closed it already
                return _refuse(sock, error)
            transport.set_protocol(asyncio.Protocol())  # it closes its own descriptor, and says so to nobody
            transport.abort()
            relay.upstream = SocketEnd(own, relay.answered, relay.upstream_gone, relay.hold_server)
        self.relays[relay.number] = relay
        relay.server = relay.join(sock)
        relay.server.write(ANSWER.pack(0))

    async def _again(self, pid: int, wish: dict[str, Any], sock: socket.socket) -> None:
        relay = next((each for each in self.relays.values() if each.call == wish["call"]), None)
        if relay is None or relay.number[0] == pid:  # gone, or this server has it already
            return _refuse(sock, OSError(GONE, "the call is not held"))
        self.relays.pop(relay.number, None)
        number = (pid, wish["number"])
        self.relays[number] = relay
        relay.attach(relay.join(sock), number)

    def _context(self) -> Any:
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
        return self._tls


def _refuse(sock: socket.socket, error: OSError | TimeoutError) -> None:
    code = error.errno or 5
    if isinstance(error, TimeoutError):
        code = 110
    elif isinstance(error, socket.gaierror):
        code = NAME_ERROR
    elif type(error).__module__ == "ssl":
        code = TLS_ERROR
    with sock, suppress(OSError):
        sock.send(ANSWER.pack(code))

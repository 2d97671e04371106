"""HTTP/1.1 connections to an upstream. Owns: its address, connecting (name lookup, the fastest of several addresses,
TLS), idle connections, sending a request, status, headers and body of the answer, when an answer is whole, and whether
the connection can be used again. Refuses to know: what is asked, and who reads.

Theory of operation. httptools (llhttp, the parser of Node) parses; this class keeps what it says. A read is parsed in
the callback of the socket, which then calls the news of whoever waits, once. So a reader can take a token without being
woken. Bytes that nobody reads are kept up to a bound; past it, reading from the socket stops."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self, cast
from urllib.parse import quote, unquote, urlsplit

import httptools
from aiohappyeyeballs import AddrInfoType, start_connection
from msgspec import Struct

from ninelives.models.chunks import UpstreamFailed, cut_error, garbage_error
from ninelives.models.net.kept import ConnectionHolder, KeptMemory

READ_BYTES = 256 * 1024
"""Most bytes of one read."""
HELD = 131_072
"""Unread bytes of a body at which reading from the socket stops."""
PIECES = 4096
"""Unread pieces of a body at which reading stops: small pieces cost more memory than their bytes."""
DRY = 65_536
"""Most bytes in a row without a byte of body. Longer headers or trailers are refused."""
NO_BODY = (204, 304)
KEEP_S = 15.0
"""How long an idle connection is kept."""
NAMES_S = 10.0
"""How long the addresses of a name are cached."""
NEXT_ADDRESS_S = 0.25
"""How long one address is tried alone before the next is tried too (RFC 8305)."""
SAFE = "/%:@!$&'()*+,;=~"


News = Callable[[], None]
"""A read was parsed, or the answer failed or ended. May be called again after the wait is over; must not raise."""


def _wake(waiter: asyncio.Future[None], error: Exception | None = None) -> None:
    if not waiter.done():
        waiter.set_result(None) if error is None else waiter.set_exception(error)


_SHARED = memoryview(bytearray(READ_BYTES))
"""For all connections of a process that are not kept: one read is parsed before the next begins."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection. It carries one request at a time."""

    __slots__ = (
        "_asked",
        "_dry",
        "_lost",
        "_memory",
        "_parser",
        "_paused",
        "_pieces",
        "_sized",
        "_transport",
        "begun",
        "ended",
        "failure",
        "headers",
        "news",
        "reusable",
        "status",
    )

    def __init__(self, lost: Callable[[UpstreamConnection], None], memory: KeptMemory | None = None) -> None:
        """`lost` is called once, when the connection has ended. `memory` is where its bytes are read into, if they are
        kept."""
        self._lost = lost
        self._memory = memory
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._asked = False
        self.reusable = False
        """True where the answer is whole and another request may follow."""
        self._paused = False
        self.news: News | None = None
        """Called at each read since the head is there, and at a failure or end."""
        self._begin()

    def _begin(self) -> None:
        self.begun = False
        """True once status and headers are there."""
        self._sized = False
        self._dry = 0
        self._pieces: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.ended = False
        """True once the whole body has arrived."""
        self.failure: UpstreamFailed | None = None
        """Why the answer is not whole. Bytes that arrived before can still be read."""

    # For the caller

    def ask(self, *request: bytes | memoryview) -> None:
        """Send a request, in pieces: a large body is not copied. The answer before it must be whole."""
        self._begin()
        if self._transport is None or self._transport.is_closing():
            self.failure = cut_error()
            return
        self._asked, self.reusable = True, False
        self._transport.writelines(request)

    def expect(self, begun: memoryview) -> None:
        """An answer comes that an earlier process asked for. `begun`: the bytes that it has read. Call it before the
        connection is made."""
        self._asked = True
        self.data_received(begun)

    async def head(self, limit_s: float) -> None:
        """Wait until status and headers are there. Raises UpstreamFailed, and TimeoutError after `limit_s`."""
        by = asyncio.get_running_loop().time() + limit_s
        while not self.begun and self.failure is None:
            await self._wait_until(by)
        if self.failure is not None and not self.begun:
            raise self.failure

    async def more(self, limit_s: float) -> bytes:
        """The next bytes of the body, b"" at its end. Raises as head() does."""
        by = asyncio.get_running_loop().time() + limit_s
        while not self._pieces and not self.ended and self.failure is None:
            await self._wait_until(by)
        if self.failure is not None and not self._pieces:
            raise self.failure
        return self.read()

    async def _wait_until(self, by: float) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        timer = loop.call_at(by, _wake, woken, TimeoutError())
        self.news = partial(_wake, woken)
        try:
            await woken
        finally:
            self.news = None
            timer.cancel()

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.strip().decode("latin-1")

    def read(self) -> bytes:
        """All unread bytes of the body; b"" where there are none."""
        pieces = self._pieces
        if not pieces:
            return b""
        self._pieces = []
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def hang_up(self) -> None:
        """Close the connection and fail its answer, unless it is whole. May be called twice."""
        self._fail(cut_error())

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return _SHARED if self._memory is None else self._memory.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self.data_received(_SHARED[:nbytes] if self._memory is None else self._memory.filled(nbytes))

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse one read."""
        if self._parser is None or self.failure is not None:
            return
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(garbage_error("something that is not HTTP"))
        if self._dry > DRY and not self.ended:
            self._fail(garbage_error(f"more than {DRY} bytes of headers"))
        if self.news is not None and self.begun:
            self.news()
        if self._pieces and not self._paused and self._transport is not None:
            self._paused = len(self._pieces) > PIECES or sum(map(len, self._pieces)) > HELD
            if self._paused:
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """See asyncio. The connection is lost in the next turn of the loop; nobody may take it for use before that."""
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. An answer without a length is whole now; any other failed unless it was whole."""
        self._transport = self._parser = None  # the parser refers to this object: break the cycle
        self.reusable = False
        if self.begun and not self._sized and self.failure is None and exc is None:
            self.ended, self._asked = True, False
        else:
            self._fail(cut_error())
        if self.news is not None:
            self.news()
        self._lost(self)

    def _fail(self, failure: UpstreamFailed) -> None:
        """Close the connection. An answer that is whole does not fail any more."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
        if not self.ended and self.failure is None:
            self.failure = failure
            if self.news is not None:
                self.news()

    # For the parser

    def on_message_begin(self) -> None:
        """See httptools. An answer that nobody asked for is an error."""
        if not self._asked:
            raise ValueError("nobody asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools. Trailers are ignored."""
        if not self.begun:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """See httptools. Interim answers (1xx) are ignored."""
        parser = self._parser
        status = parser.get_status_code() if parser is not None else 0
        if 100 <= status < 200:
            self.headers = {}
            return
        headers = self.headers
        chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self._sized = chunked or b"content-length" in headers or status in NO_BODY
        self.status, self.begun, self._dry = status, True, 0

    def on_body(self, body: bytes) -> None:
        """See httptools. Interim answers have no body."""
        if self.begun:
            self._dry = 0
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """See httptools. Without a request that was sent in full, no other can follow it."""
        parser, transport = self._parser, self._transport
        if self.begun and parser is not None:
            written = transport is not None and not transport.get_write_buffer_size()
            self.reusable = parser.should_keep_alive() and written
            self.ended, self._asked = True, False


class Origin(Struct, frozen=True):
    """The address of an upstream."""

    tls: bool
    host: str
    port: int
    authority: str
    """The value of the Host header."""
    path: str
    query: str
    login: str
    """Basic credentials from the URL; empty where there are none."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError if it is not an HTTP URL."""
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("not an HTTP URL")
        tls = parts.scheme == "https"
        host = host.encode("idna").decode()  # raises where getaddrinfo would
        shown = f"[{host}]" if ":" in host else host
        port = parts.port or (443 if tls else 80)
        authority = shown if parts.port is None else f"{shown}:{port}"
        path = quote(parts.path.rstrip("/"), SAFE)
        query = f"?{quote(parts.query, SAFE + '?')}" if parts.query else ""
        user = unquote(parts.netloc.rpartition("@")[0])
        login = base64.b64encode((user if ":" in user or not user else f"{user}:").encode()).decode()
        return cls(tls, host, port, authority, path, query, login)

    def request(self, method: str, place: str, headers: dict[str, str]) -> bytes:
        """The head of a request without its empty line. Raises ValueError where a header has a line break."""
        lines = [f"{method} {self.path}{place}{self.query} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.login and "Authorization" not in headers:
            lines.append(f"Authorization: Basic {self.login}")
        if any("\r" in line or "\n" in line or "\0" in line for line in lines):
            raise ValueError("a header of more than one line")
        return "".join(f"{line}\r\n" for line in lines).encode()


class Pool:
    """Connections to one origin. Their number has no limit here, because runs are limited."""

    def __init__(self, origin: Origin, connect_s: float, holder: ConnectionHolder | None = None) -> None:
        self.origin = origin
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if origin.tls and holder is None else None
        self._holder = holder
        self._kept: dict[UpstreamConnection, KeptMemory] = {}
        self._open: set[UpstreamConnection] = set()
        self._idle: list[tuple[UpstreamConnection, float]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._looking = asyncio.Lock()
        self._found: list[AddrInfoType] = []
        self._found_at = 0.0
        self._closed = False

    async def connection(self, limit_s: float) -> UpstreamConnection:
        """An idle connection, or a new one. Raises OSError (TimeoutError is one)."""
        return self.idle() or await self._dial(min(limit_s, self._connect_s))

    def idle(self) -> UpstreamConnection | None:
        """An idle connection, if there is one."""
        now = asyncio.get_running_loop().time() if self._idle else 0.0
        for place in range(len(self._idle) - 1, -1, -1):
            connection, since = self._idle[place]
            if connection in self._kept and self._kept[connection].call:
                continue  # its last answer is not committed yet: the next one would take its memory
            del self._idle[place]
            if connection.reusable and now - since < KEEP_S:
                return connection
            connection.hang_up()
        return None

    def begin(self, connection: UpstreamConnection, call: str, size: int) -> None:
        """The next request on the connection, of `size` bytes, is this call."""
        if self._holder is not None and connection in self._kept:
            self._holder.begin(self._kept[connection], call, size)

    async def again(self, call: str) -> UpstreamConnection:
        """A connection on which the answer of a held call comes from its beginning. Raises OSError."""
        assert self._holder is not None
        sock, memory = self._holder.again(call)
        connection = UpstreamConnection(self._lost, memory)
        self._kept[connection] = memory
        self._open.add(connection)
        connection.expect(memory.kept())
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
        except BaseException:
            self._lost(connection)
            raise
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request, or close it where it cannot be used again. An upstream whose answer
        was not read to its end can then stop."""
        if self._closed or not connection.reusable or connection not in self._open:
            connection.hang_up()
            return
        connection.read()  # unread bytes would stop the socket, and with it the next answer
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_S, self._sweep)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.hang_up()
        await asyncio.sleep(0)  # the event loop closes sockets in its next turn

    async def _dial(self, limit_s: float) -> UpstreamConnection:
        async with asyncio.timeout(limit_s):
            dialled = await self._dialled(limit_s)
            connection = await self._greeted(dialled)
        self._open.add(connection)
        return connection

    async def _dialled(self, limit_s: float) -> socket.socket:
        if self._holder is not None and self.origin.tls:
            return await self._holder.dial(self.origin.host, self.origin.port, self.origin.host.rstrip("."), limit_s)
        return await start_connection(await self._addresses(), happy_eyeballs_delay=NEXT_ADDRESS_S)

    async def _greeted(self, dialled: socket.socket) -> UpstreamConnection:
        name = self.origin.host.rstrip(".") if self._tls is not None else None
        connect = asyncio.get_running_loop().create_connection
        memory: KeptMemory | None = self._holder.keep(dialled) if self._holder is not None else None
        connection = UpstreamConnection(self._lost, memory)
        if memory is not None:
            self._kept[connection] = memory
        try:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await connect(lambda: connection, sock=dialled, ssl=self._tls, server_hostname=name)
            return connection
        except BaseException:
            # The loop owns the socket and closes it. Closing it here would leave its number registered for another.
            with suppress(OSError):
                dialled.shutdown(socket.SHUT_RDWR)
            self._lost(connection)
            raise

    async def _addresses(self) -> list[AddrInfoType]:
        """The addresses of the name. Concurrent callers share one lookup."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if not self._found or loop.time() - self._found_at > NAMES_S:
                host, port = self.origin.host, self.origin.port
                self._found = list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
                self._found_at = loop.time()
            return self._found

    def _lost(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        memory = self._kept.pop(connection, None)
        if self._holder is not None and memory is not None:
            self._holder.closed(memory, whole=connection.ended)  # a whole answer stays until its message is committed

    def _sweep(self) -> None:
        """Close connections that were idle too long."""
        loop = asyncio.get_running_loop()
        old = loop.time() - KEEP_S
        for connection, since in self._idle:
            if since <= old:
                connection.hang_up()
        self._idle = [(connection, since) for connection, since in self._idle if since > old and connection.reusable]
        self._sweeping = loop.call_at(self._idle[0][1] + KEEP_S, self._sweep) if self._idle else None

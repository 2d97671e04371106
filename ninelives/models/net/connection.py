"""One HTTP/1.1 connection to an upstream, and the one answer that is on it. Owns: sending a request, status, headers
and body of the answer, when an answer is whole, and whether the connection can be used again. Refuses to know: what is
asked, who reads, and where connections come from (pool.py).

Theory of operation. httptools (llhttp, the parser of Node) parses; this class keeps what it says. A read is parsed in
the callback of the socket, which then calls `Waiter.news` once. So a reader can take a token without being woken.
Bytes that nobody reads are kept up to a bound; past it, reading from the socket stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from ninelives.models.chunks import UpstreamFailed, cut_error, garbage_error

HELD = 131_072
"""Unread bytes of a body at which reading from the socket stops."""
PIECES = 4096
"""Unread pieces of a body at which reading stops: small pieces cost more memory than their bytes."""
DRY = 65_536
"""Most bytes in a row without a byte of body. Longer headers or trailers are refused."""
NO_BODY = (204, 304)


class Waiter(Protocol):
    """Whoever waits for a connection. See UpstreamConnection.wait."""

    def news(self) -> None:
        """A read was parsed, or the answer failed or ended. May be called again after the wait is over; must not
        raise."""
        ...


class _TimedWaiter:
    """Is woken by the first news, with TimeoutError after `limit_s`."""

    __slots__ = ("timer", "woken")

    def __init__(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.woken = loop.create_future()
        self.timer = loop.call_later(max(limit_s, 0.0), self._expire)

    def news(self) -> None:
        """See Waiter.news."""
        if not self.woken.done():
            self.woken.set_result(None)

    def _expire(self) -> None:
        if not self.woken.done():
            self.woken.set_exception(TimeoutError())


class UpstreamConnection(asyncio.Protocol):
    """A connection. It carries one request at a time."""

    __slots__ = (
        "_asked",
        "_begun",
        "_dry",
        "_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_sized",
        "_transport",
        "_waiter",
        "ended",
        "failure",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self, lost: Callable[[UpstreamConnection], None]) -> None:
        """`lost` is called once, when the connection has ended."""
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._asked = False
        self.reusable = False
        """True where the answer is whole and another request may follow."""
        self._paused = False
        self._waiter: Waiter | None = None
        self._begin()

    def _begin(self) -> None:
        self._begun = False
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

    def ask(self, request: bytes) -> None:
        """Send a request. The answer before it must be whole."""
        self._begin()
        if self._transport is None or self._transport.is_closing():
            self.failure = cut_error()
            return
        self._asked, self.reusable = True, False
        self._transport.write(request)

    async def head(self, limit_s: float) -> None:
        """Wait until status and headers are there. Raises UpstreamFailed, and TimeoutError after `limit_s`."""
        by = asyncio.get_running_loop().time() + limit_s
        while not self._begun and self.failure is None:
            await self._wait_until(by)
        if self.failure is not None and not self._begun:
            raise self.failure

    async def more(self, limit_s: float) -> bytes:
        """The next bytes of the body, b"" at its end. Raises as head() does."""
        by = asyncio.get_running_loop().time() + limit_s
        while not self._pieces and not self.ended and self.failure is None:
            await self._wait_until(by)
        if self.failure is not None and not self._pieces:
            raise self.failure
        return self.read()

    async def wait(self, waiter: Waiter, woken: asyncio.Future[None]) -> None:
        """Await `woken`. Until then `waiter.news()` is called at each read and at a failure or end. One at a time."""
        self._waiter = waiter
        try:
            await woken
        finally:
            self._waiter = None

    async def _wait_until(self, by: float) -> None:
        waiter = _TimedWaiter(by - asyncio.get_running_loop().time())
        try:
            await self.wait(waiter, waiter.woken)
        finally:
            waiter.timer.cancel()

    def _tell_waiter(self) -> None:
        if self._waiter is not None:
            self._waiter.news()

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

    def data_received(self, data: bytes) -> None:
        """See asyncio. Parses one read."""
        if self._parser is None or self.failure is not None:
            return
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(garbage_error("something that is not HTTP"))
        if self._dry > DRY and not self.ended:
            self._fail(garbage_error(f"more than {DRY} bytes of headers"))
        if self._waiter is not None:
            self._waiter.news()
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
        if self._begun and not self._sized and self.failure is None and exc is None:
            self._end()
        else:
            self._fail(cut_error())
        self._tell_waiter()
        self._lost(self)

    def _fail(self, failure: UpstreamFailed) -> None:
        """Close the connection. An answer that is whole does not fail any more."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
        if not self.ended and self.failure is None:
            self.failure = failure
            self._tell_waiter()

    def _end(self) -> None:
        self.ended = True
        self._asked = False

    # For the parser

    def on_message_begin(self) -> None:
        """See httptools. An answer that nobody asked for is an error."""
        if not self._asked:
            raise ValueError("nobody asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools. Trailers are ignored."""
        if not self._begun:
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
        self.status, self._begun, self._dry = status, True, 0

    def on_body(self, body: bytes) -> None:
        """See httptools. Interim answers have no body."""
        if self._begun:
            self._dry = 0
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """See httptools. Without a request that was sent in full, no other can follow it."""
        parser, transport = self._parser, self._transport
        if self._begun and parser is not None and transport is not None:
            self.reusable = parser.should_keep_alive() and not transport.get_write_buffer_size()
            self._end()

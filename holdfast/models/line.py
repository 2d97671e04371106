"""One connection to an upstream, and the one answer that is on it. Owns: HTTP/1.1 as far as a caller needs it (a
request out, status, headers and body in), when an answer is whole, and whether the connection can be used again.
Refuses to know: what is asked, who reads, and where connections come from (pool.py).

Theory of operation. httptools parses (llhttp, the parser that Node uses); this class keeps what it says. A read is
parsed in the callback of the socket, and `ear` is called once for it, so that whoever reads need not be woken for a
token. What is not read is held up to a bound, then the socket is not read either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from holdfast.models.chunks import UpstreamFailed, cut, garbage

HELD = 131_072
"""Bytes of a body that wait for a reader before the socket is left alone."""
PIECES = 4096
"""Pieces of a body that wait: small ones cost more than their bytes."""
DRY = 65_536
"""Bytes without a byte of body: a head, or trailers, of more are no HTTP."""
NO_BODY = (204, 304)


class Line(asyncio.Protocol):
    """A connection."""

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
        "ear",
        "ended",
        "failure",
        "headers",
        "keeps",
        "status",
    )

    def __init__(self, lost: Callable[[Line], None]) -> None:
        """`lost` is called when the connection has ended."""
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._asked = False
        self.keeps = False
        """Can it be used again?"""
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._begun = False
        self._sized = False
        self._dry = 0
        self._pieces: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.ended = False
        """The whole body has come."""
        self.failure: UpstreamFailed | None = None
        """What became of it else; bytes that came before can still be read."""
        self.ear: Callable[[], None] | None = None
        """Called when there is news of the body."""

    # the caller's side

    def ask(self, request: bytes) -> None:
        """Send a request. One at a time."""
        self._begin()
        if self._transport is None or self._transport.is_closing():
            self.failure = cut()
            return
        self._asked, self.keeps = True, False
        self._transport.write(request)

    async def head(self, limit_s: float) -> None:
        """Wait until status and headers are there. Raises UpstreamFailed, and TimeoutError after `limit_s`."""
        if not self._begun and self.failure is None:
            await self._wait(limit_s)
        if self.failure is not None and not self._begun:
            raise self.failure

    async def more(self, limit_s: float) -> bytes:
        """What comes next of the body, b"" at its end; for whoever has no ear. Raises as head() does."""
        self.ear = self._wake
        now = asyncio.get_running_loop().time
        by = now() + limit_s
        while not self._pieces and not self.ended and self.failure is None:
            await self._wait(by - now())
        if self.failure is not None and not self._pieces:
            raise self.failure
        return self.read()

    async def _wait(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(max(limit_s, 0.0), _late, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def header(self, name: bytes) -> str | None:
        """A header by its name in small letters."""
        value = self.headers.get(name)
        return None if value is None else value.strip().decode("latin-1")

    def read(self) -> bytes:
        """All of the body that has come and was not read."""
        pieces = self._pieces
        if not pieces:
            return b""
        self._pieces = []
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def hang_up(self) -> None:
        """Whoever speaks there need not go on; whoever waits is told. May be called twice."""
        self._fail(cut())

    # the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """One read, parsed to its end."""
        if self._parser is None or self.failure is not None:
            return
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(garbage("something that is not HTTP"))
        if self._dry > DRY and not self.ended:
            self._fail(garbage(f"more than {DRY} bytes of headers"))
        if self.ear is not None:
            self.ear()
        if self._pieces and not self._paused and self._transport is not None:
            self._paused = len(self._pieces) > PIECES or sum(map(len, self._pieces)) > HELD
            if self._paused:
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """The connection ends; it is lost in the loop's next turn, and may not be taken for use before that."""
        self.keeps = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer ends here, whole or not."""
        self._transport = self._parser = None  # the parser knows us: a cycle
        self.keeps = False
        if self._begun and not self._sized and self.failure is None and exc is None:
            self._end()
        else:
            self._fail(cut())
        if self.ear is not None:
            self.ear()
        self._lost(self)

    def _fail(self, failure: UpstreamFailed) -> None:
        """An answer that is whole cannot fail any more; only the connection can."""
        self.keeps = False
        if self._transport is not None:
            self._transport.abort()
        if not self.ended and self.failure is None:
            self.failure = failure
            self._wake()

    def _end(self) -> None:
        self.ended = True
        self._asked = False
        self._wake()

    # the parser's side

    def on_message_begin(self) -> None:
        """An answer begins: to no request, where the last one has been answered."""
        if not self._asked:
            raise ValueError("nobody asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if not self._begun:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is whole; what only announces another is passed over."""
        parser = self._parser
        status = parser.get_status_code() if parser is not None else 0
        if 100 <= status < 200:
            self.headers = {}
            return
        headers = self.headers
        chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self._sized = chunked or b"content-length" in headers or status in NO_BODY
        self.status, self._begun, self._dry = status, True, 0
        self._wake()

    def on_body(self, body: bytes) -> None:
        """A piece of the body; what only announces an answer has none."""
        if self._begun:
            self._dry = 0
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The body is whole. Where the request is not, nothing can be asked behind it."""
        parser, transport = self._parser, self._transport
        if self._begun and parser is not None and transport is not None:
            self.keeps = parser.should_keep_alive() and not transport.get_write_buffer_size()
            self._end()


def _late(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())

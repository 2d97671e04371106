"""An upstream of raw bytes for the tests of the client. Owns: its end of each connection, on which a test says what it
likes, and a wire without sockets, on which every read is cut where the test wants it."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from ninelives.models.net.connection import Origin, Pool, UpstreamConnection

DEADLINE = 20.0
"""Seconds for a whole test; only one that hangs comes near."""
SOON = 5.0
"""The limit of a wait that is not about time."""
GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """The upstream's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.closed = asyncio.Event()
        """Nothing more is read: whoever serves it has ended."""

    async def request(self) -> bytes:
        """One request, whole."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return head + await self._reader.readexactly(int(length[1]) if length else 0)

    def say(self, data: bytes) -> None:
        if not self._writer.is_closing():  # uvloop raises
            self._writer.write(data)

    async def flood(self, data: bytes) -> int:
        """The same again until the client hangs up; how many bytes it took."""
        said = 0
        with suppress(ConnectionError):
            while not self._reader.at_eof():
                self._writer.write(data)
                await self._writer.drain()
                said += len(data)
        return said

    def hang_up(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Hang up as a machine does that knows of no connection."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        with suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass


Serve = Callable[[Peer], Awaitable[None]]


class Raw:
    """A server: `peer()` is the next connection, or `serve` is run for each."""

    def __init__(self, serve: Serve | None = None) -> None:
        self.port = 0
        self.peers: list[Peer] = []
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def peer(self) -> Peer:
        return await self._new.get()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self._writers.append(writer)
        if self._serve is None:
            self._new.put_nowait(peer)
        else:
            self._tasks.add(asyncio.get_running_loop().create_task(self._served(peer, self._serve)))

    async def _served(self, peer: Peer, serve: Serve) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(peer)
        peer.hang_up()
        peer.closed.set()

    async def open(self, tls: ssl.SSLContext | None) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)
        for end in ends:
            if isinstance(end, Exception):
                raise end


@asynccontextmanager
async def raw(serve: Serve | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    """A server, and the deadline of the test."""
    async with asyncio.timeout(DEADLINE):
        made = Raw(serve)
        server = await made.open(tls)
        try:
            yield made
        finally:
            server.close()
            await made.close()
            await server.wait_closed()
            await asyncio.sleep(0)


def answers(*each: bytes) -> Serve:
    """One answer for each request of a connection, in turn; the last one again for all that follow."""

    async def serve(peer: Peer) -> None:
        left = list(each)
        while True:
            await peer.request()
            peer.say(left.pop(0) if len(left) > 1 else left[0])

    return serve


class Wire(asyncio.Transport):
    """A transport that a test is the other end of: what is said and done on it is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []
        self.reading, self.closing = True, False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.said.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def wired() -> tuple[UpstreamConnection, Wire]:
    """A line that has asked, without a socket."""
    line, wire = UpstreamConnection(lambda line: None), Wire()
    line.connection_made(wire)
    line.ask(GET)
    return line, wire


async def rest(line: UpstreamConnection) -> bytes:
    """The body up to its end."""
    pieces = []
    while piece := await line.more(SOON):
        pieces.append(piece)
    return b"".join(pieces)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - the condition lives where no event is
            await asyncio.sleep(0.002)


@asynccontextmanager
async def pool_to(url: str, connect_s: float = SOON) -> AsyncIterator[Pool]:
    pool = Pool(Origin.of(url), connect_s)
    try:
        yield pool
    finally:
        await pool.close()
        await asyncio.sleep(0)


async def idle(up: Raw, pool: Pool) -> tuple[UpstreamConnection, Peer]:
    """A line that was used and given back, and its other end."""
    line = await pool.connection(SOON)
    line.ask(GET)
    peer = await up.peer()
    peer.say(OK)
    assert await rest(line) == b"ok"
    pool.give_back(line)
    return line, peer


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that answers nothing."""
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (one, two):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()

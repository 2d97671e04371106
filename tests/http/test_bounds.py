"""Rules for connections: how many there are, who gives way, and how one ends. Each test runs a real server on a
socket."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from ninelives.app.descriptors import MOST, connections_within, raise_limit
from ninelives.http.edge import server
from ninelives.http.edge.connection import LINGER_BYTES, ConnectionLimits, ConnectionState, connection_class

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
PATIENCE_S = 60.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Any]


class App:
    """Answers GET /x when `free` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.asked = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.release()
        await self.free.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: Any, **limits: Any) -> AsyncIterator[Connect]:
    """Yields a function that connects."""
    bounds = ConnectionLimits(**limits)
    made: dict[str, Any] = {"http": connection_class(bounds), "ws": server._websocket}
    config = uvicorn.Config(app, lifespan="off", proxy_headers=False, log_config=None, **made)
    config.load()
    state = ConnectionState(bounds.unread_bytes)
    protocol: Any = config.http_protocol_class
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = listening.sockets[0].getsockname()[1]
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(PATIENCE_S):
            yield connect
    finally:
        for writer in opened:
            writer.transport.abort()
        listening.close()
        for connection in list(state.connections):
            connection.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), head.lower(), await reader.readexactly(length)


async def test_the_connection_that_is_idle_for_longest_gives_way_to_a_new_one() -> None:
    app = App()
    app.free.set()
    async with serving(app, connections=2) as connect:
        used, first, second = await connect(), await connect(), None
        used[1].write(GET)
        assert (await answer(used[0]))[0] == 200  # so it has been idle for less time than `first`
        second = await connect()
        assert await first[0].read() == b""
        for reader, writer in (used, second):
            writer.write(GET)
            assert (await answer(reader))[0] == 200


async def test_too_many_connections_is_503_where_none_is_idle() -> None:
    app = App()
    async with serving(app, connections=2) as connect:
        busy = [await connect(), await connect()]
        for _, writer in busy:
            writer.write(GET)
            await app.asked.acquire()
        late = await connect()
        late[1].write(GET)
        status, head, body = await answer(late[0])
        assert status == 503 and b"retry-after: " in head and b"connection: close" in head and b"x-request-id: " in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert await late[0].read() == b""
        app.free.set()
        for reader, _ in busy:
            assert (await answer(reader))[0] == 200


async def test_connections_that_were_refused_do_not_add_up() -> None:
    """Each one that lingers gives way to the next, so that strangers cannot use up the reserve."""
    app = App()
    async with serving(app, connections=1) as connect:
        busy = await connect()
        busy[1].write(GET)
        await app.asked.acquire()
        refused = [await connect() for _ in range(5)]
        for reader, _ in refused[:-1]:
            await reader.read()  # ends: it gave way


class LongAnswers:
    """Answers with as many bytes as the path says."""

    def __init__(self) -> None:
        self.answered = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = int(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})
        self.answered.release()


async def test_r13_clients_that_do_not_read_their_answers_are_cut_where_too_much_is_unread() -> None:
    """40 clients that read nothing of an answer of 10 MB held 380 MB, for as long as they liked."""
    size = 16 * 1024 * 1024
    app = LongAnswers()
    async with serving(app, unread_bytes=3 * size) as connect:
        lines = [await connect() for _ in range(8)]
        for _, writer in lines:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % size)
            await app.answered.acquire()
        reader, writer = await connect()
        writer.write(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % size)
        assert len((await answer(reader))[2]) == size, "whoever reads gets all of it"
        read = [await whole_of(*line) for line in lines]
    assert 1 <= sum(each == size for each in read) <= 3, read


async def whole_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """How much of an answer is left for a client that reads it late."""
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    try:
        return len((await answer(reader))[2])
    except (ConnectionError, asyncio.IncompleteReadError):
        return -1


async def test_an_early_answer_takes_a_bounded_rest_of_the_request() -> None:
    app = App()
    app.free.set()
    async with serving(app) as connect:
        reader, writer = await connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        status, head, _ = await answer(reader)
        assert status == 200 and b"connection: close" in head
        assert await reader.read() == b""
        with pytest.raises(ConnectionError):
            for _ in range(8 * 64 * LINGER_BYTES // 65536):
                writer.write(bytes(65536))
                await writer.drain()


async def test_a_request_that_was_read_whole_keeps_its_connection() -> None:
    app = App()
    app.free.set()
    async with serving(app) as connect:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            status, head, _ = await answer(reader)
            assert status == 200 and b"connection: close" not in head


@pytest.mark.parametrize(
    ("descriptors", "wanted", "runs", "most"),
    [(65_536, 16_384, 256, 16_384), (2048, 16_384, 256, 1024), (4096, 16_384, 256, 2944), (256, 100, 2, 100)],
)
def test_connections_leave_a_reserve_of_descriptors(descriptors: int, wanted: int, runs: int, most: int) -> None:
    assert connections_within(descriptors, wanted, runs) == most


def test_a_start_raises_the_soft_limit_of_descriptors_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        told = raise_limit()
        now = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert now == (told, hard) and told == min(MOST, hard if hard != resource.RLIM_INFINITY else MOST)

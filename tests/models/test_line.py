"""Rules of one connection: when an answer is whole, what ends it else, and whether the connection is used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from ninelives.models.chunks import UpstreamFailed
from ninelives.models.net.connection import DRY, HELD, UpstreamConnection
from tests.models.raw import GET, OK, SOON, Peer, raw, rest, until, wired
from tests.tools.conftest import both_loops

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def called() -> AsyncIterator[tuple[UpstreamConnection, Peer]]:
    """A line that has asked, and its other end."""
    async with raw() as up:
        connect = asyncio.get_running_loop().create_connection
        line = (await connect(lambda: UpstreamConnection(lambda line: None), "127.0.0.1", up.port))[1]
        try:
            line.ask(GET)
            peer = await up.peer()
            await peer.request()
            yield line, peer
        finally:
            line.hang_up()
            await asyncio.sleep(0)


# ---- an answer is the same wherever its bytes are cut ----


class End(NamedTuple):
    """What became of an answer after which the connection was lost."""

    status: int
    body: bytes = b""
    failure: str = ""
    keeps: bool = False
    """Before the connection was lost."""


WHOLE = {
    "content-length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", End(200, b"hello", keeps=True)),
    "no bytes": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", End(200, keeps=True)),
    "chunked": (CHUNKED + b"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\n\r\n", End(200, b"hello world", keeps=True)),
    "big chunk size": (CHUNKED + b"000A\r\n0123456789\r\n0\r\n\r\n", End(200, b"0123456789", keeps=True)),
    "extensions": (CHUNKED + b'2;a=b\r\nok\r\n2 ;c="d"\r\n!!\r\n0;last\r\n\r\n', End(200, b"ok!!", keeps=True)),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\nX-Sum: 1\r\nX-None:\r\n\r\n", End(200, b"ok", keeps=True)),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nhello", End(200, b"hello")),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", End(204, keeps=True)),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", End(304, keeps=True)),
    "1xx before": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + OK,
        End(200, b"ok", keeps=True),
    ),
    "bare LF": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", End(200, b"ok", keeps=True)),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", End(200, b"ok", keeps=True)),
    "folded header": (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", End(200, b"ok", keeps=True)),
    "an upgrade that is only offered": (
        b"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
        End(200, b"ok", keeps=True),
    ),
    "connection: close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", End(200, b"ok")),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", End(200, b"ok")),
    "HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        End(200, b"ok", keeps=True),
    ),
    "length shorter than the body": (OK + b"more", End(200, b"ok")),
    "two answers": (OK + OK, End(200, b"ok")),
    "garbage after it": (CHUNKED + b"2\r\nok\r\n0\r\n\r\n\x00\xff", End(200, b"ok")),
    "garbage after a close": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok???", End(200, b"ok")),
}
BROKEN = {
    "nothing": (b"", End(0, failure="upstream_cut")),
    "cut in the status": (b"HTTP/1.1 20", End(0, failure="upstream_cut")),
    "cut in the head": (b"HTTP/1.1 200 OK\r\nContent-", End(0, failure="upstream_cut")),
    "nothing after 1xx": (b"HTTP/1.1 100 Continue\r\n\r\n", End(0, failure="upstream_cut")),
    "length longer than the body": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        End(200, b"hello", "upstream_cut"),
    ),
    "cut in a chunk": (CHUNKED + b"9\r\nhello", End(200, b"hello", "upstream_cut")),
    "cut between chunks": (CHUNKED + b"5\r\nhello\r\n", End(200, b"hello", "upstream_cut")),
    "cut in trailers": (CHUNKED + b"2\r\nok\r\n0\r\nX-Sum: 1\r\n", End(200, b"ok", "upstream_cut")),
    "no HTTP": (b"220 smtp ready\r\n", End(0, failure="upstream_garbage")),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x46", End(0, failure="upstream_garbage")),
    "a status that is none": (b"HTTP/1.1 2x0 OK\r\n\r\n", End(0, failure="upstream_garbage")),
    "an upgrade": (
        b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n\x00\x00",
        End(0, failure="upstream_garbage"),
    ),
    "101 alone": (b"HTTP/1.1 101 Switching\r\n\r\n" + OK, End(0, failure="upstream_garbage")),
    "a length that is none": (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", End(0, failure="upstream_garbage")),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        End(0, failure="upstream_garbage"),
    ),
    "a chunk size that is none": (CHUNKED + b"2\r\nok\r\nxy\r\n", End(200, b"ok", "upstream_garbage")),
    "a chunk size without end": (CHUNKED + b"f" * 40 + b"\r\n", End(200, failure="upstream_garbage")),
    "a chunk longer than its size": (CHUNKED + b"2\r\nokay\r\n0\r\n\r\n", End(200, b"ok", "upstream_garbage")),
}


def played(*reads: bytes) -> End:
    """What a line makes of these reads, and of the end of its connection after them."""
    line, wire = wired()
    for data in reads:
        if not wire.closing:
            line.data_received(data)
    keeps = line.reusable
    line.connection_lost(None)
    assert line.ended is (line.failure is None)
    assert not line.reusable
    return End(line.status, line.read(), line.failure.code if line.failure else "", keeps)


@pytest.mark.parametrize(("data", "end"), [*WHOLE.values(), *BROKEN.values()], ids=[*WHOLE, *BROKEN])
async def test_an_answer_is_the_same_wherever_its_bytes_are_cut(data: bytes, end: End) -> None:
    assert played(data) == end
    assert played(*(data[at : at + 1] for at in range(len(data)))) == end
    for cut in range(len(data)):
        assert played(data[:cut], data[cut:]) == end, cut


@both_loops
@pytest.mark.parametrize("name", [*WHOLE, *BROKEN])
async def test_an_answer_is_the_same_over_a_socket(name: str) -> None:
    data, end = {**WHOLE, **BROKEN}[name]
    async with called() as (line, peer):
        peer.say(data)
        peer.hang_up()
        body, failure = [], ""
        try:
            await line.head(SOON)
            while piece := await line.more(SOON):
                body.append(piece)
        except UpstreamFailed as error:
            failure = error.code
        assert End(line.status, b"".join(body), failure) == end._replace(keeps=False)


async def test_headers_are_found_by_small_letters_and_those_of_1xx_and_trailers_are_not() -> None:
    line, _ = wired()
    line.data_received(b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nX-None:\r\nX-Two:  b \r\n")
    line.data_received(b"x-LAST: \xe9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n")
    names = (b"x-none", b"x-two", b"x-last", b"link", b"x-sum")
    assert [line.header(name) for name in names] == ["", "b", "é", None, None]


# ---- what never ends is bounded ----

ENDLESS = {
    "a status line": (b"HTTP/1.1 200 ", b"a" * 1000),
    "lines before the answer": (b"", b"\r\n" * 500),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-%d: " % 1 + b"a" * 1000 + b"\r\n"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1000),
    "a header's name": (b"HTTP/1.1 200 OK\r\n", b"a" * 1000),
    "a folded header": (b"HTTP/1.1 200 OK\r\nX: a\r\n", b" " + b"a" * 1000 + b"\r\n"),
    "1xx": (b"", b"HTTP/1.1 100 Continue\r\nX: a\r\n\r\n"),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\n", b"X: " + b"a" * 1000 + b"\r\n"),
    "a trailer": (CHUNKED + b"2\r\nok\r\n0\r\nX: ", b"a" * 1000),
    "an extension": (CHUNKED + b"2\r\nok\r\n2;", b"a" * 1000),
    "a chunk size": (CHUNKED + b"2\r\nok\r\n", b"0" * 1000),
}


@both_loops
@pytest.mark.parametrize("name", ENDLESS)
async def test_what_is_no_body_and_never_ends_is_garbage(name: str) -> None:
    first, again = ENDLESS[name]
    async with called() as (line, peer):
        peer.say(first)
        said = await peer.flood(again)
        with pytest.raises(UpstreamFailed) as caught:
            await line.head(SOON)
            await rest(line)
        assert caught.value.code == "upstream_garbage"
        assert said < 32 * 1_048_576  # what sockets hold, and not what was held here
        assert sum(len(name) + len(value) for name, value in line.headers.items()) < DRY + 300_000


async def test_a_body_may_be_long_and_its_head_nearly_too_long() -> None:
    line, _ = wired()
    line.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n")
    line.data_received(b"X: " + b"a" * (DRY - 100) + b"\r\n\r\n")
    for _ in range(10):
        line.data_received(b"b" * 100_000)
        assert line.read() == b"b" * 100_000
    assert line.ended
    assert line.failure is None


# ---- waiting ----


@both_loops
async def test_waiting_has_a_limit_and_what_comes_later_is_still_read() -> None:
    async with called() as (line, peer):
        with pytest.raises(TimeoutError):
            await line.head(0.01)
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await line.head(SOON)
        with pytest.raises(TimeoutError):
            await line.more(0.0)
        peer.say(b"ok")
        assert await rest(line) == b"ok"
        assert line.reusable


@both_loops
async def test_whoever_is_cancelled_while_waiting_loses_no_byte() -> None:
    async with called() as (line, peer):
        for wait in (line.head, line.more):
            waiting = asyncio.create_task(wait(SOON))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        peer.say(OK)
        await line.head(SOON)
        assert await rest(line) == b"ok"


async def test_whoever_is_cancelled_when_the_bytes_are_there_loses_none() -> None:
    line, _ = wired()
    waiting = asyncio.create_task(line.more(SOON))
    await asyncio.sleep(0)
    line.data_received(OK)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await rest(line) == b"ok"


async def test_whoever_listens_has_news_once_for_a_read_and_for_the_end() -> None:
    line, _ = wired()

    heard: list[bytes] = []
    line.news = lambda: heard.append(line.read())
    line.data_received(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
    line.data_received(b"1\r\nc\r\n")
    line.hang_up()
    assert heard == [b"ab", b"c", b""]
    assert line.failure is not None
    line.news = None
    line.connection_lost(None)
    assert len(heard) == 3


# ---- back-pressure and letting go ----


@both_loops
async def test_a_reader_that_does_not_read_stops_the_socket_and_loses_nothing() -> None:
    size = 16 * 1_048_576
    sent = bytes(range(256)) * (size // 256)
    async with called() as (line, peer):
        transport = line._transport
        assert transport is not None
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + sent)
        await until(lambda: not transport.is_reading())
        held = line.read()
        assert HELD < len(held) < HELD + 600_000
        assert held + await rest(line) == sent
        assert line.ended and line.reusable


@both_loops
async def test_hanging_up_frees_the_server() -> None:
    async with called() as (line, peer):
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        await line.head(SOON)
        line.hang_up()
        line.hang_up()
        await peer.gone()
        with pytest.raises(UpstreamFailed):
            await line.more(SOON)


@both_loops
async def test_a_line_that_is_gone_asks_nothing() -> None:
    async with called() as (line, peer):
        peer.hang_up()
        with pytest.raises(UpstreamFailed):
            await line.head(SOON)
        line.ask(GET)
        with pytest.raises(UpstreamFailed) as caught:
            await line.head(SOON)
        assert caught.value.code == "upstream_cut"


@both_loops
async def test_a_server_that_speaks_first_is_not_the_answer() -> None:
    async with raw() as up:
        connect = asyncio.get_running_loop().create_connection
        line = (await connect(lambda: UpstreamConnection(lambda line: None), "127.0.0.1", up.port))[1]
        (await up.peer()).say(OK)
        await until(lambda: line.failure is not None)
        line.ask(GET)
        with pytest.raises(UpstreamFailed):
            await line.head(SOON)

"""What a broken or hostile upstream, or a caller that leaves at any moment, may not do to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from ninelives.core.errors import AgentError
from ninelives.models.base import Ask, Finished, Part, Text
from ninelives.models.chunks import AnswerReader, UpstreamFailed
from ninelives.models.openai import Feed, OpenAIModel, TakeParts, Upstream
from tests.models.raw import DEADLINE, GET, OK, SOON, Peer, answers, idle, pool_to, raw, rest, until, wired
from tests.tools.conftest import both_loops, open_files

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
HI = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USED = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'


def chunks(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


SSE = CHUNKED + chunks(HI, HI, STOP, USED, DONE, b"")


@asynccontextmanager
async def model_at(url: str, **settings: Any) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel(Upstream(url, "m", **{"retries": 0, **settings}))
    try:
        yield model
    finally:
        await model.close()
        await asyncio.sleep(0)


async def told(model: OpenAIModel, ask: Ask | None = None) -> list[Part]:
    parts: list[Part] = []
    async with aclosing(model.stream(ask or Ask(()))) as stream:
        async for some in stream:
            parts += some
    return parts


async def failure(model: OpenAIModel) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await told(model)
    return caught.value


def text(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


# ---- a read that ends between two pieces of a body is no end ----


async def fed(taking: bool, *reads: bytes) -> list[Part]:
    """All parts of an answer that comes in these reads, while somebody waits for each."""
    parts: list[Part] = []
    line, _ = wired()
    answer = AnswerReader()
    take: TakeParts | None = (lambda some: parts.extend(some) or True) if taking else None
    feed = Feed(line, answer, 1_000_000, take)

    async def all_of_it() -> None:
        while not feed.answer.done:
            parts.extend(await feed.next(SOON, SOON, SOON))

    async with asyncio.timeout(DEADLINE):
        reading = asyncio.create_task(all_of_it())
        for data in reads:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            line.data_received(data)
        await reading
    feed.close()
    return parts


@pytest.mark.parametrize("taking", [True, False])
@pytest.mark.parametrize("data", [SSE, WHOLE + chunks(JSON[:9], JSON[9:], b"")])
async def test_parts_are_the_same_wherever_the_bytes_are_cut(data: bytes, taking: bool) -> None:
    end = await fed(False, data)
    assert isinstance(end[-1], Finished)
    assert end[-1].usage.input_tokens == 3
    assert await fed(taking, *(data[at : at + 1] for at in range(len(data)))) == end
    for cut in range(1, len(data)):
        assert await fed(taking, data[:cut], data[cut:]) == end, cut


# ---- lines that are let go ----


@both_loops
async def test_whoever_reads_when_all_is_closed_is_told_at_once() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        peer.say(CHUNKED + chunks(HI))
        await peer.gone()

    async with raw(half) as up, model_at(up.url) as model, aclosing(model.stream(Ask(()))) as stream:
        assert await anext(stream) == [Text("hi")]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        await model.close()
        with pytest.raises(AgentError) as caught:
            await waiting
        assert caught.value.code == "upstream_cut"


@both_loops
async def test_a_line_with_an_answer_that_nobody_read_is_read_again_for_the_next() -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000
    async with raw(answers(long, OK)) as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        await until(lambda: line.ended)
        pool.give_back(line)
        again = await pool.connection(SOON)
        again.ask(GET)
        await again.head(SOON)
        assert (await rest(again), len(up.peers)) == (b"ok", 1)


@both_loops
async def test_an_idle_line_that_is_closed_is_seen_though_nobody_read_its_answer() -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        peer = await up.peer()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000)
        await until(lambda: line.ended)
        pool.give_back(line)
        peer.hang_up()
        await until(lambda: not line.reusable)


@both_loops
async def test_a_line_is_not_used_from_the_moment_it_is_closed() -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line, peer = await idle(up, pool)
        transport = line._transport
        assert transport is not None
        peer.hang_up()
        while not transport.is_closing():  # noqa: ASYNC110 - every turn of the loop is looked at
            await asyncio.sleep(0)
        assert await pool.connection(SOON) is not line


@both_loops
async def test_a_line_on_which_the_request_is_still_going_out_is_not_used_again() -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 32000000\r\n\r\n" + b"a" * 32_000_000)
        (await up.peer()).say(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")
        await line.head(SOON)
        assert await rest(line) == b"no"
        pool.give_back(line)
        assert await pool.connection(SOON) is not line


# ---- answers that are none ----


@both_loops
async def test_the_body_of_what_only_announces_an_answer_is_not_in_the_answer() -> None:
    async with raw(answers(b"HTTP/1.1 199 Wait\r\nContent-Length: 5\r\n\r\nhello" + OK)) as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        await line.head(SOON)
        assert (line.status, await rest(line)) == (200, b"ok")


@both_loops
async def test_a_body_until_close_that_is_reset_is_cut() -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        peer = await up.peer()
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n\r\nhello")
        assert await line.more(SOON) == b"hello"
        peer.reset()
        with pytest.raises(UpstreamFailed):
            await line.more(SOON)


async def test_small_pieces_that_nobody_reads_stop_the_socket_by_their_number() -> None:
    line, wire = wired()
    line.data_received(CHUNKED)
    for _ in range(20_000):
        if wire.reading:
            line.data_received(b"1\r\na\r\n")
    assert not wire.reading
    assert line.read().strip(b"a") == b""
    assert wire.reading


@pytest.mark.parametrize("host", ["a..b", ".b", "a" * 64 + ".example"])
async def test_a_name_that_is_none_is_unreachable(host: str) -> None:
    async with asyncio.timeout(DEADLINE), model_at(f"http://{host}/v1") as model:
        assert (await failure(model)).code == "upstream_unreachable"
        assert not await model.probe()


# ---- answers that take for ever ----


async def drip(peer: Peer, data: bytes) -> None:
    while True:
        peer.say(data)
        await asyncio.sleep(0.01)


@both_loops
async def test_the_end_of_a_body_is_not_waited_for_longer_because_its_form_goes_on() -> None:
    async def never_ends(peer: Peer) -> None:
        await peer.request()
        peer.say(CHUNKED + chunks(HI, STOP, DONE) + b"0;")
        await drip(peer, b"a")

    async with raw(never_ends) as up, model_at(up.url) as model:
        assert text(await told(model)) == "hi"


@both_loops
async def test_the_body_of_a_refusal_is_not_waited_for_longer_than_the_message() -> None:
    async def never_ends(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 400 Bad\r\nContent-Length: 4000\r\n\r\n")
        await drip(peer, b"a")

    async with raw(never_ends) as up, model_at(up.url, total_s=0.2) as model:
        assert (await failure(model)).code == "upstream_rejected"


@both_loops
async def test_a_first_read_that_comes_at_once_is_followed_by_the_limit_between_two_reads() -> None:
    line, _ = wired()
    line.data_received(CHUNKED)
    answer = AnswerReader()
    feed = Feed(line, answer, 1000, lambda parts: True)
    waiting = asyncio.create_task(feed.next(600, 0.02, 600))
    await asyncio.sleep(0)  # the clock of a loop may stand still meanwhile
    line.data_received(chunks(HI))
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(TimeoutError):
            await waiting
    assert not waiting.cancelled()
    feed.close()


# ---- a caller that leaves at any moment ----


@both_loops
@pytest.mark.parametrize("taking", [True, False])
async def test_whoever_is_cancelled_at_any_moment_leaves_nothing_open(taking: bool) -> None:
    ask = Ask((), take_parts=(lambda parts: True) if taking else None)
    async with raw(answers(SSE)) as up:
        before = open_files()
        ended = steps = 0
        while steps < 60 or not ended:  # on a busy machine an answer takes more rounds of the loop
            assert steps < 10**7, "no answer came to its end"
            async with model_at(up.url) as model:
                asking = asyncio.create_task(told(model, ask))
                for _ in range(steps):
                    await asyncio.sleep(0)
                asking.cancel()
                ended += not isinstance((await asyncio.gather(asking, return_exceptions=True))[0], BaseException)
            await asyncio.gather(*(peer.closed.wait() for peer in up.peers))
            await until(lambda: open_files() <= before)
            steps = steps + 1 if steps < 60 else steps * 2


@both_loops
async def test_answers_are_never_mixed_though_many_leave() -> None:
    async def echo(peer: Peer) -> None:
        while True:
            request = await peer.request()
            number = request.rpartition(b"number ")[2].partition(b'"')[0]
            first = chunks(HI.replace(b"hi", b"%04d" % int(number)))
            for piece in (CHUNKED + first[:1], first[1:4], first[4:], chunks(STOP, DONE), chunks(b"")):
                peer.say(piece)
                await asyncio.sleep(0)

    async def one(model: OpenAIModel, number: int) -> bool:
        parts: list[Part] = []
        take = (lambda some: parts.extend(some) or True) if number % 2 else None  # type: ignore[func-returns-value]
        parts += await told(model, Ask(({"role": "user", "content": f"number {number}"},), take_parts=take))
        return text(parts) == f"{number:04d}"

    async with raw(echo) as up, model_at(up.url) as model:
        for wave in range(3):
            asking = [asyncio.create_task(one(model, wave * 100 + number)) for number in range(100)]
            for number, task in enumerate(asking):
                if number % 3 == 0:
                    await asyncio.sleep(0)
                    task.cancel()
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert set(map(type, ends)) <= {bool, asyncio.CancelledError}
            assert all(end for end in ends if isinstance(end, bool))


async def test_the_head_of_an_answer_wakes_nobody() -> None:
    line, _ = wired()
    answer, heard = AnswerReader(), list[Part]()
    feed = Feed(line, answer, 1000, lambda parts: heard.extend(parts) or True)  # type: ignore[func-returns-value]
    waiting = asyncio.create_task(feed.next(SOON, SOON, SOON))
    await asyncio.sleep(0)
    asleep = feed._waiter
    line.data_received(CHUNKED)
    line.data_received(chunks(HI))
    await asyncio.sleep(0)
    assert text(heard) == "hi"
    assert asleep is not None and feed._waiter is asleep and not asleep.done()
    waiting.cancel()
    feed.close()


async def test_a_feed_that_is_closed_hears_nothing() -> None:
    heard: list[Part] = []
    line, _ = wired()
    line.data_received(CHUNKED)
    answer = AnswerReader()
    feed = Feed(line, answer, 1000, lambda parts: heard.extend(parts) or True)  # type: ignore[func-returns-value]
    waiting = asyncio.create_task(feed.next(SOON, SOON, SOON))
    await asyncio.sleep(0)
    waiting.cancel()
    feed.close()
    line.data_received(chunks(HI))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    feed.close()
    assert heard == []

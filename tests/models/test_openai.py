"""Rules of the upstream client, each shown against the fake upstream or against the bytes of a canned one."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from ninelives.core.errors import AgentError
from ninelives.core.events import Usage
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text, Thinking
from ninelives.models.chunks import UpstreamFailed
from ninelives.models.openai import OpenAIModel, Upstream
from ninelives.testing.fake_upstream import FakeUpstream
from tests.models.raw import black_hole

SECRET = "sk-abcdef-0123456789-wxyz"


class Rig:
    """A model in front of an upstream, whose waits are recorded instead of waited."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.waits: list[float] = []
        upstream = Upstream(url, "fake-model", **{"api_key": SECRET, "retries": 0, **settings})
        self.model = OpenAIModel(upstream, sleep=self._sleep, chance=lambda: 1.0)
        self.told: list[Part] = []

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def ask(self, text: str, **more: Any) -> list[Part]:
        async with aclosing(self.model.stream(Ask(({"role": "user", "content": text},), **more))) as stream:
            async for parts in stream:
                self.told += parts
        return self.told

    async def failure(self, text: str) -> AgentError:
        with pytest.raises(AgentError) as caught:
            await self.ask(text)
        return caught.value


@asynccontextmanager
async def rig(url: str, **settings: Any) -> AsyncIterator[Rig]:
    made = Rig(url, **settings)
    try:
        yield made
    finally:
        await made.model.close()


@pytest.fixture
async def up() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        yield server


@asynccontextmanager
async def canned(*answers: bytes) -> AsyncIterator[str]:
    """Serves raw bytes, one answer per connection, then hangs up."""
    left = itertools.chain(answers, itertools.repeat(answers[-1]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(next(left))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def http(body: bytes, kind: str = "text/event-stream", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{more}\r\n".encode() + body


def event(delta: dict[str, object] | None = None, finish: str | None = None, **more: object) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta is not None or finish else []
    return b"data: " + msgspec.json.encode({"choices": choices, **more}) + b"\n\n"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - the condition lives in a server that has no event for it
            await asyncio.sleep(0.005)


def joined(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


# ---- what is asked, and what comes back ----


async def test_the_request_carries_options_and_asks_for_usage_and_leaves_empty_tools_out(up: FakeUpstream) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    async with rig(up.url) as here:
        await here.ask("a", options={"temperature": 0.5, "stream": False})
        await here.ask("b", tools=(tool,))
    first, second = up.requests
    assert first == {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "a"}],
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert second["tools"] == [tool]
    assert up.headers[0]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(("text", "on_the_loop"), [("hello", True), ("x" * 300_000, False)], ids=["short", "long"])
async def test_a_long_request_is_encoded_off_the_loop(
    up: FakeUpstream, monkeypatch: pytest.MonkeyPatch, text: str, on_the_loop: bool
) -> None:
    where: list[bool] = []
    encode = OpenAIModel._body

    def body(self: OpenAIModel, *args: Any) -> bytes:
        where.append(threading.current_thread() is threading.main_thread())
        return encode(self, *args)

    monkeypatch.setattr(OpenAIModel, "_body", body)
    async with rig(up.url) as here:
        assert joined(await here.ask(text))
    assert where == [on_the_loop]


async def test_text_comes_whole_and_ends_in_one_finished_with_usage(up: FakeUpstream) -> None:
    async with rig(up.url) as here:
        parts = await here.ask("[[text=Hello big world]] [[cached=2]]")
    assert joined(parts) == "Hello big world"
    assert parts[-1] == Finished("stop", Usage(4, 3, 2, 0))
    assert sum(isinstance(part, Finished) for part in parts) == 1


async def test_reasoning_is_thinking_and_its_tokens_are_counted(up: FakeUpstream) -> None:
    async with rig(up.url) as here:
        parts = await here.ask("[[reason=2]] [[text=x]]")
    assert parts[:3] == [Thinking("think0 "), Thinking("think1 "), Text("x")]
    assert parts[-1] == Finished("stop", Usage(2, 3, 0, 2))


@pytest.mark.parametrize("form", ["", "[[crlf]]", "[[nodone]]", "[[json]]", "[[noindex]]"])
async def test_tool_calls_come_out_the_same_in_every_form(up: FakeUpstream, form: str) -> None:
    async with rig(up.url) as here:
        parts = await here.ask('[[parallel=read_file:{"path":"a long name.txt"}|terminal:{"command":"ls"}]]' + form)
    calls: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallPiece):
            name, arguments = calls.setdefault(part.index, ["", ""])
            calls[part.index] = [name + part.name, arguments + part.arguments]
    assert calls == {0: ["read_file", '{"path":"a long name.txt"}'], 1: ["terminal", '{"command":"ls"}']}
    assert parts[-1].reason == "tool_calls"  # type: ignore[union-attr]


async def test_all_parts_of_one_read_come_in_one_list() -> None:
    body = event({"content": "a"}) + event({"content": "b"}) + event({}, "stop") + b"data: [DONE]\n\n"
    async with canned(http(body)) as url, rig(url) as here:
        reads = [parts async for parts in here.model.stream(Ask(()))]
    assert reads == [[Text("a"), Text("b"), Finished("stop", Usage())]]


async def test_an_answer_that_is_whole_leaves_its_connection_to_the_next(up: FakeUpstream) -> None:
    async with rig(up.url) as here:
        await here.ask("one")
        await here.ask("two")
        assert (len(up.requests), up.open, up.closed_early) == (2, 1, 0)


# ---- failures ----

FAILURES = {
    "[[status=500]]": ("upstream_status", 502, 0),
    "[[status=302]]": ("upstream_status", 502, 0),
    "[[status=429 retry_after=9]]": ("rate_limit_exceeded", 429, 0),
    "[[status=401]]": ("upstream_auth", 502, 0),
    "[[status=403]]": ("upstream_auth", 502, 0),
    "[[status=400]]": ("upstream_rejected", 502, 0),
    "[[status=404]]": ("upstream_rejected", 502, 0),
    "[[status=422]]": ("upstream_rejected", 502, 0),
    "[[html]]": ("upstream_garbage", 502, 0),
    "[[longline]]": ("upstream_garbage", 502, 0),
    "[[garbage=2]]": ("upstream_garbage", 502, 2),
    "[[errorframe=2]]": ("upstream_error", 502, 2),
    "[[noeof]] [[tokens=2]]": ("upstream_cut", 502, 2),
    "[[cut=0]]": ("upstream_cut", 502, 0),
    "[[hang=3]]": ("upstream_timeout", 504, 3),
    "[[slowstart=30]]": ("upstream_timeout", 504, 0),
}


@pytest.mark.parametrize(("text", "told"), FAILURES.items(), ids=FAILURES)
async def test_a_failure_is_never_an_answer(up: FakeUpstream, text: str, told: tuple[str, int, int]) -> None:
    stall_s, first_byte_s = 0.3 if "hang" in text else 60, 0.3 if "slowstart" in text else 60
    async with rig(up.url, line_bytes=100_000, stall_s=stall_s, first_byte_s=first_byte_s) as here:
        error = await here.failure(text)
        assert (error.code, error.status, len(here.told)) == told
        assert not any(isinstance(part, Finished) for part in here.told)
        assert SECRET not in error.message


FINISH = b'"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]'
RAW = {
    "not HTTP": (b"hello\r\n\r\n", "upstream_garbage"),
    "hung up without an answer": (b"", "upstream_cut"),
    "JSON that is no completion": (http(b"{}", "application/json"), "upstream_garbage"),
    "broken JSON": (http(b'{"a":', "application/json"), "upstream_garbage"),
    "an error in a 200": (http(b'{"error":{"message":"no"}}', "application/json"), "upstream_error"),
    "a page that says it is events": (http(b"<html>\n<body>\n"), "upstream_garbage"),
    "bytes that are no UTF-8": (http(b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'), "upstream_garbage"),
    "nesting without end": (http(b'data: {"x":' + b"[" * 90_000 + b"\n\n"), "upstream_garbage"),
    "an array": (http(b"data: [1]\n\n"), "upstream_garbage"),
    "done without finish": (http(b"data: [DONE]\n\n"), "upstream_cut"),
    "finish_reason error": (http(event({}, "error")), "upstream_error"),
    "an error that is a string": (http(b'data: {"error":"overloaded"}\n\n'), "upstream_error"),
    "a body shorter than declared": (http(event({}, "stop"))[:-3], "upstream_cut"),
}


@pytest.mark.parametrize(("answer", "code"), RAW.values(), ids=RAW)
async def test_a_broken_answer_is_a_failure(answer: bytes, code: str) -> None:
    async with canned(answer) as url, rig(url) as here:
        assert (await here.failure("x")).code == code


async def test_an_upstream_that_is_not_there_is_unreachable_and_asked_again() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with rig(f"http://127.0.0.1:{closed.getsockname()[1]}/v1", retries=2) as here:
            assert (await here.failure("x")).code == "upstream_unreachable"
            assert len(here.waits) == 2
            assert not await here.model.probe()


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x/v1", "http://", "http://[::1/v1", "http://x:99999999/v1"])
async def test_an_address_that_is_no_url_is_unreachable_and_not_asked_again(url: str) -> None:
    async with rig(url, retries=2) as here:
        assert (await here.failure("x")).code == "upstream_unreachable"
        assert here.waits == []


@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog drops connections on Linux only")
async def test_connecting_has_a_deadline() -> None:
    with black_hole() as (host, port):
        async with rig(f"http://{host}:{port}/v1", connect_s=0.1, retries=1) as here:
            assert (await here.failure("x")).code == "upstream_timeout"
            assert len(here.waits) == 1


async def test_a_message_has_a_deadline_though_it_never_stalls(up: FakeUpstream) -> None:
    async with rig(up.url, total_s=0.3) as here:
        assert (await here.failure("[[tokens=100000 pace=0.01]]")).code == "upstream_timeout"
        await until(lambda: up.open == 0)


@pytest.mark.parametrize("text", ["[[status=500 leak]]", "[[status=401 leak]]"])
async def test_error_text_is_quoted_without_the_credentials_in_it(up: FakeUpstream, text: str) -> None:
    async with rig(up.url) as here:
        message = (await here.failure(text)).message
    assert "fake status" in message
    assert all(piece not in message for piece in (SECRET, "abcdef", "wxyz"))
    assert SECRET not in repr(Upstream("http://u:p@h/v1", "m", SECRET))


async def test_a_long_error_text_is_bounded() -> None:
    refusal = msgspec.json.encode({"error": {"message": "no " * 1000}})
    async with canned(http(refusal, "application/json", "400 Bad")) as url, rig(url) as here:
        assert len((await here.failure("x")).message) < 500


# ---- retries ----


RETRIED = ["status=500", "status=408", "status=429", "cut=0", "garbage=0", "errorframe=0", "html"]


@pytest.mark.parametrize("kind", RETRIED)
async def test_what_fails_before_the_first_part_is_asked_again(up: FakeUpstream, kind: str) -> None:
    async with rig(up.url, retries=2) as here:
        assert joined(await here.ask(f"[[{kind} times=2]] [[text=fine]]")) == "fine"
        assert (len(up.requests), here.waits) == (3, [0.5, 1.0])


async def test_retries_are_bounded(up: FakeUpstream) -> None:
    async with rig(up.url, retries=5) as here:
        assert (await here.failure("[[status=503]]")).code == "upstream_status"
        assert (len(up.requests), here.waits) == (6, [0.5, 1.0, 2.0, 4.0, 8.0])


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 422])
async def test_a_refusal_is_not_asked_again(up: FakeUpstream, status: int) -> None:
    async with rig(up.url, retries=2) as here:
        await here.failure(f"[[status={status}]]")
        assert len(up.requests) == 1


@pytest.mark.parametrize("kind", ["cut", "garbage", "errorframe"])
async def test_nothing_is_asked_again_after_the_first_part(up: FakeUpstream, kind: str) -> None:
    async with rig(up.url, retries=2) as here:
        stream = here.model.stream(Ask(({"role": "user", "content": f"[[{kind}=2 gate]]"},)))
        async with aclosing(stream):
            assert (await anext(stream))[0] == Text("tok0 ")
            up.go.set()
            with pytest.raises(UpstreamFailed):
                while True:
                    await anext(stream)
        assert (len(up.requests), here.waits) == (1, [])


async def test_retry_after_is_honoured_up_to_the_cap(up: FakeUpstream) -> None:
    async with rig(up.url, retries=2) as here:
        await here.ask("[[status=429 retry_after=7 times=1]]")
        assert here.waits == [7.0]
        error = await here.failure("[[status=429 retry_after=61]]")
        assert (error.code, error.retry_after, here.waits) == ("rate_limit_exceeded", 61, [7.0])


async def test_retry_after_may_be_a_date_on_the_upstreams_clock() -> None:
    dates = "Date: Sun, 15 Nov 2026 10:00:00 GMT\r\nRetry-After: Sun, 15 Nov 2026 10:00:30 GMT\r\n"
    busy = http(b"", status="503 Busy", more=dates)
    whole = http(b"{" + FINISH + b"}", "application/json")
    async with canned(busy, whole) as url, rig(url, retries=1) as here:
        assert await here.ask("x") == [Text("hi"), Finished("stop", Usage())]
        assert here.waits == [30.0]


async def test_no_wait_goes_beyond_the_deadline_of_the_message(up: FakeUpstream) -> None:
    async with rig(up.url, retries=2, total_s=5) as here:
        await here.failure("[[status=429 retry_after=7]]")
        assert here.waits == []


async def test_an_upstream_that_forbids_a_retry_is_not_asked_again() -> None:
    busy = http(b"", status="500 No", more="x-should-retry: false\r\n")
    async with canned(busy) as url, rig(url, retries=2) as here:
        await here.failure("x")
        assert here.waits == []


# ---- letting go ----


async def _closes(stream: Any) -> None:
    await stream.aclose()


async def _is_cancelled(stream: Any) -> None:
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("leave", [_closes, _is_cancelled])
async def test_a_reader_that_leaves_closes_the_upstream_socket(
    up: FakeUpstream, leave: Callable[[Any], Awaitable[None]]
) -> None:
    async with rig(up.url) as here:
        stream = here.model.stream(Ask(({"role": "user", "content": "[[hang=3]]"},)))
        assert await anext(stream)
        assert up.open == 1
        await leave(stream)
        await until(lambda: (up.open, up.closed_early) == (0, 1))


async def test_probe_is_true_where_the_upstream_answers(up: FakeUpstream) -> None:
    async with rig(up.url) as here:
        assert await here.model.probe()

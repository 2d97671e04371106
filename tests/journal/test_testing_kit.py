"""The kit in ninelives.testing: a strict SSE reader, a store that crashes, a virtual clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from ninelives.journal.base import Store
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import Grant, Verdict
from ninelives.testing import Author, Backend, BadStream, Crash, CrashingStore, SseReader, VirtualClock, parse_sse


def test_frames_come_as_event_and_data() -> None:
    body = b'event: a.b\ndata: {"x":1}\n\ndata: {"y":"\xc3\xa9"}\n\n: keepalive\n\ndata: [DONE]\n\n'
    assert parse_sse(body) == [("a.b", '{"x":1}'), ("", '{"y":"é"}'), ("", "[DONE]")]


def test_comments_are_kept_apart() -> None:
    reader = SseReader()
    assert list(reader.feed(b": keepalive\n\ndata: 1\n\n: two\n\n")) == [("", "1")]
    assert reader.comments == ["keepalive", "two"]
    reader.end()


def test_a_stream_may_be_cut_anywhere() -> None:
    body = b'event: a\ndata: {"x":"\xc3\xa9"}\n\n: c\n\ndata: [DONE]\n\n'
    for size in range(1, len(body)):
        reader = SseReader()
        frames = [frame for start in range(0, len(body), size) for frame in reader.feed(body[start : start + size])]
        reader.end()
        assert frames == parse_sse(body)
        assert reader.comments == ["c"]


@pytest.mark.parametrize(
    "body",
    [
        b"event: a\n\n",
        b"\n\n",
        b"data: 1\n\n\n",
        b"id: 1\ndata: 1\n\n",
        b"data: 1\nid: 1\n\n",
        b"id: 1\n\n",
        b"retry: 5\n\n",
        b"data: 1",
        b"data: 1\n",
        b"data: 1\n\ndata: 2",
        b"data: 1\ndata: 2\n\n",
        b'data: {"a":\ndata: 1}\n\n',
        b"data: 1\nevent: a\n\n",
        b"event: a\nevent: b\ndata: 1\n\n",
        b"event: \ndata: 1\n\n",
        b"event:a\ndata: 1\n\n",
        b"data:1\n\n",
        b"data: \n\n",
        b"data: {\n\n",
        b'data: {"a":1}{"b":2}\n\n',
        b": c\ndata: 1\n\n",
        b"data: 1\n: c\n\n",
        b"data: 1\r\n\r\n",
        b'data: "\r"\n\n',
        b"\xef\xbb\xbfdata: 1\n\n",
        b'data: "\xff"\n\n',
        b"hello\n\n",
    ],
)
def test_what_is_not_a_frame_is_refused(body: bytes) -> None:
    with pytest.raises(BadStream):
        parse_sse(body)


def test_a_send_ends_with_a_whole_frame() -> None:
    reader = SseReader()
    assert list(reader.feed_send(b"data: 1\n\ndata: 2\n\n")) == [("", "1"), ("", "2")]
    assert list(reader.feed_send(b"data: ")) == []
    with pytest.raises(BadStream, match="split over two sends"):
        list(reader.feed_send(b"3\n\n"))


def test_only_a_big_frame_may_be_sent_in_slices() -> None:
    frame = b'data: "' + b"x" * 200_000 + b'"\n\n'
    reader = SseReader()
    frames = [got for start in range(0, len(frame), 65_536) for got in reader.feed_send(frame[start : start + 65_536])]
    reader.end()
    assert [len(data) for _, data in frames] == [200_002]


def test_the_virtual_clock_moves_only_forward_and_only_when_told() -> None:
    clock = VirtualClock(5.0)
    assert (clock(), clock(), clock.now_ms()) == (5.0, 5.0, 5_000)
    clock.advance(1.5)
    assert (clock(), clock.now_ms()) == (6.5, 6_500)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore(VirtualClock())


def author(store: Store) -> Author:
    return Author(Backend(store, VirtualClock()))


async def story(store: Store) -> None:
    """Three calls that write, and some that only read."""
    ann = author(store)
    await ann.open("r1", held=False)
    await store.find("ann", "r1")
    await ann.claim("r1")
    await store.beat("h1")
    await ann.write("r1", b"a")
    await ann.read("r1")


async def test_a_store_that_is_not_told_to_die_lives_and_counts(inner: MemoryStore) -> None:
    store = CrashingStore(inner)
    await story(store)
    assert (store.calls, store.dead) == (3, False)
    assert await author(store).data("r1") == await author(inner).data("r1")


@pytest.mark.parametrize(("when", "lengths"), [("before", [0, 1, 2]), ("after", [1, 2, 3])])
async def test_the_nth_call_that_writes_is_the_last(when: str, lengths: list[int]) -> None:
    seen = []
    for n in (1, 2, 3):
        inner = MemoryStore(VirtualClock())
        store = CrashingStore(inner, die_at=n, when=when)  # type: ignore[arg-type]
        with pytest.raises(Crash):
            await story(store)
        assert (store.calls, store.dead) == (n, True)
        seen.append(len(await author(inner).data("r1")))
    assert seen == lengths


async def test_nothing_answers_after_the_crash(inner: MemoryStore) -> None:
    store = CrashingStore(inner, die_at=1)
    ann = author(store)
    calls = [
        lambda: ann.open("r1"),
        lambda: ann.open("r2"),
        lambda: store.append([]),
        lambda: store.claim("r1", "h", lambda a, b: b"", 0),
        lambda: store.beat("h"),
        lambda: store.read("ann", "r1", -1),
        lambda: ann.cancel("r1"),
        lambda: store.delete("ann", "r1"),
        lambda: store.find("ann", "r1"),
        lambda: ann.claimable(),
        lambda: store.resolve(ann.asked()),
        lambda: store.turns("ann", None),  # type: ignore[arg-type]
        lambda: store.asking("ann", "code"),
        lambda: store.forget([]),
        lambda: store.annotate("ann", "r1", b""),
        lambda: store.signals("r1"),
        lambda: store.grant(Grant("ann", "g1", "", "t", "{}", 1, "key 1")),
        lambda: store.granted("ann", ["g1"]),
        lambda: store.grants("ann"),
        lambda: store.revoke("ann", "g1"),
        lambda: store.rows(None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(Crash):
            await call()
    assert store.calls == 1


async def test_a_call_under_way_at_the_crash_has_no_answer(inner: MemoryStore) -> None:
    ann = author(inner)
    await ann.open("r1")
    await ann.open("r2")
    slow = Slow(inner)
    store = CrashingStore(slow, die_at=2, when="after")
    waiting = asyncio.create_task(store.append([ann.slice("r1", b"a")]))
    await slow.entered.wait()
    with pytest.raises(Crash):
        await store.claim("r3", "h", lambda a, b: b"", 0)
    slow.leave.set()
    with pytest.raises(Crash):
        await waiting
    assert (await ann.data("r1"))[-1] == b"a", "it happened; nobody was told"


class Slow(MemoryStore):
    """A store whose appends wait for the test."""

    def __init__(self, inner: MemoryStore) -> None:
        self.__dict__.update(inner.__dict__)
        self.entered, self.leave = asyncio.Event(), asyncio.Event()

    async def append(self, slices: object) -> list[Verdict]:
        self.entered.set()
        await self.leave.wait()
        return await super().append(slices)  # type: ignore[arg-type]


def test_no_except_exception_survives_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_the_kit_needs_no_test_framework_and_no_server() -> None:
    code = (
        "import sys, ninelives.testing\n"
        "heavy = {'pytest', 'hypothesis', 'apsw', 'starlette', 'uvicorn', 'aiohttp', 'openai'} & set(sys.modules)\n"
        "print(*sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("\n", "")

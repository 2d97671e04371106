"""Ended runs that are read again: what is kept of them is the same, is bounded, and never outlives the run."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import pytest

from ninelives.core import codec
from ninelives.core.admission import Asked
from ninelives.core.errors import Damaged
from ninelives.core.events import (
    AnyEvent,
    AttemptStarted,
    Entry,
    MessageCompleted,
    RunAccepted,
    RunCompleted,
    TextDelta,
)
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import RunState, fold
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.dialects.messages.frames import MessagesProjection
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.responses.reattach import ReattachProjection
from ninelives.dialects.runs.frames import RunsProjection
from ninelives.engine.base import Broken, Chunk, EngineLimits, EngineParts, News, Projection, StreamEnded
from ninelives.engine.readers import Readers
from ninelives.engine.replay import LONG, read_kept, read_state
from ninelives.engine.subscription import Subscription
from ninelives.journal.cache import BoundedCache
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import Mark, Opening, Record, Slice

BIG_TEXT = 1_000_000
WORDS = 2 * LONG
TEXT = "word " * WORDS


class Counted(MemoryStore):
    """A store that counts how often its log is read."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.reads = 0

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        self.reads += 1
        return await super().read(owner, run, after, seen)


async def ended(store: MemoryStore, run: str = "r1", words: int = WORDS, word: str = "word ") -> RunState:
    """A run that has ended, with so many deltas."""
    spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": "hi"},))
    events: list[AnyEvent] = [RunAccepted(spec=spec, resolved=Resolved(), owner="o"), AttemptStarted()]
    events += [*(TextDelta(word) for _ in range(words)), MessageCompleted(word * words), RunCompleted()]
    data = [codec.encode(event) for event in events]
    opening: dict[str, Any] = {"run": run, "at": 1, "dialect": "responses", "model": "m"}
    asked = Asked(owner="o", fingerprint="")
    await store.open(Opening(**opening, asked=asked, accept=lambda resolved: data[:2], holder="h"))
    records = [Record(seq, 1, 1, one) for seq, one in enumerate(data)][2:]
    await store.append([Slice(run, 1, records, Mark(status="completed", at=1, ended=True, chains=True))])
    return fold(Entry(run, seq, 1, min(seq, 1), event) for seq, event in enumerate(events))


def readers_of(store: MemoryStore) -> Readers:
    given: Any = (store, MemoryStore(lambda: 0.0), LocalNotifier(), None, EngineLimits(), None)
    return Readers(EngineParts(*given, lambda: 1, str))


async def all_of(readers: Readers, owner: str = "o", projection: Any = None, after: int = -1) -> tuple[bytes, News]:
    """All frames that a reader gets, and how it ends."""
    subscription = readers.subscribe(owner, "r1", projection or ResponsesProjection(), after)
    parts: list[bytes] = []
    try:
        while isinstance(news := await subscription.next(), Chunk):
            parts.append(news.data)
    finally:
        subscription.close()
    return b"".join(parts), news


async def test_a_second_replay_gives_the_same_bytes_without_reading_the_log() -> None:
    store = Counted()
    await ended(store)
    readers = readers_of(store)
    first, end = await all_of(readers)
    assert end == StreamEnded() and first.count(b"output_text.delta\n") == WORDS
    reads = store.reads
    assert await all_of(readers) == (first, StreamEnded()) and store.reads == reads
    whole, _ = await all_of(readers_of(store))
    assert whole == first


async def test_a_run_that_is_deleted_behind_our_back_is_gone_at_once() -> None:
    """By another process, by retention, by its conversation: nobody tells this readers."""
    store = Counted()
    state = await ended(store)
    readers = readers_of(store)
    await all_of(readers)
    assert (await read_kept(store, readers.kept, "o", "r1")) == state
    assert await store.delete("o", "r1")
    frames, end = await all_of(readers)
    assert not frames and isinstance(end, Broken)
    assert await read_kept(store, readers.kept, "o", "r1") is None


async def test_what_is_kept_is_its_owners_only() -> None:
    store = Counted()
    await ended(store)
    readers = readers_of(store)
    await all_of(readers)
    await read_kept(store, readers.kept, "o", "r1")
    frames, end = await all_of(readers, owner="stranger")
    assert not frames and isinstance(end, Broken)
    assert await read_kept(store, readers.kept, "stranger", "r1") is None
    assert (await all_of(readers))[0]


async def test_a_reader_of_a_kept_replay_ends_with_an_error_when_the_run_is_deleted_meanwhile() -> None:
    store = Counted()
    await ended(store, words=60_000)
    readers = readers_of(store)
    await all_of(readers)
    subscription = readers.subscribe("o", "r1", ResponsesProjection(), -1)
    assert isinstance(await subscription.next(), Chunk)
    readers.vanish("r1", "the run was deleted")
    assert isinstance(await subscription.next(), Broken)
    subscription.close()


async def test_only_whole_replays_are_kept_and_only_for_those_who_begin_at_the_beginning() -> None:
    store = Counted()
    await ended(store)
    readers = readers_of(store)
    tail, _ = await all_of(readers, after=WORDS)
    snapshot, _ = await all_of(readers, projection=ReattachProjection())
    subscription = readers.subscribe("o", "r1", ResponsesProjection(), -1)
    await subscription.next()
    subscription.close()
    whole, _ = await all_of(readers)
    assert whole.endswith(tail) and len(tail) < len(whole) and snapshot not in whole
    assert (await all_of(readers, after=WORDS))[0] == tail
    assert (await all_of(readers, projection=ReattachProjection()))[0] == snapshot
    assert (await all_of(readers))[0] == whole


def test_a_class_speaks_for_itself_when_it_says_that_its_replays_are_alike() -> None:
    def alike(projection: Projection) -> str | None:
        return Subscription(cast(Readers, None), "o", "r1", projection, -1, 1)._alike

    assert alike(ResponsesProjection()) == "ResponsesProjection"
    assert alike(ReattachProjection()) is None and alike(ChatProjection()) is None


async def test_a_state_is_kept_and_short_runs_are_not() -> None:
    store = Counted()
    state = await ended(store)
    readers = readers_of(store)
    assert await read_kept(store, readers.kept, "o", "r1") == state
    reads = store.reads
    assert await read_kept(store, readers.kept, "o", "r1") == state and store.reads == reads
    await ended(store, "r2", words=3)
    short = await read_kept(store, readers.kept, "o", "r2")
    assert short is not None and short == await read_state(store, "o", "r2") and not readers.kept.has("r2")


def test_what_is_kept_is_bounded_in_bytes_and_the_longest_unused_goes_first() -> None:
    kept: BoundedCache[str, str] = BoundedCache(100)
    for name in "abcd":
        kept.put(name, name, 30)
        kept.get("a")
    assert [name for name in "abcd" if kept.get(name)] == ["a", "c", "d"] and kept.size == 90
    kept.put("huge", "x", 51)
    assert kept.get("huge") is None and kept.size == 90
    kept.put("a", "again", 10)
    assert kept.get("a") == "again" and kept.size == 70
    kept.drop("a")
    kept.drop("a")
    assert kept.size == 60


def test_events_are_read_together_as_each_by_itself_and_a_broken_one_is_damage() -> None:
    events: list[AnyEvent] = [TextDelta("a"), AttemptStarted(), TextDelta("é\n")]
    data = [codec.encode(event) for event in events]
    assert codec.decode_all(data) == events and codec.decode_all([]) == []
    for wrong in (b"{", b'{"type":"unheard.of"}', b'{"type":"text.delta","text":"a"},{"type":"attempt.started"}'):
        with pytest.raises(Damaged):
            codec.decode_all([*data, wrong])


async def until(readers: Readers, projection: Any, most: int) -> tuple[Subscription, News | None]:
    """A reader that stops after so many bytes, and what it cannot send."""
    subscription = readers.subscribe("o", "r1", projection, -1)
    news: News | None = None
    while most > 0:
        del news
        news = await subscription.next()
        if not isinstance(news, Chunk):
            break
        most -= len(news.data)
    return subscription, news


@pytest.mark.parametrize("most", [1, BIG_TEXT // 2, BIG_TEXT * 3], ids=str)
@pytest.mark.parametrize("piece", [200, 50_000, 250_000])
@pytest.mark.parametrize("dialect", [ResponsesProjection, ChatProjection, RunsProjection, MessagesProjection])
async def test_r13_readers_that_stop_anywhere_in_a_big_answer_take_little_memory_each(
    dialect: Any, piece: int, most: int
) -> None:
    store = Counted()
    await ended(store, words=BIG_TEXT // piece, word="w" * piece)
    readers = readers_of(store)
    first = await until(readers, dialect(), most)  # what is there once is there already
    tracemalloc.start()
    try:
        stopped = [await until(readers, dialect(), most) for _ in range(12)]
        taken, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for subscription, _ in [first, *stopped]:
        subscription.close()
    assert taken < len(stopped) * 1_048_576, "limits.subscriber_bytes"
    assert peak < len(stopped) * 1_048_576 + 6 * BIG_TEXT


@pytest.mark.parametrize("piece", [50, 250_000])
async def test_a_reader_beside_others_of_a_big_answer_gets_the_same_bytes_as_one_alone(piece: int) -> None:
    store = Counted()
    await ended(store, words=BIG_TEXT // piece, word="w" * piece)
    alone, _ = await all_of(readers_of(store))
    readers = readers_of(store)
    stopped = [await until(readers, ResponsesProjection(), n * BIG_TEXT // 3) for n in range(1, 15)]
    together, end = await all_of(readers)
    assert together == alone and end == StreamEnded()
    late, _ = await all_of(readers, after=3)
    assert alone.endswith(late) and alone.index(late) > 0
    for subscription, _ in stopped:
        subscription.close()

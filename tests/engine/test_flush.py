"""How staged events become flushes, and flushes become sends: the rules behind the cost of one streamed event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ninelives.core import codec
from ninelives.core.admission import Asked
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
from ninelives.core.state import fold
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.engine.alarm import LoopAlarm
from ninelives.engine.base import Chunk, EngineLimits, EngineParts, LeaseSpan, StreamEnded
from ninelives.engine.claim import ClaimEvent, ClaimPhase
from ninelives.engine.readers import Readers
from ninelives.engine.run import ClaimedRun
from ninelives.engine.subscription import Subscription
from ninelives.engine.writer import PACE, PAUSE, Writer
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import Mark, Opening, Slice, Verdict

LONG = 3600.0
DEADLINE = 30.0


class Silent:
    def info(self, name: str, **fields: object) -> None: ...
    def warning(self, name: str, **fields: object) -> None: ...
    def error(self, name: str, **fields: object) -> None: ...


class TestLine:
    """A connection that does what it is told to."""

    __test__ = False

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self.write = write

    def abort(self) -> None: ...


class Counted(MemoryStore):
    """A store that notes how many runs each append had."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.appends: list[int] = []
        self.asked: Callable[[], None] = lambda: None

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        self.appends.append(len(slices))
        self.asked()
        return await super().append(slices)


class SlowMarks(Counted):
    """A store that takes slices at the same time. Those with a mark take until `written` is set."""

    parallel = True

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self.begun = 0

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        self.begun += 1
        if any(part.mark is not None for part in slices):
            await self.written.wait()
        return await super().append(slices)


class Desk:
    """One writer over one store."""

    def __init__(
        self, linger_s: float, longest_s: float = EngineLimits().longest_linger_s, store: Counted | None = None
    ) -> None:
        self.store = store or Counted()
        self.limits = EngineLimits(linger_s=linger_s, longest_linger_s=longest_s)
        given: Any = (self.store, MemoryStore(lambda: 0.0), LocalNotifier(), None)
        self.parts = parts = EngineParts(*given, self.limits, Silent(), lambda: 1, str)
        self.readers = Readers(parts)
        self.writer = Writer(parts, self.store, None, None)  # type: ignore[arg-type]

    async def live(self, run: str) -> ClaimedRun:
        """A run that this process drives."""
        spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": "hi"},))
        first: tuple[AnyEvent, ...] = (RunAccepted(spec=spec, resolved=Resolved(), owner="o"), AttemptStarted())
        data = [codec.encode(event) for event in first]
        asked = Asked(owner="o", fingerprint="")
        opening: dict[str, Any] = {"run": run, "at": 1, "dialect": "responses", "model": "m", "asked": asked}
        await self.store.open(Opening(**opening, accept=lambda resolved: data, holder="h"))
        state = fold(Entry(run, seq, 1, min(seq, 1), event) for seq, event in enumerate(first))
        live = ClaimedRun(state, 1, ClaimPhase.OPENED, LeaseSpan())
        self.readers.lives[run] = live
        return live

    async def told(self, live: ClaimedRun, delta: TextDelta) -> None:
        """Add a delta and wait until it is committed and told."""
        self.writer.delta(live, delta)
        await live.until_committed(live.staging.state.seq)

    async def reader(self, live: ClaimedRun) -> tuple[Subscription, bytes]:
        """A reader at the live edge, and what it was given on the way."""
        reader = self.readers.subscribe("o", live.run, ResponsesProjection(), -1)
        news = await reader.next()
        assert isinstance(news, Chunk)
        return reader, news.data


@asynccontextmanager
async def desk(linger_s: float, store: Counted | None = None) -> AsyncIterator[Desk]:
    made = Desk(linger_s, store=store)
    writing = [asyncio.create_task(made.writer.run()), asyncio.create_task(made.writer.run_apart())]
    try:
        async with asyncio.timeout(DEADLINE):
            yield made
    finally:
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_delta_after_a_pause_is_flushed_at_once() -> None:
    async with desk(LONG) as at:
        live = await at.live("a")
        await at.told(live, TextDelta("x"))
        assert at.store.appends == [1]


async def test_the_first_delta_of_a_message_is_flushed_at_once() -> None:
    async with desk(LONG) as at:
        one, two = await at.live("a"), await at.live("b")
        for live in (one, two):
            await at.told(live, TextDelta("x"))
        assert at.store.appends == [1, 1]


async def test_deltas_right_after_a_flush_wait_for_each_other_and_a_fact_ends_the_wait() -> None:
    async with desk(LONG) as at:
        one, two, three = [await at.live(name) for name in "abc"]
        for live in (one, two):
            await at.told(live, TextDelta("x"))
        for live in (one, two):
            at.writer.delta(live, TextDelta("y"))
            await turns()
        assert at.store.appends == [1, 1]
        await at.writer.fact(three, MessageCompleted("z"))
        assert at.store.appends == [1, 1, 3]
        assert one.committed == one.staging.state and two.committed == two.staging.state


async def test_deltas_are_flushed_when_the_time_is_over_without_any_fact() -> None:
    async with desk(0.01) as at:
        live = await at.live("a")
        await at.told(live, TextDelta("x"))
        await at.told(live, TextDelta("y"))
        assert at.store.appends == [1, 1]


async def test_a_delta_that_comes_long_after_the_last_flush_does_not_wait() -> None:
    async with desk(0.05) as at:
        live = await at.live("a")
        await at.told(live, TextDelta("x"))
        at.writer._flushed_at -= PAUSE * 0.05
        at.writer.delta(live, TextDelta("y"))
        await turns()
        assert at.store.appends == [1, 1]


async def test_deltas_wait_until_the_first_of_them_has_waited_long_enough() -> None:
    """However long ago the last flush was, within a pause: the age of the oldest one counts."""
    async with desk(LONG) as at:
        one, two = await at.live("a"), await at.live("b")
        for live in (one, two):
            await at.told(live, TextDelta("x"))
        at.writer._flushed_at -= 1.5 * LONG
        for live in (one, two):
            at.writer.delta(live, TextDelta("y"))
            await turns()
        assert at.store.appends == [1, 1], "the second comes 1.5 waits after the last flush, and waits with the first"
        at.writer._end_wait()
        await at.writer.flushed()
        assert at.store.appends == [1, 1, 2]


async def test_the_wait_follows_the_time_of_a_flush_and_one_slow_flush_hardly_changes_it() -> None:
    at = Desk(EngineLimits().linger_s, longest_s=0.03)
    live, clock = await at.live("a"), Stopped()
    at.writer._alarm = clock

    async def flush(seconds: float) -> None:
        at.writer._flushed_at = clock.now()
        clock.time += seconds
        at.writer.delta(live, TextDelta("x"))
        await at.writer._write_staged()

    assert at.writer.linger_s == at.limits.linger_s
    for _ in range(64):
        await flush(0.0015)
    settled = at.writer.linger_s
    assert settled == pytest.approx(PACE * 0.0015, rel=0.01)
    await flush(0.5)
    assert at.writer.linger_s < 1.3 * settled
    for _ in range(64):
        await flush(0.5)
    assert at.writer.linger_s == at.limits.longest_linger_s


class Stopped(LoopAlarm):
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.time = 0.0

    def now(self) -> float:
        return self.time


async def test_deltas_of_other_runs_do_not_wait_for_a_slice_with_a_mark() -> None:
    store = SlowMarks()
    async with desk(0.0, store) as at:
        one, two = await at.live("a"), await at.live("b")
        at.writer.stage(one, MessageCompleted("said"))
        at.writer.stage(one, RunCompleted())
        await turns()
        for word in "xyz":
            await at.told(two, TextDelta(word))
        assert not one.committed.ended
        store.written.set()
        await at.writer.flushed()
        assert one.committed.ended


async def test_what_follows_a_slice_that_is_on_its_way_comes_behind_it() -> None:
    store = SlowMarks()
    async with desk(0.0, store) as at:
        live = await at.live("a")
        live.stage_mark(Mark(status="running", at=1))
        at.writer.stage(live, MessageCompleted("one"))
        await turns()
        at.writer.delta(live, TextDelta("two"))
        await turns()
        assert not store.appends, "the delta would be refused, because it does not follow the end of the log"
        store.written.set()
        await at.writer.flushed()
        assert store.appends == [1, 1] and live.committed == live.staging.state and not live.gone


async def test_a_claim_is_given_back_behind_all_that_is_on_its_way() -> None:
    store = SlowMarks()
    async with desk(0.0, store) as at:
        live = await at.live("a")
        live.stage_mark(Mark(status="running", at=1))
        at.writer.stage(live, MessageCompleted("one"))
        await turns()
        at.writer.give_back("a", 1, None)
        await turns()
        assert store.begun == 1
        store.written.set()
        await at.writer.flushed()
        assert live.committed.seq == 2 and store.appends == [1, 1]
        assert store._runs["a"].holder is None


async def test_parking_does_not_wait() -> None:
    async with desk(LONG) as at:
        live = await at.live("a")
        await at.told(live, TextDelta("x"))
        at.writer.delta(live, TextDelta("y"))
        await turns()
        await at.writer.park(live)
        assert at.store.appends == [1, 1]


async def test_a_reader_that_waits_is_sent_frames_without_being_woken() -> None:
    async with desk(0.0) as at:
        live = await at.live("a")
        reader, _ = await at.reader(live)
        sent: list[bytes] = []
        reader.connect(TestLine(lambda data: not sent.append(data)))  # type: ignore[func-returns-value]
        waiting = asyncio.create_task(reader.next())
        await turns()
        for word in ("one", "two"):
            await at.told(live, TextDelta(word))
        await turns()
        assert not waiting.done()
        assert b'"delta":"one"' in sent[0] and b'"delta":"two"' in sent[1]
        await at.writer.fact(live, MessageCompleted("onetwo"))
        await at.writer.fact(live, RunCompleted())
        last = await waiting
        assert isinstance(last, Chunk) and b"response.completed" in last.data, "the last frames go with the end"
        assert reader.told
        assert isinstance(await reader.next(), StreamEnded)


async def test_frames_that_the_line_does_not_take_are_kept_and_none_overtakes_them() -> None:
    async with desk(0.0) as at:
        live = await at.live("a")
        reader, _ = await at.reader(live)
        sent: list[bytes] = []
        takes = False

        def sink(data: bytes) -> bool:
            if takes:
                sent.append(data)
            return takes

        reader.connect(TestLine(sink))
        waiting = asyncio.create_task(reader.next())
        await turns()
        await at.told(live, TextDelta("one"))
        takes = True
        await at.told(live, TextDelta("two"))
        first = await waiting
        rest = await reader.next() if reader.backlog() else Chunk(b"")
        assert isinstance(first, Chunk) and isinstance(rest, Chunk)
        told = first.data + rest.data
        assert not sent
        assert told.index(b'"delta":"one"') < told.index(b'"delta":"two"')


async def test_a_writer_that_is_behind_says_so_and_one_at_rest_is_not_late() -> None:
    async with desk(0.001) as at:
        one, two = await at.live("a"), await at.live("b")
        late: list[float] = []

        def asked() -> None:
            late.append(at.writer.late_s)
            if len(late) == 1:
                at.writer.delta(two, TextDelta("y"))  # while the first is on its way

        at.store.asked = asked
        at.writer.delta(one, TextDelta("x"))
        time.sleep(0.05)  # noqa: ASYNC251 - the loop has something else to do
        await two.until_committed(two.staging.seq + 1)
        assert late[0] == 0.0 and late[1] > 0.03
        await at.writer.flushed()
        assert at.writer.late_s == 0.0


class Lapses:
    """A lease that is found to be over when the store has answered."""

    def __init__(self, run: ClaimedRun) -> None:
        self._run = run

    def check(self) -> None:
        self._run.advance(ClaimEvent.LAPSE)


async def test_P11_what_was_committed_is_not_told_where_the_lease_was_over_when_the_store_answered() -> None:
    """Nobody here may go on with it: another process may have the run. Readers get it from the journal."""
    async with desk(0.0) as at:
        live = await at.live("a")
        at.writer._lease = Lapses(live)
        at.writer.stage(live, MessageCompleted("said"))
        await at.writer.flushed()
        assert live.committed.seq == 1 and live.gone
        assert len(await at.store.read("o", "a", -1)) == 3, "it is in the journal"


class LapsingLease:
    """A lease that is over when it is looked at."""

    def __init__(self, run: ClaimedRun) -> None:
        self._run = run

    def check(self) -> None:
        self._run.advance(ClaimEvent.LAPSE)


async def test_p11_what_was_committed_while_the_lease_ended_is_told_to_nobody() -> None:
    async with desk(0.0) as at:
        live = await at.live("a")
        reader, _ = await at.reader(live)
        at.writer._lease = LapsingLease(live)  # type: ignore[assignment]
        at.writer.delta(live, TextDelta("x"))
        await at.writer.flushed()
        assert live.phase is ClaimPhase.LAPSED and live.committed.seq == 1
        assert not reader.backlog(), "the journal has it, and whoever holds the run now tells it"

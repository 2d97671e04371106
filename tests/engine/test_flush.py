"""How staged events become flushes, and flushes become sends: the rules behind the cost of one streamed event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core import codec
from holdfast.core.admission import Asked
from holdfast.core.events import AnyEvent, AttemptStarted, Entry, MessageCompleted, RunAccepted, RunCompleted, TextDelta
from holdfast.core.spec import Resolved, Spec
from holdfast.core.state import fold
from holdfast.dialects.responses.frames import ResponsesProjection
from holdfast.engine.base import Chunk, Ended, Limits
from holdfast.engine.hub import Hub
from holdfast.engine.live import Live
from holdfast.engine.subscription import Subscription
from holdfast.engine.writer import Writer
from holdfast.journal.base import Opening, Slice, Verdict
from holdfast.journal.bell import LocalBell
from holdfast.journal.memory import MemoryStore

LONG = 3600.0
DEADLINE = 30.0


class Silent:
    def info(self, name: str, **fields: object) -> None: ...
    def warning(self, name: str, **fields: object) -> None: ...
    def error(self, name: str, **fields: object) -> None: ...


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


class Desk:
    """One writer over one store."""

    def __init__(self, linger_s: float) -> None:
        self.store = Counted()
        self.limits = Limits(linger_s=linger_s)
        bell = LocalBell()
        self.hub = Hub(self.store, bell, self.limits)
        self.writer = Writer(self.store, bell, lambda: 1, self.limits, Silent())

    async def live(self, run: str) -> Live:
        """A run that this process drives."""
        spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": "hi"},))
        first: tuple[AnyEvent, ...] = (RunAccepted(spec=spec, resolved=Resolved(), owner="o"), AttemptStarted())
        data = [codec.encode(event) for event in first]
        asked = Asked(owner="o", fingerprint="")
        opening: dict[str, Any] = {"run": run, "at": 1, "dialect": "responses", "model": "m", "asked": asked}
        await self.store.open(Opening(**opening, accept=lambda resolved: data, holder="h"))
        state = fold(Entry(run, seq, 1, min(seq, 1), event) for seq, event in enumerate(first))
        live = Live(state, 1, owned=False)
        self.hub.add(live)
        return live

    async def told(self, live: Live, delta: TextDelta) -> None:
        """Add a delta and wait until it is committed and told."""
        self.writer.delta(live, delta)
        await self.writer.committed(live, live.staged.seq)

    async def reader(self, live: Live) -> tuple[Subscription, bytes]:
        """A reader at the live edge, and what it was given on the way."""
        reader = self.hub.subscribe("o", live.run, ResponsesProjection(), -1)
        news = await reader.next()
        assert isinstance(news, Chunk)
        return reader, news.data


@asynccontextmanager
async def desk(linger_s: float) -> AsyncIterator[Desk]:
    made = Desk(linger_s)
    writing = asyncio.create_task(made.writer.run())
    try:
        async with asyncio.timeout(DEADLINE):
            yield made
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


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
        assert one.committed == one.staged and two.committed == two.staged


async def test_deltas_are_flushed_when_the_time_is_over_without_any_fact() -> None:
    async with desk(0.01) as at:
        live = await at.live("a")
        await at.told(live, TextDelta("x"))
        await at.told(live, TextDelta("y"))
        assert at.store.appends == [1, 1]


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
        reader.sink = lambda data: not sent.append(data)  # type: ignore[func-returns-value]
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
        assert isinstance(await reader.next(), Ended)


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

        reader.sink = sink
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
        await at.writer.committed(two, two.staging.seq + 1)
        assert late[0] == 0.0 and late[1] > 0.03
        await at.writer.flushed()
        assert at.writer.late_s == 0.0

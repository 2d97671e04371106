"""A reader that names a position which its run has not reached yet waits for it (C3, B6), unless what it was shown is
lost (P15)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.spec import Resolved, Spec
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.runs.frames import RunsProjection
from ninelives.engine.base import Broken, Chunk, Idle, StreamEnded
from ninelives.engine.subscription import Subscription
from ninelives.journal.values import Mark, Opening, Record, Slice, Verdict
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, order, until

RUN = "w" * 24
NUMBER = re.compile(rb'"(?:sequence_number|seq)":(\d+)')


@pytest.fixture
async def house() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    built.books["go"] = [asked(("note", '{"n": 1}')), said("one two three four")]
    built.holds["1"] = asyncio.Event()
    yield built
    await built.close()


async def numbers(subscription: Subscription) -> list[int]:
    told: list[bytes] = []
    async with asyncio.timeout(60):
        while not isinstance(news := await subscription.next(), StreamEnded):
            told += [news.data] if isinstance(news, Chunk) else []
    subscription.close()
    return [int(n) for n in NUMBER.findall(b"".join(told))]


@pytest.mark.parametrize("kind", [ResponsesProjection, ChatProjection, RunsProjection])
async def test_c3_a_position_beyond_what_was_told_waits_and_no_number_up_to_it_is_sent(
    house: AloneHouse, kind: Any
) -> None:
    engine = await house.engine()
    ticket = await engine.submit(order("go"))
    await until(lambda: house.deeds, "the tool")
    so_far = engine.attach(OWNER, ticket.run, kind())
    first = await so_far.next()
    assert isinstance(first, Chunk)
    told = [int(n) for n in NUMBER.findall(first.data)]
    places = (told[-1], told[-1] + 2, 5000)
    readers = [so_far, *(engine.attach(OWNER, ticket.run, kind(), after) for after in places)]
    reading = [asyncio.create_task(numbers(each)) for each in readers]
    await until(lambda: all(each._waiter and not each._waiter.done() for each in readers), "all of them wait")
    house.holds["1"].set()
    rest, after_here, after_ahead, after_far = await asyncio.gather(*reading)
    assert after_here == rest
    assert after_ahead == [n for n in rest if n > told[-1] + 2]
    assert len(rest) > len(after_ahead) > 0
    assert after_far == rest[-1:], "only the terminal event (G5)"


async def write_run_that_went_back(store: Any) -> None:
    """Events 4 and 5 were shown and lost with a database server. Others have their numbers now."""
    hello = (e.TextDelta("Hel"), e.TextDelta("lo"))

    def accept(resolved: Resolved) -> list[bytes]:
        spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": "hi"},))
        return [codec.encode(e.RunAccepted(spec=spec, resolved=resolved, owner=OWNER))]

    asked_for = Asked(owner=OWNER, fingerprint="f", derived_session="s")
    await store.open(Opening(run=RUN, at=1, dialect="responses", model="m", asked=asked_for, accept=accept))
    again = codec.encode(e.AttemptStarted(clean=False, lost=2))
    for attempt, first in ((1, codec.encode(e.AttemptStarted())), (2, again)):
        claim = await store.claim(RUN, f"h{attempt}", lambda *_, first=first: first, 1)
        rest: tuple[e.AnyEvent, ...] = hello[:1]
        if attempt == 2:
            rest = (*hello, e.MessageCompleted("Hello"), e.RunCompleted())
        records = [Record(n, attempt, 1, codec.encode(event)) for n, event in enumerate(rest, claim.record.seq + 1)]
        over = Mark(status="completed", at=1, ended=True) if attempt == 2 else Mark(status="queued", at=1, parked=True)
        assert await store.append([Slice(RUN, attempt, records, over)]) == [Verdict.WRITTEN]


@pytest.mark.parametrize("kind", [ResponsesProjection, ChatProjection, RunsProjection])
async def test_p15_a_reader_who_was_shown_events_that_the_database_lost_gets_one_clear_error(
    house: AloneHouse, kind: Any
) -> None:
    engine = await house.engine()
    await write_run_that_went_back(engine.durable)
    whole = await numbers(engine.attach(OWNER, RUN, kind()))
    told = [await ends_well(engine.attach(OWNER, RUN, kind(), place)) for place in range(whole[-1] + 1)]
    assert told[0] and not told[-1]
    assert told == sorted(told, reverse=True), "all places up to the loss, and none after it"


async def ends_well(subscription: Subscription) -> bool:
    """Whether a stream is told to its end. If not, the error says what to do."""
    async with asyncio.timeout(60):
        while isinstance(news := await subscription.next(), Chunk | Idle):
            pass
    subscription.close()
    assert isinstance(news, StreamEnded) or (isinstance(news, Broken) and "from its beginning" in news.reason)
    return isinstance(news, StreamEnded)

"""A reader that names a position which its run has not reached yet waits for it (C3, B6)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ninelives.dialects.chat.frames import ChatProjection
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.runs.frames import RunsProjection
from ninelives.engine.base import Chunk, StreamEnded
from ninelives.engine.subscription import Subscription
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, order, until

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
    await until(lambda: all(each._waiting() for each in readers), "all of them wait")
    house.holds["1"].set()
    rest, after_here, after_ahead, after_far = await asyncio.gather(*reading)
    assert after_here == rest
    assert after_ahead == [n for n in rest if n > told[-1] + 2]
    assert len(rest) > len(after_ahead) > 0
    assert after_far == rest[-1:], "only the terminal event (G5)"

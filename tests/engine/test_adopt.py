"""A run that its connection owned becomes a stored one when a person must be asked (G11): a wish to stop that was left
with the old home while it moved comes along, and a store that does not answer leaves no second run behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.engine.engine import Engine
from holdfast.journal.base import Mark, Signal, Slice
from holdfast.models.scripted import asked, said
from tests.engine.peers import OWNER, Ear, House, PostgresHouse, order, until


@pytest.fixture(params=[House, PostgresHouse])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    built: House = request.param()
    await built.begin()
    built.books["hi"] = [asked(("note", '{"n": 1, "ask": true}')), said("done")]
    yield built
    await built.close()


async def is_asked_and_goes_on(house: House, engine: Engine, run: str, ear: Ear) -> int:
    """The question comes, its answer is heard, the reader sees the end. The attempt that ended it."""
    state = await asyncio.wait_for(engine.wait(OWNER, run), 30)
    assert state is not None and state.facts.asked is not None, state
    await engine.approve(OWNER, state, "once", "bob")
    assert b"done" in await ear.whole()
    assert list(house.deeds.values()) == [1] and list(await house.rows()) == [run]
    return (await house.rows())[run][1]


@pytest.mark.parametrize("down", [False, True])
async def test_G11_a_stop_said_while_a_run_becomes_a_stored_one_is_heard(house: House, down: bool) -> None:
    engine = await house.engine()
    valve, memory = house.valves[0], engine._parts.memory
    through = valve.through

    async def late(work: Any, *args: Any, **named: Any) -> Any:
        answer = await through(work, *args, **named)
        if work.__name__ == "open":
            assert await memory.signal(OWNER, Signal(args[0].run, "cancel", "cancel"))
            if down:
                valve.refused.add("signal")
                asyncio.get_running_loop().call_later(0.6, valve.refused.clear)
        return answer

    valve.through = late  # type: ignore[method-assign]
    ticket = await engine.submit(order("hi", store=False))
    state = await asyncio.wait_for(engine.wait(OWNER, ticket.run), 30)
    assert state is not None and state.status == "cancelled"
    assert not house.deeds and (await house.rows())[ticket.run][0] is None


async def test_G11_a_move_whose_answer_was_lost_has_happened(house: House) -> None:
    engine = await house.engine()
    house.valves[0].unanswered.add("open")
    ticket = await engine.submit(order("hi", store=False))
    ear = Ear(engine, ticket.run)
    assert await is_asked_and_goes_on(house, engine, ticket.run, ear) == 2


async def test_G11_a_moved_run_that_the_store_gave_to_others_goes_on_with_them_and_its_reader_too(house: House) -> None:
    """A store that never heard whether its answer arrived gives the run back: nobody seems to drive it."""
    engine = await house.engine()
    valve, given = house.valves[0], list[str]()
    valve.unanswered.add("open")
    through = valve.through

    async def gives(work: Any, *args: Any, **named: Any) -> Any:
        if work.__name__ == "find" and not given:
            given.append(args[1])
            await valve._store.append([Slice(args[1], 1, [], Mark(status="queued", at=house.now_ms(), parked=True))])
        return await through(work, *args, **named)

    valve.through = gives  # type: ignore[method-assign]
    ticket = await engine.submit(order("hi", store=False))
    ear = Ear(engine, ticket.run)
    assert await is_asked_and_goes_on(house, engine, ticket.run, ear) == 3
    assert given == [ticket.run]


async def test_P15_a_run_that_must_ask_while_the_store_is_away_waits_for_it(house: House) -> None:
    engine = await house.engine()
    valve = house.valves[0]
    valve.refused.add("open")
    ticket = await engine.submit(order("hi", store=False))
    ear = Ear(engine, ticket.run)
    await until(lambda: ear.idles > 1, "keepalives")
    assert not ear.task.done()
    valve.refused.clear()
    assert await is_asked_and_goes_on(house, engine, ticket.run, ear) == 2

"""A run that waits for a slot can be stopped and deleted at any moment (P3, A8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ninelives.core.state import RunState
from ninelives.engine.admission import STEP_S, STEPS
from ninelives.engine.engine import Engine
from ninelives.testing.playbook import Step, asked, said
from tests.engine.peers import OWNER, AloneHouse, order, until

NOTE: list[list[Step]] = [asked(("note", '{"n": 1}')), said("done")]


@pytest.fixture
async def house() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    yield built
    await built.close()


async def full(house: AloneHouse) -> tuple[Engine, str]:
    """An engine whose only slot is taken, and by which run."""
    house.books |= {"first": NOTE, "second": [said("done")]}
    house.holds["1"] = asyncio.Event()
    engine = await house.engine(concurrent_runs=1)
    first = await engine.submit(order("first"))
    await until(lambda: house.deeds, "the tool")
    return engine, first.run


async def test_P3_a_stop_that_comes_before_the_run_waits_for_its_slot_waits_for_no_slot(house: AloneHouse) -> None:
    """The store has the run, and whoever sees it there stops it before the engine that opened it hears of it."""
    engine, first = await full(house)
    valve, stops = house.valves[0], list[asyncio.Task[RunState | None]]()
    through = valve.through

    async def late(work: Any, *args: Any, **named: Any) -> Any:
        answer = await through(work, *args, **named)
        if work.__name__ == "open":
            stops.append(stop := asyncio.create_task(engine.cancel(OWNER, answer.run)))
            await until(lambda: stop.done() or engine.readers.is_read(answer.run), "somebody stops it")
        return answer

    valve.through = late  # type: ignore[method-assign]
    ticket = await engine.submit(order("second"))
    state = await stops[0]
    assert state is not None and (state.facts.run, state.status) == (ticket.run, "cancelled")
    before = await engine.look(OWNER, first)
    assert before is not None and not before.ended, "the slot was not free yet"


async def test_a_run_that_is_deleted_while_nobody_can_stop_it_answers_those_who_wait_for_its_end(
    house: AloneHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = await full(house)
    valve = house.valves[0]
    through = valve.through

    async def unclaimed(work: Any, *args: Any, **named: Any) -> Any:
        if work.__name__ == "claim":
            await asyncio.Event().wait()
        return await through(work, *args, **named)

    valve.through = unclaimed  # type: ignore[method-assign]
    monkeypatch.setattr("ninelives.engine.engine.CANCEL_WAIT_S", 0.1)
    ticket = await engine.submit(order("second"))
    waiter = asyncio.create_task(engine.wait(OWNER, ticket.run))
    await until(lambda: engine.readers.is_read(ticket.run), "somebody waits")
    assert await engine.delete(OWNER, ticket.run)
    assert await asyncio.wait_for(waiter, 60) is None


async def test_a_run_that_begins_gives_way_while_deltas_are_told_late_and_not_for_ever(house: AloneHouse) -> None:
    house.books |= {"first": [said("done")], "second": [said("done")]}
    engine = await house.engine()
    writer = engine._writers[False]
    writer.late_s = 1.0
    begun = asyncio.create_task(engine.submit(order("first")))
    await asyncio.sleep(0.02)
    assert not begun.done()
    writer.late_s = 0.0
    await begun
    await until(lambda: writer.late_s == 0.0 and begun.result().run not in engine._workers.by_run, "its end")
    writer.late_s = 1.0
    began = asyncio.get_running_loop().time()
    await engine.submit(order("second"))
    assert asyncio.get_running_loop().time() - began >= STEPS * STEP_S, "nothing made it less late"

"""A request that comes while another run of its conversation or session is active: C7, X-Multitask-Strategy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from ninelives.core.admission import RunActive
from ninelives.core.events import RunInterrupted
from ninelives.core.spec import Strategy
from ninelives.core.state import RunState
from ninelives.engine.base import Order, Ticket
from ninelives.engine.claim import ClaimEvent
from ninelives.engine.engine import Engine
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, House, order, until

PLACES: list[dict[str, Any]] = [{"conversation": "talk"}, {"session": "s", "alone": True}]


def beside(text: str, strategy: Strategy, place: dict[str, Any]) -> Order:
    return replace(order(text, **place), strategy=strategy)


async def ended(engine: Engine, run: str) -> RunState:
    async def look() -> RunState | None:
        state = await engine.look(OWNER, run)
        return state if state is not None and state.ended else None

    found: RunState = await until(look, "the end")
    return found


async def working(house: House, engine: Engine, place: dict[str, Any]) -> str:
    """A run in the place whose first tool is under way."""
    house.books |= {"hi": [asked(("note", '{"n": 1}')), said("done")], "next": [said("after")]}
    house.holds["1"] = asyncio.Event()
    ticket = await engine.submit(order("hi", **place))
    await until(lambda: house.deeds, "the tool")
    return ticket.run


async def history(engine: Engine, state: RunState) -> list[object]:
    return [message["content"] for message in await engine._workers.earlier.before(state.facts.accepted)]


@pytest.mark.parametrize("place", PLACES, ids=["conversation", "session"])
async def test_c7_reject_is_409_and_names_the_run(house: House, place: dict[str, Any]) -> None:
    engine = await house.engine()
    run = await working(house, engine, place)
    with pytest.raises(RunActive) as refused:
        await engine.submit(beside("next", "reject", place))
    assert (refused.value.status, refused.value.run) == (409, run)


@pytest.mark.parametrize("place", PLACES, ids=["conversation", "session"])
async def test_c7_enqueue_waits_and_goes_on_from_the_result(house: House, place: dict[str, Any]) -> None:
    engine = await house.engine()
    run = await working(house, engine, place)
    waiting = [asyncio.create_task(engine.submit(beside("next", "enqueue", place))) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    house.holds["1"].set()
    tickets: list[Ticket] = await asyncio.wait_for(asyncio.gather(*waiting), 60)
    states = [await ended(engine, ticket.run) for ticket in tickets]
    assert len({run, *(ticket.run for ticket in tickets)}) == 4 and all(s.status == "completed" for s in states)
    assert (await history(engine, states[0]))[:2] == ["hi", None] and "done" in await history(engine, states[0])
    lengths = sorted([len(await history(engine, state)) for state in states])
    assert lengths == [4, 6, 8], "each one follows the one before"


@pytest.mark.parametrize("place", PLACES, ids=["conversation", "session"])
async def test_c7_interrupt_ends_the_run_at_a_safe_point_and_keeps_its_work(
    house: House, place: dict[str, Any]
) -> None:
    engine = await house.engine()
    run = await working(house, engine, place)
    task = asyncio.create_task(engine.submit(beside("next", "interrupt", place)))
    await until(lambda: ClaimEvent.INTERRUPT in engine.readers.lives[run].happened, "the signal")
    state = await engine.look(OWNER, run)
    assert state is not None and not state.ended, "a tool is under way"
    house.holds["1"].set()
    follower = await ended(engine, (await asyncio.wait_for(task, 60)).run)
    assert (await ended(engine, run)).facts.end == RunInterrupted("interrupted")
    assert "note gave 1" in await history(engine, follower) and house.asked == ["hi", "next"]
    assert sum(house.deeds.values()) == 1


async def test_c7_interrupt_ends_a_run_that_waits_for_a_person(house: House) -> None:
    engine = await house.engine()
    house.books |= {"hi": [asked(("note", '{"n": 1, "ask": true}'))], "next": [said("after")]}
    run = (await engine.submit(order("hi", conversation="talk"))).run

    async def asks() -> bool:
        state = await engine.look(OWNER, run)
        return state is not None and state.facts.asked is not None and run not in engine.readers.lives

    await until(asks, "the question")
    ticket = await asyncio.wait_for(engine.submit(beside("next", "interrupt", {"conversation": "talk"})), 60)
    assert (await ended(engine, ticket.run)).status == "completed" and not house.deeds
    assert (await ended(engine, run)).facts.end == RunInterrupted("interrupted")


@pytest.mark.parametrize("place", PLACES, ids=["conversation", "session"])
async def test_c7_steer_writes_to_the_active_run_and_answers_with_it(house: House, place: dict[str, Any]) -> None:
    engine = await house.engine()
    run = await working(house, engine, place)
    ticket = await engine.submit(beside("next", "steer", place))
    assert ticket.run == run
    house.holds["1"].set()
    state = await ended(engine, run)
    assert [message.text for message in state.facts.messages] == ["", "after"] and len(state.facts.steers) == 1


async def test_b6_a_request_that_is_not_stored_is_not_written_to_a_stored_run(house: House) -> None:
    engine = await house.engine()
    run = await working(house, engine, PLACES[1])
    with pytest.raises(RunActive):
        await engine.submit(beside("next", "steer", {**PLACES[1], "kept": "delivery"}))
    assert await engine.durable.signals(run) == []
    house.holds["1"].set()
    assert not (await ended(engine, run)).facts.steers


async def test_c7_of_many_that_want_an_idle_session_at_once_one_wins(house: House) -> None:
    engines = [await house.engine(), await house.engine()]
    house.books["hi"] = [asked(("note", '{"n": 1}')), said("done")]
    house.holds["1"] = asyncio.Event()
    tries = [engines[n % 2].submit(beside("hi", "reject", PLACES[1])) for n in range(6)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, Ticket)]
    assert len(won) == 1 and sum(isinstance(answer, RunActive) for answer in answers) == 5
    house.holds["1"].set()
    await ended(engines[0], won[0].run)

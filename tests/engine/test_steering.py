"""Writing to a run while it works: an accepted steer is used once, in order, before the next message of the model, or
it is told as unused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ninelives.core.errors import ClientError
from ninelives.core.events import RunInterrupted, SteerApplied, SteerUnused
from ninelives.core.history import output_messages, spoken
from ninelives.core.state import RunState
from ninelives.dialects.receipt import receipt
from ninelives.engine.engine import Engine
from ninelives.journal.steering import MAX_STEERS, Steer, leave_steer
from ninelives.journal.values import StoreUnavailable
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, Ear, House, order, until

NOTE = asked(("note", '{"n": 1}'))


def steer(text: str, name: str = "") -> Steer:
    return Steer(id=name or f"steer_{text}", messages=({"role": "user", "content": text},), by="key 1")


async def ended(engine: Engine, run: str) -> RunState:
    async def look() -> RunState | None:
        state = await engine.look(OWNER, run)
        return state if state is not None and state.ended else None

    found: RunState = await until(look, "the end")
    return found


@pytest.fixture
async def alone() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    yield built
    await built.close()


async def in_tool(house: House, engine: Engine) -> str:
    """A run whose first tool is under way."""
    house.books["hi"] = [NOTE, said("done")]
    house.holds["1"] = asyncio.Event()
    ticket = await engine.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    return ticket.run


async def test_a_steer_is_read_by_the_model_after_the_tools_of_the_round_in_order(house: House) -> None:
    engine = await house.engine()
    run = await in_tool(house, engine)
    ear = Ear(engine, run)
    house.books["second"] = [said("as you wish")]
    await engine.steer(OWNER, run, steer("first"))
    await engine.steer(OWNER, run, steer("second"))
    house.holds["1"].set()
    state = await ended(engine, run)
    assert state.status == "completed" and house.asked == ["hi", "second"]
    told = output_messages(spoken(state.facts), state.facts.results)
    assert [message["role"] for message in told] == ["assistant", "tool", "user", "user", "assistant"]
    assert [m["content"] for m in told if m["role"] == "user"] == ["first", "second"]
    frames = (await ear.whole()).decode()
    assert frames.index("tool.completed") < frames.index("run.steered") < frames.index("as you wish")
    assert frames.count("run.steered") == 2 and "pending_steer" not in frames
    entries = [entry async for entry in engine.entries(OWNER, run)]
    assert [(s["id"], s["used"]) for s in receipt(entries).steers] == [("steer_first", True), ("steer_second", True)]


async def test_a_steer_during_the_last_message_gets_a_message_of_its_own(house: House) -> None:
    engine, go_on = await house.engine(), asyncio.Event()
    first, *rest = said("one ", "two")
    house.books |= {"hi": [[first, go_on, *rest]], "more": [said("three")]}
    ticket = await engine.submit(order("hi"))
    await until(lambda: house.asked, "the model")
    await engine.steer(OWNER, ticket.run, steer("more"))
    go_on.set()
    state = await ended(engine, ticket.run)
    assert [message.text for message in state.facts.messages] == ["one two", "three"]
    assert state.facts.steers[0].after == 1


async def test_P3_a_steer_survives_the_death_of_its_holder_and_is_used_once(house: House) -> None:
    engine = await house.engine()
    run = await in_tool(house, engine)
    house.books["more"] = [said("three")]
    await engine.steer(OWNER, run, steer("more"))
    await house.dies(0)
    house.holds["1"].set()
    state = await ended(await house.engine(), run)
    assert state.facts.attempt == 2 and [s.applied.id for s in state.facts.steers] == ["steer_more"]
    assert house.asked[-1] == "more"


async def test_a_steer_at_another_process_reaches_the_holder(house: House) -> None:
    engine, other = await house.engine(), await house.engine(works=False)
    run = await in_tool(house, engine)
    house.books["more"] = [said("three")]
    await other.steer(OWNER, run, steer("more"))
    live = engine.readers.lives.get(run)
    assert live is not None
    await until(live.pending, "the notification")
    house.holds["1"].set()
    assert (await ended(other, run)).facts.steered == {"steer_more"}


async def test_a_run_that_waits_for_a_person_keeps_its_steer_until_it_goes_on(house: House) -> None:
    engine = await house.engine()
    house.books |= {"hi": [asked(("note", '{"n": 1, "ask": true}')), said("done")], "more": [said("three")]}
    run = (await engine.submit(order("hi"))).run

    async def asks() -> RunState | None:
        state = await engine.look(OWNER, run)
        return state if state is not None and state.facts.asked and engine.readers.lives.get(run) is None else None

    waiting = await until(asks, "the question")
    await engine.steer(OWNER, run, steer("more"))
    assert [each.id for each in await engine.unused_steers(waiting)] == ["steer_more"]
    assert await engine.durable.claimable(10, house.now_ms()) == [], "a steer does not wake it"
    await engine.approve(OWNER, waiting, "once", "key 1")
    state = await ended(engine, run)
    assert state.status == "completed" and state.facts.steered == {"steer_more"} and sum(house.deeds.values()) == 1


async def test_a_run_that_is_cancelled_tells_which_steers_it_did_not_use(house: House) -> None:
    engine = await house.engine()
    run = await in_tool(house, engine)
    ear = Ear(engine, run)
    await engine.steer(OWNER, run, steer("more"))
    state = await engine.cancel(OWNER, run)
    assert state is not None and state.status == "cancelled" and state.facts.unused == ("steer_more",)
    assert b'"pending_steer":"more"' in await ear.whole()
    assert [each.id for each in await engine.unused_steers(state)] == ["steer_more"]
    with pytest.raises(ClientError) as refused:
        await engine.steer(OWNER, run, steer("late"))
    assert (refused.value.code, refused.value.status) == ("run_not_accepting_steer", 409)


async def test_a_run_that_a_limit_ends_does_not_use_a_steer_that_no_model_would_read(alone: AloneHouse) -> None:
    engine = await alone.engine()
    alone.books["hi"] = [*[asked(("look", '{"n": 2}'))] * 5, NOTE, said("never")]
    alone.holds["1"] = asyncio.Event()
    run = (await engine.submit(order("hi"))).run
    await until(lambda: len(alone.deeds) == 6, "the last tool")
    await engine.steer(OWNER, run, steer("more"))
    alone.holds["1"].set()
    state = await ended(engine, run)
    assert state.facts.end == RunInterrupted("max_messages") and state.facts.unused == ("steer_more",)


async def test_the_same_steer_sent_again_counts_once_and_another_under_its_id_is_refused(alone: AloneHouse) -> None:
    engine = await alone.engine()
    run = await in_tool(alone, engine)
    alone.books["more"] = [said("three")]
    await asyncio.gather(*(engine.steer(OWNER, run, steer("more", "steer_1")) for _ in range(5)))
    with pytest.raises(ClientError) as refused:
        await engine.steer(OWNER, run, steer("other", "steer_1"))
    assert refused.value.code == "idempotency_key_conflict"
    alone.holds["1"].set()
    state = await ended(engine, run)
    assert len(state.facts.steers) == 1 and alone.asked == ["hi", "more"]


async def test_many_steers_at_once_are_bounded_and_each_has_its_place(house: House) -> None:
    engine = await house.engine()
    run = await in_tool(house, engine)
    for n in range(MAX_STEERS - 5):
        await engine.steer(OWNER, run, steer(f"s{n}"))
    tries = [engine.steer(OWNER, run, steer(f"s{n}")) for n in range(MAX_STEERS - 5, MAX_STEERS + 3)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, ClientError)]
    assert len(refused) == 3 and {error.code for error in refused} == {"too_many_pending_steers"}
    kept = await engine.durable.signals(run)
    assert [signal.key for signal in kept] == [f"{n:06d}" for n in range(MAX_STEERS)]
    house.books |= {f"s{n}": [said("ok")] for n in range(MAX_STEERS + 3)}
    house.holds["1"].set()
    state = await ended(engine, run)
    order_kept = [signal.payload.decode().split('"')[3] for signal in kept]
    assert [steered.applied.id for steered in state.facts.steers] == order_kept
    entries = [entry async for entry in engine.entries(OWNER, run)]
    assert sum(isinstance(entry.event, SteerApplied) for entry in entries) == MAX_STEERS
    assert not any(isinstance(entry.event, SteerUnused) for entry in entries)


async def test_a_steer_whose_answer_was_lost_can_be_sent_again(alone: AloneHouse) -> None:
    engine = await alone.engine()
    run = await in_tool(alone, engine)
    alone.books["more"] = [said("three")]
    alone.valves[0].unanswered.add("signal")
    with pytest.raises(StoreUnavailable):
        await engine.steer(OWNER, run, steer("more"))
    await engine.steer(OWNER, run, steer("more"))
    alone.holds["1"].set()
    assert len((await ended(engine, run)).facts.steers) == 1


async def test_a_steer_that_was_stored_while_the_end_was_on_its_way_is_refused_and_told(alone: AloneHouse) -> None:
    engine = await alone.engine()
    run = await in_tool(alone, engine)
    valve = alone.valves[0]
    valve.late["append"] = asyncio.Event()
    alone.holds["1"].set()
    live = engine.readers.lives.get(run)
    assert live is not None
    valve.late["append"].set()
    await until(lambda: live.staging.state.ended, "the end")
    with pytest.raises(ClientError) as refused:
        await engine.steer(OWNER, run, steer("more"))
    assert refused.value.code == "run_not_accepting_steer"


async def test_foreign_runs_take_no_steer(alone: AloneHouse) -> None:
    engine = await alone.engine()
    run = await in_tool(alone, engine)
    with pytest.raises(ClientError) as refused:
        await leave_steer(engine.durable, "bob", run, steer("more"))
    assert refused.value.status == 409 and await engine.durable.signals(run) == []

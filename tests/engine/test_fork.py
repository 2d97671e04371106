"""Forking a run: what is settled is taken over, and nothing of it is done again (D1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.errors import ClientError
from ninelives.core.spec import Resolved
from ninelives.core.state import RunState, fold
from ninelives.dialects.receipt import receipt
from ninelives.engine.base import ForkOrder
from ninelives.engine.engine import Engine
from ninelives.journal.fork import SLICE, copied, fork_at, is_legal
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, House, order, until
from tests.journals import journals, quick

TWO = [asked(("note", '{"n": 1}')), asked(("note", '{"n": 2}')), said("done")]


def hear(text: str) -> tuple[dict[str, object], ...]:
    return ({"role": "user", "content": text},)


async def ended(engine: Engine, run: str) -> RunState:
    async def look() -> RunState | None:
        state = await engine.look(OWNER, run)
        return state if state is not None and state.ended else None

    found: RunState = await until(look, "the end")
    return found


async def source(house: House, engine: Engine) -> tuple[str, list[e.Entry]]:
    house.books["hi"] = TWO
    run = (await engine.submit(order("hi"))).run
    await ended(engine, run)
    return run, [entry async for entry in engine.entries(OWNER, run)]


@pytest.fixture
async def alone() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    yield built
    await built.close()


async def test_a_fork_goes_on_from_the_results_and_makes_no_finished_call_again(house: House) -> None:
    engine = await house.engine()
    run, entries = await source(house, engine)
    first = next(entry.seq for entry in entries if isinstance(entry.event, e.ToolFinished))
    ticket, seq = await engine.fork(OWNER, run, ForkOrder(from_seq=first))
    state = await ended(engine, ticket.run)
    assert seq == first and ticket.run != run and state.status == "completed"
    assert sorted(house.deeds.values()) == [1, 1, 1], "the first was not made again, the second was"
    calls = [call.id for message in state.facts.messages for call in message.calls]
    assert all(call.startswith(f"call_{ticket.run}") for call in calls) and len(set(calls)) == 2
    told = receipt([entry async for entry in engine.entries(OWNER, ticket.run)])
    assert told.reused == calls[:1] and told.forked_from == {"run_id": f"run_{run}", "seq": first}
    assert told.usage.output_tokens == 2, "the copied message was paid for by the other run"


async def test_b6_a_run_that_is_not_stored_cannot_be_forked_into_one_that_is(house: House) -> None:
    engine = await house.engine()
    house.books["hi"] = [asked(("note", '{"n": 1}')), said("done")]
    house.holds["1"] = asyncio.Event()
    run = (await engine.submit(order("hi", kept="delivery"))).run
    await until(lambda: house.deeds, "the tool")
    with pytest.raises(ClientError) as refused:
        await engine.fork(OWNER, run, ForkOrder(from_seq=1))
    assert (refused.value.status, refused.value.code) == (409, "run_not_stored")
    house.holds["1"].set()


async def test_a_fork_with_input_tells_the_model_and_survives_the_deletion_of_its_source(house: House) -> None:
    engine = await house.engine()
    house.books["before"] = [said("earlier")]
    before = (await engine.submit(order("before"))).run
    await ended(engine, before)
    house.books |= {"hi": [asked(("note", '{"n": 1}')), said("done")], "else": [said("otherwise")]}
    run = (await engine.submit(order("hi", previous=before))).run
    last = (await ended(engine, run)).seq
    ticket, seq = await engine.fork(OWNER, run, ForkOrder(from_seq=last, said=hear("else")))
    assert await engine.delete(OWNER, run) and await engine.delete(OWNER, before)
    state = await ended(engine, ticket.run)
    assert seq == last - 1 and [message.text for message in state.facts.messages] == ["", "done", "otherwise"]
    assert [message["content"] for message in state.facts.accepted.spec.history] == ["before", "earlier"]
    assert sum(house.deeds.values()) == 1


async def test_a_place_in_a_call_counts_as_the_one_before_it_and_a_place_beyond_is_refused(alone: AloneHouse) -> None:
    engine = await alone.engine()
    run, entries = await source(alone, engine)
    started = next(entry.seq for entry in entries if isinstance(entry.event, e.ToolStarted))
    _, seq = await engine.fork(OWNER, run, ForkOrder(from_seq=started))
    assert seq == started - 1
    for wrong in (-1, 0, entries[-1].seq + 1):
        with pytest.raises(ClientError) as refused:
            await engine.fork(OWNER, run, ForkOrder(from_seq=wrong))
        assert refused.value.code == "invalid_fork_point" and str(started - 1) in refused.value.message
    with pytest.raises(ClientError):
        await engine.fork("bob", run, ForkOrder(from_seq=1))


async def test_a_running_run_can_be_forked_and_a_death_repeats_nothing(house: House) -> None:
    engine = await house.engine()
    house.books["hi"] = TWO
    house.holds["2"] = asyncio.Event()
    run = (await engine.submit(order("hi"))).run
    await until(lambda: len(house.deeds) == 2, "the second tool")
    state = await engine.look(OWNER, run)
    assert state is not None
    ticket, _ = await engine.fork(OWNER, run, ForkOrder(from_seq=state.seq, said=hear("else")))
    house.books["else"] = [asked(("note", '{"n": 2}')), said("otherwise")]
    await until(lambda: len(house.deeds) == 3, "the tool of the fork")
    await house.dies(0)
    house.holds["2"].set()
    other = await house.engine()
    forked = await ended(other, ticket.run)
    assert forked.status == "completed" and max(house.deeds.values()) == 1
    assert [steered.applied.messages for steered in forked.facts.steers] == [hear("else")]


async def told(entries: list[e.Entry]) -> AsyncIterator[e.Entry]:
    for entry in entries:
        yield entry


async def test_r12_a_fork_of_a_long_run_lets_others_run() -> None:
    accepted = e.RunAccepted(spec=order("hi").spec, resolved=Resolved(), owner=OWNER)
    steers = [e.SteerApplied(id=f"s{n}", messages=hear("more")) for n in range(4 * SLICE)]
    events = [accepted, e.AttemptStarted(), *steers]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    entries = [e.Entry("0" * 16, n, 1, min(n, 1), event) for n, event in enumerate(events)]
    fork = await fork_at(told(entries), len(entries) - 1, speaks=True)
    beside.cancel()
    assert (fork.seq, len(fork.entries), turns >= 4) == (len(entries) - 1, len(entries), True)


@quick
@given(journals("runs"), st.integers(0, 40), st.booleans())
def test_every_legal_place_gives_a_legal_run(entries: list[e.Entry], from_seq: int, speaks: bool) -> None:
    try:
        fork = asyncio.run(fork_at(told(entries), from_seq, speaks=speaks))
    except ClientError:
        states = [fold(entries[: n + 1]) for n in range(min(from_seq, len(entries) - 1) + 1)]
        assert from_seq > entries[-1].seq or not any(is_legal(state, speaks=speaks) for state in states)
        return
    facts = copied(fork, "fedcba9876543210", hear("else") if speaks else (), "key 1")
    accepted = entries[0].event
    made = [e.Entry("fedcba9876543210", n, 1, 1, event) for n, event in enumerate([e.AttemptStarted(), *facts], 1)]
    state = fold([e.Entry("fedcba9876543210", 0, 1, 0, accepted), *made])
    before = fork.state.facts
    assert [m.text for m in state.facts.messages] == [m.text for m in before.messages]
    assert list(state.facts.results.values()) == [
        e.ToolFinished(
            call_id=result.call_id.replace(before.run, "fedcba9876543210"),
            output=result.output,
            is_error=result.is_error,
            outcome=result.outcome,
            duration_ms=result.duration_ms,
        )
        for result in before.results.values()
    ]
    assert len(state.facts.due) == len(before.due)

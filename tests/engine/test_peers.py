"""Engines that share a store: who drives a run, how a wish finds its holder, what readers elsewhere see, and what
happens when the store or a process is away (P4-P8, P11, P15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ninelives.core.errors import ClientError, ServerError
from ninelives.core.events import AttemptStarted, Entry
from ninelives.core.spec import Kept
from ninelives.core.state import apply
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.engine.base import Broken, CutOff
from ninelives.engine.claim import ClaimPhase
from ninelives.engine.run import ClaimedRun
from ninelives.testing.playbook import Step, asked, said
from tests.engine.peers import LEASE_S, OWNER, Ear, House, PostgresHouse, order, until

NOTE: list[list[Step]] = [asked(("note", '{"n": 1}')), said("done")]
LOOK: list[list[Step]] = [asked(("look", '{"n": 1}')), said("done")]
ASK: list[list[Step]] = [asked(("note", '{"n": 1, "ask": true}')), said("done")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninelives.engine.readers.LOOK_AGAIN_S", 0.5)
    monkeypatch.setattr("ninelives.engine.subscription.CHECK_S", 0.5)


@pytest.fixture(params=[House, PostgresHouse])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    built: House = request.param()
    await built.begin()
    yield built
    await built.close()


async def ended(house: House, run: str, n: int = 0) -> str:
    state = await asyncio.wait_for(house.engines[n].wait(OWNER, run), 60)
    assert state is not None
    return state.status


async def test_a_run_without_a_slot_is_taken_by_a_process_that_has_one(house: House) -> None:
    first = await house.engine(works=False)
    second = await house.engine()
    house.books["hi"] = NOTE
    ticket = await first.submit(order("hi"))
    assert await ended(house, ticket.run) == "completed"
    assert sum(house.deeds.values()) == 1
    assert first.stats()["recovered"] == 0
    await until(lambda: second.stats()["active"] == 0)


async def test_a_process_that_only_answers_drives_what_its_connections_own(house: House) -> None:
    first = await house.engine(works=False)
    house.books["hi"] = [said("done")]
    ticket = await first.submit(order("hi", kept="memory"))
    assert await ended(house, ticket.run) == "completed"


async def test_the_bound_on_the_queue_counts_what_others_took_in(house: House) -> None:
    first, second = await house.engine(works=False, queue=2), await house.engine(works=False, queue=2)
    house.books["hi"] = [said("done")]
    for _ in range(2):
        await first.submit(order("hi"))

    async def refused() -> bool:
        try:
            await second.submit(order("hi"))
        except ClientError as error:
            return error.code == "too_many_runs"
        return False

    await until(refused)
    assert len(await house.rows()) <= 4


async def test_two_processes_never_drive_one_run(house: House) -> None:
    door = await house.engine(works=False)
    await house.engine()
    await house.engine()
    house.books["hi"] = NOTE
    tickets = [await door.submit(order("hi")) for _ in range(30)]
    for ticket in tickets:
        assert await ended(house, ticket.run) == "completed"
    # a lease may lapse on a slow machine: a deed is done once all the same
    assert sorted(house.deeds.values()) == [1] * 30


@pytest.mark.parametrize("lost", [False, True])
async def test_a_cancel_reaches_the_holder_wherever_it_is_also_when_the_ring_is_lost(house: House, lost: bool) -> None:
    holder, other = await house.engine(), await house.engine()
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    ticket = await holder.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    if lost:
        if isinstance(house, PostgresHouse):
            pytest.skip("a NOTIFY cannot be lost on purpose here: tests/journal does it")
        house.deaf = True
    state = await other.cancel(OWNER, ticket.run)
    assert state is not None and state.status == "cancelled"
    # the end is committed, and seen here, before the holder's own append has returned to its worker
    await until(lambda: holder.stats()["held"] == 0, "the end of the worker")


async def test_a_cancel_of_a_run_that_nobody_holds_waits_for_no_slot(house: House) -> None:
    busy, door = await house.engine(concurrent_runs=1), await house.engine(works=False)
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    await busy.submit(order("hi"))
    waiting = await door.submit(order("hi"))
    state = await door.cancel(OWNER, waiting.run)
    assert state is not None and state.status == "cancelled"
    await until(lambda: busy.stats()["active"] == 1, "its place is given back")


@pytest.mark.parametrize("gone", [False, True])
async def test_an_answer_may_come_through_any_process_and_wakes_the_run_once(house: House, gone: bool) -> None:
    first, second, third = [await house.engine() for _ in range(3)]
    house.books["hi"] = ASK
    ticket = await first.submit(order("hi"))
    state = await asyncio.wait_for(second.wait(OWNER, ticket.run), 60)
    assert state is not None and state.facts.asked is not None

    async def parked() -> bool:
        return (await house.rows())[ticket.run][0] is None

    await until(parked, "the parking")
    if gone:
        await house.dies(0)
    await second.approve(OWNER, state, "once", "bob")
    done = await asyncio.wait_for(third.wait(OWNER, ticket.run, state.facts.asked.code), 60)
    assert done is not None and done.status == "completed"
    assert sum(house.deeds.values()) == 1 and (await house.rows())[ticket.run][1] == 2


async def test_a_reader_elsewhere_is_told_the_same_bytes(house: House) -> None:
    holder, other = await house.engine(), await house.engine()
    house.books["hi"] = NOTE
    ticket = await holder.submit(order("hi"))
    ears = [Ear(engine, ticket.run) for engine in (holder, other)]
    here, there = [await ear.whole() for ear in ears]
    assert here == there and here


async def test_a_chat_reader_elsewhere_sees_a_message_while_it_is_written(house: House) -> None:
    await house.engine()
    door = await house.engine(works=False)
    pieces: list[Step] = [piece for n in range(40) for piece in (*said(f"word{n} ")[:-1], 0.05)]
    house.books["hi"] = [[*pieces, *said("last")]]
    ticket = await door.submit(order("hi"))
    ear = Ear(door, ticket.run, ChatProjection())
    await until(lambda: b"word3 " in ear.data, "the beginning")
    state = await door.look(OWNER, ticket.run)
    assert state is not None and not state.ended
    assert (await ear.whole()).count(b"word") == 40


async def test_P4_a_run_whose_process_died_goes_on_elsewhere_and_its_readers_miss_nothing(house: House) -> None:
    first, second = await house.engine(), await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await first.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    ear = Ear(second, ticket.run)
    await house.dies(0)
    house.holds["1"].set()
    data = await ear.whole()
    assert data == await Ear(second, ticket.run).whole()
    assert second.stats()["taken_over"] == 1


async def test_P11_a_process_that_lost_its_lease_is_refused_starts_nothing_and_its_readers_go_on(house: House) -> None:
    first, second = await house.engine(), await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await first.submit(order("hi"))
    ear = Ear(first, ticket.run)
    await until(lambda: house.deeds, "the tool")
    house.valves[0].opened.clear()
    await until(lambda: second.stats()["held"], "the takeover")
    house.holds["1"].set()
    assert await ended(house, ticket.run, 1) == "completed"
    house.valves[0].opened.set()
    assert await ear.whole() == await Ear(second, ticket.run).whole()
    await until(lambda: first.stats()["fenced"], "the refusal")
    await until(lambda: first.stats()["held"] == 0, "the end of the worker")


async def test_P15_an_outage_that_is_shorter_than_the_lease_costs_nothing(house: House) -> None:
    engine = await house.engine()
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    ticket = await engine.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    house.valves[0].down = True
    house.holds["1"].set()
    await until(lambda: not engine.stats()["writable"], "the outage")
    house.valves[0].down = False
    assert await ended(house, ticket.run) == "completed"
    assert (await house.rows())[ticket.run][1] == 1


async def test_P15_a_longer_outage_lets_go_of_runs_without_a_strike_and_they_go_on_after_it(house: House) -> None:
    engine = await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await engine.submit(order("hi"))
    ear = Ear(engine, ticket.run)
    await until(lambda: house.deeds, "the tool")
    house.valves[0].down = True
    await until(lambda: engine.stats()["held"] == 0, "the end of the lease")
    assert ear.idles or not ear.task.done()
    with pytest.raises(ServerError) as refused:
        await engine.submit(order("hi"))
    assert (refused.value.code, refused.value.status) == ("store_unavailable", 503)
    assert refused.value.retry_after
    house.holds["1"].set()
    house.valves[0].down = False
    assert b"done" in await ear.whole()
    assert await ended(house, ticket.run) == "completed"  # a reader of the store may see the end before its writer does
    state = await engine.look(OWNER, ticket.run)
    assert state is not None and (state.status, state.facts.strikes) == ("completed", 0)


async def test_A1_a_new_run_waits_through_a_passing_outage_of_the_store(house: House) -> None:
    engine = await house.engine(hold_s=60.0)
    house.books["hi"] = NOTE
    house.valves[0].down = True
    await until(lambda: engine.lease.trouble, "the outage")
    waiting = asyncio.ensure_future(engine.submit(order("hi")))
    await asyncio.sleep(0.3)
    assert not waiting.done() and await house.rows() == {}
    house.valves[0].down = False
    ticket = await asyncio.wait_for(waiting, 60)
    assert await ended(house, ticket.run) == "completed" and len(await house.rows()) == 1


async def test_A1_an_opening_without_an_answer_is_sent_again_and_begins_one_run(house: House) -> None:
    engine = await house.engine(hold_s=60.0)
    house.books["hi"] = NOTE
    house.valves[0].unanswered.add("open")
    waiting = asyncio.ensure_future(engine.submit(order("hi")))
    await until(house.rows, "the run in the store")
    house.valves[0].unanswered.clear()
    ticket = await asyncio.wait_for(waiting, 60)
    assert await ended(house, ticket.run) == "completed"
    assert len(await house.rows()) == 1 and sum(house.deeds.values()) == 1


async def test_A1_requests_that_wait_for_the_store_are_refused_when_the_server_stops(house: House) -> None:
    engine = await house.engine(hold_s=60.0)
    house.valves[0].down = True
    await until(lambda: engine.lease.trouble, "the outage")
    waiting = asyncio.ensure_future(engine.submit(order("hi")))
    await asyncio.sleep(0.1)
    engine._admission.stop()
    with pytest.raises(ServerError) as refused:
        await asyncio.wait_for(waiting, 60)
    assert refused.value.code == "shutting_down"
    house.valves[0].down = False


async def test_P15_a_caller_is_told_that_nothing_was_begun_only_where_that_is_known(house: House) -> None:
    engine = await house.engine()
    house.books["hi"] = [said("done")]
    house.valves[0].unanswered.add("open")
    with pytest.raises(ServerError) as unsure:
        await engine.submit(order("hi"))
    assert "may have been done" in unsure.value.message and len(await house.rows()) == 1
    house.valves[0].down = True
    await until(lambda: engine.lease.trouble, "the outage")
    with pytest.raises(ServerError) as refused:
        await engine.submit(order("hi"))
    assert "Nothing was begun" in refused.value.message
    assert unsure.value.code == refused.value.code == "store_unavailable"


async def test_P15_who_waits_and_who_reads_elsewhere_goes_on_after_an_outage(house: House) -> None:
    holder, other = await house.engine(), await house.engine()
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    ticket = await holder.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    ear, waiter = Ear(other, ticket.run), asyncio.create_task(other.wait(OWNER, ticket.run))
    await until(lambda: ear.data, "the first frames")
    house.valves[1].down = True
    house.holds["1"].set()
    assert await ended(house, ticket.run) == "completed"
    idles = ear.idles
    await until(lambda: ear.idles > idles + 1, "a keepalive")
    assert not waiter.done() and not ear.task.done()
    house.valves[1].down = False
    assert await ear.whole() == await Ear(holder, ticket.run).whole()
    state = await asyncio.wait_for(waiter, 60)
    assert state is not None and state.status == "completed"


async def test_P13_a_process_that_cannot_write_any_more_lets_others_take_its_runs(house: House) -> None:
    first = await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await first.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    second = await house.engine()

    async def broken(slices: object) -> None:
        raise RuntimeError("nobody foresaw this")

    house.valves[0].append = broken
    house.holds["1"].set()
    assert await ended(house, ticket.run, 1) == "completed"
    assert second.stats()["taken_over"] == 1 and not first.stats()["writable"]


async def test_a_run_that_is_deleted_elsewhere_ends_its_readers_with_an_error_and_fences_its_holder(
    house: House,
) -> None:
    holder, other, third = [await house.engine() for _ in range(3)]
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    ticket = await holder.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    ears = [Ear(engine, ticket.run) for engine in (holder, third)]
    await until(lambda: all(ear.data for ear in ears), "the first frames")
    await house.erase(ticket.run)
    house.holds["1"].set()
    for ear in ears:
        await asyncio.wait_for(ear.task, 60)
        assert isinstance(ear.last, Broken)
    assert await other.look(OWNER, ticket.run) is None
    await until(lambda: holder.stats()["held"] == 0)


async def test_P10_a_process_that_drains_hands_its_runs_to_another_at_once(house: House) -> None:
    first, second = await house.engine(), await house.engine()
    house.books["hi"], house.holds["1"] = [*NOTE[:1], *LOOK], asyncio.Event()
    ticket = await first.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    waiter = asyncio.create_task(second.wait(OWNER, ticket.run))
    draining = asyncio.create_task(first.drain(10.0))
    await asyncio.sleep(0)
    house.holds["1"].set()
    await asyncio.wait_for(draining, 60)
    state = await asyncio.wait_for(waiter, 60)
    assert state is not None and (state.status, state.facts.strikes) == ("completed", 0)
    assert sorted(house.deeds.values()) == [1, 1] and second.stats()["taken_over"] == 0


async def test_a_draining_process_cuts_a_wait_that_is_between_two_looks(house: House) -> None:
    """Its run is parked, so it looks into the store, just when all waits are cut."""
    engine = await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await engine.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    waiter = asyncio.create_task(engine.wait(OWNER, ticket.run))
    await asyncio.sleep(0)
    live = engine.readers.lives[ticket.run]
    live.dismiss()
    engine.readers.remove(live)
    engine.readers.cut()
    with pytest.raises(CutOff):
        await asyncio.wait_for(waiter, 10)
    with pytest.raises(CutOff):
        await asyncio.wait_for(engine.wait(OWNER, ticket.run), 10)


async def test_stats_tell_an_operator_who_holds_what_and_how_fresh_it_is(house: House) -> None:
    engine = await house.engine()
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    await engine.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    stats = engine.stats()
    assert (stats["held"], stats["taken_over"], stats["fenced"]) == (1, 0, 0)
    assert 0 <= stats["beat_age_s"] < LEASE_S * 5


async def test_P11_a_process_that_takes_its_own_lost_run_again_ends_the_attempt_before_first(house: House) -> None:
    """A lease lapses, and the run is claimed anew here before the worker that lost it has let go."""
    engine = await house.engine()
    house.books["hi"], house.holds["1"] = NOTE, asyncio.Event()
    ticket = await engine.submit(order("hi"))
    await until(lambda: house.deeds, "the tool")
    before = engine.readers.lives.get(ticket.run)
    assert before is not None
    entry = Entry(ticket.run, before.committed.seq + 1, house.now_ms(), 2, AttemptStarted(clean=False))
    again = ClaimedRun(apply(before.committed, entry), 2, ClaimPhase.CLAIMED, engine.lease.span)
    await asyncio.wait_for(engine._workers.drive(again), 60)  # the store knows nothing of it: it is fenced
    assert before.gone and again.gone
    assert ticket.run not in engine._workers.by_run


# callers whose process goes (B6)


async def is_compared(house: House, n: int, run: str) -> None:
    """A process has compared its runs with the store, a grace after the store knew that the caller of one is lost."""
    await until(lambda: house.is_lost(run), "the loss")
    before = house.valves[n].calls["held"]
    await until(lambda: house.valves[n].calls["held"] >= before + 3, "the beats")


@pytest.mark.parametrize("kept", ["hours", "delivery"])
@pytest.mark.parametrize("drains", [False, True])
async def test_B6_the_end_of_the_process_of_a_caller_is_no_leave(house: House, kept: Kept, drains: bool) -> None:
    """A run that is kept until its delivery needs a connection. Any other goes on, also in its first attempt."""
    door = await house.engine(works=False)
    await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await door.submit(order("hi", kept=kept))
    await until(lambda: house.deeds, "the tool")
    if drains:
        await door.drain(0.0)
        await door.close(OWNER, ticket, whole=False)
    else:
        await house.dies(0)
    await is_compared(house, 1, ticket.run)
    house.holds["1"].set()
    if kept == "hours":
        assert await ended(house, ticket.run, 1) == "completed"
        assert len(house.asked) == 2
    else:
        await until(lambda: not house.engines[1].stats()["active"], "the parking")
        assert len(house.asked) == 1 and (await house.rows())[ticket.run] == (None, 1)


async def test_a_reader_elsewhere_sees_the_draft_of_a_model_that_pauses(house: House) -> None:
    """All that the model has said was in the store before anybody read it here."""
    if not isinstance(house, PostgresHouse):
        pytest.skip("the shared store in memory tells nobody who drives a run")
    door, holder = await house.engine(works=False), await house.engine()
    house.books["hi"] = [[*said("a ")[:-1], 60.0, *said("b")]]
    ticket = await door.submit(order("hi", kept="hours"))
    await until(lambda: (live := holder.readers.lives.get(ticket.run)) is not None and live.committed.drafting)
    ear = Ear(door, ticket.run, ChatProjection())
    await until(lambda: b"a " in ear.data, "the first words")
    await door.cancel(OWNER, ticket.run)


async def test_B6_a_leave_that_another_process_sees_parks_a_run_in_any_attempt(house: House) -> None:
    door = await house.engine(works=False)
    await house.engine()
    house.books["hi"], house.holds["1"] = LOOK, asyncio.Event()
    ticket = await door.submit(order("hi", kept="hours"))
    await until(lambda: house.deeds, "the tool")
    await house.dies(1)
    await house.engine()
    await until(lambda: sum(house.deeds.values()) == 2, "the second attempt")
    await door.close(OWNER, ticket, whole=False)
    await is_compared(house, 2, ticket.run)
    house.holds["1"].set()
    await until(lambda: not house.engines[2].stats()["active"], "the parking")
    assert len(house.asked) == 1 and (await house.rows())[ticket.run] == (None, 2)


async def test_B8_a_caller_whose_stream_was_restarted_joins_its_run_by_asking_again(house: House) -> None:
    """A chat cannot take text back: its stream ends with an error. That is no delivery, and no leave."""
    door = await house.engine(works=False)
    await house.engine()
    house.books["hi"] = [[*said("a ")[:-1], 60.0, *said("b")]]
    asking = order("hi", kept="hours")
    ticket = await door.submit(asking)
    ear = Ear(door, ticket.run, ChatProjection())
    await until(lambda: b"a " in ear.data, "the first words")
    await house.dies(1)
    await house.engine()
    assert b"stream_restarted" in await ear.whole() and ear.subscription.restarted
    await door.close(OWNER, ticket, whole=False, cut=True)
    await until(lambda: house.is_lost(ticket.run), "the loss")
    assert not any(held.left_ms for held in await house.valves[2].peers.held("p2"))
    assert (await door.submit(asking)).run == ticket.run
    await door.cancel(OWNER, ticket.run)

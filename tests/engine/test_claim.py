"""The life of a claim is a table (claim.py): what it says, and that a run obeys it."""

from __future__ import annotations

import asyncio

import pytest

from ninelives.engine.claim import LIFE, SIGNALS, WRITES, ClaimEvent, ClaimPhase, IllegalStep
from ninelives.engine.work import Quarantine
from tests.engine.test_flush import desk

E, P = ClaimEvent, ClaimPhase


def test_every_phase_but_the_last_two_can_be_left_and_each_can_be_reached() -> None:
    reached = {P.OPENED, P.CLAIMED} | {phase for cells in LIFE.values() for phase in cells.values()}
    assert reached == set(P) == set(LIFE)
    final = {phase for phase, cells in LIFE.items() if set(cells.values()) <= {phase}}
    assert final == {P.RELEASED, P.LOST}


def test_what_may_be_lost_may_lapse_and_be_fenced_and_nothing_comes_back_from_that() -> None:
    for phase in WRITES:
        assert LIFE[phase][E.LAPSE] is P.LAPSED and LIFE[phase][E.FENCE] is P.LOST
    assert not WRITES & {*LIFE[P.LAPSED].values(), *LIFE[P.LOST].values(), *LIFE[P.RELEASED].values()}


def test_a_cancel_ends_a_run_in_every_phase_in_which_it_can_still_be_written() -> None:
    for phase in WRITES:
        assert LIFE[phase][E.CANCEL] is P.ENDING


def test_a_run_that_ends_is_not_parked_any_more() -> None:
    for event in (E.DRAIN, E.LEAVE, E.ASK):
        assert LIFE[P.ENDING][event] is P.ENDING


@pytest.mark.parametrize(
    ("phase", "event"),
    [(P.DRIVING, E.SETTLED), (P.OPENED, E.ANSWERED), (P.DRIVING, E.DRIVE), (P.RELEASED, E.END), (P.LOST, E.SETTLED)],
)
def test_an_absent_cell_is_an_error(phase: ClaimPhase, event: ClaimEvent) -> None:
    assert event not in LIFE[phase]


async def test_a_run_refuses_a_step_that_the_table_does_not_have() -> None:
    async with desk(0.0) as at:
        run = await at.live("a")
        with pytest.raises(IllegalStep, match="settled cannot happen to a claim that is opened"):
            run.advance(E.SETTLED)
        assert run.phase is P.OPENED


def test_a_signal_does_only_what_the_table_of_claims_allows() -> None:
    for cells in SIGNALS.values():
        for phase, event in cells.items():
            assert LIFE[phase][event]


async def test_a_run_that_was_fenced_stops_its_agent_and_a_drain_does_not() -> None:
    async with desk(0.0) as at:
        run = await at.live("a")
        run.advance(E.DRIVE)
        run.advance(E.DRAIN)
        assert not run.halt.done() and run.phase is P.PARKING
        run.advance(E.FENCE)
        assert run.halt.done() and run.gone


async def test_P18_of_all_suspects_the_one_that_was_claimed_last_is_tried_first() -> None:
    """It is the likeliest culprit: the others had their turn before it, and the server lived on."""
    unread = {"20", "30", "10"}
    quarantine, order = Quarantine(unread), list[int]()

    async def suspect(claimed_at: int) -> None:
        turn = await quarantine.turn(claimed_at)
        order.append(claimed_at)
        turn.over()

    tried = [asyncio.create_task(suspect(claimed_at)) for claimed_at in (20, 30, 10)]
    await asyncio.sleep(0)
    for _ in range(3):
        unread.pop()
        quarantine.begin_next()
    await asyncio.gather(*tried)
    assert order == [30, 20, 10]

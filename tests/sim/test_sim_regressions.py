"""Bugs that the simulator has found. Each is a small plan of its own, so that a change of the dice cannot lose it, and
is played with many orders of events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninelives.core.events import Usage
from ninelives.core.spec import Kept
from ninelives.engine.base import EngineLimits
from ninelives.models.base import Finished
from ninelives.testing.playbook import Step, asked, said
from tests.sim.dice import Calling, Fault, Plan, Reading
from tests.sim.play import Result, play

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
ASK = '{"n": 1, "s": 0.0, "ask": true}'
TWO_QUESTIONS: list[list[Step]] = [asked(("note", ASK)), asked(("note", ASK)), said("done")]
QUESTION: list[list[Step]] = [
    [*said("so ", "far ")[:-1], *asked(("note", ASK))[:-1], Finished("tool_calls", Usage(1, 1))],
    said("done"),
]
SLOW: list[list[Step]] = [[*said("a ", "b ")[:-1], 20.0, *said("c")]]


def plan(*callings: Calling, faults: tuple[Fault, ...] = (), ttl_s: float = 5.0, **limits: float) -> Plan:
    """A plan without chance, but for the order of events."""
    return Plan(
        seed=0,
        shuffle=0.5,
        limits=EngineLimits(**limits),  # type: ignore[arg-type]
        callings=list(callings),
        faults=list(faults),
        ttl_s=ttl_s,
        on_unknown="tell",
        clock_jump_ms=0,
        restart_at_end=False,
        eager=False,
    )


def orders(given: Plan, seeds: int = 25) -> list[Result]:
    """Play it with many orders of events."""
    results = [play(seed, plan=replace(given, seed=seed)) for seed in range(seeds)]
    wrong = [f"order {result.seed}: {finding}" for result in results for finding in result.findings]
    assert not wrong, "\n".join(wrong[:20])
    return results


def test_a_run_with_a_second_question_waits_for_it_and_is_not_claimed_again_and_again() -> None:
    for result in orders(plan(Calling("r0", 0.0, TWO_QUESTIONS))):
        assert result.counts["events"] < 40


@pytest.mark.parametrize("kept", ["hours", "delivery"])
def test_B6_a_caller_who_leaves_and_comes_back_gets_one_run(kept: Kept) -> None:
    reading = Reading("runs", leaves_after=1)
    calling = Calling("r0", 0.0, SLOW, kept=kept, readers=[reading], waits=False, on_disconnect="park", returns_s=4.0)
    for result in orders(plan(calling, leave_grace_s=0.5), seeds=40):
        assert result.counts["runs"] == 1 and result.counts["joined"] == 1


@pytest.mark.parametrize("kept", ["hours", "delivery"])
def test_B8_a_caller_whose_server_dies_at_any_step_gets_one_run(kept: Kept) -> None:
    for step in range(2, 14):
        fault = Fault("crash_at_step", 0.0, step=step, when="after")
        calling = Calling("r0", 0.0, SLOW, kept=kept, readers=[Reading("runs")], waits=False, on_disconnect="park")
        for result in orders(plan(calling, faults=(fault,)), seeds=4):
            assert result.counts["runs"] == 1


def test_P13_a_run_that_cannot_be_claimed_while_the_store_is_full_goes_on_when_space_returns() -> None:
    faults = (Fault("crash", 0.1), Fault("full", 0.1, seconds=3.0))
    orders(plan(Calling("r0", 0.0, SLOW), faults=faults))


def test_P4_a_caller_who_leaves_while_its_run_is_admitted_leaves_it_to_be_driven() -> None:
    gone = 0
    for steps in range(1, 12):
        calling = Calling("r0", 0.0, [said("done")], gone_after=steps, joins={"conversation": "talk"})
        gone += sum(result.counts["gone_in_submit"] for result in orders(plan(calling), seeds=6))
    assert gone


@pytest.mark.parametrize("kept", ["memory", "delivery"])
def test_a_caller_who_leaves_while_its_own_run_is_admitted_ends_it(kept: Kept) -> None:
    for steps in range(1, 12):
        orders(plan(Calling("r0", 0.0, SLOW, kept=kept, gone_after=steps)), seeds=6)


def test_a_cancel_that_is_durable_before_the_worker_is_there_is_not_lost() -> None:
    orders(replace(plan(Calling("r0", 0.0, SLOW)), eager=True), seeds=60)


@pytest.mark.parametrize("kind", ["crash", "drain"])
def test_D4_a_question_is_listed_also_where_the_server_ends_before_the_run_is_parked(kind: str) -> None:
    if kind == "crash":
        faults = tuple(Fault("crash_at_step", 0.0, step=step, when="after") for step in (3, 4, 5))
    else:
        faults = tuple(Fault("drain", at_s, seconds=0.0) for at_s in (0.005, 0.5, 2.5))
    orders(plan(Calling("r0", 0.0, QUESTION), faults=faults, ttl_s=3600.0), seeds=60)


def test_C4_a_leave_that_means_stop_is_not_forgotten_while_the_store_is_full() -> None:
    calling = Calling("r0", 0.0, SLOW, on_disconnect="cancel", readers=[Reading("runs", leaves_after=1)], waits=False)
    orders(plan(calling, faults=(Fault("full", 0.4, seconds=1.0),), leave_grace_s=0.5))


def test_D4_only_one_of_two_answers_is_taken() -> None:
    orders(plan(Calling("r0", 0.0, QUESTION)), seeds=80)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_stop_that_was_durable_before_a_crash_starts_no_tool_and_waits_for_no_slot(step: int) -> None:
    reads: list[list[Step]] = [asked(("look", '{"n": 1, "s": 9.0}')), said("done")]
    first, stopped = Calling("r0", 0.0, SLOW), Calling("r1", 0.01, reads, cancel_s=0.5)
    faults = (Fault("crash", 0.2), Fault("crash_at_step", 0.3, step, "after"))
    for result in orders(plan(first, stopped, faults=faults, concurrent_runs=1)):
        assert result.counts["crashes"] == 2


def test_a_cancel_through_another_process_waits_for_the_end_also_where_a_question_comes_first() -> None:
    orders(replace(plan(Calling("r0", 0.0, QUESTION), ttl_s=3600.0), eager=True, replicas=2), seeds=60)

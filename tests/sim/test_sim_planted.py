"""The simulator catches what it is there to catch: a bug of each kind, planted in a real part, is found within a few
seeds, and by the invariant that is meant to find it."""

from __future__ import annotations

import pytest

from tests.sim.dice import peers_plan_of
from tests.sim.planted import PLANTED
from tests.sim.planted_peers import KNOWN
from tests.sim.planted_peers import PLANTED as AMONG_PEERS
from tests.sim.play import play

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    planted = PLANTED[bug]
    seen: set[str] = set()
    with planted.sown():
        for seed in range(planted.seeds):
            found = {finding.kind for finding in play(seed, plant=planted.plant).findings}
            if found & planted.caught_by:
                print(f"{bug}: caught by {sorted(found & planted.caught_by)} at seed {seed}")
                return
            seen |= found
    raise AssertionError(f"{planted.seeds} seeds did not catch it; found was {sorted(seen) or 'nothing'}")


@pytest.mark.parametrize("bug", AMONG_PEERS)
def test_a_planted_bug_of_processes_that_share_a_store_is_caught(bug: str) -> None:
    planted = AMONG_PEERS[bug]
    with planted.sown():
        for seed in (*KNOWN.get(bug, ()), *range(planted.seeds)):
            found = {finding.kind for finding in play(seed, plan=peers_plan_of(seed), plant=planted.plant).findings}
            if found & planted.caught_by:
                print(f"{bug}: caught by {sorted(found & planted.caught_by)} at seed {seed}")
                return
    raise AssertionError(f"{planted.seeds} seeds did not catch it")

"""The simulator catches what it is there to catch: a bug of each kind, planted in a real part, is found within a few
seeds, and by the invariant that is meant to find it."""

from __future__ import annotations

import pytest

from tests.sim.planted import PLANTED
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

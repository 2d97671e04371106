"""A crash, a shutdown or a cancel at every call of the store that writes, in one process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from ninelives.drill.checks import calls_of, judge
from tests.crash.trial import BOOKS, cancelled, drained, trial
from tests.crash.world import Crash, World, crashes

Backend = Literal["memory", "sqlite"]
MOST = 60
"""No recorded run has more steps than this."""


class Ground:
    """Makes worlds, each in a folder of its own."""

    def __init__(self, folder: Path, book: str, backend: Backend = "memory") -> None:
        self._folder = folder / book
        self._folder.mkdir()
        self._book = book
        self._backend: Backend = backend
        self._made = itertools.count()

    def world(self) -> World:
        folder = self._folder / str(next(self._made))
        folder.mkdir()
        return World(folder, self._backend, {"go": BOOKS[self._book]})

    async def holds(self, *plan: Crash, stride: int = 1) -> bool:
        """Did every crash of the plan strike? Fails when a promise was broken."""
        wrong = await trial(self.world(), plan, stride)
        assert not wrong, f"crashes at {plan}:\n" + "\n".join(str(finding) for finding in wrong or ())
        return wrong is not None


def points() -> Iterator[Crash]:
    """Every crash point there can be."""
    return itertools.islice(crashes(), MOST * 2)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("book", BOOKS)
async def test_P1_to_P5_and_P7_hold_after_a_crash_at_every_append(tmp_path: Path, book: str, backend: Backend) -> None:
    ground = Ground(tmp_path, book, backend)
    stride = {"memory": 1, "sqlite": 4}[backend]  # resumed at every k, or at every fourth
    struck = []
    for crash in points():
        if not await ground.holds(crash, stride=stride):
            break
        struck.append(crash)
    assert 10 <= len(struck) < MOST and struck[-1].when == "after", f"struck at {struck}"


@pytest.mark.parametrize("every", [10, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("book", ["three", "parallel"])
async def test_P1_to_P5_hold_after_a_second_crash_at_every_append_of_the_recovery(
    tmp_path: Path, book: str, every: int
) -> None:
    ground = Ground(tmp_path, book)
    pairs = 0
    for first in itertools.islice(points(), 1, None, every):
        struck = 0
        for second in points():
            if not await ground.holds(first, second, stride=9):
                break
            struck += 1
        pairs += struck
        if not struck:
            break
    assert pairs > 240 // every, f"{pairs} pairs"


@pytest.mark.parametrize(
    ("backend", "plans"), [("memory", 10), ("sqlite", 3), pytest.param("memory", 100, marks=pytest.mark.long)]
)
async def test_P1_to_P5_hold_after_three_crashes_in_a_row(tmp_path: Path, backend: Backend, plans: int) -> None:
    chance = random.Random(20_240_607)
    for book in BOOKS:
        ground = Ground(tmp_path, book, backend)
        for _ in range(plans):
            plan = [Crash(chance.randint(1, 8), chance.choice(("before", "after"))) for _ in range(3)]
            await ground.holds(*plan, stride=5)


@pytest.mark.parametrize("book", BOOKS)
async def test_P10_a_run_parked_at_any_append_repeats_no_step_and_takes_no_strike(tmp_path: Path, book: str) -> None:
    ground = Ground(tmp_path, book)
    parked = 0
    for at in range(2, MOST):
        world = ground.world()
        found = await drained(world, at, 5.0)
        if found is None:
            break
        evidence, state = found
        assert not judge(evidence), f"parked at {at}: {[str(finding) for finding in judge(evidence)]}"
        assert {call.outcome for call in calls_of(evidence.replay["runs"]).values()} <= {"known"}
        assert not state.facts.dropped, f"parked at {at}: a message that was streaming did not finish"
        assert len(evidence.asks) <= len(BOOKS[book]) + 1, f"parked at {at}: a message was asked for again"
        assert state.facts.strikes == 0
        parked += 1
    assert parked >= 4, f"parked {parked} times"


@pytest.mark.parametrize("book", BOOKS)
async def test_P10_a_run_parked_by_force_at_any_append_goes_on_without_a_strike(tmp_path: Path, book: str) -> None:
    ground = Ground(tmp_path, book)
    for at in range(2, MOST):
        found = await drained(ground.world(), at, 0.0)
        if found is None:
            break
        evidence, state = found
        assert not judge(evidence), f"parked at {at}: {[str(finding) for finding in judge(evidence)]}"
        assert state.facts.strikes == 0


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_P3_a_stop_that_is_durable_holds_after_a_crash_at_every_append(tmp_path: Path, backend: Backend) -> None:
    ground = Ground(tmp_path, "three", backend)
    ends: set[str] = set()
    for at in (2, 4, 6, 9):
        for crash in itertools.islice(points(), at * 2 - 1, None):
            found = await cancelled(ground.world(), at, crash)
            if found is None:
                break
            evidence, wished = found
            ends.add(evidence.status)
            assert not judge(evidence), f"{at}, {crash}: {[str(finding) for finding in judge(evidence)]}"
            assert evidence.status == "cancelled" or not wished, f"{at}, {crash}: a durable stop was forgotten"
    assert ends == {"completed", "cancelled"}

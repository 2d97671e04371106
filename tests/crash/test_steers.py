"""A short trial of steers with kills, and a judge that finds what it must find. `make steers` runs a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.steers import SteeredRun, judge, trial

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_p3_each_accepted_steer_is_used_once_and_in_order_or_told_through_kills(store: str, tmp_path: Path) -> None:
    found = trial(8, store, 7, tmp_path)
    assert found["accepted"] == found["used"] + found.get("told", 0) and found["kills"] > 0


STEERED = [{"event": "run.steered", "steer_id": each} for each in ("a", "b")]


def test_the_judge_accepts_steers_that_were_used_or_told() -> None:
    run = SteeredRun(1, "run_x", ["a", "b", "c"])
    assert judge(run, {"status": "completed", "pending_steer_ids": ["c"]}, STEERED)["used"] == 2


@pytest.mark.parametrize(
    ("accepted", "events"),
    [(["a", "b", "c"], STEERED), (["b", "a"], STEERED), (["a", "b"], [*STEERED, STEERED[0]]), (["a"], STEERED)],
    ids=["lost", "order", "twice", "foreign"],
)
def test_the_judge_finds_a_steer_that_was_lost_doubled_or_out_of_order(accepted: list[str], events: object) -> None:
    with pytest.raises(AssertionError):
        judge(SteeredRun(1, "run_x", accepted), {"status": "completed"}, events)  # type: ignore[arg-type]

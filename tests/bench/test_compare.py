"""A report beside an earlier one."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from lab.bench.cli import _earlier, bench
from lab.bench.compare import compare
from lab.bench.figures import DIRECT, DURABLE, EPHEMERAL, FLOOR, Figure
from tests.bench.made import figure, report

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "performance"


def test_the_committed_report_can_be_compared_with_and_has_the_series_of_this_version() -> None:
    old = _earlier(COMMITTED / "bench.json")
    series = {one.target for one in old.figures}
    assert {DIRECT, FLOOR, EPHEMERAL, DURABLE} <= series
    assert not list(compare(old, old))
    charts = "".join(path.read_text() for path in COMMITTED.glob("*.svg"))
    assert f">{DURABLE}<" in charts and f">{EPHEMERAL}<" in charts


def rises(new: list[Figure], old: list[Figure]) -> list[tuple[str, bool]]:
    return [
        (rise.says.partition(": ")[2].partition(" is")[0], rise.ours) for rise in compare(report(*new), report(*old))
    ]


def paced(target: str, cpu_us: float) -> Figure:
    return figure("paced-50", target, cpu_us=cpu_us)


def test_a_cost_over_1_3_times_is_a_regression_and_one_below_is_noise() -> None:
    assert rises([paced(DURABLE, 131)], [paced(DURABLE, 100)]) == [("CPU µs", True)]
    assert rises([paced(DURABLE, 129)], [paced(DURABLE, 100)]) == []


def test_a_planted_50_us_per_event_is_a_regression() -> None:
    assert rises([paced(DURABLE, 150)], [paced(DURABLE, 100)]) == [("CPU µs", True)]


def test_a_rise_that_the_floor_shows_too_is_the_machines() -> None:
    new, old = [paced(FLOOR, 200), paced(DURABLE, 210)], [paced(FLOOR, 100), paced(DURABLE, 100)]
    assert rises(new, old) == [("CPU µs", False), ("CPU µs", False)]


def test_a_floor_that_fell_excuses_nothing_and_accuses_nobody() -> None:
    new, old = [paced(FLOOR, 50), paced(DURABLE, 120)], [paced(FLOOR, 100), paced(DURABLE, 100)]
    assert rises(new, old) == []


def test_a_rate_that_fell_is_a_cost_that_rose() -> None:
    new, old = [figure("tiny-32", DURABLE, requests_per_s=700)], [figure("tiny-32", DURABLE, requests_per_s=1000)]
    assert rises(new, old) == [("seconds per request", True)]


def test_five_percent_more_counted_instructions_are_a_regression() -> None:
    new, old = [figure("flood-32", DURABLE, instructions=1060)], [figure("flood-32", DURABLE, instructions=1000)]
    assert rises(new, old) == [("instructions", True)]
    assert rises([figure("flood-32", DURABLE, instructions=1040)], old) == []


def test_void_figures_are_not_compared() -> None:
    void = paced(DURABLE, 1000)
    void.void = "direct reached only 90 %"
    assert rises([void], [paced(DURABLE, 100)]) == []
    assert rises([paced(DURABLE, 1000)], [void]) == []


def test_a_report_that_is_none_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_bytes(b"\xff")
    said = CliRunner().invoke(bench, ["--compare", str(tmp_path / "old.json"), "--out", str(tmp_path / "out")])
    assert said.exit_code == 2 and "is not a report that this version" in said.output
    assert not (tmp_path / "out").exists()

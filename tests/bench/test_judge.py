"""The judging of a report: each promise has a number, a bound and a verdict; what proves nothing passes nothing."""

from __future__ import annotations

import pytest

from lab.bench.figures import CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, EPHEMERAL, FLOOR, Figure
from lab.bench.judge import RULES, judge, mark_void
from tests.bench.made import figure, kept, report


def states(figures: list[Figure]) -> dict[str, str]:
    return {verdict.says: verdict.state for verdict in judge(report(*figures))}


def changed(load: str, target: str, **values: float) -> list[Figure]:
    """All promises kept, but for this."""
    figures = kept()
    it = next(each for each in figures if (each.load, each.target) == (load, target))
    it.values |= values
    return figures


def test_every_line_of_the_promises_has_a_rule() -> None:
    assert {rule.line for rule in RULES} == {"1", "2", "3", "4", "5", "6", "7"}


def test_figures_at_the_bound_keep_every_promise() -> None:
    verdicts = judge(report(*kept()))
    assert [(v.says, v.value) for v in verdicts if v.state != "ok"] == []
    assert all(v.value and v.bound for v in verdicts)


def test_what_was_not_measured_is_not_passed() -> None:
    assert set(states([]).values()) == {"not measured"}


MISSES: list[tuple[str, str, dict[str, float]]] = [
    ("paced-200", DURABLE, {"on_time": 0.97}),
    ("paced-200", DURABLE, {"latency_p50_ms": 5.2}),
    ("paced-200", DURABLE, {"latency_p99_ms": 25.2}),
    ("paced-50", DURABLE, {"cpu_us": 151.0}),
    ("paced-100", DURABLE, {"cpu_us": 151.0}),
    ("paced-250", DURABLE, {"delivered": 0.96}),
    ("paced-400", DURABLE, {"delivered": 0.96}),
    ("flood-32", DURABLE, {"events_per_s": 39_000.0}),
    ("first", DURABLE, {"first_p50_ms": 3.2}),
    ("tiny-32", DURABLE, {"requests_per_s": 799.0}),
    ("tiny-32", EPHEMERAL, {"requests_per_s": 1199.0}),
    ("readers-10000", DURABLE, {"reader_kb": 40.1}),
    ("readers-10000", DURABLE, {"ended": 0.9999}),
    ("idle", DURABLE, {"idle_cpu": 0.002}),
    ("idle", DURABLE, {"start_ms": 401.0}),
    ("idle", DURABLE, {"idle_rss_mb": 70.1}),
    ("length-50000", DURABLE, {"replay_per_s": 199_000.0}),
    ("length-50000", DURABLE, {"snapshot_ms": 20.1}),
    ("length-50000", DURABLE, {"growth": 1.6}),
    ("history-1000", DURABLE, {"first_p50_ms": 6.1}),
    ("resend-2000", CHAT_DEFAULT, {"first_p50_ms": 15.1}),
    ("control", CONTROL, {"cpu_us": 12.0}),
]


@pytest.mark.parametrize(("load", "target", "values"), MISSES)
def test_a_figure_beyond_its_bound_misses_exactly_its_promise(load: str, target: str, values: dict[str, float]) -> None:
    missed = [state for state in states(changed(load, target, **values)).values() if state != "ok"]
    assert missed == ["missed"]


def test_every_rule_has_a_figure_that_misses_it() -> None:
    missed = {
        says
        for miss in MISSES
        for says, state in states(changed(miss[0], miss[1], **miss[2])).items()
        if state == "missed"
    }
    assert missed == {rule.says for rule in RULES}


def test_the_easier_of_two_bounds_counts_where_the_promise_names_two() -> None:
    assert "missed" not in states(changed("tiny-32", FLOOR, requests_per_s=1000.0)).values()
    figures = changed("paced-200", FLOOR, on_time=0.9)
    next(f for f in figures if (f.load, f.target) == ("paced-200", DURABLE)).values["on_time"] = 0.885
    assert "missed" not in states(figures).values()


def test_a_load_that_direct_could_not_deliver_is_void_and_not_passed() -> None:
    figures = kept()
    direct = next(f for f in figures if (f.load, f.target) == ("paced-200", DIRECT))
    direct.values["reached"] = 0.9
    for each in figures:
        mark_void(each, direct if each.load == "paced-200" else each)
    shown = [(v.says, v.state) for v in judge(report(*figures)) if "200 paced" in v.says]
    assert len(shown) == 3 and all(state == "void" for _, state in shown)


def test_a_rate_that_the_generator_limits_is_void() -> None:
    direct = figure("flood-32", DIRECT, events_per_s=40_000.0)
    near, far = figure("flood-32", FLOOR, events_per_s=35_000.0), figure("flood-32", DURABLE, events_per_s=9_000.0)
    for each in (direct, near, far):
        mark_void(each, direct)
    assert (bool(direct.void), bool(near.void), bool(far.void)) == (False, True, False)
    verdict = next(v for v in judge(report(direct, near, far)) if v.line == "2")
    assert verdict.state == "void"  # it would be held against a floor that proves nothing


def test_a_rate_that_other_work_on_the_core_held_back_is_void() -> None:
    direct = figure("flood-32", DIRECT, events_per_s=1e6)
    disturbed = figure("flood-32", FLOOR, events_per_s=9e4, cpu_us=5.0, server_busy=0.5, others_server=0.5)
    full = figure("flood-32", FLOOR, events_per_s=9e4, cpu_us=5.0, server_busy=0.95, others_server=0.05)
    idle = figure("flood-32", FLOOR, events_per_s=9e4, cpu_us=5.0, server_busy=0.5, others_server=0.05)
    for each in (disturbed, full, idle):
        mark_void(each, direct)
    assert (bool(disturbed.void), bool(full.void), bool(idle.void)) == (True, False, False)


def test_no_direct_run_proves_nothing() -> None:
    it = figure("paced-200", DURABLE)
    mark_void(it, None)
    assert it.void == "no direct run"


def test_failed_requests_miss_a_promise_however_good_the_number_is() -> None:
    figures = kept()
    next(f for f in figures if (f.load, f.target) == ("first", DURABLE)).failed = 2
    assert [says for says, state in states(figures).items() if state == "missed"] == [
        "time to first delta over direct (p50)"
    ]

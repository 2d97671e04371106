"""A report beside an earlier one: which costs rose. Time and memory count from 1.3x on, since repeats differ by 20-40
%; counted instructions, which a busy machine does not move, from 1.05x. Refuses to know: what is good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.bench.figures import FLOOR, REFERENCES, Figure, Report

RISE = 1.3
INSTRUCTIONS_RISE = 1.05


@dataclass(frozen=True)
class Rise:
    """A cost that rose. It is not ours when the floor rose as much meanwhile: then the machine changed, not the
    code."""

    says: str
    ours: bool


Cost = Callable[[Figure], float | None]


def _plain(name: str) -> Cost:
    return lambda figure: figure.get(name)


def _per(name: str) -> Cost:
    """A rate turned over: more is worse."""
    return lambda figure: 1 / rate if (rate := figure.get(name)) else None


def _short_of(name: str) -> Cost:
    """A share turned over, with one percent to spare: 0.1 % late against 0.05 % is no news."""
    return lambda figure: None if (share := figure.get(name)) is None else 0.01 + 1 - share


COSTS: dict[str, Cost] = {
    "CPU µs": _plain("cpu_us"),
    "seconds per request": _per("requests_per_s"),
    "seconds per event": _per("events_per_s"),
    "first delta p50": _plain("first_p50_ms"),
    "latency p50": _plain("latency_p50_ms"),
    "share not on time": _short_of("on_time"),
    "RSS": _plain("rss_mb"),
    "KB per reader": _plain("reader_kb"),
    "snapshot": _plain("snapshot_ms"),
    "seconds per replayed event": _per("replay_per_s"),
    "growth with length": _plain("growth"),
    "start": _plain("start_ms"),
    "idle RSS": _plain("idle_rss_mb"),
}
INSTRUCTIONS = {"instructions": _plain("instructions")}


def _ratio(cost: Cost, new: Figure | None, old: Figure | None) -> float | None:
    after, before = cost(new) if new else None, cost(old) if old else None
    return after / before if after is not None and before else None


def compare(new: Report, old: Report) -> Iterator[Rise]:
    """Each cost that rose by more than its bound."""
    for figure in new.figures:
        before = old.find(figure.load, figure.target)
        if before is None or figure.void or before.void:
            continue
        floors = new.find(figure.load, FLOOR), old.find(figure.load, FLOOR)
        for costs, bound in ((COSTS, RISE), (INSTRUCTIONS, INSTRUCTIONS_RISE)):
            for name, cost in costs.items():
                ratio = _ratio(cost, figure, before)
                if ratio is None or ratio <= bound:
                    continue
                moved = None if figure.target == FLOOR else _ratio(cost, *floors)
                aside = f" (the floor moved {moved:.2f}x)" if moved else ""
                says = f"{figure.load} {figure.target}: {name} is {ratio:.2f}x of before{aside}"
                yield Rise(says, figure.target not in REFERENCES and ratio > bound * max(1.0, moved or 1.0))

"""Figures as a person reads them: one table per load. `added` is always this target minus direct in the same run;
`x floor` is this target against the floor in the same run, and it is the number to trust: absolute ones move by 20-40 %
between runs and machines. Refuses to know: what is good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.bench.figures import DIRECT, FLOOR, Figure
from lab.bench.loads import Load


@dataclass(frozen=True)
class Row:
    """A figure with the two it is read against."""

    it: Figure
    direct: Figure | None
    floor: Figure | None

    def added(self, name: str) -> float | None:
        """This minus direct."""
        if self.direct is None or self.it is self.direct:
            return None
        mine, its = self.it.get(name), self.direct.get(name)
        return None if mine is None or its is None else mine - its

    def over(self, name: str) -> float | None:
        """This in multiples of the floor."""
        mine, its = self.it.get(name), self.floor.get(name) if self.floor else None
        return mine / its if mine is not None and its else None


Column = tuple[str, Callable[[Row], str]]


def _value(title: str, name: str, form: str = "{:.2f}") -> Column:
    return title, lambda row: _shown(row.it.get(name), form)


def _added(title: str, name: str) -> Column:
    return title, lambda row: _shown(row.added(name), "{:.2f}")


def _over(title: str, name: str) -> Column:
    return title, lambda row: _shown(row.over(name), "{:.2f}")


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


COST: list[Column] = [
    _over("x floor", "cpu_us"),
    _value("wake-ups", "wakeups"),
    _value("server busy", "server_busy", "{:.0%}"),
    _value("RSS MB", "rss_mb", "{:.0f}"),
]
FLOOD: list[Column] = [
    _value("events/s", "events_per_s", "{:.0f}"),
    _over("of floor", "events_per_s"),
    _value("delivered", "delivered", "{:.2%}"),
    _value("CPU µs/event", "cpu_us", "{:.1f}"),
    *COST,
]
COLUMNS: dict[str, list[Column]] = {
    "tiny": [
        _value("requests/s", "requests_per_s", "{:.0f}"),
        _over("of floor", "requests_per_s"),
        _value("ms p50", "request_p50_ms"),
        _value("p99", "request_p99_ms"),
        _value("CPU µs/request", "cpu_us", "{:.0f}"),
        *COST,
    ],
    "first": [
        _value("ms p50", "first_p50_ms"),
        _value("p99", "first_p99_ms"),
        _added("added ms p50", "first_p50_ms"),
        _added("p99", "first_p99_ms"),
        _value("RSS MB", "rss_mb", "{:.0f}"),
    ],
    "flood": FLOOD,
    "control": FLOOD,
    "paced": [
        _value("delivered", "delivered", "{:.2%}"),
        _value("on time", "on_time", "{:.2%}"),
        _value("ms p50", "latency_p50_ms"),
        _value("p99", "latency_p99_ms"),
        _added("added p50", "latency_p50_ms"),
        _added("p99", "latency_p99_ms"),
        _value("CPU µs/event", "cpu_us", "{:.1f}"),
        *COST,
    ],
    "readers": [
        _value("KB/reader", "reader_kb", "{:.1f}"),
        _value("RSS MB", "rss_mb", "{:.0f}"),
        _value("attached/s", "attached_per_s", "{:.0f}"),
        _value("got the end", "ended", "{:.2%}"),
        _value("s to the last end", "end_s"),
    ],
    "length": [
        _value("CPU µs/event", "cpu_us", "{:.1f}"),
        _value("first 1000", "first_1000_us", "{:.1f}"),
        _value("last 1000", "last_1000_us", "{:.1f}"),
        _value("last/first", "growth"),
        _value("snapshot ms, first", "snapshot_cold_ms"),
        _value("then", "snapshot_ms"),
        _value("frames", "replay_frames", "{:.0f}"),
        _value("replay events/s, first", "replay_cold_per_s", "{:.0f}"),
        _value("then", "replay_per_s", "{:.0f}"),
    ],
    "history": [
        _value("ms p50", "first_p50_ms"),
        _value("p99", "first_p99_ms"),
        _added("added ms p50", "first_p50_ms"),
    ],
    "resend": [
        _value("ms p50", "first_p50_ms"),
        _value("p99", "first_p99_ms"),
        _over("over the floor", "first_p50_ms"),
    ],
    "idle": [
        _value("start ms", "start_ms", "{:.0f}"),
        _value("worst", "start_max_ms", "{:.0f}"),
        _value("whole ms", "ready_ms", "{:.0f}"),
        _value("RSS MB", "idle_rss_mb", "{:.1f}"),
        _value("CPU % of a core", "idle_cpu", "{:.3%}"),
        _value("wake-ups/s", "idle_wakeups_per_s", "{:.1f}"),
    ],
}


def remark(figure: Figure) -> str:
    """What makes a figure void or doubtful, in words."""
    said = [f"VOID: {figure.void}"] if figure.void else []
    said += [f"{figure.failed} failed"] if figure.failed else []
    said += [f"{figure.values['unfinished']:.0f} not at their end in time"] if "unfinished" in figure.values else []
    said += [f"e.g. {figure.sample[:120]!r}"] if figure.sample else []
    return "; ".join([*said, *figure.doubts])


def cells(load_kind: str, figures: list[Figure]) -> list[list[str]]:
    """A head, then a line for each figure, its remark last."""
    by_target = {figure.target: figure for figure in figures}
    columns = COLUMNS[load_kind]
    lines = [["", *(title for title, _ in columns), ""]]
    for figure in figures:
        row = Row(figure, by_target.get(DIRECT), by_target.get(FLOOR))
        lines.append([figure.target, *(read(row) for _, read in columns), remark(figure)])
    return lines


def table(load: Load, figures: list[Figure]) -> str:
    """The load's table for a terminal."""
    lines = cells(load.kind, figures)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    out = [f"{load.name}: {load.says}"]
    for name, *numbers, note in lines:
        shown = [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))]
        out.append(f"  {'  '.join(shown)}  {note}".rstrip())
    return "\n".join(out)

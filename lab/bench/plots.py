"""Which charts a report gives. Owns: what is drawn against what. Refuses to know: how a chart is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.bench.figures import CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, EPHEMERAL, FLOOR, Figure, Report
from lab.bench.svg import COLOURS, Chart, Series, bars, lines
from lab.bench.tables import Row

Pick = Callable[[Row], float | None]


@dataclass(frozen=True)
class Plot:
    """One chart: the loads of a kind along x, a value of them for each target."""

    name: str
    title: str
    unit: str
    kind: str
    pick: Pick
    draw: Callable[[Chart], str]
    log: bool = False
    bound: float | None = None


def _value(name: str, times: float = 1.0) -> Pick:
    return lambda row: None if (value := row.it.get(name)) is None else value * times


def _added(name: str) -> Pick:
    return lambda row: row.added(name)


PLOTS = (
    Plot("paced-cpu", "CPU per event, paced streams", "µs", "paced", _value("cpu_us"), lines),
    Plot("paced-on-time", "Tokens that came on time, paced streams", "%", "paced", _value("on_time", 100), lines),
    Plot("paced-p50", "Added latency p50, paced streams", "ms", "paced", _added("latency_p50_ms"), lines, True, 5),
    Plot("paced-p99", "Added latency p99, paced streams", "ms", "paced", _added("latency_p99_ms"), lines, True, 25),
    Plot("tiny", "Tiny requests, not streamed", "1/s", "tiny", _value("requests_per_s"), bars, True),
    Plot("first", "Time to first delta, p50", "ms", "first", _value("first_p50_ms"), bars),
    Plot("flood", "Flood: 32 streams x 500 tokens", "1/s", "flood", _value("events_per_s"), bars, True),
    Plot("readers", "Memory per waiting reader", "KB", "readers", _value("reader_kb"), bars, bound=40),
    Plot("replay", "Replay of a finished response", "1/s", "length", _value("replay_per_s"), bars, bound=200_000),
    Plot("snapshot", "Snapshot of a finished response", "ms", "length", _value("snapshot_ms"), bars, bound=20),
    Plot("history", "First delta after earlier turns, p50", "ms", "history", _value("first_p50_ms"), lines),
)


OURS = (DIRECT, FLOOR, EPHEMERAL, DURABLE, CHAT_DEFAULT)
"""Their colours are the same in every chart; peers have the next ones."""
AXES = {
    "paced": "streams at 50 tokens/s",
    "tiny": "at a time",
    "first": "one after the other, each in a new session",
    "flood": "streams",
    "readers": "readers on 100 runs",
    "length": "events",
    "history": "earlier turns",
}


def _chart(plot: Plot, figures: list[Figure]) -> Chart | None:
    """Its chart, if anything of it was measured and is not void."""
    loads = list(dict.fromkeys(figure.load for figure in figures))
    targets = list(dict.fromkeys([*OURS, *(figure.target for figure in figures)]))
    at = {(figure.load, figure.target): figure for figure in figures if not figure.void}
    series = []
    for place, target in enumerate(targets):
        rows = [Row(it, at.get((load, DIRECT)), None) if (it := at.get((load, target))) else None for load in loads]
        values = [plot.pick(row) if row else None for row in rows]
        if any(value is not None for value in values):
            series.append(Series(target, values, COLOURS[place % len(COLOURS)]))
    if not series:
        return None
    xs = [_label(load) for load in loads]
    return Chart(plot.title, plot.unit, AXES[plot.kind], xs, series, plot.log, plot.bound)


def _label(load: str) -> str:
    size = load.partition("-")[2]
    return "400, at 25/s" if load == "paced-400" else size or load


def draw(report: Report) -> Iterator[tuple[str, str]]:
    """File name and SVG text of each chart that the report has the figures for."""
    for plot in PLOTS:
        figures = [figure for figure in report.figures if figure.kind == plot.kind and figure.target != CONTROL]
        chart = _chart(plot, figures)
        if chart is not None:
            yield f"{plot.name}.svg", plot.draw(chart)

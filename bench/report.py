"""From figures to what a person reads: tables, what is void, the requirements, and the comparison.

A `Report` is also the JSON file. `added` is always this target minus direct in the same run; `x floor` is this
target against the floor in the same run, and it is the number to trust: absolute ones move by 20-40 % between
runs and machines. It measures nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from bench.loads import REACHED, Figure, Load
from bench.targets import Target

FLAG_RATIO = 1.3
BUSY_LOAD_CORE = 0.95
BUSY_OTHERS = 0.10
LATE_UPSTREAM = 0.01
REFERENCES = ("direct", "floor", "control")
FAILED_STREAMS = 0.03


class Verdict(msgspec.Struct):
    says: str
    state: str  # ok | missed | void | not measured
    value: str


class Report(msgspec.Struct):
    at: str
    machine: dict[str, str]
    cores: dict[str, int]
    options: dict[str, str]
    targets: list[Target]
    missing: dict[str, str]
    figures: list[Figure]
    verdicts: list[Verdict]
    version: int = 1

    def find(self, load: str, target: str) -> Figure | None:
        return next((f for f in self.figures if f.load == load and f.target == target), None)


def mark_void(figure: Figure, direct: Figure | None) -> None:
    """A figure counts only when the generator has carried the same load with nothing in between."""
    if direct is None:
        figure.void = "no direct run"
    elif direct.reached < REACHED:
        figure.void = f"direct reached only {direct.reached:.1%}"


# ---- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A figure with the two it is read against."""

    it: Figure
    direct: Figure | None
    floor: Figure | None


def _ms(us: float) -> str:
    return f"{us / 1000:.2f}"


def _added(row: Row, pick: Callable[[Figure], float]) -> str:
    if row.direct is None or row.it is row.direct:
        return "-"
    return _ms(pick(row.it) - pick(row.direct))


def _over(row: Row, pick: Callable[[Figure], float | None]) -> str:
    mine, floors = pick(row.it), pick(row.floor) if row.floor else None
    return f"{mine / floors:.2f}" if mine is not None and floors else "-"


def _cpu(row: Row) -> str:
    return "-" if row.it.cpu_us is None else f"{row.it.cpu_us:.1f}"


def _rss(row: Row) -> str:
    return f"{row.it.rss_mb:.0f}" if row.it.rss_mb else "-"


Column = tuple[str, Callable[[Row], str]]

COST: list[Column] = [
    ("x floor", lambda row: _over(row, lambda f: f.cpu_us)),
    ("server busy", lambda row: f"{row.it.server_busy:.0%}"),
    ("RSS MB", _rss),
]
COLUMNS: dict[str, list[Column]] = {
    "tiny": [
        ("requests/s", lambda row: f"{row.it.seen.requests_per_s:.0f}"),
        ("of floor", lambda row: _over(row, lambda f: f.seen.requests_per_s)),
        ("ms p50", lambda row: _ms(row.it.seen.request_us.p50)),
        ("p99", lambda row: _ms(row.it.seen.request_us.p99)),
        ("CPU µs/request", _cpu),
        *COST,
    ],
    "first": [
        ("ms p50", lambda row: _ms(row.it.seen.first_us.p50)),
        ("p99", lambda row: _ms(row.it.seen.first_us.p99)),
        ("added ms p50", lambda row: _added(row, lambda f: f.seen.first_us.p50)),
        ("p99", lambda row: _added(row, lambda f: f.seen.first_us.p99)),
        ("RSS MB", _rss),
    ],
    "flood": [
        ("events/s", lambda row: f"{row.it.seen.tokens_per_s:.0f}"),
        ("of floor", lambda row: _over(row, lambda f: f.seen.tokens_per_s)),
        ("delivered", lambda row: f"{row.it.seen.delivered_share:.2%}"),
        ("CPU µs/event", _cpu),
        *COST,
    ],
    "paced": [
        ("delivered", lambda row: f"{row.it.seen.delivered_share:.2%}"),
        ("on time", lambda row: f"{row.it.seen.on_time_share:.2%}"),
        ("ms p50", lambda row: _ms(row.it.seen.latency_us.p50)),
        ("p99", lambda row: _ms(row.it.seen.latency_us.p99)),
        ("added p50", lambda row: _added(row, lambda f: f.seen.latency_us.p50)),
        ("p99", lambda row: _added(row, lambda f: f.seen.latency_us.p99)),
        ("CPU µs/event", _cpu),
        *COST,
    ],
}


def notes(figure: Figure) -> list[str]:
    """What makes a figure void or doubtful, in words."""
    seen = figure.seen
    failed = seen.errors + seen.wrong + seen.unfinished
    said = [
        (bool(figure.void), f"VOID: {figure.void}"),
        (failed > 0, f"errors {seen.errors}, wrong {seen.wrong}, unfinished {seen.unfinished}"),
        (bool(seen.error_sample), f"e.g. {seen.error_sample[:120]!r}"),
        (figure.target != "direct" and figure.load_busy > BUSY_LOAD_CORE, "the load core was full"),
        (figure.others_server > BUSY_OTHERS, f"others had {figure.others_server:.0%} of the server's core"),
        (figure.others_load > BUSY_OTHERS, f"others had {figure.others_load:.0%} of the load's core"),
        (figure.upstream_late > LATE_UPSTREAM, f"{figure.upstream_late:.1%} of tokens sent > 5 ms late"),
    ]
    return [text for holds, text in said if holds]


def table(load: Load, figures: list[Figure]) -> str:
    by_target = {figure.target: figure for figure in figures}
    columns = COLUMNS[load.kind]
    lines = [["", *(name for name, _ in columns)]]
    for figure in figures:
        row = Row(figure, by_target.get("direct"), by_target.get("floor"))
        lines.append([figure.target, *(read(row) for _, read in columns)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = [f"{load.name}: {load.says}"]
    for line, figure_or_none in zip(lines, [None, *figures], strict=True):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        remark = "; ".join(notes(figure_or_none)) if figure_or_none else ""
        out.append(f"  {'  '.join(cells)}  {remark}".rstrip())
    return "\n".join(out)


# ---- requirements ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A promise about one figure; `value` reads it, given the direct one."""

    says: str
    load: str
    target: str
    value: Callable[[Figure, Figure], float]
    holds: Callable[[float], bool]
    shown: str


def _added_first(it: Figure, direct: Figure) -> float:
    return (it.seen.first_us.p50 - direct.seen.first_us.p50) / 1000


RULES = [
    Rule(
        "150 paced durable streams x 50 tokens/s: at least 97 % delivered",
        "paced-150",
        "holdfast-durable",
        lambda it, _: it.seen.delivered_share,
        lambda share: share >= 0.97,
        "{:.2%}",
    ),
    *(
        Rule(
            f"{name}: adds less than 10 ms (p50) to the first delta",
            "first",
            f"holdfast-{name}",
            _added_first,
            lambda ms: ms < 10,
            "{:.2f} ms",
        )
        for name in ("ephemeral", "durable")
    ),
]


def judge(report: Report) -> list[Verdict]:
    verdicts = []
    for rule in RULES:
        it, direct = report.find(rule.load, rule.target), report.find(rule.load, "direct")
        if it is None or direct is None:
            verdicts.append(Verdict(rule.says, "not measured", ""))
            continue
        value, failed = rule.value(it, direct), it.seen.errors + it.seen.wrong
        met = it.seen.requests > 0 and rule.holds(value) and failed <= FAILED_STREAMS * it.seen.requests
        shown = rule.shown.format(value) + (f", but {failed} streams failed" if failed else "")
        verdicts.append(Verdict(rule.says, "void" if it.void else "ok" if met else "missed", shown))
    return verdicts


# ---- comparison with an earlier run ----------------------------------------------------------------------

# Each is a cost: more is worse. Rates are turned over.
COSTS: dict[str, dict[str, Callable[[Figure], float | None]]] = {
    "tiny": {"s/request": lambda f: 1 / max(1e-9, f.seen.requests_per_s), "CPU µs/request": lambda f: f.cpu_us},
    "first": {"first delta p50": lambda f: f.seen.first_us.p50},
    "flood": {"s/event": lambda f: 1 / max(1e-9, f.seen.tokens_per_s), "CPU µs/event": lambda f: f.cpu_us},
    "paced": {
        "CPU µs/event": lambda f: f.cpu_us,
        "latency p50": lambda f: f.seen.latency_us.p50,
        "tokens not on time": lambda f: 0.01 + 1 - f.seen.on_time_share,
    },
    "": {"RSS": lambda f: f.rss_mb or None},
}


def _ratio(new: float | None, old: float | None) -> float | None:
    return new / old if new is not None and old else None


def compare(new: Report, old: Report) -> Iterator[tuple[str, bool]]:
    """Each cost that rose by more than FLAG_RATIO, and whether it is a regression of ours: it is not when the
    floor moved as much meanwhile, which says that the machine changed and not the code."""
    for figure in new.figures:
        before = old.find(figure.load, figure.target)
        if before is None or figure.void or before.void:
            continue
        floors = new.find(figure.load, "floor"), old.find(figure.load, "floor")
        for name, cost in {**COSTS[figure.load.partition("-")[0]], **COSTS[""]}.items():
            ratio = _ratio(cost(figure), cost(before))
            if ratio is None or ratio <= FLAG_RATIO:
                continue
            moved = _ratio(cost(floors[0]), cost(floors[1])) if floors[0] and floors[1] else None
            aside = f" (the floor moved {moved:.2f}x)" if moved and figure.target != "floor" else ""
            text = f"{figure.load} {figure.target}: {name} is {ratio:.2f}x of before{aside}"
            yield text, figure.target not in REFERENCES and ratio > FLAG_RATIO * (moved or 1.0)

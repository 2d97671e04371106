"""The promises about speed, each held against its figure: what was measured, the bound, and a verdict. A figure counts
only when the generator has carried the same load with nothing in between; else it is void, which is not passed. Where a
bound has an alternative relative to the floor, the easier of the two counts, as the promise says. Refuses to know: how
anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.bench.figures import CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, EPHEMERAL, FLOOR, Figure, Report, Verdict

REACHED = 0.995
GENERATOR = 0.7
"""A target nearer than this to direct may be held back by the load generator."""
RATES = ("events_per_s", "requests_per_s")
SATURATING = ("flood-32", "tiny-8", "tiny-32")
"""Loads that keep a server busy all the time."""
BUSY, OTHERS = 0.75, 0.2
FAILED_SHARE = 0.01
BURN_US = 50
IDLE_CPU = 0.001
"""Of a core. Zero cannot be measured; a tenth of a percent is a few wake-ups a second."""


def mark_void(figure: Figure, direct: Figure | None) -> None:
    """Say of a figure of the client's loads whether direct carried the load."""
    if figure.void or figure.kind in ("idle", "readers", "length"):
        return
    if direct is None:
        figure.void = "no direct run"
    elif (reached := direct.get("reached") or 0.0) < REACHED:
        figure.void = f"direct reached only {reached:.1%}"
    elif figure.target != DIRECT and (share := _of_direct(figure, direct)) > GENERATOR:
        figure.void = f"the load generator is the limit: this is {share:.0%} of what it does directly"
    elif figure.load in SATURATING and _held_back(figure):
        figure.void = f"other work had {figure.values['others_server']:.0%} of its core, so it could not show its rate"


def _held_back(figure: Figure) -> bool:
    """Whether a server that should have been busy all the time was not, while others were at work on its core."""
    busy, others = figure.get("server_busy"), figure.get("others_server")
    return figure.get("cpu_us") is not None and (busy or 0) < BUSY and (others or 0) > OTHERS


def _of_direct(figure: Figure, direct: Figure) -> float:
    """Where a load is as fast as it goes, its rate in that of direct; 0 where it is paced."""
    for name in RATES:
        if (mine := figure.get(name)) is not None and (its := direct.get(name)):
            return mine / its
    return 0.0


@dataclass(frozen=True)
class Around:
    """A figure and those in the same report that it may be held against."""

    it: Figure
    report: Report

    def of(self, target: str, name: str, load: str = "") -> float:
        """A value of another figure; Lacking when there is none."""
        other = self.report.find(load or self.it.load, target)
        if other is None or (value := other.get(name)) is None:
            raise Lacking(f"{load or self.it.load} on {target}")
        if other.void:
            raise Void(other.void)
        return value

    def own(self, name: str) -> float:
        """A value of this figure."""
        return self.of(self.it.target, name)

    def added(self, name: str) -> float:
        """A value of this figure over direct."""
        return self.own(name) - self.of(DIRECT, name)

    def of_floor(self, name: str) -> float:
        """A value of this figure in multiples of the floor's."""
        return self.own(name) / (self.of(FLOOR, name) or 1e-9)


class Lacking(Exception):
    """What the promise needs was not measured."""


class Void(Exception):
    """What the promise needs was measured in vain."""


Said = tuple[bool, str]
"""Whether it holds, and the measured number."""


@dataclass(frozen=True)
class Rule:
    """One promise."""

    line: str
    says: str
    bound: str
    load: str
    target: str
    judge: Callable[[Around], Said]


def _least(name: str, bound: float, form: str) -> Callable[[Around], Said]:
    return lambda a: (a.own(name) >= bound, form.format(a.own(name)))


def _most(name: str, bound: float, form: str) -> Callable[[Around], Said]:
    return lambda a: (a.own(name) < bound, form.format(a.own(name)))


def _added_under(name: str, bound: float) -> Callable[[Around], Said]:
    return lambda a: (a.added(name) < bound, f"{a.added(name):.2f} ms")


def _floors(name: str, bound: float) -> Callable[[Around], Said]:
    return lambda a: (a.of_floor(name) <= bound, f"{a.of_floor(name):.2f}x ({a.own(name):.1f} µs)")


def _on_time(a: Around) -> Said:
    share, floor = a.own("on_time"), a.of(FLOOR, "on_time")
    return share >= min(0.99, floor - 0.02), f"{share:.2%} (floor {floor:.2%})"


def _flood(a: Around) -> Said:
    return a.of_floor("events_per_s") >= 0.4, f"{a.of_floor('events_per_s'):.2f}x ({a.own('events_per_s'):.0f}/s)"


def _tiny(least: float) -> Callable[[Around], Said]:
    def judged(a: Around) -> Said:
        rate, floor = a.own("requests_per_s"), a.of(FLOOR, "requests_per_s")
        return rate >= min(least, 0.35 * floor), f"{rate:.0f}/s ({rate / floor:.2f}x floor)"

    return judged


def _history(a: Around) -> Said:
    long, short = a.own("first_p50_ms"), a.of(DURABLE, "first_p50_ms", "history-10")
    return long <= 2 * short, f"{long / short:.2f}x ({long:.2f} against {short:.2f} ms)"


def _resent(a: Around) -> Said:
    ratio, own = a.of_floor("first_p50_ms"), a.own("first_p50_ms")
    return ratio <= 3, f"{ratio:.2f}x ({own:.2f} ms)"


def _replay(a: Around) -> Said:
    rate = a.own("replay_per_s")
    return (
        rate >= 200_000,
        f"{rate:.0f}/s of {a.own('replay_frames'):.0f} (the first {a.own('replay_cold_per_s'):.0f}/s)",
    )


def _snapshot(a: Around) -> Said:
    took = a.own("snapshot_ms")
    return took < 20, f"{took:.1f} ms (the first {a.own('snapshot_cold_ms'):.1f} ms)"


def _readers(a: Around) -> Said:
    ended = a.own("ended")
    return a.own("reader_kb") <= 40 and ended == 1.0, f"{a.own('reader_kb'):.1f} KB, {ended:.2%} got the end"


def _planted(a: Around) -> Said:
    shown = a.own("cpu_us") - a.of(FLOOR, "cpu_us")
    return 0.8 * BURN_US <= shown <= 1.6 * BURN_US, f"{shown:.1f} µs"


def _rules() -> Iterator[Rule]:
    yield Rule("1", "200 paced durable streams on time", ">= 99 %, or the floor - 2", "paced-200", DURABLE, _on_time)
    for place, bound in (("p50", 5), ("p99", 25)):
        says = f"200 paced durable streams: added latency {place}"
        yield Rule("1", says, f"< {bound} ms", "paced-200", DURABLE, _added_under(f"latency_{place}_ms", bound))
    for streams in (50, 100):
        says = f"{streams} paced durable streams: CPU per event over the floor's"
        yield Rule("1", says, "<= 1.5x", f"paced-{streams}", DURABLE, _floors("cpu_us", 1.5))
    for streams, rate in ((250, 50), (400, 25)):
        says = f"{streams} durable streams x {rate} tokens/s delivered"
        yield Rule("1", says, ">= 97 %", f"paced-{streams}", DURABLE, _least("delivered", 0.97, "{:.2%}"))
    yield Rule("2", "flood of 32 durable streams over the floor's rate", ">= 0.4x", "flood-32", DURABLE, _flood)
    yield Rule(
        "3", "time to first delta over direct (p50)", "<= 3 ms", "first", DURABLE, _added_under("first_p50_ms", 3)
    )
    for target, least in ((DURABLE, 800), (EPHEMERAL, 1200)):
        says = f"tiny requests, 32 at a time, {target}"
        yield Rule("4", says, f">= {least}/s, or 0.35x floor", "tiny-32", target, _tiny(least))
    yield Rule("5", "memory per waiting reader, 10,000 on 100 runs", "<= 40 KB", "readers-10000", DURABLE, _readers)
    yield Rule("5", "idle CPU", "0 (< 0.1 % of a core)", "idle", DURABLE, _most("idle_cpu", IDLE_CPU, "{:.3%}"))
    yield Rule("5", "start to /health", "< 400 ms", "idle", DURABLE, _most("start_ms", 400, "{:.0f} ms"))
    yield Rule("5", "idle RSS", "< 70 MB", "idle", DURABLE, _most("idle_rss_mb", 70, "{:.1f} MB"))
    long = "length-50000"
    yield Rule("6", "replay of 50,000 events", ">= 200,000/s", long, DURABLE, _replay)
    yield Rule("6", "snapshot of 50,000 events", "< 20 ms", long, DURABLE, _snapshot)
    yield Rule("6", "live cost, last thousand over first", "<= 1.5x", long, DURABLE, _most("growth", 1.5, "{:.2f}x"))
    yield Rule("6", "first delta after 1,000 turns over 10", "<= 2x", "history-1000", DURABLE, _history)
    name = "first delta with 2,000 earlier messages over the floor"
    yield Rule("6", name, "<= 3x", "resend-2000", CHAT_DEFAULT, _resent)
    yield Rule("7", f"a planted {BURN_US} µs per event shows", "40-80 µs", "control", CONTROL, _planted)


RULES = tuple(_rules())


def _judged(rule: Rule, report: Report) -> tuple[str, str]:
    """State and value of one."""
    it = report.find(rule.load, rule.target)
    if it is None:
        return "not measured", ""
    if it.void:
        return "void", it.void
    try:
        holds, value = rule.judge(Around(it, report))
    except Lacking as lack:
        return "not measured", f"needs {lack}"
    except Void as void:
        return "void", str(void)
    allowed = FAILED_SHARE * (it.get("requests") or 0.0)
    if it.failed > allowed:
        return "missed", f"{value}, but {it.failed} failed"
    return "ok" if holds else "missed", value


def judge(report: Report) -> list[Verdict]:
    """Every promise."""
    return [Verdict(rule.line, rule.says, rule.bound, *reversed(_judged(rule, report))) for rule in RULES]

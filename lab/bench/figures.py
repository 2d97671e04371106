"""What a measurement is: one load on one target gives one `Figure`, a run of the command gives a `Report`, which is
also the JSON file. A value is a number under a name that says its unit; a name means the same in every load. Refuses to
know: how anything is measured, shown or judged."""

from __future__ import annotations

from statistics import quantiles

import msgspec

DIRECT = "direct"
FLOOR = "floor"
CONTROL = "control"
CHAT_DEFAULT = "ninelives-chat"
"""A chat that leaves `store` out."""
EPHEMERAL = "ninelives-ephemeral"
DURABLE = "ninelives-durable"
BEFORE = ("before-ephemeral", "before-durable")
"""The same two of an earlier release (--before)."""
SUPERVISED = ("supervised", "supervised-calls", "supervised-clients", "supervised-both")
"""Durable under a supervisor (--supervised): plain, with model calls kept, with clients kept, and with both."""
REFERENCES = (DIRECT, FLOOR, CONTROL)
VERSION = 2


class Figure(msgspec.Struct):
    """One load on one target. `void` says why it proves nothing, `doubts` what makes it less than certain."""

    load: str
    kind: str
    target: str
    values: dict[str, float]
    failed: int = 0
    sample: str = ""
    """What one of the failures said."""
    void: str = ""
    doubts: list[str] = msgspec.field(default_factory=list)

    def get(self, name: str) -> float | None:
        """A value, if this load on this target has it."""
        return self.values.get(name)


class Verdict(msgspec.Struct):
    """A promise held against a figure."""

    line: str
    """The line of the list of promises that it belongs to."""
    says: str
    bound: str
    value: str
    state: str
    """ok, missed, void or not measured"""


class Subject(msgspec.Struct):
    """A target as the report remembers it."""

    name: str
    start_s: float
    rss_idle_mb: float


class Report(msgspec.Struct):
    """One run of the command."""

    at: str
    machine: dict[str, str]
    cores: dict[str, str]
    options: dict[str, str]
    targets: list[Subject]
    missing: dict[str, str]
    figures: list[Figure]
    verdicts: list[Verdict]
    disturbed: list[Figure] = msgspec.field(default_factory=list)
    """Rounds that were taken again, because the machine was less calm in them; they are neither shown nor judged."""
    version: int = VERSION

    def find(self, load: str, target: str) -> Figure | None:
        """The figure of a load on a target."""
        return next((f for f in self.figures if f.load == load and f.target == target), None)


def disturbance(figures: list[Figure]) -> float:
    """How much the machine was in the way of a round, by what the server under test hardly causes: the share of tokens
    that the upstream made late, and of the server's core that others had (the host, too), in the worst of its
    figures."""
    return max((f.values.get(name, 0.0) for f in figures for name in ("upstream_late", "others_server")), default=0.0)


def spread(values: list[float], name: str) -> dict[str, float]:
    """Median, 99th percentile and worst of a sample, under NAME with the place before the unit: first_p50_ms."""
    stem, _, unit = name.rpartition("_")
    if not values:
        return {}
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {f"{stem}_p50_{unit}": cuts[49], f"{stem}_p99_{unit}": cuts[98], f"{stem}_max_{unit}": max(values)}

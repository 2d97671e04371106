"""Metrics for Prometheus. Owns: the series, and the text of /metrics, made of what was counted (RunCounts) when
somebody asks. Refuses to know: who asks for them, and how things are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ninelives.observe.runs import Durations, RunCounts

_RECOVERIES = {"crash": "taken_over", "restart": "restarted"}
"""The kinds of recovery, and what Engine.stats calls them."""


class Metrics:
    """The series of one process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, counts: RunCounts) -> None:
        self._registry = CollectorRegistry()
        self._stats: Mapping[str, object] = {}
        self._store_bytes: int | None = None
        self._counts = counts
        self._registry.register(self)

    def exposition(self, stats: Mapping[str, object], store_bytes: int | None) -> bytes:
        """All series as text, with the numbers of the engine now."""
        self._stats, self._store_bytes = stats, store_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client: all series, when somebody asks."""
        counts, labels = self._counts, ("dialect", "status")
        yield _counts("ninelives_runs", "Runs that ended, by API and status.", labels, counts.runs.items())
        name, words = "ninelives_run_duration_seconds", "From the request to the end of a run."
        durations = HistogramMetricFamily(name, words, labels=["dialect"])
        for dialect, took in counts.durations.items():
            _add(durations, took, [dialect])
        yield durations
        name, words = "ninelives_time_to_first_delta_seconds", "From the request to the first delta of a run."
        first = HistogramMetricFamily(name, words)
        _add(first, counts.first_delta)
        flush = HistogramMetricFamily("ninelives_flush_seconds", "Writing a batch of events.")
        _add(flush, counts.flushes)
        yield from (first, flush)
        yield _counts("ninelives_tool_calls", "Tool calls that finished.", ("tool", "outcome"), counts.tools.items())
        spent = [(("input",), counts.input_tokens), (("output",), counts.output_tokens)]
        yield _counts("ninelives_tokens", "Tokens of model calls that finished.", ("direction",), spent)
        errors = [((code,), count) for code, count in counts.upstream.items()]
        yield _counts("ninelives_upstream_errors", "Runs that failed because of the upstream.", ("code",), errors)
        yield from self._of_engine()

    def _of_engine(self) -> Iterable[Metric]:
        """The series that the engine counts."""
        stats = self._stats
        gauges = {"ninelives_runs_active": "active", "ninelives_runs_queued": "queued"}
        for name, key in {**gauges, "ninelives_subscribers": "subscriptions"}.items():
            yield GaugeMetricFamily(name, f"Now: {key}.", value=_number(stats, key))
        yield CounterMetricFamily("ninelives_events", "Events that were committed.", value=_number(stats, "entries"))
        kinds = [((kind,), _number(stats, key)) for kind, key in _RECOVERIES.items()]
        yield _counts("ninelives_recoveries", "Runs that went on after their process ended.", ("kind",), kinds)
        if self._store_bytes is not None:
            yield GaugeMetricFamily("ninelives_store_bytes", "Files of the store.", value=self._store_bytes)


def _counts(
    name: str, words: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def _add(family: HistogramMetricFamily, took: Durations, labels: Sequence[str] = ()) -> None:
    names = [*map(str, took.bounds), "+Inf"]
    family.add_metric(labels, list(zip(names, accumulate(took.counts), strict=True)), took.sum)


def _number(stats: Mapping[str, object], key: str) -> float:
    value = stats.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0

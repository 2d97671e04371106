"""Metrics for Prometheus. Owns: the series, their labels, and the text of /metrics. Labels come from bounded sets,
never from an owner, a key, a session or a run. Refuses to know: who asks for them.

Counting is on the way of every request, and reading is not. So series are plain numbers, and become families of
prometheus_client when somebody asks. One of its own counters costs ten times as much to count (docs/performance)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ninelives.core.events import ToolFinished, Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
MOST_TOOLS = 200
"""Names of tools that get series of their own. A model may make names up."""
OTHER = "other"
_FLUSH_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RUN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_RECOVERIES = {"crash": "taken_over", "restart": "restarted"}
"""The kinds of recovery, and what Engine.stats calls them."""
_UPSTREAM = frozenset(
    (
        *("upstream_auth", "upstream_cut", "upstream_garbage", "upstream_rejected", "upstream_status"),
        *("upstream_timeout", "upstream_unreachable", "rate_limit_exceeded", "context_length_exceeded"),
    )
)


class Durations:
    """How long something took, in buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """It took so long once more."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def show(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """As a series of a family."""
        names = [*map(str, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class Metrics:
    """The series of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._stats: Mapping[str, object] = {}
        self._store_bytes: int | None = None
        self._runs: dict[tuple[str, str], int] = {}
        self._duration: dict[str, Durations] = {}
        self._first = Durations(_FIRST_S)
        self._flush = Durations(_FLUSH_S)
        self._tools: Counter[tuple[str, str]] = Counter()
        self._tool_names: set[str] = set()
        self._input = self._output = 0
        self._upstream: Counter[str] = Counter()
        self.flushed = self._flush.add
        """A batch was written in so many seconds."""
        self.first_delta = self._first.add
        """The first delta of a run came after so many seconds."""
        self._registry.register(self)

    def run_ended(self, dialect: str, status: str, seconds: float, code: str) -> None:
        """A run ended; `code` is that of its failure, or empty."""
        ended = dialect, status
        self._runs[ended] = self._runs.get(ended, 0) + 1
        took = self._duration.get(dialect)
        if took is None:
            took = self._duration[dialect] = Durations(_RUN_S)
        took.add(seconds)
        if code in _UPSTREAM:
            self._upstream[code] += 1

    def tool_finished(self, tool: str, finished: ToolFinished) -> None:
        """A call has a result."""
        if tool not in self._tool_names:
            if len(self._tool_names) >= MOST_TOOLS:
                tool = OTHER
            self._tool_names.add(tool)
        self._tools[tool, "unknown" if finished.outcome == "unknown" else "error" if finished.is_error else "ok"] += 1

    def tokens(self, usage: Usage) -> None:
        """A model call or a tool spent these."""
        self._input += usage.input_tokens
        self._output += usage.output_tokens

    def exposition(self, stats: Mapping[str, object], store_bytes: int | None) -> bytes:
        """All series as text, with the numbers of the engine now."""
        self._stats, self._store_bytes = stats, store_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client: all series, when somebody asks."""
        labels = ("dialect", "status")
        yield _counts("ninelives_runs", "Runs that ended, by API and status.", labels, self._runs.items())
        name, words = "ninelives_run_duration_seconds", "From the request to the end of a run."
        durations = HistogramMetricFamily(name, words, labels=["dialect"])
        for dialect, took in self._duration.items():
            took.show(durations, [dialect])
        yield durations
        name, words = "ninelives_time_to_first_delta_seconds", "From the request to the first delta of a run."
        first = HistogramMetricFamily(name, words)
        self._first.show(first)
        flush = HistogramMetricFamily("ninelives_flush_seconds", "Writing a batch of events.")
        self._flush.show(flush)
        yield from (first, flush)
        yield _counts("ninelives_tool_calls", "Tool calls that finished.", ("tool", "outcome"), self._tools.items())
        spent = [(("input",), self._input), (("output",), self._output)]
        yield _counts("ninelives_tokens", "Tokens of model calls that finished.", ("direction",), spent)
        errors = [((code,), count) for code, count in self._upstream.items()]
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


def _number(stats: Mapping[str, object], key: str) -> float:
    value = stats.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0

"""Metrics for Prometheus. Owns: the series, their labels, and the text of /metrics. Labels come from bounded sets,
never from an owner, a key, a session or a run. Refuses to know: who asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ninelives.core.events import ToolFinished, Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
MOST_TOOLS = 200
"""Names of tools that get series of their own. A model may make names up."""
OTHER = "other"
_FLUSH_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RUN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_RECOVERIES = {"crash": "recovered", "takeover": "taken_over", "restart": "restarted"}
"""The kinds of recovery, and what Engine.stats calls them."""
_UPSTREAM = frozenset(
    (
        *("upstream_auth", "upstream_cut", "upstream_garbage", "upstream_rejected", "upstream_status"),
        *("upstream_timeout", "upstream_unreachable", "rate_limit_exceeded", "context_length_exceeded"),
    )
)


class Metrics:
    """The series of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._stats: Mapping[str, object] = {}
        self._store_bytes: int | None = None
        self._runs = Counter(
            "ninelives_runs", "Runs that ended, by API and status.", ["dialect", "status"], registry=registry
        )
        self._duration = Histogram(
            "ninelives_run_duration_seconds",
            "From the request to the end of a run.",
            ["dialect"],
            buckets=_RUN_S,
            registry=registry,
        )
        self._first = Histogram(
            "ninelives_time_to_first_delta_seconds",
            "From the request to the first delta of a run.",
            buckets=_FIRST_S,
            registry=registry,
        )
        self._flush = Histogram(
            "ninelives_flush_seconds", "Writing a batch of events.", buckets=_FLUSH_S, registry=registry
        )
        self._tools = Counter(
            "ninelives_tool_calls", "Tool calls that finished.", ["tool", "outcome"], registry=registry
        )
        self._tokens = Counter(
            "ninelives_tokens", "Tokens of model calls that finished.", ["direction"], registry=registry
        )
        self._upstream = Counter(
            "ninelives_upstream_errors", "Runs that failed because of the upstream.", ["code"], registry=registry
        )
        self._ended_by: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._tool_names: set[str] = set()
        self._input, self._output = self._tokens.labels("input"), self._tokens.labels("output")
        self.flushed: Callable[[float], None] = self._flush.observe
        """A batch was written in so many seconds."""
        self.first_delta: Callable[[float], None] = self._first.observe
        """The first delta of a run came after so many seconds."""
        registry.register(self)

    def run_ended(self, dialect: str, status: str, seconds: float, code: str) -> None:
        """A run ended; `code` is that of its failure, or empty."""
        known = self._ended_by.get((dialect, status))
        if known is None:  # to look up labels takes longer than to count
            known = self._ended_by[dialect, status] = (
                self._runs.labels(dialect, status),
                self._duration.labels(dialect),
            )
        known[0].inc()
        known[1].observe(seconds)
        if code in _UPSTREAM:
            self._upstream.labels(code).inc()

    def tool_finished(self, tool: str, finished: ToolFinished) -> None:
        """A call has a result."""
        if tool not in self._tool_names:
            if len(self._tool_names) >= MOST_TOOLS:
                tool = OTHER
            self._tool_names.add(tool)
        outcome = "unknown" if finished.outcome == "unknown" else "error" if finished.is_error else "ok"
        self._tools.labels(tool, outcome).inc()

    def tokens(self, usage: Usage) -> None:
        """A model call or a tool spent these."""
        self._input.inc(usage.input_tokens)
        self._output.inc(usage.output_tokens)

    def exposition(self, stats: Mapping[str, object], store_bytes: int | None) -> bytes:
        """All series as text, with the numbers of the engine now."""
        self._stats, self._store_bytes = stats, store_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client: the series that are read when somebody asks."""
        stats = self._stats
        gauges = {"ninelives_runs_active": "active", "ninelives_runs_queued": "queued"}
        for name, key in {**gauges, "ninelives_subscribers": "subscriptions"}.items():
            yield GaugeMetricFamily(name, f"Now: {key}.", value=_number(stats, key))
        yield CounterMetricFamily("ninelives_events", "Events that were committed.", value=_number(stats, "entries"))
        recoveries = CounterMetricFamily(
            "ninelives_recoveries", "Runs that went on after their process ended.", labels=["kind"]
        )
        for kind, key in _RECOVERIES.items():
            recoveries.add_metric([kind], _number(stats, key))
        yield recoveries
        if self._store_bytes is not None:
            yield GaugeMetricFamily("ninelives_store_bytes", "Files of the store.", value=self._store_bytes)


def _number(stats: Mapping[str, object], key: str) -> float:
    value = stats.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0

"""Watching runs. Owns: RunObserver, which follows the committed entries of each run, counts them, and tells the log and
traces what they mean: one line of log for each run; and RunCounts, its numbers. It is told facts only, so a streamed
token costs nothing here. Labels come from bounded sets, never from an owner, a key, a session or a run. Refuses to
know: how a series, a line or a span is written, and what was said in a run."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from ninelives.core import events as e
from ninelives.core.state import RunState
from ninelives.core.table import DELTAS
from ninelives.journal.base import Logger

MOST_TOOLS = 200
"""Names of tools that get series of their own. A model may make names up."""
OTHER = "other"
_FLUSH_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RUN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_UPSTREAM = frozenset(
    (
        *("upstream_auth", "upstream_cut", "upstream_garbage", "upstream_rejected", "upstream_status"),
        *("upstream_timeout", "upstream_unreachable", "rate_limit_exceeded", "context_length_exceeded"),
    )
)


class Durations:
    """How long something took, in buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were in each bucket; the last one has no bound."""
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """It took so long once more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class RunCounts:
    """What runs did in this process, as RunObserver counts it. Counting is on the way of every request, and reading is
    not. So these are plain numbers, which metrics.py shows when somebody asks. A counter of prometheus_client costs ten
    times as much to count (docs/performance)."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str]] = Counter()
        """By dialect and status."""
        self.durations: dict[str, Durations] = {}
        """From the request to the end of a run, by dialect."""
        self.first_delta = Durations(_FIRST_S)
        """From the request to the first delta of a run."""
        self.flushes = Durations(_FLUSH_S)
        """Writing a batch."""
        self.tools: Counter[tuple[str, str]] = Counter()
        """By tool and outcome."""
        self._tool_names: set[str] = set()
        self.input_tokens = self.output_tokens = 0
        self.upstream: Counter[str] = Counter()
        """Failures of upstreams, by code."""

    def tool_finished(self, tool: str, finished: e.ToolFinished) -> None:
        """A call has a result."""
        if tool not in self._tool_names:
            if len(self._tool_names) >= MOST_TOOLS:
                tool = OTHER
            self._tool_names.add(tool)
        self.tools[tool, "unknown" if finished.outcome == "unknown" else "error" if finished.is_error else "ok"] += 1


class Watched(Struct):
    """What is remembered of a run while it is driven here. Times are those of its entries, in milliseconds."""

    attempt: int
    began_at: int
    """When this attempt began, as far as it is known."""
    step_at: int
    """When the model was asked, or the last step ended."""
    delta_at: int = 0
    """When the first delta of the current message came; 0: none came yet."""
    tools: dict[str, tuple[e.ToolStarted, int]] = {}
    """Calls that started, by id."""
    ended: bool = False


class Traces(Protocol):
    """Spans of a run."""

    def began(self, state: RunState, watched: Watched) -> None:
        """An attempt began."""
        ...

    def message(self, state: RunState, watched: Watched, said: e.MessageCompleted, at: int) -> None:
        """A model call is over."""
        ...

    def tool(self, state: RunState, started: e.ToolStarted, began_at: int, finished: e.ToolFinished, at: int) -> None:
        """A tool call is over."""
        ...

    def over(self, run: str, state: RunState | None, at: int) -> None:
        """The attempt is over. `state` is that of a run that has ended."""
        ...


class RunObserver:
    """See engine.base.Observer."""

    def __init__(self, counts: RunCounts, log: Logger, traces: Traces | None = None) -> None:
        self._counts = counts
        self._log = log
        self._traces = traces
        self._runs: dict[str, Watched] = {}
        self.flushed = counts.flushes.add

    def told(self, state: RunState, entries: Sequence[e.Entry]) -> None:
        """See Observer.told. A bug here must not stop the writer of all runs."""
        try:
            watched = self._runs.get(state.facts.run) or self._begin(state, entries)
            for entry in entries:
                event, kind = entry.event, type(entry.event)
                if not watched.delta_at and kind in _SPOKEN:
                    watched.delta_at = entry.at
                    if watched.attempt == 1 and watched.step_at == state.facts.created_at:
                        self._counts.first_delta.add((entry.at - watched.step_at) / 1000)
                if kind in DELTAS:
                    continue
                if isinstance(event, e.ToolStarted):
                    watched.tools[event.call.id] = event, entry.at
                elif (fact := _FACTS.get(kind)) is not None:
                    fact(self, state, watched, entry)
                watched.step_at = entry.at
        except Exception as error:
            self._log.error("observer_failed", run=state.facts.run, error=repr(error))

    def left(self, run: str) -> None:
        """See Observer.left."""
        watched = self._runs.pop(run, None)
        if watched is not None and not watched.ended and self._traces is not None:
            self._traces.over(run, None, watched.step_at)

    def _begin(self, state: RunState, entries: Sequence[e.Entry]) -> Watched:
        facts = state.facts
        began_at = facts.created_at if facts.attempt <= 1 or not entries else entries[0].at
        watched = self._runs[facts.run] = Watched(facts.attempt, began_at, began_at)
        if self._traces is not None:
            self._traces.began(state, watched)
        return watched

    def _message(self, state: RunState, watched: Watched, entry: e.Entry) -> None:
        said = entry.event
        assert isinstance(said, e.MessageCompleted)
        self._counts.input_tokens += said.usage.input_tokens
        self._counts.output_tokens += said.usage.output_tokens
        if self._traces is not None:
            self._traces.message(state, watched, said, entry.at)
        watched.delta_at = 0

    def _finished(self, state: RunState, watched: Watched, entry: e.Entry) -> None:
        finished = entry.event
        assert isinstance(finished, e.ToolFinished)
        started, began_at = watched.tools.pop(finished.call_id, (None, entry.at))
        due = state.facts.due.get(finished.call_id)
        name = started.call.name if started is not None else due.call.name if due is not None else ""
        self._counts.tool_finished(name or "unnamed", finished)
        self._counts.input_tokens += finished.usage.input_tokens
        self._counts.output_tokens += finished.usage.output_tokens
        if self._traces is not None and started is not None:
            self._traces.tool(state, started, began_at, finished, entry.at)

    def _ended(self, state: RunState, watched: Watched, entry: e.Entry) -> None:
        facts, at, counts = state.facts, entry.at, self._counts
        spec, watched.ended = facts.accepted.spec, True
        code = facts.end.reason or facts.end.code if isinstance(facts.end, e.RunFailed) else ""
        more = {"code": code} if code else {}
        if spec.trace:
            more["trace_id"] = spec.trace[3:35]
        usage = facts.usage
        seconds = max(0, at - facts.created_at) / 1000
        status = state.status
        counts.runs[spec.dialect, status] += 1
        if spec.dialect not in counts.durations:
            counts.durations[spec.dialect] = Durations(_RUN_S)
        counts.durations[spec.dialect].add(seconds)
        if code in _UPSTREAM:
            counts.upstream[code] += 1
        self._log.info(
            "run",
            run=facts.run,
            dialect=spec.dialect,
            model=spec.model,
            status=status,
            seconds=seconds,
            attempts=facts.attempt,
            crashes=facts.recoveries,
            tools=len(facts.results),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            **more,
        )
        if self._traces is not None:
            self._traces.over(facts.run, state, at)


_SPOKEN = DELTAS | {e.MessageCompleted}
"""The first of a message: a delta, or all of it."""
_FACTS: dict[type[e.Event], Callable[[RunObserver, RunState, Watched, e.Entry], None]] = {
    e.MessageCompleted: RunObserver._message,
    e.ToolFinished: RunObserver._finished,
    **dict.fromkeys((e.RunCompleted, e.RunFailed, e.RunCancelled, e.RunInterrupted), RunObserver._ended),
}
"""What is told of each kind of event. A table: to try one kind after the other took longer than all the rest."""

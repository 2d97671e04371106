"""What happened to a run, in one object (D1). Owns: the receipt, folded from the journal: attempts, steps reused and
repeated, unknown outcomes, tokens spent and saved by recovery, approvals. Refuses to know: engines and HTTP."""

from __future__ import annotations

from collections.abc import Iterable

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.state import RunState, apply, start
from ninelives.dialects.responses.body import usage_object
from ninelives.dialects.runs.body import STATUS
from ninelives.dialects.runs.shapes import ReceiptObject
from ninelives.dialects.shared import hidden, messages_text

Story = dict[str, object]


class Receipt:
    """Add the entries in order, then call body()."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._attempts: list[Story] = []
        self._steps: dict[str, Story] = {}
        self._approvals: list[Story] = []
        self._steers: list[Story] = []
        self._saved = e.Usage()
        self._dropped = 0
        self._forked: e.ForkedFrom | None = None

    def add(self, entry: e.Entry) -> None:
        """One more entry."""
        before = self._state
        self._state = start(entry) if before is None else apply(before, entry)
        match entry.event:
            case e.RunAccepted() as accepted:
                self._forked = accepted.forked
            case e.AttemptStarted() as started:
                self._attempt(entry, started, before)
            case e.ToolStarted() as tool:
                self._started(entry, tool)
            case e.ToolFinished() as finished:
                self._finished(entry, finished)
            case e.SteerApplied() | e.SteerUnused() as steer:
                used = isinstance(steer, e.SteerApplied)
                text = messages_text(steer.messages)
                self._steers.append({"id": steer.id, "at": entry.at / 1000, "used": used, "text": text})
            case e.ApprovalRequested() as asked:
                self._approvals.append({"call_id": asked.call.id, "tool": asked.call.name, "asked_at": entry.at / 1000})
            case e.ApprovalGiven() as given:
                self._approvals[-1] |= {"choice": given.choice, "by": given.by, "answered_at": entry.at / 1000}

    def _attempt(self, entry: e.Entry, started: e.AttemptStarted, before: RunState | None) -> None:
        story: Story = {"attempt": entry.attempt, "at": entry.at / 1000, "clean": started.clean}
        if started.lost:
            story["events_lost"] = started.lost
        if before is not None and before.facts.attempt > 0:
            facts = before.facts
            story["reused_messages"] = len(facts.messages)
            story["reused_results"] = len(facts.results)
            self._dropped += before.drafting and not started.keeps
            if started.keeps:
                story["kept_model_call"] = True
            if not started.clean:  # a parked run goes on for nothing: only a crash would have cost these tokens again
                self._saved = self._saved.plus(facts.usage)
        self._attempts.append(story)

    def _started(self, entry: e.Entry, started: e.ToolStarted) -> None:
        step = self._steps.setdefault(
            started.call.id,
            {"call_id": started.call.id, "tool": started.call.name, "effect": started.effect, "label": started.label,
             "starts": 0, "outcome": "open"},
        )  # fmt: skip
        starts = step["starts"]
        step["starts"] = (starts if isinstance(starts, int) else 0) + 1
        step["attempt"] = entry.attempt
        if self._forked is not None and entry.seq <= self._forked.copied + 1:
            step["reused"] = True

    def _finished(self, entry: e.Entry, finished: e.ToolFinished) -> None:
        step = self._steps[finished.call_id]
        step |= {"outcome": finished.outcome, "is_error": finished.is_error, "duration_ms": finished.duration_ms}

    def _source(self) -> Story | None:
        forked = self._forked
        return {"run_id": wire_id("runs", forked.run), "seq": forked.seq} if forked else None

    def body(self) -> ReceiptObject:
        """The receipt so far."""
        state = self._state
        if state is None:
            raise ValueError("a receipt needs entries")
        facts = state.facts
        steps = [step for step in self._steps.values() if not hidden(str(step["tool"]))]
        unknown = [str(step["call_id"]) for step in steps if step["outcome"] == "unknown"]
        repeated = [str(step["call_id"]) for step in steps if step["starts"] != 1]
        return ReceiptObject(
            object="hermes.run.receipt",
            run_id=wire_id("runs", facts.run),
            status=STATUS[state.phase],
            attempts=self._attempts,
            recoveries=facts.recoveries,
            steps=steps,
            repeated=repeated,
            unknown_outcomes=unknown,
            drafts_dropped=self._dropped,
            approvals=self._approvals,
            steers=self._steers,
            forked_from=self._source(),
            reused=[str(step["call_id"]) for step in steps if step.get("reused")],
            usage=usage_object(facts.usage),
            usage_incomplete=facts.usage_incomplete,
            usage_estimated=facts.usage.estimated,
            usage_saved_by_recovery=usage_object(self._saved),
            error=_error(facts.end),
        )


def _error(end: e.Terminal | None) -> Story | None:
    if not isinstance(end, e.RunFailed):
        return None
    return {"code": end.code, "reason": end.reason, "message": end.message}


def receipt(entries: Iterable[e.Entry]) -> ReceiptObject:
    """The receipt of a run."""
    made = Receipt()
    for entry in entries:
        made.add(entry)
    return made.body()

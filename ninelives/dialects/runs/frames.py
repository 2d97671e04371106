"""Runs as a stream. Owns: the events of a run. Positions are journal seqs. Refuses to know: engines and HTTP."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.dialects.hermes.approval import card
from ninelives.dialects.responses.body import usage_object
from ninelives.dialects.runs.body import failure_text
from ninelives.dialects.shared import hidden, joined, messages_text
from ninelives.dialects.sse import data_frame

CLOSED = b": stream closed\n\n"


class RunsView(Struct, frozen=True):
    """Where a reader stands."""

    after: int
    names: dict[str, str] = {}
    texts: tuple[str, ...] = ()
    """Texts of complete messages, for the output at the end."""
    draft_from: int = -1
    usage: e.Usage = e.Usage()
    version: int = 1
    """Of the projection that renders this run."""
    unused: tuple[e.SteerUnused, ...] = ()
    over: ClassVar[bool] = False
    """See Projection: only the end of the run ends this stream."""


class RunsProjection:
    """See engine.Projection."""

    name = "runs"

    def view0(self, after: int) -> RunsView:
        """See Projection.view0."""
        return RunsView(after)

    def live(self, view: RunsView) -> tuple[RunsView, list[bytes]]:
        """See Projection.live."""
        return replace(view, after=-1), []

    def reached(self, view: RunsView, seq: int) -> bool:
        """See Resumable.reached: positions are numbers of entries."""
        return view.after <= seq

    def step(self, view: RunsView, entry: e.Entry) -> tuple[RunsView, list[bytes]]:
        """See Projection.step."""
        seen = entry.seq <= view.after and not isinstance(entry.event, e.Terminal)
        view, events = events_of(view, entry)
        if seen:
            return view, []
        place = {"seq": entry.seq, "run_id": wire_id("runs", entry.run), "timestamp": entry.at / 1000}
        frames = [data_frame({"event": name, **place, **fields}) for name, fields in events]
        if isinstance(entry.event, e.Terminal):
            frames[-1] += CLOSED
        return view, frames


RunEvents = list[tuple[str, dict[str, object]]]


def events_of(view: RunsView, entry: e.Entry) -> tuple[RunsView, RunEvents]:
    """The view after an entry, and the names and fields of its events."""
    match entry.event:
        case e.RunAccepted() as accepted:
            return replace(view, version=accepted.spec.projection), []
        case e.TextDelta(text):
            if view.draft_from < 0:
                view = replace(view, draft_from=entry.seq)
            return view, [("message.delta", {"delta": text})]
        case e.MessageCompleted() as said:
            return _message(view, said)
        case e.AttemptStarted(keeps=False) if view.draft_from >= 0:
            return replace(view, draft_from=-1), [("message.dropped", {"from_seq": view.draft_from})]
        case e.CallBegun() | e.ToolStarted() | e.ToolFinished() as event:
            return _tool_events(view, event)
        case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunInterrupted() as end:
            name, fields = _end(view, end)
            return view, [(name, {**fields, **_left_over(view)})]
        case event:
            return _people(view, event)


def _people(view: RunsView, event: e.AnyEvent) -> tuple[RunsView, RunEvents]:
    """What people are asked, answer and write."""
    match event:
        case e.ApprovalRequested() | e.ApprovalGiven() as approval:
            return view, [_approval(view, approval)]
        case e.SteerApplied() as steer:
            return view, [("run.steered", {"steer_id": steer.id, "text": messages_text(steer.messages)})]
        case e.SteerUnused() as unused:
            return replace(view, unused=(*view.unused, unused)), []
        case _:
            return view, []


def _approval(view: RunsView, event: e.ApprovalRequested | e.ApprovalGiven) -> tuple[str, dict[str, object]]:
    if isinstance(event, e.ApprovalGiven):
        return "approval.responded", {"toolCallId": event.call_id, "choice": event.choice}
    return "approval.request", {**_question(event), **(card(event) if view.version >= 4 else {})}


def _left_over(view: RunsView) -> dict[str, object]:
    """The steers that the run did not use."""
    if not view.unused:
        return {}
    text = "\n".join(messages_text(steer.messages) for steer in view.unused)
    return {"pending_steer": text, "pending_steer_ids": [steer.id for steer in view.unused]}


def _question(asked: e.ApprovalRequested) -> dict[str, object]:
    return {
        "tool": asked.call.name,
        "toolCallId": asked.call.id,
        "arguments": asked.call.arguments,
        "digest": asked.digest,
        "code": asked.code,
        "expires_at": asked.expires_at / 1000,
        "choices": asked.choices,
    }


def _message(view: RunsView, said: e.MessageCompleted) -> tuple[RunsView, RunEvents]:
    events: RunEvents = [("reasoning.available", {"text": said.reasoning})] if said.reasoning else []
    if said.spoken and view.draft_from < 0:
        events.append(("message.delta", {"delta": said.spoken}))
    texts = (*view.texts, said.spoken) if said.spoken else view.texts
    return replace(view, texts=texts, draft_from=-1, usage=view.usage.plus(said.usage)), events


def _tool_events(view: RunsView, event: e.CallBegun | e.ToolStarted | e.ToolFinished) -> tuple[RunsView, RunEvents]:
    match event:
        case e.CallBegun(call_id=call, name=name):
            return view, [] if hidden(name) else [("tool.preparing", {"tool": name, "toolCallId": call})]
        case e.ToolStarted():
            return _started(view, event)
        case e.ToolFinished():
            return _finished(view, event)


def _started(view: RunsView, started: e.ToolStarted) -> tuple[RunsView, RunEvents]:
    call = started.call
    if call.id in view.names or hidden(call.name):
        return view, []
    view = replace(view, names={**view.names, call.id: call.name})
    return view, [("tool.started", {"tool": call.name, "toolCallId": call.id, "preview": started.label})]


def _finished(view: RunsView, finished: e.ToolFinished) -> tuple[RunsView, RunEvents]:
    name = view.names.get(finished.call_id)
    if name is None:
        return view, []
    fields = {
        "tool": name,
        "toolCallId": finished.call_id,
        "duration": finished.duration_ms / 1000,
        "error": finished.is_error,
        "outcome": finished.outcome,
    }
    return view, [("tool.completed", fields)]


def _end(view: RunsView, end: e.Terminal) -> tuple[str, dict[str, object]]:
    result: dict[str, object] = {"output": joined(view.texts), "usage": usage_object(view.usage)}
    if view.usage.estimated:
        result["usage_estimated"] = True
    match end:
        case e.RunCompleted():
            return "run.completed", result
        case e.RunFailed():
            return "run.failed", {"error": failure_text(end)}
        case e.RunCancelled():
            return "run.cancelled", {}
        case e.RunInterrupted(reason):
            return "run.incomplete", {"reason": reason, **result}

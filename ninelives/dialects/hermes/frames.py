"""A chat in a session as a stream. Owns: the names and fields by which hermes-agent tells the events of a run there. It
translates the events of the Runs API. Refuses to know: engines and HTTP."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.history import text_of
from ninelives.core.ids import wire_id
from ninelives.core.rope import Rope, grow, join
from ninelives.dialects.runs.frames import RunEvents, RunsView, events_of
from ninelives.dialects.shared import arguments_object, joined
from ninelives.dialects.sse import encode, named_frame

_AS_THEY_ARE = frozenset({"approval.request", "approval.responded", "message.dropped", "tool.preparing"})


class SessionView(Struct, frozen=True):
    """Where a reader stands."""

    run: RunsView
    session: str = ""
    said: str = ""
    """What the user said."""
    draft: Rope | None = None
    """The text of the message that streams. It counts where the run is cancelled in the middle of it."""
    told: int = 0
    """Frames so far."""
    over: ClassVar[bool] = False
    """See Projection: only the end of the run ends this stream."""


class SessionProjection:
    """See engine.Projection. There is no position: a stream begins at the beginning."""

    name = "hermes.session"

    def view0(self, after: int) -> SessionView:
        """See Projection.view0."""
        return SessionView(RunsView(after))

    def live(self, view: SessionView) -> tuple[SessionView, list[bytes]]:
        """See Projection.live."""
        return view, []

    def step(self, view: SessionView, entry: e.Entry) -> tuple[SessionView, list[bytes]]:
        """See Projection.step."""
        if isinstance(entry.event, e.RunAccepted):
            view = replace(view, session=entry.event.resolved.session or "", said=_last_said(entry.event))
        run, events = events_of(view.run, entry)
        view = replace(view, run=run, draft=_draft(view.draft, entry.event))
        message = wire_id("messages", entry.run)
        told = _told(view, entry, events, message)
        frames = []
        for name, fields in told:
            view = replace(view, told=view.told + 1)
            place = {"session_id": view.session, "run_id": wire_id("runs", entry.run), "seq": view.told}
            frames.append(named_frame(name.encode(), encode({**fields, **place, "ts": entry.at / 1000})))
        return view, frames


def _draft(draft: Rope | None, event: e.AnyEvent) -> Rope | None:
    match event:
        case e.TextDelta(text):
            return grow(draft, text)
        case e.MessageCompleted() | e.AttemptStarted(keeps=False):
            return None
        case _:
            return draft


def _last_said(accepted: e.RunAccepted) -> str:
    return next((text_of(m.get("content")) for m in reversed(accepted.spec.input) if m.get("role") == "user"), "")


def _told(view: SessionView, entry: e.Entry, events: RunEvents, message: str) -> RunEvents:
    """The events of an entry in the words of hermes-agent."""
    told: RunEvents = []
    if isinstance(entry.event, e.RunAccepted):
        told.append(("run.started", {"user_message": {"role": "user", "content": view.said}}))
        told.append(("message.started", {"message": {"id": message, "role": "assistant"}}))
    for name, fields in events:
        told += _translated(name, fields, entry, message)
    if isinstance(entry.event, e.Terminal):
        told += _ended(view, entry.event, events[-1][1], message)
    return told


def _translated(name: str, fields: dict[str, object], entry: e.Entry, message: str) -> RunEvents:
    match name:
        case "message.delta":
            return [("assistant.delta", {"message_id": message, "delta": fields["delta"]})]
        case "reasoning.available":
            thought = {"message_id": message, "tool_name": "_thinking", "delta": fields["text"]}
            return [("tool.progress", thought)]
        case "tool.started" | "tool.completed":
            shown = {"message_id": message, "tool_name": fields["tool"], "tool_call_id": fields["toolCallId"]}
            if isinstance(entry.event, e.ToolStarted):
                args = arguments_object(entry.event.call.arguments)
                return [(name, {**shown, "preview": fields["preview"], "args": args})]
            failed = bool(fields["error"])
            ended = {**shown, "duration": fields["duration"], "error": failed}
            return [("tool.failed" if failed else name, ended)]
        case _ if name in _AS_THEY_ARE:
            return [(name, fields)]
        case _:
            return []


def _ended(view: SessionView, end: e.Terminal, fields: dict[str, object], message: str) -> RunEvents:
    """The last events. A failure is told as an error."""
    if isinstance(end, e.RunFailed):
        return [("error", {"message": fields["error"]}), ("done", {})]
    whole, text = isinstance(end, e.RunCompleted), joined((*view.run.texts, join(view.draft)))
    flags = {"completed": whole, "partial": not whole, "interrupted": isinstance(end, e.RunCancelled)}
    turn = [{"role": "user", "content": view.said}, {"role": "assistant", "content": text}]
    last = {"message_id": message, "completed": whole, "messages": turn, "usage": fields.get("usage")}
    return [
        ("assistant.completed", {"message_id": message, "content": text, **flags}),
        ("run.completed", last),
        ("done", {}),
    ]

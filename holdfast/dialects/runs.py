"""The Runs dialect: hermes-agent's own view of a run (G8). Owns: its request, its events (positions are journal seqs)
and its object. Any stored run, whatever dialect began it, can be seen here. Refuses to know: engines and HTTP."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.admission import Asked
from holdfast.core.errors import ClientError, not_found
from holdfast.core.history import SYSTEM_ROLES, split_turn, text_of
from holdfast.core.ids import run_of_any, wire_id
from holdfast.core.spec import Message, Spec, fingerprint
from holdfast.core.state import Called, Returned, RunState, Said, Thought
from holdfast.core.table import Phase
from holdfast.dialects import fields as f
from holdfast.dialects.asking import Context, checked_session
from holdfast.dialects.responses.body import usage_object
from holdfast.dialects.responses.input import input_items, messages_of
from holdfast.dialects.responses.refs import Item
from holdfast.dialects.shared import hidden, joined
from holdfast.dialects.sse import data_frame

CLOSED = b": stream closed\n\n"
STATUS = {
    Phase.NEW: "queued",
    Phase.QUEUED: "queued",
    Phase.READY: "running",
    Phase.DRAFTING: "running",
    Phase.ACTING: "running",
    Phase.WAITING: "waiting_for_approval",
    Phase.STOPPING: "stopping",
    Phase.COMPLETED: "completed",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
    Phase.INTERRUPTED: "incomplete",
}
_LAST = {
    Phase.COMPLETED: "run.completed",
    Phase.FAILED: "run.failed",
    Phase.CANCELLED: "run.cancelled",
    Phase.INTERRUPTED: "run.incomplete",
    Phase.WAITING: "approval.request",
}
_LAST_ITEM = {Called: "tool.started", Returned: "tool.completed", Said: "message.delta", Thought: "reasoning.available"}


_DEFAULTS: dict[str, object] = {"metadata": {}, "conversation_history": []}


class RunsRequest(Struct):
    """The known fields; others are ignored."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    session_id: str | None = None
    previous_response_id: str | None = None
    conversation_history: list[dict[str, object]] | None = None
    model: str | None = None
    metadata: f.Metadata | None = None


class ParsedRun(Struct, frozen=True):
    """A request, understood."""

    spec: Spec
    asked: Asked


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRun:
    """See house.md: parse(request) -> Spec."""
    request = f.decode(raw, RunsRequest)
    context = context.under(request.model)
    named = request.session_id
    session = context.session() if named is None else checked_session(named, "session_id")
    given: str | list[Item] = f.required(request.input, "input")  # type: ignore[assignment]
    items = input_items(given, max_parts)
    system, earlier, turn = split_turn(messages_of(items))
    before, history = _history(request.conversation_history or [])
    history += earlier
    layers = [layer for layer in (request.instructions, *before, system) if layer]
    spec = Spec(
        dialect="runs",
        model=context.profile.name,
        input=tuple(turn),
        history=() if session else tuple(history),
        instructions="\n\n".join(layers) or None,
        metadata=request.metadata or {},
        background=True,
        tool_items=context.tool_items(),
        output_bound=context.profile.output_bound,
        memory_scope=context.memory_scope(),
        items=tuple(items),
    )
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("runs", f.known_fields(request, _DEFAULTS), session),
        key=context.key(),
        previous=_previous(request.previous_response_id),
        session=session,
        derived_session=context.derived_session(spec.instructions, text_of(turn[0].get("content")) if turn else ""),
    )
    return ParsedRun(spec, asked)


def _history(messages: list[Message]) -> tuple[list[str], list[Message]]:
    """The system prompts of an earlier conversation, which become layers, and the rest of it."""
    for n, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant", "tool", "system", "developer"):
            text = f"conversation_history[{n}].role is missing or unknown."
            raise ClientError("invalid_value", text, param="conversation_history")
    systems = [text_of(message.get("content")) for message in messages if message.get("role") in SYSTEM_ROLES]
    return systems, [message for message in messages if message.get("role") not in SYSTEM_ROLES]


def _previous(shown: str | None) -> str | None:
    if shown is None:
        return None
    run = run_of_any(shown)
    if run is None:
        error = not_found("response", shown)
        error.param = "previous_response_id"
        raise error
    return run


def body(state: RunState) -> dict[str, object]:
    """The run object."""
    facts = state.facts
    failed = facts.end if isinstance(facts.end, e.RunFailed) else None
    return {
        "object": "hermes.run",
        "run_id": wire_id("runs", facts.run),
        "status": STATUS[state.phase],
        "session_id": facts.accepted.resolved.session,
        "model": facts.accepted.spec.model,
        "created_at": facts.created_at / 1000,
        "updated_at": facts.updated_at / 1000,
        "last_event": _LAST.get(state.phase) or _last_item(state),
        "output": joined(item.text + item.refusal for item in facts.items if isinstance(item, Said)),
        "usage": usage_object(facts.usage),
        "usage_incomplete": facts.usage_incomplete,
        "attempt": facts.attempt,
        "error": _failure(failed) if failed else None,
    }


def _last_item(state: RunState) -> str:
    facts = state.facts
    unseen = {i.started.call.id for i in facts.items if isinstance(i, Called) and hidden(i.started.call.name)}
    for item in reversed((*facts.items, *state.draft_items)):
        call = item.started.call.id if isinstance(item, Called) else ""
        call = item.finished.call_id if isinstance(item, Returned) else call
        if call not in unseen and type(item) in _LAST_ITEM:
            return _LAST_ITEM[type(item)]
    return "run.started"


def _failure(failed: e.RunFailed) -> str:
    return f"{failed.message} ({failed.reason})" if failed.reason else failed.message


class View(Struct, frozen=True):
    """Where a reader stands."""

    after: int
    names: dict[str, str] = {}
    texts: tuple[str, ...] = ()
    """Settled texts, for the output at the end."""
    draft_from: int = -1
    usage: e.Usage = e.Usage()


class RunsProjection:
    """See engine.Projection."""

    name = "runs"

    def view0(self, after: int) -> View:
        """See Projection.view0."""
        return View(after)

    def live(self, view: View) -> tuple[View, list[bytes]]:
        """See Projection.live."""
        return replace(view, after=-1), []

    def over(self, view: View) -> bool:
        """See Projection.over: only the run's end ends this stream."""
        return False

    def step(self, view: View, entry: e.Entry) -> tuple[View, list[bytes]]:
        """See Projection.step."""
        seen = entry.seq <= view.after and not isinstance(entry.event, e.Terminal)
        view, told = _tell(view, entry)
        if seen:
            return view, []
        place = {"seq": entry.seq, "run_id": wire_id("runs", entry.run), "timestamp": entry.at / 1000}
        frames = [data_frame({"event": name, **place, **fields}) for name, fields in told]
        if isinstance(entry.event, e.Terminal):
            frames[-1] += CLOSED
        return view, frames


Told = list[tuple[str, dict[str, object]]]


def _tell(view: View, entry: e.Entry) -> tuple[View, Told]:
    match entry.event:
        case e.TextDelta(text):
            if view.draft_from < 0:
                view = replace(view, draft_from=entry.seq)
            return view, [("message.delta", {"delta": text})]
        case e.MessageCompleted() as said:
            return _message(view, said)
        case e.AttemptStarted() if view.draft_from >= 0:
            return replace(view, draft_from=-1), [("message.dropped", {"from_seq": view.draft_from})]
        case e.ToolStarted() as started:
            return _started(view, started)
        case e.ToolFinished() as finished:
            return _finished(view, finished)
        case e.ApprovalRequested() as asked:
            return view, [("approval.request", _question(asked))]
        case e.ApprovalGiven() as given:
            return view, [("approval.responded", {"toolCallId": given.call_id, "choice": given.choice})]
        case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunInterrupted() as end:
            return view, [_end(view, end)]
        case _:
            return view, []


def _question(asked: e.ApprovalRequested) -> dict[str, object]:
    return {
        "tool": asked.call.name,
        "toolCallId": asked.call.id,
        "arguments": asked.call.arguments,
        "digest": asked.digest,
        "code": asked.code,
        "expires_at": asked.expires_at / 1000,
        "choices": ["once", "session", "always", "deny"],
    }


def _message(view: View, said: e.MessageCompleted) -> tuple[View, Told]:
    told: Told = [("reasoning.available", {"text": said.reasoning})] if said.reasoning else []
    if said.spoken and view.draft_from < 0:
        told.append(("message.delta", {"delta": said.spoken}))
    texts = (*view.texts, said.spoken) if said.spoken else view.texts
    return replace(view, texts=texts, draft_from=-1, usage=view.usage.plus(said.usage)), told


def _started(view: View, started: e.ToolStarted) -> tuple[View, Told]:
    call = started.call
    if call.id in view.names or hidden(call.name):
        return view, []
    view = replace(view, names={**view.names, call.id: call.name})
    return view, [("tool.started", {"tool": call.name, "toolCallId": call.id, "preview": started.label})]


def _finished(view: View, finished: e.ToolFinished) -> tuple[View, Told]:
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


def _end(view: View, end: e.Terminal) -> tuple[str, dict[str, object]]:
    result: dict[str, object] = {"output": joined(view.texts), "usage": usage_object(view.usage)}
    match end:
        case e.RunCompleted():
            return "run.completed", result
        case e.RunFailed():
            return "run.failed", {"error": _failure(end)}
        case e.RunCancelled():
            return "run.cancelled", {}
        case e.RunInterrupted(reason):
            return "run.incomplete", {"reason": reason, **result}

"""A run as JSON. Owns: the run object of a state, the words for its phase, and the text of a failure. Refuses to know:
engines and HTTP."""

from __future__ import annotations

from msgspec import UNSET

from ninelives.core import events as e
from ninelives.core.history import text_of
from ninelives.core.ids import wire_id
from ninelives.core.limits import money
from ninelives.core.spec import Spec
from ninelives.core.state import Called, Returned, RunState, Said, Thought
from ninelives.core.table import Phase
from ninelives.dialects.approval import shown_call
from ninelives.dialects.responses.body import usage_object
from ninelives.dialects.runs.shapes import OpenQuestion, RunObject, RunStatus
from ninelives.dialects.shared import hidden, joined

STATUS: dict[Phase, RunStatus] = {
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
TITLE_CHARS = 120
_LAST = {
    Phase.COMPLETED: "run.completed",
    Phase.FAILED: "run.failed",
    Phase.CANCELLED: "run.cancelled",
    Phase.INTERRUPTED: "run.incomplete",
    Phase.WAITING: "approval.request",
}
_LAST_ITEM = {Called: "tool.started", Returned: "tool.completed", Said: "message.delta", Thought: "reasoning.available"}


def body(state: RunState) -> RunObject:
    """The run object."""
    facts = state.facts
    failed = facts.end if isinstance(facts.end, e.RunFailed) else None
    return RunObject(
        object="hermes.run",
        run_id=wire_id("runs", facts.run),
        status=STATUS[state.phase],
        session_id=facts.accepted.resolved.session,
        title=title_of(facts.accepted.spec),
        model=facts.accepted.spec.model,
        created_at=facts.created_at / 1000,
        updated_at=facts.updated_at / 1000,
        last_event=_LAST.get(state.phase) or _last_item(state),
        output=joined(item.text + item.refusal for item in facts.items if isinstance(item, Said)),
        usage=usage_object(facts.usage),
        usage_incomplete=facts.usage_incomplete,
        usage_estimated=facts.usage.estimated,
        cost=money(facts.usage.cost),
        attempt=facts.attempt,
        recoveries=facts.recoveries,
        error=failure_text(failed) if failed else _limit_text(facts.end),
        ignored_tools=facts.accepted.spec.ignored_tools or UNSET,
        approval=open_question(facts.asked) if facts.asked else UNSET,
    )


def title_of(spec: Spec) -> str:
    """The first words of the newest message of the user, on one line."""
    said = next((each for each in reversed(spec.input) if each.get("role") == "user"), {})
    words = " ".join(text_of(said.get("content"))[: TITLE_CHARS * 4].split())
    return words if len(words) <= TITLE_CHARS else f"{words[: TITLE_CHARS - 1]}…"


def open_question(asked: e.ApprovalRequested) -> OpenQuestion:
    """The call that waits for a person."""
    return OpenQuestion(
        tool=asked.call.name,
        toolCallId=asked.call.id,
        arguments=asked.call.arguments,
        call=shown_call(asked.call),
        why=asked.why,
        digest=asked.digest,
        expires_at=asked.expires_at / 1000,
        choices=asked.takes(),
    )


def _last_item(state: RunState) -> str:
    facts = state.facts
    unseen = {i.started.call.id for i in facts.items if isinstance(i, Called) and hidden(i.started.call.name)}
    for item in reversed((*facts.items, *state.draft_items)):
        call = item.started.call.id if isinstance(item, Called) else ""
        call = item.finished.call_id if isinstance(item, Returned) else call
        if call not in unseen and type(item) in _LAST_ITEM:
            return _LAST_ITEM[type(item)]
    return "run.started"


def _limit_text(end: e.Terminal | None) -> str | None:
    """Which limit ended a run, where its event says so."""
    return (end.message or None) if isinstance(end, e.RunInterrupted) else None


def failure_text(failed: e.RunFailed) -> str:
    """The message of a failure, with its reason where there is one."""
    return f"{failed.message} ({failed.reason})" if failed.reason else failed.message

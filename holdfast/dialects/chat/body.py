"""Chat Completions as JSON. Owns: the completion object of a state, and the stored messages of a run. Refuses to know:
engines and HTTP."""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.ids import wire_id
from holdfast.core.spec import Message
from holdfast.core.state import RunState, Said
from holdfast.dialects.approval import question
from holdfast.dialects.chat.frames import FINISH, usage_object
from holdfast.dialects.shared import joined


def visible_text(state: RunState, since: int = 0) -> str:
    """The text of all messages, or from one on, paragraphs between them: what a stream shows in all. A message that the
    run's end cut off stands; a draft is not shown, dropped or not."""
    spoken = [item.text for item in state.facts.items if isinstance(item, Said) and item.text]
    before = sum(1 for said in state.facts.messages[:since] if said.text)
    return joined(spoken[before:])


def body(state: RunState, metadata: dict[str, str] | None = None, since: int = 0) -> dict[str, object]:
    """The completion. While the run goes on, what is settled so far. `since`: only messages from this one on."""
    facts = state.facts
    spec = facts.accepted.spec
    reasoning = "".join(said.reasoning for said in facts.messages)
    asked = facts.asked
    text = visible_text(state, since) + (question(asked) if asked else "")
    declined = "".join(item.refusal for item in facts.items if isinstance(item, Said)) or None
    content = None if declined and not text else text
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": declined}
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [call for said in facts.messages[-1:] for call in said.calls if call.client]
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
        ]
    shown: dict[str, object] = {
        "id": wire_id("chat", facts.run),
        "object": "chat.completion",
        "created": facts.created_at // 1000,
        "model": spec.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(state, bool(calls)), "logprobs": None}],
        "usage": usage_object(facts.usage),
    }
    if spec.store:
        shown["metadata"] = metadata if metadata is not None else spec.metadata
        shown["status"] = state.status
    return shown


def _finish(state: RunState, calls: bool) -> str | None:
    match state.facts.end:
        case e.RunCompleted():
            return "tool_calls" if calls else "stop"
        case e.RunInterrupted(reason):
            return FINISH[reason]
        case _:
            return "stop" if state.facts.asked else None


def stored_messages(state: RunState) -> list[dict[str, object]]:
    """The messages of the request, each with an id, as the stored-messages list shows them."""
    facts = state.facts
    spec = facts.accepted.spec
    system: list[Message] = [{"role": "system", "content": spec.instructions}] if spec.instructions else []
    shown = [*system, *spec.history, *spec.input]
    return [{"id": f"{wire_id('chat', facts.run)}-{n}", **message} for n, message in enumerate(shown)]

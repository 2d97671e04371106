"""Chat Completions as JSON. Owns: the completion object of a state, and the stored messages of a run. Refuses to know:
engines and HTTP."""

from __future__ import annotations

from msgspec import UNSET

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.spec import Message
from ninelives.core.state import RunState, Said
from ninelives.dialects.approval import question
from ninelives.dialects.chat.frames import FINISH, usage_object
from ninelives.dialects.chat.shapes import ChatMessage, Choice, Completion, FinishReason
from ninelives.dialects.fields import Json
from ninelives.dialects.shared import joined


def visible_text(state: RunState, since: int = 0) -> str:
    """The text of all messages from `since` on, with paragraphs between them: the same text as a stream. A message that
    the end of the run cut off is included; a draft is not."""
    spoken = [item.text for item in state.facts.items if isinstance(item, Said) and item.text]
    before = sum(1 for said in state.facts.messages[:since] if said.text)
    return joined(spoken[before:])


def body(state: RunState, metadata: dict[str, str] | None = None, since: int = 0) -> Completion:
    """The completion. During the run, the complete messages so far. `since`: only messages from this one on."""
    facts = state.facts
    spec = facts.accepted.spec
    calls = [call for said in facts.messages[-1:] for call in said.calls if call.client]
    message = _message(state, since, calls)
    return Completion(
        id=wire_id("chat", facts.run),
        object="chat.completion",
        created=facts.created_at // 1000,
        model=spec.model,
        choices=[Choice(index=0, message=message, finish_reason=_finish(state, bool(calls)), logprobs=None)],
        usage=usage_object(facts.usage),
        metadata=UNSET if not spec.store else spec.metadata if metadata is None else metadata,
        status=state.status if spec.store else UNSET,
    )


def _message(state: RunState, since: int, calls: list[e.Call]) -> ChatMessage:
    facts = state.facts
    text = visible_text(state, since) + (question(facts.asked, facts.run) if facts.asked else "")
    declined = "".join(item.refusal for item in facts.items if isinstance(item, Said)) or None
    return ChatMessage(
        role="assistant",
        content=None if declined and not text else text,
        refusal=declined,
        reasoning_content="".join(said.reasoning for said in facts.messages) or UNSET,
        tool_calls=[_tool_call(call) for call in calls] or UNSET,
    )


def _tool_call(call: e.Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(state: RunState, calls: bool) -> FinishReason | None:
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

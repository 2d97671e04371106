"""Messages as JSON. Owns: the message object of a state. It equals what a client builds from the frames. Refuses to
know: engines and HTTP."""

from __future__ import annotations

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.state import Called, Facts, Item, Returned, RunState, Said, Thought
from ninelives.dialects.approval import question
from ninelives.dialects.messages import blocks
from ninelives.dialects.messages.frames import STOP
from ninelives.dialects.messages.shapes import AnthropicMessage, StopReason
from ninelives.dialects.shared import hidden


def content(state: RunState, before: RunState | None = None) -> list[blocks.Block]:
    """The complete blocks, or those after a state."""
    facts = state.facts
    since = len(before.facts.items) if before is not None else 0
    names = {item.started.call.id: item.started.call.name for item in facts.items if isinstance(item, Called)}
    shown = [block for item in facts.items[since:] if (block := _block(facts, item, names)) is not None]
    if facts.asked is not None:
        shown.append(blocks.text(question(facts.asked, facts.run).lstrip()))
    return shown + [blocks.client_call(call) for call in _handed(facts)]


def _block(facts: Facts, item: Item, names: dict[str, str]) -> blocks.Block | None:
    spec = facts.accepted.spec
    match item:
        case Said(text=text, refusal=refusal) if text or refusal:
            return blocks.text(text + refusal)
        case Thought(seq, text) if text and blocks.shows_thinking(spec) and not _dropped(facts, seq):
            return blocks.thinking(text, blocks.signature(facts.run, seq))
        case Called(started=started) if blocks.shows_tools(spec) and not hidden(started.call.name):
            return blocks.server_call(started.call, spec)
        case Returned(finished=finished) if blocks.shows_tools(spec) and not hidden(names[finished.call_id]):
            return blocks.server_result(finished, spec)
        case _:
            return None


def _dropped(facts: Facts, seq: int) -> bool:
    """Was this thought complete when a crash dropped its message?"""
    return any(first <= seq <= last for first, last in facts.dropped)


def _handed(facts: Facts) -> list[e.Call]:
    """The calls for the caller, once nothing else is due: those of the last message."""
    over = isinstance(facts.end, e.RunCompleted | e.RunInterrupted)
    return [call for said in facts.messages[-1:] for call in said.calls if call.client] if over else []


def body(state: RunState, before: RunState | None = None) -> AnthropicMessage:
    """The message, or the rest of it after a state. During the run, the complete blocks so far."""
    facts = state.facts
    usage = e.Usage()
    for said in facts.messages[len(before.facts.messages) if before is not None else 0 :]:
        usage = usage.plus(said.usage)
    shown_id, model = wire_id("messages", facts.run), facts.accepted.spec.model
    return blocks.message(shown_id, model, content(state, before), _stop_reason(facts), usage)


def _stop_reason(facts: Facts) -> StopReason | None:
    match facts.end:
        case e.RunCompleted():
            refused = any(said.refusal for said in facts.messages[-1:])
            return "tool_use" if _handed(facts) else "refusal" if refused else "end_turn"
        case e.RunInterrupted(reason):
            return STOP[reason]
        case _:
            return "end_turn" if facts.asked is not None else None

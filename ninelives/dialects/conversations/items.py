"""The items of a conversation. Owns: the items that a run gives to its conversation, and the turn of a run without
items that were removed. An item id contains its run: it tells where to look. Refuses to know: engines and HTTP."""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.history import SYSTEM_ROLES, output_messages, spoken
from ninelives.core.ids import handed_id, item_id
from ninelives.core.spec import Message, Spec
from ninelives.core.state import Called, Handed, Returned, RunState, Said
from ninelives.dialects.responses import body
from ninelives.dialects.responses.compaction import HEAD
from ninelives.dialects.responses.input import messages_of
from ninelives.dialects.responses.items import as_input
from ninelives.dialects.responses.refs import Item

_CALLS = ("function_call", "function_call_output", "mcp_call")


def items_of(state: RunState) -> list[Item]:
    """The items of a run in its conversation, oldest first: input, then output. A draft that a crash dropped is not
    among them, as it is not in the history (G3)."""
    run = state.facts.run
    given = [_with_status({**item, "id": _input_id(run, n)}) for n, item in enumerate(body.input_items(state))]
    made = [as_input(item) for item in body.output(state)]
    return given + [item for item in made if item.get("content") != [] and item.get("summary") != []]


def _with_status(item: Item) -> Item:
    return {"status": "completed", **item} if item.get("type") in _CALLS else item


def _input_id(run: str, n: int) -> str:
    """Our own id, whatever the client sent: two items of a conversation never share an id."""
    return f"item_{run}{n:06x}"


def belongs_to(item: str, run: str) -> bool:
    """Can this be the id of an item of `run`?"""
    return item.partition("_")[2].startswith(run)


def turn_without(state: RunState, removed: frozenset[str]) -> list[Message]:
    """The turn of a run as the next one sees it, without the removed items. A call and its result go together: no model
    accepts one without the other."""
    facts = state.facts
    messages, gone = _messages_without(state, removed), _calls_of(state, removed)
    kept = [replace(said, calls=tuple(call for call in said.calls if call.id not in gone)) for said in messages]
    said = spoken(replace(facts, messages=tuple(kept)))
    return [*facts.accepted.spec.history, *_input_without(state, removed), *output_messages(said, facts.results)]


def _messages_without(state: RunState, removed: frozenset[str]) -> list[e.MessageCompleted]:
    """The messages. A message whose item was removed has no text. Messages with text have one item each, in the same
    order."""
    facts = state.facts
    shown = (i.seq for i in facts.items if isinstance(i, Said) and i.standing != "dropped" and not _is_empty(i))
    messages = []
    for said in facts.messages:
        speaks = bool(output_messages([replace(said, calls=())], {}))
        gone = speaks and item_id("msg", facts.run, next(shown, -1)) in removed
        messages.append(e.MessageCompleted("", said.calls) if gone else said)
    return messages


def _is_empty(item: Said) -> bool:
    return item == Said(item.seq, "", item.standing)


def _calls_of(state: RunState, removed: frozenset[str]) -> set[str]:
    run, gone = state.facts.run, set()
    for item in state.facts.items:
        match item:
            case Called(seq, started) if removed & {item_id("fc", run, seq), item_id("mcp", run, seq)}:
                gone.add(started.call.id)
            case Returned(seq, finished) if item_id("fco", run, seq) in removed:
                gone.add(finished.call_id)
            case Handed(_, call) if handed_id(call.id) in removed:
                gone.add(call.id)
    return gone


def _with_summaries(spec: Spec) -> list[Item]:
    """The items, with each compaction replaced by the message of its summary in the input."""
    summaries = iter([message for message in spec.input if str(message.get("content", "")).startswith(HEAD)])
    return [next(summaries, item) if item.get("type") == "compaction" else item for item in spec.items]


def _input_without(state: RunState, removed: frozenset[str]) -> list[Message]:
    """The input, built again from its items. A run in a named session used only the last part of them."""
    spec, run = state.facts.accepted.spec, state.facts.run
    items = _with_summaries(spec)
    kept = [_input_id(run, n) not in removed for n in range(len(items))]
    if all(kept):
        return list(spec.input)
    system = any(message.get("role") in SYSTEM_ROLES for message in spec.input)

    def messages(some: list[Item]) -> list[Message]:
        return [m for m in messages_of(some) if system or m.get("role") not in SYSTEM_ROLES]

    unused = len(messages(items)) - len(spec.input)
    first = bisect_left(range(len(items)), unused, key=lambda k: len(messages(items[:k])))
    return messages([item for n, item in enumerate(items) if n >= first and kept[n]])

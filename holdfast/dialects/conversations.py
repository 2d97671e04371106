"""The Conversations API. Owns: its requests, a conversation as JSON, the items that a run gives to its conversation
(their ids are made of the run, so an id tells where to look), and the turn of a run without items that were taken out.
Items that a client adds are a run without any step of an agent. Refuses to know: engines and HTTP."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.admission import Asked
from holdfast.core.errors import ClientError
from holdfast.core.history import SYSTEM_ROLES, output_messages
from holdfast.core.ids import handed_id, item_id
from holdfast.core.spec import Message, Spec, fingerprint
from holdfast.core.state import Called, Handed, Returned, RunState, Said
from holdfast.dialects import fields as f
from holdfast.dialects.asking import Context
from holdfast.dialects.responses import body
from holdfast.dialects.responses.compaction import HEAD, opened
from holdfast.dialects.responses.input import input_items, messages_of
from holdfast.dialects.responses.items import plain_output
from holdfast.dialects.responses.refs import Item

DIALECT = "conversations"
MAX_ITEMS = 20
_CALLS = ("function_call", "function_call_output", "mcp_call")


class CreateRequest(Struct):
    """POST /v1/conversations; other fields are ignored."""

    items: list[Item] | None = None
    metadata: f.Metadata | None = None


class ItemsRequest(Struct):
    """POST /v1/conversations/{id}/items."""

    items: list[Item] | None = None


class UpdateRequest(Struct):
    """POST /v1/conversations/{id}."""

    metadata: f.Metadata | msgspec.UnsetType | None = msgspec.UNSET


class Addition(Struct, frozen=True):
    """Items that want to join a conversation, and what for."""

    spec: Spec
    asked: Asked


def parse_create(raw: bytes, context: Context, max_parts: int) -> Addition:
    """A conversation that is to be made, with its first items."""
    request = f.decode(raw, CreateRequest)
    items = _checked(request.items or [], max_parts)
    metadata = request.metadata or {}
    known: dict[str, object] = {"items": items, "metadata": metadata}
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint(DIALECT, known, None),
        key=context.key(),
        conversation_use="make",
    )
    return Addition(_spec(opened(items, context), items, metadata), asked)


def parse_items(raw: bytes, context: Context, named: str, max_parts: int) -> Addition:
    """Items for a conversation that is there."""
    given = f.required(f.decode(raw, ItemsRequest).items, "items")
    if not given:
        raise ClientError("invalid_value", "items must not be empty.", param="items")
    items = _checked(given, max_parts)
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint(DIALECT, {"items": items, "conversation": named}, None),
        key=context.key(),
        conversation=named,
        conversation_use="extend",
    )
    return Addition(_spec(opened(items, context), items, {}), asked)


def parse_update(raw: bytes) -> dict[str, str]:
    """The new metadata; null is none."""
    metadata = f.decode(raw, UpdateRequest).metadata
    if metadata is msgspec.UNSET:
        raise ClientError("missing_required_parameter", "Missing required parameter: 'metadata'.", param="metadata")
    return metadata or {}


def _checked(given: list[Item], max_parts: int) -> list[Item]:
    if len(given) > MAX_ITEMS:
        message = f"There are {len(given)} items; the limit is {MAX_ITEMS} at a time. Send the rest in another request."
        raise ClientError("too_many_items", message, param="items")
    if not given:
        return []
    for n, item in enumerate(given):
        if item.get("type") == "item_reference":
            message = f"items[{n}] is an item_reference: send the item itself."
            raise ClientError("invalid_value", message, param="items")
    try:
        return input_items(given, max_parts)
    except ClientError as error:  # the same rules as for a response's input, under another name
        raise ClientError(error.code, error.message.replace("input[", "items[", 1), param="items") from error


def _spec(told: Sequence[Item], items: Sequence[Item], metadata: dict[str, str]) -> Spec:
    """Nobody is asked anything: the items are the whole of this run. System messages stay where they were put."""
    return Spec(
        dialect="conversations",
        model="",
        input=tuple(messages_of(list(told))),
        items=tuple(items),
        metadata=metadata,
    )


def conversation(shown: str, name: str | None, created_at: int, metadata: Mapping[str, str]) -> dict[str, object]:
    """A conversation as JSON."""
    return {
        "id": shown,
        "object": "conversation",
        "created_at": created_at // 1000,
        "metadata": metadata,
        "name": name,
    }


def items_of(state: RunState) -> list[Item]:
    """What a run gives to its conversation, oldest first: input, then output. A draft that a crash cut off is no part
    of it, as it is none of the history (G3)."""
    run = state.facts.run
    given = [_complete({**item, "id": _input_id(run, n)}) for n, item in enumerate(body.input_items(state))]
    made = [plain_output(item) for item in body.output(state)]
    return given + [item for item in made if item.get("content") != [] and item.get("summary") != []]


def _complete(item: Item) -> Item:
    return {"status": "completed", **item} if item.get("type") in _CALLS else item


def _input_id(run: str, n: int) -> str:
    """Ours, whatever the client called it: two items of a conversation never share an id."""
    return f"item_{run}{n:06x}"


def is_of(item: str, run: str) -> bool:
    """Can this be the id of an item of that run?"""
    return item.partition("_")[2].startswith(run)


def turn_without(state: RunState, removed: frozenset[str]) -> list[Message]:
    """The turn of a run as the next one shall see it, without the removed items. A call and its result go together: no
    model takes one without the other."""
    facts = state.facts
    spoken, gone = _spoken(state, removed), _calls_of(state, removed)
    kept = [replace(said, calls=tuple(call for call in said.calls if call.id not in gone)) for said in spoken]
    return [*facts.accepted.spec.history, *_input_without(state, removed), *output_messages(kept, facts.results)]


def _spoken(state: RunState, removed: frozenset[str]) -> list[e.MessageCompleted]:
    """The messages, those without their words whose item was removed. Those that say something have one item each, in
    the same order."""
    facts = state.facts
    shown = (i.seq for i in facts.items if isinstance(i, Said) and i.standing != "dropped" and not _is_empty(i))
    spoken = []
    for said in facts.messages:
        speaks = bool(output_messages([replace(said, calls=())], {}))
        gone = speaks and item_id("msg", facts.run, next(shown, -1)) in removed
        spoken.append(e.MessageCompleted("", said.calls) if gone else said)
    return spoken


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


def _told(spec: Spec) -> list[Item]:
    """The items, each compaction among them as the message that stands for it in the input."""
    told = iter([message for message in spec.input if str(message.get("content", "")).startswith(HEAD)])
    return [next(told, item) if item.get("type") == "compaction" else item for item in spec.items]


def _input_without(state: RunState, removed: frozenset[str]) -> list[Message]:
    """The input again from its items. A run in a named session took only the last part of them as its input."""
    spec, run = state.facts.accepted.spec, state.facts.run
    items = _told(spec)
    kept = [_input_id(run, n) not in removed for n in range(len(items))]
    if all(kept):
        return list(spec.input)
    system = any(message.get("role") in SYSTEM_ROLES for message in spec.input)

    def messages(some: list[Item]) -> list[Message]:
        return [m for m in messages_of(some) if system or m.get("role") not in SYSTEM_ROLES]

    unused = len(messages(items)) - len(spec.input)
    first = bisect_left(range(len(items)), unused, key=lambda k: len(messages(items[:k])))
    return messages([item for n, item in enumerate(items) if n >= first and kept[n]])

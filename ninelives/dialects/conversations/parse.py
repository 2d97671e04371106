"""Requests of the Conversations API. Owns: their fields and limits, and the run that adds items to a conversation.
Refuses to know: engines and HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.spec import Spec, fingerprint
from ninelives.dialects import fields as f
from ninelives.dialects.asking import KEY, Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses.compaction import unseal_items
from ninelives.dialects.responses.input import input_items, messages_of
from ninelives.dialects.responses.refs import Item

DIALECT = "conversations"
MAX_ITEMS = 20


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


def parse_create(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A new conversation, with its first items."""
    request = f.decode(raw, CreateRequest)
    items = _checked(request.items or [], max_parts)
    metadata = request.metadata or {}
    known: dict[str, object] = {"items": items, "metadata": metadata}
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint(DIALECT, known, None),
        key=context.wish(KEY),
        conversation_use="make",
    )
    return ParsedRequest(_spec(unseal_items(items, context), items, metadata), asked)


def parse_items(raw: bytes, context: Context, named: str, max_parts: int) -> ParsedRequest:
    """Items for a conversation that exists."""
    given = f.required(f.decode(raw, ItemsRequest).items, "items")
    if not given:
        raise ClientError("invalid_value", "items must not be empty.", param="items")
    items = _checked(given, max_parts)
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint(DIALECT, {"items": items, "conversation": named}, None),
        key=context.wish(KEY),
        conversation=named,
        conversation_use="extend",
    )
    return ParsedRequest(_spec(unseal_items(items, context), items, {}), asked)


def parse_update(raw: bytes) -> dict[str, str]:
    """The new metadata; null clears it."""
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


def _spec(readable: Sequence[Item], items: Sequence[Item], metadata: dict[str, str]) -> Spec:
    """A run without an agent: its items are all of it. System messages stay in their place."""
    return Spec(
        dialect="conversations",
        model="",
        input=tuple(messages_of(list(readable))),
        items=tuple(items),
        metadata=metadata,
    )

"""References in a request. Owns: item references in an input, the previous response, and the errors for unknown ones.
Refuses to know: where items are found; they come as values."""

from __future__ import annotations

from collections.abc import Mapping

from ninelives.core.errors import ClientError, not_found
from ninelives.core.ids import run_of

Item = dict[str, object]


def is_reference(item: Item) -> bool:
    """Is this item a reference to another one? The API allows its type to be left out."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def references(given: str | list[Item] | None) -> list[str]:
    """The ids that an input refers to, each once."""
    if not isinstance(given, list):
        return []
    named = (item.get("id") for item in given if is_reference(item))
    return list(dict.fromkeys(shown for shown in named if isinstance(shown, str)))


def with_references(given: str | list[Item], known: Mapping[str, Item]) -> str | list[Item]:
    """The input, with references replaced by their items."""
    if isinstance(given, str):
        return given
    return [_found(n, item, known) if is_reference(item) else item for n, item in enumerate(given)]


def _found(n: int, item: Item, known: Mapping[str, Item]) -> Item:
    shown = item.get("id")
    if not isinstance(shown, str) or not shown:
        raise ClientError("invalid_value", f"input[{n}].id must be the id of an item.", param="input")
    if shown not in known:
        message = f"Item not found: {shown}. Only items of your own stored responses can be named: send it whole."
        raise ClientError("item_not_found", message, status=404, param="input")
    return known[shown]


def previous_run(shown: str | None) -> str | None:
    """The run behind previous_response_id."""
    if shown is None:
        return None
    run = run_of("responses", shown)
    if run is None:
        error = not_found("response", shown)
        error.param = "previous_response_id"
        raise error
    return run

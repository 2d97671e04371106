"""Query parameters and list pages. Owns: limit, order, after, stream and resume positions, and the page that a list is
answered with. Refuses to know: what is listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

from ninelives.core.errors import ClientError
from ninelives.dialects.fields import Json
from ninelives.http.describe.shapes import ListPage

T = TypeVar("T")
MAX_OUTPUT_CHARS = 1_000_000


def position(request: Request, *names: str) -> int:
    """Where a reader resumes: a query parameter, or Last-Event-ID; -1 for the beginning."""
    for name in names:
        if (given := request.query_params.get(name)) is not None:
            return whole(given, name)
    given = request.headers.get("last-event-id")
    return whole(given, "Last-Event-ID") if given else -1


def whole(given: str, name: str) -> int:
    """A number of a query parameter or a header."""
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise ClientError("invalid_value", f"{name} must be a whole number from 0 on.", param=name)
    return int(given)


def wants_stream(request: Request) -> bool:
    """?stream=true."""
    given = request.query_params.get("stream", "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise ClientError("invalid_value", "stream must be true or false.", param="stream")
    return given in ("true", "1")


def limit_of(request: Request, default: int = 20, most: int = 100) -> int:
    """How many entries of a list the caller wants."""
    limit = whole(request.query_params.get("limit", str(default)), "limit")
    if not 1 <= limit <= most:
        raise ClientError("invalid_value", f"limit must be from 1 to {most}.", param="limit")
    return limit


def days_of(request: Request, default: int, most: int) -> int:
    """How many days the caller wants to see."""
    days = whole(request.query_params.get("days", str(default)), "days")
    if not 1 <= days <= most:
        raise ClientError("invalid_value", f"days must be from 1 to {most}.", param="days")
    return days


def output_chars(request: Request) -> int | None:
    """How much of each output a list shows; None: all of it."""
    given = request.query_params.get("output_chars")
    most = None if given is None else whole(given, "output_chars")
    if most is not None and not 0 <= most <= MAX_OUTPUT_CHARS:
        raise ClientError("invalid_value", f"output_chars must be from 0 to {MAX_OUTPUT_CHARS}.", param="output_chars")
    return most


def offset_of(request: Request) -> int:
    """How many entries of a list the caller skips."""
    return whole(request.query_params.get("offset", "0"), "offset")


def is_ascending(request: Request, default: str = "desc") -> bool:
    """?order=asc. `default` is the API's own order."""
    order = request.query_params.get("order", default)
    if order not in ("asc", "desc"):
        raise ClientError("invalid_value", "order must be asc or desc.", param="order")
    return order == "asc"


def page(items: Sequence[T], limit: int, key: str = "id") -> ListPage[T]:
    """A list object. `items` may hold one more than `limit`: it says that there are more."""
    shown = list(items[:limit])
    ids = [_field(shown[0], key), _field(shown[-1], key)] if shown else [None, None]
    return ListPage("list", shown, ids[0], ids[1], len(items) > limit)


def _field(item: object, name: str) -> str:
    return str(item[name] if isinstance(item, dict) else getattr(item, name))


def page_of(request: Request, items: list[Json], order: str = "desc") -> ListPage[Json]:
    """The page that a request asks for, of a list that is all in memory: limit, order and after by item id."""
    limit = limit_of(request)
    if not is_ascending(request, order):
        items = items[::-1]
    if (after := request.query_params.get("after")) is not None:
        place = next((n for n, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise unknown_item(after)
        items = items[place + 1 :]
    return page(items, limit)


def unknown_item(after: str) -> ClientError:
    """`after` names nothing in this list."""
    return ClientError("invalid_value", f"There is no item {after} here.", param="after")

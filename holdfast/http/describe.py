"""What a route says of itself. Owns: `@described`, the one entry next to a route from which /openapi.json and /docs are
made, and the parameters that several routes share. A route without it is missing from the document, and a test says so.
Refuses to know: how the document is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

F = TypeVar("F", bound=Callable[..., object])
Schema = dict[str, object]


class Param(Struct, frozen=True):
    """A query parameter or a header."""

    name: str
    doc: str
    schema: Schema = msgspec.field(default_factory=lambda: {"type": "string"})
    where: Literal["query", "header"] = "query"


class Operation(Struct, frozen=True, kw_only=True):
    """One route and method, described."""

    tag: str
    summary: str
    doc: str = ""
    """More words, where there is more to say."""
    answers: Mapping[int, type | None] = {}
    """Status of success -> the shape of its JSON; None: no JSON."""
    body: type | None = None
    """The Struct that the request is decoded with."""
    body_optional: bool = False
    required: tuple[str, ...] = ()
    """Fields of the body that must be there, though the Struct has a default for them (the error then has its name)."""
    params: tuple[Param, ...] = ()
    stream: str = ""
    """What comes as text/event-stream, where something does."""
    errors: tuple[int, ...] = ()
    """Statuses beside those that every route of its kind has."""
    error: type | None = None
    """The shape of its errors, where it is another API's own."""
    open: bool = False
    """No key is needed."""
    media: str = "application/json"
    example: object = None


def described(operation: Operation) -> Callable[[F], F]:
    """`@described(Operation(...))` over the function that answers a route."""

    def note(endpoint: F) -> F:
        endpoint.__dict__["operation"] = operation
        return endpoint

    return note


def operation_of(endpoint: object) -> Operation | None:
    """What was said of an endpoint."""
    found = getattr(endpoint, "operation", None)
    return found if isinstance(found, Operation) else None


def _header(name: str, doc: str, schema: Schema) -> Param:
    return Param(name, doc, schema, "header")


_SESSION: Schema = {"type": "string", "pattern": "^[A-Za-z0-9._:@/+=-]{1,256}$"}
KEY = _header(
    "Idempotency-Key",
    "The same key and request is the same run, for as long as the run is kept.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
)
SESSION = _header("X-Hermes-Session-Id", "The session that gives the history and takes the finished turn.", _SESSION)
SESSION_KEY = _header("X-Hermes-Session-Key", "Narrows the memory tool.", _SESSION)
TOOL_ITEMS = _header(
    "X-Tool-Items",
    "How tools that the server ran appear.",
    {"type": "string", "enum": ["auto", "function_call", "mcp_call"]},
)
TOOL_PROGRESS = _header(
    "X-Tool-Progress",
    "Which tool progress a chat stream carries.",
    {"type": "string", "enum": ["compatible", "bare", "off"]},
)
_PLACE: Schema = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
LAST_EVENT_ID = _header("Last-Event-ID", "The same as starting_after, as browsers say it.", _PLACE)
STREAM = Param("stream", "true: replay and follow the run as a stream.", {"type": "boolean", "default": False})
STARTING_AFTER = Param("starting_after", "Go on after this number; left out: from the beginning.", _PLACE)
AFTER_SEQ = Param("after", "Go on after this event; left out: from the beginning.", _PLACE)
LIMIT = Param("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20})
ORDER = Param("order", "By time.", {"type": "string", "enum": ["asc", "desc"]})
AFTER = Param("after", "The last id of the page before.")
PAGING = (LIMIT, ORDER, AFTER)
CREATING = (KEY, SESSION, SESSION_KEY, TOOL_ITEMS)
CREATE_ERRORS = (404, 409, 429)

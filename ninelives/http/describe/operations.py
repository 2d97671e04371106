"""How a route describes itself. Owns: Endpoint, the one entry from which a route, /openapi.json and /docs are made, and
the parameters that several routes share. Refuses to know: how the document is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

Schema = dict[str, object]


class Param(Struct, frozen=True):
    """A query parameter or a header."""

    name: str
    doc: str
    schema: Schema = msgspec.field(default_factory=lambda: {"type": "string"})
    where: Literal["query", "header"] = "query"


class Operation(Struct, frozen=True, kw_only=True):
    """What an endpoint does, for people and for programs."""

    summary: str
    doc: str = ""
    """More about it, if needed."""
    answers: Mapping[int, type | None] = {}
    """Status of success -> the shape of its JSON; None: no JSON."""
    body: type | None = None
    """The Struct that the request is decoded with."""
    body_optional: bool = False
    required: tuple[str, ...] = ()
    """Required fields of the body. The Struct has a default for them, so that the error can name the field."""
    params: tuple[Param, ...] = ()
    stream: str = ""
    """What comes as text/event-stream; empty: no stream."""
    errors: tuple[int, ...] = ()
    """Statuses beside those of every such route."""
    error: type | None = None
    """The shape of its errors, if it is not Error."""
    open: bool = False
    """No key is needed."""
    scope: str = ""
    """The scope that a route of another package needs. Ours are in edge/scopes.py."""
    media: str = "application/json"
    text: str = ""
    """A media type of text that a parameter chooses in place of JSON; empty: none."""
    example: object = None


class Endpoint(Struct, frozen=True):
    """A path, the function that answers it, and its description."""

    methods: str
    """One method, or several with spaces between them."""
    path: str
    answer: Callable[[Any], Awaitable[Any]]
    operation: Operation


class DescribedRoute(Route):
    """A route of Starlette with its description. One without is missing from the document, and a test says so."""

    def __init__(self, endpoint: Endpoint, tag: str, base: str = "") -> None:
        super().__init__(base + endpoint.path, endpoint.answer, methods=endpoint.methods.split())
        self.operation = endpoint.operation
        self.tag = tag


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

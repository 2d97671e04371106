"""Sessions over HTTP (D2). Owns: /api/sessions. Refuses to know: how a session is stored."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import ClientError, not_found
from ninelives.core.sessions import as_markdown, snippet, storable, words_of
from ninelives.core.spec import Message
from ninelives.dialects import fields
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import AFTER, Endpoint, Operation, Param
from ninelives.http.routes.base import Routes
from ninelives.journal.values import SessionHit, SessionQuery, SessionRow

NOUN = "session"
Shown = list[Message]
TITLE_CHARS = 256
SEARCH_WORDS, SEARCH_CHARS = 32, 256
"""The most that a search may ask for."""


class SessionChange(Struct):
    """The fields that can be changed. `title: null` removes the title."""

    title: str | UnsetType | None = UNSET
    end_reason: str | UnsetType | None = UNSET


class Fork(Struct):
    """The id and the title of the copy; a new id and the same title by default."""

    id: str | None = None
    title: str | None = None


class SessionRoutes(Routes):
    """/api/sessions."""

    tag = "Sessions"
    base = "/api/sessions"

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts
        self._book = parts.sessions

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "", self.list, LIST),
            Endpoint("GET", "/{id:path}/messages", self.messages, MESSAGES),
            Endpoint("GET", "/{id:path}/export", self.export, EXPORT),
            Endpoint("POST", "/{id:path}/fork", self.fork, FORK),
            Endpoint("GET", "/{id:path}", self.retrieve, RETRIEVE),
            Endpoint("PATCH", "/{id:path}", self.change, CHANGE),
            Endpoint("DELETE", "/{id:path}", self.delete, DELETE),
        ]

    async def _find(self, request: Request) -> SessionRow:
        shown = request.path_params["id"]
        row = await self._book.find(answering.owner_of(request), shown)
        if row is None:
            raise not_found(NOUN, shown)
        return row

    async def list(self, request: Request) -> Response:
        """GET the caller's sessions, the one used last first."""
        limit, offset = query.limit_of(request, 50, 200), query.offset_of(request)
        given = request.query_params
        words = wanted_words(given.get("search", given.get("q", "")))
        asked = SessionQuery(
            owner=answering.owner_of(request),
            limit=limit + 1,
            offset=offset,
            after=given.get("after"),
            source=given.get("source") or None,
            words=words,
        )
        found = await self._book.page(asked)
        size = sum(len(hit.text) for hit in found)
        page = query.page(await self._parts.aside.run(size, session_bodies, found, words), limit)
        ends = page.first_id, page.last_id, page.has_more
        return answering.answer(shapes.SessionPage("list", page.data, *ends, limit, offset))

    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return answering.answer(one_session(await self._find(request)))

    async def messages(self, request: Request) -> Response:
        """GET its messages, oldest first."""
        row = await self._find(request)
        shown = await self._messages(request, row)
        return answering.answer({"object": "list", "session_id": row.session, "data": shown})

    async def _messages(self, request: Request, row: SessionRow) -> Shown:
        return shown_messages(row.session, await self._book.messages(answering.owner_of(request), row.session))

    async def export(self, request: Request) -> Response:
        """GET it whole, as JSON or as Markdown."""
        wanted = request.query_params.get("format", "json")
        if wanted not in ("json", "markdown"):
            raise ClientError("invalid_value", "format must be json or markdown.", param="format")
        row = await self._find(request)
        messages = await self._messages(request, row)
        if wanted == "json":
            return answering.answer({"object": "session.export", "session": session_body(row), "messages": messages})
        return Response(as_markdown(row.title or row.preview or row.session, messages), media_type="text/markdown")

    async def change(self, request: Request) -> Response:
        """PATCH its title, or why it ended."""
        row = await self._find(request)
        given = fields.decode(await answering.body_of(request, self._parts), SessionChange)
        if given.title is UNSET and given.end_reason is UNSET:
            raise ClientError("missing_required_parameter", "Send title or end_reason.", param="title")
        title, reason = ("" if value is None else value for value in (given.title, given.end_reason))
        await self._book.change(
            answering.owner_of(request),
            row.session,
            title=storable(title.strip()[:TITLE_CHARS]) if isinstance(title, str) else None,
            end_reason=storable(reason[:TITLE_CHARS]) if isinstance(reason, str) else None,
        )
        return answering.answer(one_session(await self._find(request)))

    async def fork(self, request: Request) -> Response:
        """POST: an independent copy."""
        row = await self._find(request)
        given = fields.decode(await answering.optional_body_of(request, self._parts), Fork)
        copy = answering.checked_session_id(given.id) if given.id is not None else f"fork-{self._parts.engine.new_id()}"
        title = storable(given.title[:TITLE_CHARS]) if given.title is not None else None
        made = await self._book.fork(answering.owner_of(request), row, copy, title)
        return answering.answer(one_session(made), 201)

    async def delete(self, request: Request) -> Response:
        """DELETE it with its runs and turns."""
        row = await self._find(request)
        await self._book.forget(answering.owner_of(request), row.session)
        return answering.answer(shapes.Deleted(row.session, "session.deleted", True))


def wanted_words(searched: str) -> tuple[str, ...]:
    """The words of a search, each once. Raises 400 where there are none or too many: each costs time in every text."""
    words = tuple(dict.fromkeys(words_of(searched[: SEARCH_CHARS + 1])))
    if searched.strip() and not words:
        raise ClientError("invalid_value", "search must have a letter or a digit.", param="search")
    if len(searched) > SEARCH_CHARS or len(words) > SEARCH_WORDS:
        message = f"search must have at most {SEARCH_WORDS} words and {SEARCH_CHARS} characters."
        raise ClientError("invalid_value", message, param="search")
    return words


def session_bodies(found: Sequence[SessionHit], words: tuple[str, ...]) -> list[shapes.Session]:
    """A page of sessions, each with the piece of text that a search found."""
    return [session_body(hit.row, snippet(hit.text, words) if words else "") for hit in found]


def shown_messages(session: str, said: Sequence[tuple[int, Message]]) -> Shown:
    """Messages as the API shows them: each with its time, and an output with the name of its tool."""
    names: dict[object, str] = {}
    for _, message in said:
        calls = message.get("tool_calls")
        names |= {call["id"]: call["function"]["name"] for call in calls} if isinstance(calls, list) else {}
    shown: Shown = []
    for n, (at, message) in enumerate(said):
        each: Message = {"id": f"{n}", "session_id": session, "timestamp": at / 1000, **message}
        if name := names.get(message.get("tool_call_id")):
            each["tool_name"] = name
        shown.append(each)
    return shown


def session_body(row: SessionRow, found: str = "") -> shapes.Session:
    """A session as the API shows it."""
    created, used = row.created_at / 1000, row.updated_at / 1000
    return shapes.Session(
        object="session",
        id=row.session,
        title=row.title or None,
        preview=row.preview,
        source=row.source,
        model=row.model,
        end_reason=row.end_reason or None,
        turns=row.turns,
        message_count=row.messages,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        created_at=created,
        updated_at=used,
        started_at=created,
        last_active=used,
        snippet=found,
    )


def one_session(row: SessionRow) -> shapes.OneSession:
    """A session that is answered alone."""
    body = session_body(row)
    return shapes.OneSession(**asdict(body), session=body)


LIST = Operation(
    summary="List sessions",
    doc="Every session that owns a stored run, the one used last first. `search` finds sessions with a turn or a title "
    "that has all these words.",
    params=(
        Param("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
        Param("offset", "How many to skip.", {"type": "integer", "minimum": 0, "default": 0}),
        AFTER,
        Param("source", "Only sessions of this source: an API, `open-webui`, or where they were imported from."),
        Param("search", "Up to 32 words, or their beginnings.", {"type": "string", "maxLength": SEARCH_CHARS}),
    ),
    answers={200: shapes.SessionPage},
)
RETRIEVE = Operation(
    summary="Retrieve a session",
    answers={200: shapes.OneSession},
)
MESSAGES = Operation(
    summary="List the messages of a session",
    answers={200: shapes.SessionMessages},
)
EXPORT = Operation(
    summary="Export a session",
    doc="As JSON, or as Markdown to read.",
    params=(Param("format", "The form.", {"type": "string", "enum": ["json", "markdown"], "default": "json"}),),
    answers={200: shapes.SessionExport},
    text="text/markdown",
)
CHANGE = Operation(
    summary="Rename a session, or say why it ended",
    body=SessionChange,
    answers={200: shapes.OneSession},
    example={"title": "Trip to Ulm"},
)
FORK = Operation(
    summary="Copy a session",
    doc="A copy as it is now, which goes its own way.",
    body=Fork,
    body_optional=True,
    answers={201: shapes.OneSession},
    errors=(409,),
    example={"id": "trip-2"},
)
DELETE = Operation(
    summary="Delete a session",
    doc="With its runs. A run that is at work goes on.",
    answers={200: shapes.Deleted},
)

"""Sessions over HTTP (D2). Owns: /api/sessions. Refuses to know: how a session is stored."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import not_found
from ninelives.core.spec import Message
from ninelives.dialects import fields
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import AFTER, LIMIT, Endpoint, Operation
from ninelives.http.routes.base import Routes
from ninelives.journal.values import SessionRow

NOUN = "session"


class Title(Struct):
    """The field that can be changed."""

    title: str | None = None


class Fork(Struct):
    """The id of the copy; a new one by default."""

    id: str | None = None


class SessionRoutes(Routes):
    """/api/sessions."""

    tag = "Sessions"
    base = "/api/sessions"

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "", self.list, LIST),
            Endpoint("GET", "/{id:path}/messages", self.messages, MESSAGES),
            Endpoint("POST", "/{id:path}/fork", self.fork, FORK),
            Endpoint("GET", "/{id:path}", self.retrieve, RETRIEVE),
            Endpoint("PATCH", "/{id:path}", self.rename, RENAME),
            Endpoint("DELETE", "/{id:path}", self.delete, DELETE),
        ]

    async def _find(self, request: Request) -> SessionRow:
        shown = request.path_params["id"]
        row = await self._parts.sessions.find(answering.owner_of(request), shown)
        if row is None:
            raise not_found(NOUN, shown)
        return row

    async def list(self, request: Request) -> Response:
        """GET the caller's sessions, the one used last first."""
        limit = query.limit_of(request)
        after = request.query_params.get("after")
        rows = await self._parts.sessions.page(answering.owner_of(request), limit + 1, after)
        return answering.answer(query.page([_body(row) for row in rows], limit))

    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return answering.answer(_body(await self._find(request)))

    async def messages(self, request: Request) -> Response:
        """GET its messages, oldest first."""
        row = await self._find(request)
        turns = await self._parts.sessions.turns(answering.owner_of(request), row.session)
        messages = [m for turn in turns for m in msgspec.json.decode(turn, type=list[Message])]
        shown: list[dict[str, object]] = [{"id": f"{n}", **message} for n, message in enumerate(messages)]
        return answering.answer(shapes.Listing("list", shown))

    async def rename(self, request: Request) -> Response:
        """PATCH its title."""
        row = await self._find(request)
        given = fields.decode(await answering.body_of(request, self._parts), Title)
        title = fields.required(given.title, "title")[:256]
        await self._parts.sessions.rename(answering.owner_of(request), row.session, title)
        return answering.answer(_body(await self._find(request)))

    async def fork(self, request: Request) -> Response:
        """POST: an independent copy."""
        row, owner = await self._find(request), answering.owner_of(request)
        given = fields.decode(await answering.optional_body_of(request, self._parts), Fork)
        copy = answering.checked_session_id(given.id) if given.id is not None else f"fork-{self._parts.engine.new_id()}"
        if await self._parts.sessions.find(owner, copy) is not None:
            raise answering.session_exists(copy)
        await self._parts.sessions.fork(owner, row.session, copy)
        made = await self._parts.sessions.find(owner, copy)
        if made is None:
            raise not_found(NOUN, copy)
        return answering.answer(_body(made), 201)

    async def delete(self, request: Request) -> Response:
        """DELETE it with its turns."""
        row = await self._find(request)
        await self._parts.sessions.forget(answering.owner_of(request), row.session)
        return answering.answer(shapes.Deleted(row.session, "session.deleted", True))


def _body(row: SessionRow) -> shapes.Session:
    return shapes.Session(
        object="session",
        id=row.session,
        title=row.title or None,
        turns=row.turns,
        created_at=row.created_at / 1000,
        updated_at=row.updated_at / 1000,
    )


LIST = Operation(
    summary="List sessions",
    doc="The one used last first.",
    params=(LIMIT, AFTER),
    answers={200: shapes.ListPage[shapes.Session]},
)
RETRIEVE = Operation(
    summary="Retrieve a session",
    answers={200: shapes.Session},
)
MESSAGES = Operation(
    summary="List the messages of a session",
    answers={200: shapes.Listing[shapes.StoredItem]},
)
RENAME = Operation(
    summary="Rename a session",
    body=Title,
    required=("title",),
    answers={200: shapes.Session},
    example={"title": "Trip to Ulm"},
)
FORK = Operation(
    summary="Copy a session",
    doc="A copy as it is now, which goes its own way.",
    body=Fork,
    body_optional=True,
    answers={201: shapes.Session},
    errors=(409,),
    example={"id": "trip-2"},
)
DELETE = Operation(
    summary="Delete a session",
    answers={200: shapes.Deleted},
)

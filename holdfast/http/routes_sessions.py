"""Sessions over HTTP (D2). Owns: /api/sessions. Refuses to know: how a session is kept."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.core.errors import not_found
from holdfast.core.spec import Message
from holdfast.dialects import fields
from holdfast.http import calls, shapes
from holdfast.http.calls import Parts
from holdfast.http.describe import AFTER, LIMIT, Operation, described
from holdfast.journal.base import SessionRow

NOUN = "session"


class Title(Struct):
    """What can be changed."""

    title: str | None = None


class Fork(Struct):
    """The copy's own name; left out: one is made."""

    id: str | None = None


class SessionRoutes:
    """/api/sessions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/api/sessions"
        return [
            Route(base, self.list, methods=["GET"]),
            Route(base + "/{id:path}/messages", self.messages, methods=["GET"]),
            Route(base + "/{id:path}/fork", self.fork, methods=["POST"]),
            Route(base + "/{id:path}", self.retrieve, methods=["GET"]),
            Route(base + "/{id:path}", self.rename, methods=["PATCH"]),
            Route(base + "/{id:path}", self.delete, methods=["DELETE"]),
        ]

    async def _named(self, request: Request) -> SessionRow:
        shown = request.path_params["id"]
        row = await self._parts.sessions.find(calls.owner_of(request), shown)
        if row is None:
            raise not_found(NOUN, shown)
        return row

    @described(
        Operation(
            tag="Sessions",
            summary="List sessions",
            doc="The one used last first.",
            params=(LIMIT, AFTER),
            answers={200: shapes.Page[shapes.Session]},
        )
    )
    async def list(self, request: Request) -> Response:
        """GET the caller's sessions, the one used last first."""
        limit = calls.limit_of(request)
        after = request.query_params.get("after")
        rows = await self._parts.sessions.page(calls.owner_of(request), limit + 1, after)
        return calls.answer(calls.page([_body(row) for row in rows], limit))

    @described(
        Operation(
            tag="Sessions",
            summary="Retrieve a session",
            answers={200: shapes.Session},
        )
    )
    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return calls.answer(_body(await self._named(request)))

    @described(
        Operation(
            tag="Sessions",
            summary="List the messages of a session",
            answers={200: shapes.Listing[shapes.StoredItem]},
        )
    )
    async def messages(self, request: Request) -> Response:
        """GET its messages, oldest first."""
        row = await self._named(request)
        turns = await self._parts.sessions.turns(calls.owner_of(request), row.session)
        messages = [m for turn in turns for m in msgspec.json.decode(turn, type=list[Message])]
        shown: list[dict[str, object]] = [{"id": f"{n}", **message} for n, message in enumerate(messages)]
        return calls.answer({"object": "list", "data": shown})

    @described(
        Operation(
            tag="Sessions",
            summary="Rename a session",
            body=Title,
            required=("title",),
            answers={200: shapes.Session},
            example={"title": "Trip to Ulm"},
        )
    )
    async def rename(self, request: Request) -> Response:
        """PATCH its title."""
        row = await self._named(request)
        given = fields.decode(await calls.body_of(request, self._parts), Title)
        title = fields.required(given.title, "title")[:256]
        await self._parts.sessions.rename(calls.owner_of(request), row.session, title)
        return calls.answer(_body(await self._named(request)))

    @described(
        Operation(
            tag="Sessions",
            summary="Copy a session",
            doc="A copy as it is now, which goes its own way.",
            body=Fork,
            body_optional=True,
            answers={201: shapes.Session},
            errors=(409,),
            example={"id": "trip-2"},
        )
    )
    async def fork(self, request: Request) -> Response:
        """POST: a copy as it is now, which goes its own way."""
        row, owner = await self._named(request), calls.owner_of(request)
        given = fields.decode(await calls.optional_body_of(request, self._parts), Fork)
        copy = calls.session_name(given.id) if given.id is not None else f"fork-{self._parts.engine.new_id()}"
        if await self._parts.sessions.find(owner, copy) is not None:
            raise calls.taken(copy)
        await self._parts.sessions.fork(owner, row.session, copy)
        made = await self._parts.sessions.find(owner, copy)
        return calls.answer(_body(made) if made else {}, 201)

    @described(
        Operation(
            tag="Sessions",
            summary="Delete a session",
            answers={200: shapes.Deleted},
        )
    )
    async def delete(self, request: Request) -> Response:
        """DELETE it with its turns."""
        row = await self._named(request)
        await self._parts.sessions.forget(calls.owner_of(request), row.session)
        return calls.answer({"id": row.session, "object": "session.deleted", "deleted": True})


def _body(row: SessionRow) -> dict[str, object]:
    return {
        "object": "session",
        "id": row.session,
        "title": row.title or None,
        "turns": row.turns,
        "created_at": row.created_at / 1000,
        "updated_at": row.updated_at / 1000,
    }

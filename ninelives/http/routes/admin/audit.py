"""The audit log over HTTP, for admin keys only. Owns: /api/audit. Refuses to know: who writes entries."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import Endpoint, Operation, Param
from ninelives.http.describe.shapes import ListPage
from ninelives.http.routes.admin.shapes import AuditObject
from ninelives.http.routes.base import Routes
from ninelives.journal.accounts.base import AuditEntry, AuditQuery

MOST = 1000


class AuditRoutes(Routes):
    """/api/audit."""

    tag = "Audit"
    base = "/api/audit"

    def __init__(self, parts: RouteParts) -> None:
        self._audit = parts.engine.durable.audit

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("GET", "", self.list, LIST)]

    async def list(self, request: Request) -> Response:
        """GET what was done, by whom."""
        given, limit = request.query_params, query.limit_of(request, 100, MOST)
        newest = not query.is_ascending(request)
        last = query.whole(given.get("after", "0"), "after")
        asked = AuditQuery(
            limit=limit + 1,
            after=0 if newest else last,
            before=last if newest else 0,
            newest=newest,
            owner=given.get("owner", ""),
            key=given.get("key", ""),
            action=given.get("action", ""),
            object=given.get("target", ""),
        )
        return answering.answer(query.page([_shown(entry) for entry in await self._audit.page(asked)], limit))


def _shown(entry: AuditEntry) -> AuditObject:
    return AuditObject(
        object="audit.entry",
        id=str(entry.n),
        at=entry.at / 1000,
        owner=entry.owner,
        key=entry.key,
        action=entry.action,
        target=entry.object,
        result=entry.result,
        remote=entry.remote,
        detail=entry.detail,
    )


LIST = Operation(
    summary="Read the audit log",
    doc="Who did what to which object, with what result. It has no content of requests or answers.",
    answers={200: ListPage[AuditObject]},
    params=(
        Param("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 100}),
        Param("order", "By time.", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
        Param("after", "The last id of the page before.", {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}),
        Param("owner", "Entries of this owner."),
        Param("key", "Entries of the key with this id."),
        Param("action", "An action such as run.approve, or the beginning of some: run."),
        Param("target", "Entries about the object with this id."),
    ),
    errors=(403,),
)

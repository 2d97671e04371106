"""Standing permissions over HTTP (D4). Owns: /v1/approvals. Questions are answered at /v1/runs/{id}/approval. Refuses
to know: what a permission covers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import not_found
from ninelives.http import answering
from ninelives.http.answering import RouteParts
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes.base import Routes


class ApprovalRoutes(Routes):
    """/v1/approvals."""

    tag = "Approvals"
    base = "/v1/approvals"

    def __init__(self, parts: RouteParts) -> None:
        self._store = parts.engine.durable

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("GET", "", self.list, LIST), Endpoint("DELETE", "/{id}", self.revoke, REVOKE)]

    async def list(self, request: Request) -> Response:
        """GET what the owner approved for more than one call."""
        grants = await self._store.grants(answering.owner_of(request))
        shown = [
            shapes.ApprovalGrant(
                object="approval.grant",
                id=grant.id,
                tool=grant.tool,
                arguments=grant.arguments,
                session_id=grant.session or None,
                created_at=grant.at / 1000,
                by=grant.by,
            )
            for grant in grants
        ]
        return answering.answer(shapes.Listing("list", shown))

    async def revoke(self, request: Request) -> Response:
        """DELETE one: the next such call asks again."""
        shown = request.path_params["id"]
        if not await self._store.revoke(answering.owner_of(request), shown):
            raise not_found("approval", shown)
        return answering.answer(shapes.Deleted(shown, "approval.grant.deleted", True))


LIST = Operation(
    summary="List standing permissions",
    doc="Calls that a person approved with session or always, the newest first.",
    answers={200: shapes.Listing[shapes.ApprovalGrant]},
)
REVOKE = Operation(
    summary="Revoke a standing permission",
    doc="The next such call asks again.",
    answers={200: shapes.Deleted},
)

"""What was spent, over HTTP. Owns: GET /api/usage. Refuses to know: how usage is counted."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.limits import money
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import Endpoint, Operation, Param
from ninelives.http.edge.keys import ApiKey
from ninelives.http.routes.base import Routes
from ninelives.journal.values import DAY_MS, Spending

MOST_DAYS = 366


class UsageRoutes(Routes):
    """/api/usage."""

    tag = "Usage"
    base = "/api/usage"

    def __init__(self, parts: RouteParts) -> None:
        self._engine = parts.engine

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("GET", "", self.list, LIST)]

    async def list(self, request: Request) -> Response:
        """GET what was spent by day, owner and model. An admin key sees all owners."""
        days = query.days_of(request, 30, MOST_DAYS)
        await self._engine.accounts.flush()
        until = (self._engine.accounts.now_ms() // DAY_MS + 1) * DAY_MS
        found = await self._engine.durable.ledger.days(_owner(request), until - days * DAY_MS, until)
        return answering.answer(shapes.Listing("list", [_shown(each) for each in found]))


def _owner(request: Request) -> str | None:
    """Whose usage is shown; None: everybody's. A foreign owner has spent nothing, as an unknown one."""
    key: ApiKey = request.state.key
    named = request.query_params.get("owner")
    if "admin" in key.scopes:
        return named
    return key.owner if named in (None, key.owner) else ""


def _shown(spent: Spending) -> shapes.UsageDay:
    return shapes.UsageDay(
        day=datetime.fromtimestamp(spent.at / 1000, UTC).date().isoformat(),
        owner=spent.owner,
        model=spent.model,
        runs=spent.runs,
        errors=spent.errors,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        reasoning_tokens=spent.reasoning_tokens,
        cost=money(spent.cost),
    )


LIST = Operation(
    summary="What was spent",
    doc="Runs, failed runs, tokens and cost by day (UTC), owner and model, the newest day first. A key sees the usage "
    "of its owner, and an admin key that of all owners or of the one that it names. Deleting runs does not change it.",
    params=(
        Param(
            "days",
            "How many days, with today.",
            {"type": "integer", "minimum": 1, "maximum": MOST_DAYS, "default": 30},
        ),
        Param("owner", "Only this owner."),
    ),
    answers={200: shapes.Listing[shapes.UsageDay]},
)

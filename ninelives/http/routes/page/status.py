"""The last bad exit, for the web page. Owns: /api/exit: when the process before this one was killed, and what became of
the runs that it held. Refuses to know: how its death was noticed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ninelives.dialects.inspector import shapes
from ninelives.http import answering
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.finding import sees_all
from ninelives.http.routes.base import Routes
from ninelives.http.routes.page.timelines import Timelines

MOST_RUNS = 200
"""How many of the runs are looked at."""


class ExitRoutes(Routes):
    """/api/exit."""

    tag = "Web page"

    def __init__(self, parts: RouteParts, timelines: Timelines, killed_at: float | None) -> None:
        self._engine = parts.engine
        self._timelines = timelines
        self._killed_at = killed_at

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("GET", "/api/exit", self.last, LAST)]

    async def last(self, request: Request) -> Response:
        """GET what the last bad exit did, to the runs that the caller sees."""
        owner, everybody = answering.owner_of(request), sees_all(request)
        held = [each for each in self._engine.survivors if everybody or each[0] == owner]
        lines = []
        for whose, run in held[:MOST_RUNS]:
            row = await self._engine.durable.find(whose, run)
            line = await self._timelines.line(row) if row is not None else None
            lines += [line] if line is not None else []
        lost = [line for line in lines if line.error is not None and "recovery_attempts_exceeded" in line.error]
        return answering.answer(
            shapes.LastExit(
                killed_at=self._killed_at,
                went_on=len(held) - len(lost),
                lost=len(lost),
                unknown=sum(line.unknown for line in lines),
                runs=[line.run_id for line in lines],
            )
        )


LAST = Operation(
    summary="What the last bad exit did",
    doc="`killed_at` is null where the process before this one ended in order.",
    answers={200: shapes.LastExit},
)

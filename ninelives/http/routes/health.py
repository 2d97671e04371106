"""The health of the process (A1). Owns: /livez, /readyz, /health, /health/detailed and /metrics. Refuses to
know: runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ninelives import __version__
from ninelives.dialects.hermes.status import ServerState, status_fields
from ninelives.engine.engine import Engine
from ninelives.http.answering import answer
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes.base import Routes
from ninelives.http.routes.hermes import is_admin
from ninelives.http.routes.server import About
from ninelives.journal.values import Replica, StoreUnavailable

NO_STORE_S = 2
"""When a client or a load balancer may ask again."""
REMEDY = "Install bubblewrap, or set tools.sandbox: see GET /v1/toolsets, `ninelives doctor` and docs/operations.md."
REPLICAS_S = 2.0
"""How long the list of replicas may take."""


class HealthRoutes(Routes):
    """/health, also in a process without an API."""

    tag = "Server"

    def __init__(self, about: About) -> None:
        self._about = about
        self._engine: Engine = about.parts.engine
        self._failing_since: float | None = None

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "/livez", self.live, LIVE),
            Endpoint("GET", "/readyz", self.ready, READY),
            Endpoint("GET", "/health", self.health, HEALTH),
            Endpoint("GET", "/v1/health", self.health, HEALTH),
            Endpoint("GET", "/health/detailed", self.detailed, DETAILED),
            Endpoint("GET", "/metrics", self.metrics, METRICS),
        ]

    async def live(self, request: Request) -> Response:
        """The process answers, whatever the store does."""
        return answer(shapes.Health("ok", "hermes-agent", "ninelives"))

    async def ready(self, request: Request) -> Response:
        """Whether a load balancer should send requests here. Never because of the model."""
        if self._engine.draining:
            return _later(answer(shapes.Readiness("draining", "The server is shutting down."), 503))
        reason, now = self._trouble(), self._about.now()
        if reason is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._about.hold_s:
            return _later(answer(shapes.Readiness("degraded", reason), 503))
        return answer(shapes.Readiness("ok"))

    def _trouble(self) -> str | None:
        """Why the store cannot be used now."""
        stats = self._engine.stats()
        return self._about.away() or (None if stats["writable"] else str(stats["degraded"]))

    async def health(self, request: Request) -> Response:
        """Small and without a key: 200 as soon as requests are answered."""
        status: shapes.HealthStatus = "draining" if self._engine.draining else "degraded" if self._trouble() else "ok"
        return answer(shapes.Health(status, "hermes-agent", "ninelives", __version__))

    async def detailed(self, request: Request) -> Response:
        """Without a key, and without any secret, path or pid unless an admin asks."""
        about, stats = self._about, self._engine.stats()
        upstream = await about.upstream()
        away = about.away()
        servers = [each["connected"] for each in about.mcp()]
        faulty = not upstream["reachable"] or not all(servers)
        degraded = bool(stats["degraded"] or away or self._engine.draining or faulty)
        replicas = await self._replicas() if away is None else None
        runs = {"active": stats["active"], "queued": stats["queued"]}
        shown = shapes.DetailedHealth(
            **status_fields(self.state()),  # type: ignore[arg-type]
            status="draining" if self._engine.draining else "degraded" if degraded else "ok",
            version=__version__,
            uptime_s=round(about.now() - about.started_at, 3),
            store={
                "kind": about.store["kind"],
                "durability": about.store["durability"],
                "reachable": away is None,
                "writable": stats["writable"],
                "trouble": stats["degraded"] or away,
            },
            runs=runs if replicas is None else {**runs, "held": stats["held"]},
            readers=stats["subscriptions"],
            limits=about.limits,
            upstream=upstream,
            mcp={"configured": len(servers), "connected": sum(map(bool, servers))},
            tools=_tools(about),
            recovery={name: stats[name] for name in ("recovered", "taken_over", "restarted", "sealed", "fenced")},
            expired=stats["evicted"],
            replicas=UNSET if replicas is None else _counted(replicas),
        )
        if is_admin(request):
            shown = replace(shown, pid=os.getpid(), admin=self._details(stats, replicas))
        return answer(shown)

    async def metrics(self, request: Request) -> Response:
        """The series of this process. None of them names an owner, a key, a session or a run."""
        text, media = self._about.metrics(self._engine.stats())
        return Response(text, media_type=media)

    def state(self) -> ServerState:
        """The state of the server, for those who name it in other words."""
        about = self._about
        active = int(self._engine.stats()["active"])
        now = datetime.fromtimestamp(about.created + about.now() - about.started_at, UTC)
        return ServerState(self._engine.draining, active, now.isoformat(timespec="seconds"))

    def _details(self, stats: dict[str, Any], replicas: Sequence[Replica] | None) -> dict[str, object]:
        """What only an admin sees."""
        known = {"replicas": replicas} if replicas is not None else {}
        ours = {"entries": stats["entries"], "beat_age_s": stats["beat_age_s"], "mcp": self._about.mcp()}
        return {**self._about.store, **ours, **known}

    async def _replicas(self) -> Sequence[Replica] | None:
        """The replicas that use the store; None if they are not known soon."""
        if self._about.replicas is None:
            return None
        try:
            async with asyncio.timeout(REPLICAS_S):
                return await self._about.replicas()
        except (StoreUnavailable, TimeoutError):
            return None


def _counted(replicas: Sequence[Replica]) -> dict[str, int]:
    return {"alive": len(replicas), "working": sum(each.works for each in replicas)}


def _tools(about: About) -> dict[str, object]:
    """Without the reason, which may name a path: an admin and GET /v1/toolsets see it."""
    shown: dict[str, object] = {"sandbox": about.sandbox["kind"], "shell": "off" if about.tools_off else "on"}
    return {**shown, "remedy": REMEDY} if about.tools_off else shown


def _later(response: Response) -> Response:
    response.headers["retry-after"] = str(NO_STORE_S)
    return response


LIVE = Operation(
    summary="Does the process answer?", doc="200 whatever the store does.", answers={200: shapes.Health}, open=True
)
READY = Operation(
    summary="Should it get requests?",
    doc="503 while the server starts or stops, and when the store has been away for longer than `store.hold_s`.",
    answers={200: shapes.Readiness, 503: shapes.Readiness},
    open=True,
)
HEALTH = Operation(summary="How is it?", doc="503 while the server starts.", answers={200: shapes.Health}, open=True)
DETAILED = Operation(
    summary="How its parts are",
    doc="An admin key shows more.",
    answers={200: shapes.DetailedHealth},
    open=True,
)
METRICS = Operation(
    summary="Metrics for Prometheus",
    doc="Any key, or none with `metrics.open`.",
    answers={200: None},
    media="text/plain",
)

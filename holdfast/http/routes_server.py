"""What the server says of itself. Owns: health, models, capabilities, toolsets (A1-A3). Refuses to know: runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from holdfast import __version__
from holdfast.dialects.asking import unknown_model
from holdfast.engine.engine import Engine
from holdfast.http import shapes
from holdfast.http.calls import Parts, answer
from holdfast.http.describe import Operation, described
from holdfast.http.keys import Key
from holdfast.http.openapi import plain_path
from holdfast.journal.base import StoreUnavailable
from holdfast.journal.base_peers import Replica

Described = dict[str, object]
OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/health/detailed", "/docs", "/openapi.json"})


NO_STORE_S = 2
"""When a client, or a load balancer, may look again after the database was not there."""
LOOK_S = 2.0


def _fine() -> str | None:
    return None


class About(Struct, frozen=True, kw_only=True):
    """What only the composition root knows."""

    parts: Parts
    store: Described
    limits: Described
    toolsets: Callable[[], dict[str, list[Described]]]
    """The tools of each profile: MCP servers may change theirs."""
    started_at: float
    now: Callable[[], float]
    upstream: Callable[[], Awaitable[Described]]
    created: int
    replicas: Callable[[], Awaitable[Sequence[Replica]]] | None = None
    """Who uses the store; None where only this process can."""
    away: Callable[[], str | None] = _fine
    """Why a store on another machine cannot be reached; None where it can, or is here."""


class ServerRoutes:
    """/health, /v1/models, /v1/capabilities, /v1/toolsets."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._engine: Engine = about.parts.engine

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            *self.health_routes(),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{id:path}", self.model, methods=["GET"]),
            Route("/v1/capabilities", self.capabilities, methods=["GET"]),
            Route("/v1/toolsets", self.toolsets, methods=["GET"]),
        ]

    def health_routes(self) -> list[Route]:
        """Those that a process has too which only carries out runs."""
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/v1/health", self.health, methods=["GET"]),
            Route("/health/detailed", self.detailed, methods=["GET"]),
        ]

    @described(
        Operation(
            tag="Server",
            summary="Is the process there?",
            doc="On PostgreSQL 503 while the database cannot be reached, and while the replica stops.",
            answers={200: shapes.Health, 503: shapes.Health},
            open=True,
        )
    )
    async def health(self, request: Request) -> Response:
        """Tiny and open: the process answers. Where there are others, a load balancer should send requests to them
        while this one drains or cannot reach the database."""
        status = "ok"
        if self._about.replicas is not None:
            status = "draining" if self._engine.draining else "degraded" if self._about.away() else "ok"
        shown = answer({"status": status, "platform": "holdfast"}, 200 if status == "ok" else 503)
        return shown if status == "ok" else _later(shown)

    @described(
        Operation(
            tag="Server",
            summary="How its parts are",
            doc="An admin key shows more.",
            answers={200: shapes.DetailedHealth, 503: shapes.DetailedHealth},
            open=True,
        )
    )
    async def detailed(self, request: Request) -> Response:
        """Open, and without any secret, path or pid unless an admin asks; 503 when a part is degraded."""
        about, stats = self._about, self._engine.stats()
        upstream = await about.upstream()
        away = about.away()
        degraded = bool(stats["degraded"] or away or self._engine.draining or not upstream["reachable"])
        status = "draining" if self._engine.draining else "degraded" if degraded else "ok"
        shown: Described = {
            "status": status,
            "version": __version__,
            "uptime_s": round(about.now() - about.started_at, 3),
            "store": {
                "kind": about.store["kind"],
                "durability": about.store["durability"],
                "reachable": away is None,
                "writable": stats["writable"],
                "trouble": stats["degraded"] or away,
            },
            "runs": {"active": stats["active"], "queued": stats["queued"]},
            "readers": stats["subscriptions"],
            "limits": about.limits,
            "upstream": upstream,
            "recovery": {name: stats[name] for name in ("recovered", "taken_over", "sealed", "fenced")},
            "expired": stats["evicted"],
        }
        replicas = await self._replicas() if away is None else None
        if replicas is not None:
            shown["runs"] = {"active": stats["active"], "queued": stats["queued"], "held": stats["held"]}
            shown["replicas"] = {"alive": len(replicas), "working": sum(each.works for each in replicas)}
        if _is_admin(request):
            known = {"replicas": replicas} if replicas is not None else {}
            shown["admin"] = {**about.store, "entries": stats["entries"], "beat_age_s": stats["beat_age_s"], **known}
        made = answer(shown, 503 if degraded else 200)
        return _later(made) if degraded else made

    async def _replicas(self) -> Sequence[Replica] | None:
        """Who uses the store, where that can be found out soon."""
        if self._about.replicas is None:
            return None
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._about.replicas()
        except (StoreUnavailable, TimeoutError):
            return None

    def _names(self) -> list[str]:
        return [self._about.parts.profile.name, *self._about.parts.others]

    def _model(self, name: str) -> Described:
        """A model in the words of both families of clients: each reads its own."""
        made = datetime.fromtimestamp(self._about.created, UTC)
        return {
            "id": name,
            "object": "model",
            "created": self._about.created,
            "owned_by": "holdfast",
            "type": "model",
            "display_name": name,
            "created_at": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    @described(
        Operation(
            tag="Server",
            summary="List models",
            doc="One for each profile.",
            answers={200: shapes.Listing[shapes.Model]},
        )
    )
    async def models(self, request: Request) -> Response:
        """One model per profile."""
        names = self._names()
        page = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        return answer({"object": "list", "data": [self._model(name) for name in names], **page})

    @described(
        Operation(
            tag="Server",
            summary="Retrieve a model",
            answers={200: shapes.Model},
        )
    )
    async def model(self, request: Request) -> Response:
        """One of them."""
        shown = request.path_params["id"]
        if shown not in self._names():
            raise unknown_model(shown, self._names())
        return answer(self._model(shown))

    @described(
        Operation(
            tag="Server",
            summary="What this server does",
            answers={200: shapes.Capabilities},
        )
    )
    async def capabilities(self, request: Request) -> Response:
        """What this server does, for programs."""
        about = self._about
        endpoints = sorted(f"{method} {plain_path(path)}" for method, path in endpoints_of(request.app.routes))
        return answer(
            {
                "object": "capabilities",
                "version": __version__,
                "models": self._names(),
                "dialects": ["chat", "responses", "messages", "runs"],
                "endpoints": endpoints,
                "tool_items": ["auto", "function_call", "mcp_call"],
                "tool_progress": ["compatible", "bare", "off"],
                "store": {"kind": about.store["kind"], "durability": about.store["durability"]},
                "features": {
                    "idempotency_key": True,
                    "resume": True,
                    "background": True,
                    "conversations": True,
                    "sessions": True,
                    "websocket": True,
                    "sandbox": about.store["sandbox"],
                },
                "limits": about.limits,
            }
        )

    @described(
        Operation(
            tag="Server",
            summary="The tools of each profile",
            answers={200: shapes.Listing[shapes.Toolset]},
        )
    )
    async def toolsets(self, request: Request) -> Response:
        """The tools of each profile."""
        shown = [{"profile": name, "tools": tools} for name, tools in self._about.toolsets().items()]
        return answer({"object": "list", "data": shown})


def endpoints_of(routes: Iterable[BaseRoute]) -> set[tuple[str, str]]:
    """(method, path) of all routes; a websocket begins as a GET."""
    found = {(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()}
    return found | {("GET", route.path) for route in routes if isinstance(route, WebSocketRoute)}


def _later(response: Response) -> Response:
    response.headers["retry-after"] = str(NO_STORE_S)
    return response


def _is_admin(request: Request) -> bool:
    key: Key | None = request.state.key
    return key is not None and "admin" in key.scopes

"""What the server offers. Owns: models, capabilities and toolsets (A2, A3). Refuses to know: runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ninelives import __version__
from ninelives.dialects import Dialect
from ninelives.dialects.asking import unknown_model
from ninelives.dialects.hermes import capabilities as hermes
from ninelives.http.answering import RouteParts, answer, context_of
from ninelives.http.describe import shapes
from ninelives.http.describe.openapi import plain_path
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.edge.keys import StoredKeys
from ninelives.http.query import page
from ninelives.http.routes.base import Routes
from ninelives.journal.values import Replica

Described = dict[str, object]


class About(Struct, frozen=True, kw_only=True):
    """What only the composition root (app/) knows."""

    parts: RouteParts
    stored_keys: StoredKeys
    store: Described
    limits: Described
    sandbox: Described
    """Its kind, and what it holds."""
    tools_off: list[Described]
    """Tools that this machine cannot offer, with the reason."""
    toolsets: Callable[[], dict[str, list[Described]]]
    """The tools of each profile. MCP servers may change theirs."""
    mcp: Callable[[], list[Described]]
    """The MCP servers: name, connected, tools, left_out, fault, and the last line of stderr."""
    started_at: float
    now: Callable[[], float]
    killed_at: float | None
    """When the process before this one was killed; None: it ended in order."""
    clock: Callable[[], float]
    """The time in seconds since 1970."""
    upstream: Callable[[], Awaitable[Described]]
    created: int
    replicas: Callable[[], Awaitable[Sequence[Replica]]] | None
    """The replicas that use the store; None if only this process can."""
    away: Callable[[], str | None]
    """Why the store cannot be reached; None if it can."""
    metrics: Callable[[Described], tuple[bytes, str]]
    """The text of /metrics and its type, for the numbers of the engine now."""
    hold_s: float
    """How long that may last before /readyz says so."""
    cors: bool = False
    """Whether pages of other origins may call."""


class ServerRoutes(Routes):
    """/v1/models, /v1/capabilities, /v1/toolsets."""

    tag = "Server"

    def __init__(self, about: About, dialects: Iterable[Dialect] = ()) -> None:
        self._about = about
        self._dialects = [dialect.name for dialect in dialects if dialect.prefix]

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "/v1/models", self.models, MODELS),
            Endpoint("GET", "/v1/models/{id:path}", self.model, MODEL),
            Endpoint("GET", "/v1/capabilities", self.capabilities, CAPABILITIES),
            Endpoint("GET", "/v1/toolsets", self.toolsets, TOOLSETS),
        ]

    def _names(self, request: Request) -> list[str]:
        """The profiles that the key may use."""
        return context_of(request, self._about.parts).profiles()

    def _model(self, name: str) -> shapes.ModelObject:
        made = datetime.fromtimestamp(self._about.created, UTC)
        return shapes.ModelObject(
            id=name,
            object="model",
            created=self._about.created,
            owned_by="ninelives",
            permission=[],
            root=name,
            parent=None,
            type="model",
            display_name=name,
            created_at=made.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    async def models(self, request: Request) -> Response:
        """One model per profile."""
        models = [self._model(name) for name in self._names(request)]
        return answer(page(models, len(models)))

    async def model(self, request: Request) -> Response:
        """One of them."""
        shown = request.path_params["id"]
        if shown not in self._names(request):
            raise unknown_model(shown, self._names(request))
        return answer(self._model(shown))

    async def capabilities(self, request: Request) -> Response:
        """What this server offers, for programs."""
        about = self._about
        served = {(method, plain_path(path)) for method, path in endpoints_of(request.app.routes)}
        names = self._names(request)
        shown = shapes.Capabilities(
            object="hermes.api_server.capabilities",
            platform="hermes-agent",
            server="ninelives",
            version=__version__,
            model=names[0],
            models=names,
            auth={"type": "bearer", "required": True},
            runtime=hermes.RUNTIME,
            dialects=self._dialects,
            routes=sorted(f"{method} {path}" for method, path in served),
            endpoints=hermes.endpoints(served),
            tool_items=["auto", "function_call", "mcp_call"],
            tool_progress=["compatible", "bare", "off"],
            store={"kind": about.store["kind"], "durability": about.store["durability"]},
            features={
                **hermes.features(served, cors=about.cors),
                "idempotency_key": True,
                "resume": True,
                "background": True,
                "conversations": True,
                "sessions": True,
                "websocket": True,
                "sandbox": about.store["sandbox"],
            },
            sandbox=about.sandbox,
            limits=about.limits,
        )
        return answer(shown)

    async def toolsets(self, request: Request) -> Response:
        """The tools of each profile. Admin keys also see how the MCP servers are: their faults show how the server is
        set up."""
        names, off = self._names(request), self._about.tools_off
        sets = self._about.toolsets()
        shown = [_toolset(name, sets[name], off) for name in names if name in sets]
        known = self._about.mcp() if "admin" in request.state.key.scopes else []
        servers = [{name: each[name] for name in each if name != "stderr"} for each in known]
        return answer(shapes.Toolsets("list", "api_server", shown, servers))


def _toolset(profile: str, tools: list[Described], off: list[Described]) -> shapes.Toolset:
    return shapes.Toolset(
        profile=profile,
        name=profile,
        label=profile,
        description=f"The tools of the profile {profile}.",
        enabled=True,
        configured=True,
        tools=[str(tool["name"]) for tool in tools],
        details=tools,
        off=off,
    )


def endpoints_of(routes: Iterable[BaseRoute]) -> set[tuple[str, str]]:
    """(method, path) of all routes. A websocket begins as a GET."""
    found = {(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()}
    return found | {("GET", route.path) for route in routes if isinstance(route, WebSocketRoute)}


MODELS = Operation(
    summary="List models",
    doc="One for each profile.",
    answers={200: shapes.ListPage[shapes.ModelObject]},
)
MODEL = Operation(
    summary="Retrieve a model",
    answers={200: shapes.ModelObject},
)
CAPABILITIES = Operation(
    summary="What this server does",
    answers={200: shapes.Capabilities},
)
TOOLSETS = Operation(
    summary="The tools of each profile",
    answers={200: shapes.Toolsets},
)

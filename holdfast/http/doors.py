"""The short way to a route. Owns: finding the endpoint of a path that is plain, or plain but for its last part, by one
look into a dict. Starlette tries one pattern after the other and wraps endpoint and answer in two layers that turn its
own exceptions into pages: for 60 routes that was a tenth of a small request, and the gate does all that is wanted of
it. Whatever is not found here (other shapes, wrong methods, unknown paths) is Starlette's. Refuses to know: what a
route does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
_LAST = "/{id}"


class Doors:
    """An ASGI application in front of Starlette's own."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._plain: dict[tuple[str, str], Endpoint] = {}
        self._named: dict[tuple[str, str], Endpoint] = {}
        for route in routes:
            if isinstance(route, Route):
                self._add(route, route.endpoint)

    def _add(self, route: Route, endpoint: Endpoint) -> None:
        """The first route of a path wins, as with Starlette; endpoints are methods of objects, never classes."""
        for method in route.methods or ():
            if "{" not in route.path:
                self._plain.setdefault((method, route.path), endpoint)
            elif route.path.endswith(_LAST) and route.path.count("{") == 1:
                self._named.setdefault((method, route.path.removesuffix(_LAST)), endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Straight to the endpoint, or on to Starlette."""
        endpoint = self._find(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        if endpoint is None:
            return await self._app(scope, receive, send)
        answer: Any = await endpoint(Request(scope, receive, send))
        await answer(scope, receive, send)

    def _find(self, scope: Scope) -> Endpoint | None:
        method, path = scope["method"], scope["path"]
        endpoint = self._plain.get((method, path))
        if endpoint is not None:
            scope["path_params"] = {}
            return endpoint
        base, _, name = path.rpartition("/")
        endpoint = self._named.get((method, base)) if name else None
        if endpoint is not None:
            scope["path_params"] = {"id": name}
        return endpoint

"""A fast router in front of Starlette's. Owns: finding in a dict the endpoint of a path without parameters, or with one
as its last part. Starlette tries one pattern after the other and wraps each endpoint in two layers of exception
handling, which the gate makes superfluous. With 60 routes that took a tenth of a small request. All other requests
(other shapes, wrong methods, unknown paths) go on to Starlette. Refuses to know: what a route does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
_LAST = "/{id}"


class FastRouter:
    """ASGI middleware: calls the endpoint itself, or `beyond`. `app` is what requests call their application."""

    def __init__(self, app: ASGIApp, beyond: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self._beyond = beyond
        self._plain: dict[tuple[str, str], Endpoint] = {}
        self._named: dict[tuple[str, str], Endpoint] = {}
        for route in routes:
            if isinstance(route, Route):
                self._add(route, route.endpoint)

    def _add(self, route: Route, endpoint: Endpoint) -> None:
        """As in Starlette, the first route of a path wins. Endpoints are bound methods, never classes."""
        for method in route.methods or ():
            if "{" not in route.path:
                self._plain.setdefault((method, route.path), endpoint)
            elif route.path.endswith(_LAST) and route.path.count("{") == 1:
                self._named.setdefault((method, route.path.removesuffix(_LAST)), endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint, or pass on to Starlette."""
        scope["app"] = self.app
        if scope["type"] != "http" or scope.get("root_path"):
            return await self._beyond(scope, receive, send)
        method, path = scope["method"], scope["path"]
        endpoint = self._plain.get((method, path))
        scope["path_params"] = {}
        if endpoint is None:
            base, _, name = path.rpartition("/")
            endpoint = self._named.get((method, base)) if name else None
            if endpoint is None:
                return await self._beyond(scope, receive, send)
            scope["path_params"] = {"id": name}
        answer: Any = await endpoint(Request(scope, receive, send))
        await answer(scope, receive, send)

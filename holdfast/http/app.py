"""The application. Owns: putting gate, doors and routes together. Refuses to know: which parts were chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.engine.base import Log
from holdfast.http.doors import Doors
from holdfast.http.errors import on_http_exception
from holdfast.http.gate import Gate, Rules
from holdfast.http.keys import Keyring
from holdfast.http.routes_chat import ChatRoutes
from holdfast.http.routes_conversations import ConversationRoutes
from holdfast.http.routes_docs import DocsRoutes
from holdfast.http.routes_messages import MessagesRoutes
from holdfast.http.routes_responses import ResponsesRoutes
from holdfast.http.routes_runs import RunsRoutes
from holdfast.http.routes_server import About, ServerRoutes
from holdfast.http.routes_sessions import SessionRoutes
from holdfast.http.websocket import ResponsesSocket


class Application(Starlette):
    """Starlette's application behind the gate and the doors. Of its own layers only that is used which turns its
    exceptions into answers: its error page is the gate's work."""

    gate: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gate, doors, then Starlette's router."""
        scope["app"] = self
        await self.gate(scope, receive, send)


def build_health_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Log) -> Starlette:
    """What a process shows that only carries out runs: its health."""
    return _app(
        ServerRoutes(about).health_routes(),
        lambda inside: Gate(inside, keyring=keyring, rules=rules, new_id=new_id, log=log),
    )


def build_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Log) -> Starlette:
    """The whole server as an ASGI application."""
    parts = about.parts
    routes: list[BaseRoute] = [
        *ServerRoutes(about).routes(),
        *ChatRoutes(parts).routes(),
        *ResponsesRoutes(parts).routes(),
        WebSocketRoute("/v1/responses", ResponsesSocket(parts, log).serve),
        *ConversationRoutes(parts).routes(),
        *MessagesRoutes(parts).routes(),
        *RunsRoutes(parts).routes(),
        *SessionRoutes(parts).routes(),
        *DocsRoutes().routes(),
    ]
    return _app(routes, lambda inside: Gate(inside, keyring=keyring, rules=rules, new_id=new_id, log=log))


def _app(routes: Sequence[BaseRoute], gate: Callable[[ASGIApp], ASGIApp]) -> Starlette:
    app = Application(routes=routes)
    app.router.redirect_slashes = False  # a redirect names the host and scheme that this end saw, not the proxy's
    beyond = ExceptionMiddleware(app.router, {HTTPException: on_http_exception})
    app.gate = gate(Doors(beyond, app.routes))
    return app

"""The application. Owns: putting routes and gate together. Refuses to know: which parts were chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, WebSocketRoute

from holdfast.engine.base import Log
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


def build_health_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Log) -> Starlette:
    """What a process shows that only carries out runs: its health."""
    gate = Middleware(Gate, keyring=keyring, rules=rules, new_id=new_id, log=log)
    return _app(ServerRoutes(about).health_routes(), gate)


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
    return _app(routes, Middleware(Gate, keyring=keyring, rules=rules, new_id=new_id, log=log))


def _app(routes: Sequence[BaseRoute], gate: Middleware) -> Starlette:
    app = Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: on_http_exception})
    app.router.redirect_slashes = False  # a redirect names the host and scheme that this end saw, not the proxy's
    return app

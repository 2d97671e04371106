"""The application. Owns: putting routes and gate together. Refuses to know: which parts were chosen."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute

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


def build_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Log) -> Starlette:
    """The whole server as an ASGI application."""
    parts = about.parts
    app = Starlette(
        routes=[
            *ServerRoutes(about).routes(),
            *ChatRoutes(parts).routes(),
            *ResponsesRoutes(parts).routes(),
            WebSocketRoute("/v1/responses", ResponsesSocket(parts, log).serve),
            *ConversationRoutes(parts).routes(),
            *MessagesRoutes(parts).routes(),
            *RunsRoutes(parts).routes(),
            *SessionRoutes(parts).routes(),
            *DocsRoutes().routes(),
        ],
        middleware=[Middleware(Gate, keyring=keyring, rules=rules, new_id=new_id, log=log)],
        exception_handlers={HTTPException: on_http_exception},
    )
    app.router.redirect_slashes = False  # a redirect names the host and scheme that this end saw, not the proxy's
    return app

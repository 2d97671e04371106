"""The application. Owns: gate, fast router and routes, assembled. Refuses to know: which parts were chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ninelives.http.adopt import AdoptedAnswers
from ninelives.http.answering import RouteParts
from ninelives.http.edge.access import ProfileAccess
from ninelives.http.edge.gate import Gate, Rules
from ninelives.http.edge.keys import Keyring
from ninelives.http.errors import on_http_exception
from ninelives.http.routes import served_dialects
from ninelives.http.routes.admin.audit import AuditRoutes
from ninelives.http.routes.admin.keys import KeyRoutes
from ninelives.http.routes.approvals import ApprovalRoutes
from ninelives.http.routes.base import FastRouter, RunRoutes
from ninelives.http.routes.docs import DocsRoutes
from ninelives.http.routes.health import HealthRoutes
from ninelives.http.routes.hermes import HermesServerRoutes, HermesSessionRoutes
from ninelives.http.routes.page.elsewhere import ElsewhereRoutes
from ninelives.http.routes.page.markdown import MarkdownRoutes
from ninelives.http.routes.page.runs import PageRunRoutes
from ninelives.http.routes.page.status import ExitRoutes
from ninelives.http.routes.server import About, ServerRoutes
from ninelives.http.routes.sessions import SessionRoutes
from ninelives.http.routes.usage import UsageRoutes
from ninelives.http.routes.web import WebRoutes
from ninelives.journal.base import Logger


def build_health_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Logger) -> Gate:
    """The application of a process without an API: health only."""
    inside = _routed(HealthRoutes(about).routes())
    return Gate(inside, keyring=keyring, rules=rules, new_id=new_id, log=log)


def build_app(about: About, keyring: Keyring, rules: Rules, new_id: Callable[[], str], log: Logger) -> Gate:
    """The whole server as an ASGI application: gate, fast router, then Starlette's router."""
    parts, served = about.parts, served_dialects()
    health, profiles = HealthRoutes(about), ProfileAccess(parts.profile, parts.others)
    page = PageRunRoutes(parts, about.clock)
    inside = _routed(
        [
            *health.routes(),
            *ServerRoutes(about, [row.dialect for row in served]).routes(),
            *(route for row in served for route in row.routes(row.dialect, parts, log).routes()),
            *HermesServerRoutes(parts, health.state).routes(),
            *HermesSessionRoutes(parts).routes(),
            *SessionRoutes(parts).routes(),
            *ApprovalRoutes(parts).routes(),
            *UsageRoutes(parts).routes(),
            *KeyRoutes(parts, about.stored_keys).routes(),
            *AuditRoutes(parts).routes(),
            *page.routes(),
            *ExitRoutes(parts, page.timelines, about.killed_at).routes(),
            *ElsewhereRoutes(parts).routes(),
            *MarkdownRoutes(parts).routes(),
            *WebRoutes().routes(),
            *DocsRoutes({row.dialect.tag: row.dialect.about for row in served}).routes(),
        ]
    )
    return Gate(inside, keyring=keyring, rules=rules, new_id=new_id, log=log, profiles=profiles)


def build_resume(gate: Gate, parts: RouteParts, log: Logger) -> ASGIApp:
    """What goes on with answers that another process of this server has begun (Serving.adopt)."""
    dialects = [row.routes(row.dialect, parts, log) for row in served_dialects()]
    ways = [HermesSessionRoutes(parts).how, *(each.how for each in dialects if isinstance(each, RunRoutes))]
    return partial(gate.resume, AdoptedAnswers(parts, {how.name: how for how in ways}, log))


def _routed(routes: Sequence[BaseRoute]) -> FastRouter:
    """Starlette behind the fast router. Of Starlette's layers only the one for its own exceptions is used: the gate
    handles all other errors."""
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False  # a redirect would name our host and scheme, not those of the proxy
    return FastRouter(app, ExceptionMiddleware(app.router, {HTTPException: on_http_exception}), app.routes)

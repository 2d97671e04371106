"""From a path to its endpoint, and what route classes have in common. Owns: FastRouter, which finds the endpoint of a
request; the check of its scope; Routes, a group of described endpoints; DialectRoutes, the routes of a row of DIALECTS;
and RunRoutes, the common way from a request to a run and back. Refuses to know: any one dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ninelives.core.errors import NinelivesError, not_found
from ninelives.core.ids import is_shown, run_of, wire_id
from ninelives.core.state import RunState
from ninelives.dialects import Dialect
from ninelives.dialects.approval import Reply, is_too_long, too_long
from ninelives.dialects.asking import STRATEGY, Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import broken_frame
from ninelives.engine.base import Order, Projection, Ticket
from ninelives.http import answering, query
from ninelives.http.answering import Answering, Body, RouteParts
from ninelives.http.body import parse_checked, read_body, read_json
from ninelives.http.describe import shapes
from ninelives.http.describe.operations import DescribedRoute, Endpoint
from ninelives.http.edge.scopes import (
    ADMIN,
    ANY_KEY,
    APPROVE,
    AUDITED,
    NO_KEY,
    keep,
    missing_scope,
    note,
    permits,
    scope_of,
)
from ninelives.http.references import check_results
from ninelives.journal.answers import answer_entry_id, not_pending
from ninelives.journal.base import Logger
from ninelives.journal.values import Query, RunRow

SHORT_BODY = 2048
"""So many bytes of a request may stay in memory while its run waits."""
_LAST = "/{id}"
"""How the pattern of a path with one parameter ends."""
Answer = Callable[[Request], Awaitable[ASGIApp]]


class FastRouter:
    """ASGI middleware: finds in a dict the endpoint of a path without parameters, or with one as its last part, and
    calls it. Starlette tries one pattern after the other and wraps each endpoint in two layers of exception handling,
    which the gate makes superfluous. With 60 routes that took a tenth of a small request. All other requests (other
    shapes, wrong methods, unknown paths) go on to `beyond`, Starlette's router. `app` is what requests call their
    application."""

    def __init__(self, app: ASGIApp, beyond: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self._beyond = beyond
        self._plain: dict[tuple[str, str], Answer] = {}
        self._named: dict[tuple[str, str], Answer] = {}
        for route in routes:
            if isinstance(route, Route):
                self._add(route, route.endpoint)

    def _add(self, route: Route, endpoint: Answer) -> None:
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


def guarded(
    answer: Callable[[Any], Awaitable[Any]], methods: str, path: str, own: str = ""
) -> Callable[[Any], Awaitable[Any]]:
    """The endpoint of a route, behind the check of its scope. `own` is the scope that a route of another package names
    for itself: the table of edge/scopes.py has only ours."""
    needed = {scope_of(method, path) or own or ADMIN for method in methods.split()}
    if len(needed) != 1:
        raise ValueError(f"the methods {methods} of {path} need different scopes: list them as two routes")
    scope = needed.pop()
    if scope in (ANY_KEY, NO_KEY):  # the gate has checked the key
        return answer
    action = AUDITED.get((methods, path))

    async def checked(request: Any) -> Any:
        held = request.scope["state"]["key"].scopes
        if scope not in held and ADMIN not in held:
            note(request, action or "scope.refused", "insufficient_scope", scope)
            raise missing_scope(scope, held)
        return await (answer(request) if action is None else _noted(request, answer, action))

    return checked


async def _noted(request: Any, answer: Callable[[Any], Awaitable[Any]], action: str) -> Any:
    """The answer, after the entry of what was done is stored."""
    try:
        done = await answer(request)
    except NinelivesError as error:
        note(request, action, error.code)
        raise
    if not request.scope["state"].get("audit_kept"):
        await keep(request, action)
    return done


class PureParse(Protocol):
    """The parse function of a dialect that needs no store."""

    def __call__(self, raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
        """The request as a Spec."""
        ...


class Routes(ABC):
    """A group of endpoints. Starlette tries them in their order."""

    tag: str
    """The group in /openapi.json."""
    base: ClassVar[str] = ""
    """The path that all of them begin with."""

    @abstractmethod
    def endpoints(self) -> list[Endpoint]:
        """What is served, and how it is described."""

    def routes(self) -> list[BaseRoute]:
        """The endpoints as routes."""
        return [DescribedRoute(self._guarded(endpoint), self.tag, self.base) for endpoint in self.endpoints()]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        path, own = self.base + endpoint.path, endpoint.operation.scope
        return replace(endpoint, answer=guarded(endpoint.answer, endpoint.methods, path, own))


class DialectRoutes(Routes):
    """The routes of a dialect."""

    def __init__(self, dialect: Dialect, parts: RouteParts, log: Logger) -> None:
        self.dialect = dialect
        self.tag = dialect.tag
        self.parts = parts
        self.log = log

    def context(self, request: Request) -> Context:
        """The request as a dialect sees it."""
        return answering.context_of(request, self.parts)

    async def read_body(self, request: Request) -> bytes:
        """The request's JSON."""
        return await answering.body_of(request, self.parts)


class RunRoutes(DialectRoutes):
    """The routes of a dialect that starts runs. A subclass says how requests are parsed and runs are shown."""

    noun: ClassVar[str]
    """What a run is called here, in errors."""
    deleted_object: ClassVar[str] = ""
    """The `object` of the answer to a DELETE."""
    eager: ClassVar[bool] = True
    """See Answering.eager."""
    order: ClassVar[str] = "desc"
    """The order of lists where the request names none."""
    id_field: ClassVar[str] = "id"
    """The field of a body that holds its id."""
    positions: ClassVar[tuple[str, ...]] = ("starting_after",)
    """The query parameters that name a position in a stream."""

    def __init__(self, dialect: Dialect, parts: RouteParts, log: Logger) -> None:
        super().__init__(dialect, parts, log)
        self.how = Answering(
            projection=dialect.projection(),
            body=self.body,
            refusal=self.refusal,
            eager=self.eager,
            broken=self.broken_frame,
            name=dialect.name,
        )

    # What a dialect says

    pure_parse: PureParse | None = None
    """A request as a Spec, where that needs no store: a static method."""

    async def parse(self, raw: bytes, context: Context) -> ParsedRequest:
        """A request as a Spec, with everything that it refers to. For dialects without `pure_parse`."""
        raise NotImplementedError

    @abstractmethod
    def body(self, state: RunState, metadata: dict[str, str] | None) -> Struct:
        """A run as JSON. `metadata` replaces that of the request."""

    def refusal(self, state: RunState) -> NinelivesError | None:
        """The error in place of a body; None for a dialect whose body shows failures."""
        return None

    def broken_frame(self, reason: str) -> bytes:
        """The last frame of a stream whose journal cannot be read further."""
        return broken_frame(reason)

    def continuation(self, reply: Reply, asking: RunState, shown_id: str) -> tuple[Projection, Body]:
        """How the rest of a run is shown whose question was just answered, under a fresh id (G11). Only for dialects
        that parse replies."""
        raise NotImplementedError

    def selects(self, request: Request, row: RunRow) -> bool:
        """Is this row in the list that the request asks for?"""
        return True

    def shown(self, row: RunRow, state: RunState) -> Struct:
        """A stored run as JSON."""
        return self.body(state, None)

    def listed(self, request: Request, row: RunRow, state: RunState) -> Struct:
        """A stored run as JSON, in a list."""
        return self.shown(row, state)

    # The run that a path names

    def run_named(self, shown: str) -> str:
        """The run behind an id; 404 when it cannot be one."""
        run = run_of(self.dialect.name, shown)
        if run is None:
            raise not_found(self.noun, shown)
        return run

    def serves(self, row: RunRow) -> bool:
        """Is this row's run shown here? A run that is not stored is shown by the Runs API only (B6)."""
        return row.dialect == self.dialect.name and row.kept == "stored"

    async def find_row(self, request: Request) -> RunRow:
        """The caller's run that the path names. Unknown, deleted and foreign runs get the same 404."""
        shown = request.path_params["id"]
        run = self.run_named(shown)
        row = await self.find_run(request, run)
        if row is None:
            owner = answering.owner_of(request)
            raise not_found(self.noun, shown, expired=await self.parts.engine.durable.upkeep.expired(owner, run))
        if not is_shown(row.dialect) or not self.serves(row):
            raise not_found(self.noun, shown)
        return row

    async def find_run(self, request: Request, run: str) -> RunRow | None:
        """The caller's run with this id."""
        return await self.parts.engine.find(answering.owner_of(request), run)

    async def load_state(self, request: Request, row: RunRow) -> RunState:
        """The committed state of a row's run."""
        state = await self.parts.engine.look(row.owner, row.run)
        if state is None:
            raise not_found(self.noun, request.path_params["id"])
        return state

    # The endpoints that dialects share

    async def create(self, request: Request) -> ASGIApp:
        """POST: start a run, or attach to the run of its key or of the lost connection that it replaces. What answers
        tells the engine how the connection ends (Engine.close)."""
        parts = self.parts
        context = answering.context_of(request, parts)
        if self.pure_parse is None:
            raw = await read_json(request, parts.body, parts.aside)
            parsed, size = await self.parse(raw, context), len(raw)
            del raw
        else:
            parse = partial(self.pure_parse, context=context, max_parts=parts.max_parts)
            parsed, size = await read_body(request, parts.body, parts.aside, partial(parse_checked, parts.body, parse))
        if parsed.asked.owner != context.owner:
            context = answering.act_for(request, context, parsed.asked.owner)
        if parsed.reply is not None:
            answered = await self._answer_question(request, parsed.reply, stream=parsed.stream)
            if answered is not None:
                return answered
        if parsed.unmatched:
            await check_results(parts, context, parsed)
        asked, strategy = context.waiting(parsed.asked), context.wish(STRATEGY)
        if strategy is not None:
            asked = replace(asked, alone=asked.session is not None and asked.kept in ("stored", "hours"))
        order = Order(
            owner=context.owner,
            spec=replace(parsed.spec, trace=trace) if (trace := request.scope["state"]["trace"]) else parsed.spec,
            asked=asked,
            size=size,
            strategy=strategy or "reject",
            credential=context.credential,
        )
        ticket = await parts.engine.submit(order)
        if ticket.rates:
            request.scope["state"]["rates"] = ticket.rates
        del order
        if size > SHORT_BODY:  # the run may wait for long: from here on the whole request is in its store only
            parsed = replace(parsed, spec=parsed.spec.for_readers())
        return await self.answer_created(request, parsed, ticket)

    def answer_created(self, request: Request, parsed: ParsedRequest, ticket: Ticket) -> Awaitable[ASGIApp]:
        """The answer to a POST: a stream, or a body when the run has ended. `parsed` is without its conversation."""
        return answering.answer_run(request, self.parts, ticket, self.how, stream=parsed.stream)

    async def _answer_question(self, request: Request, reply: Reply, *, stream: bool) -> ASGIApp | None:
        """Pass a person's answer on, then show the rest of that run as an answer of its own (G11). None when the
        message only looks like an answer, or its key may not answer: then it is a text like any other."""
        if not permits(request.state.key.scopes, APPROVE):
            return None
        engine, owner = self.parts.engine, answering.owner_of(request)
        state = await engine.waiting_with(owner, reply.code)
        if state is None:
            if reply.quoted:
                raise not_pending()
            return None
        if reply.choice == "once" and state.facts.asked is not None and is_too_long(state.facts.asked):
            raise too_long(state.facts.run)
        try:
            await engine.approve(owner, state, reply.choice, f"key {request.state.key.id}")
        except NinelivesError as error:
            note(request, "run.answer", error.code, reply.choice, state.facts.run)
            raise
        request.state.audit_id = answer_entry_id(state)
        await keep(request, "run.answer", reply.choice, state.facts.run)
        ticket = Ticket(state.facts.run, state.facts.accepted.resolved.session or "", rest=True)
        projection, body = self.continuation(reply, state, wire_id(self.dialect.name, engine.new_id()))
        how = self.how.varied(projection=projection, body=body, answered=reply.code)
        return await answering.answer_run(request, self.parts, ticket, how, stream=stream)

    async def retrieve(self, request: Request) -> ASGIApp:
        """GET one, as a body or as a stream from a position."""
        row = await self.find_row(request)
        if query.wants_stream(request):
            return await self.follow(request, row)
        state = await self.load_state(request, row)
        return answering.answer(self.shown(row, state), session=row.session)

    async def follow(self, request: Request, row: RunRow) -> ASGIApp:
        """A run as a stream, from the position that the request names."""
        after = query.position(request, *self.positions)
        ticket = Ticket(row.run, row.session, watches=True)
        return await answering.stream_run(request, self.parts, ticket, self.how, after=after)

    async def delete(self, request: Request) -> Response:
        """DELETE one. An active run is cancelled first."""
        row = await self.find_row(request)
        await self.parts.engine.delete(row.owner, row.run)
        shown = shapes.Deleted(wire_id(self.dialect.name, row.run), self.deleted_object, True)
        return answering.answer(shown, session=row.session)

    async def cancel_named(self, request: Request) -> tuple[RunRow, RunState]:
        """Cancel the run that the path names. A run that has ended stays as it is."""
        row = await self.find_row(request)
        state = await self.parts.engine.cancel(row.owner, row.run)
        if state is None:
            raise not_found(self.noun, request.path_params["id"])
        return row, state

    def page_query(self, request: Request, dialect: str | None) -> Query:
        """Limit, order and after of a request. It asks for one row more than a page shows."""
        limit, ascending = query.limit_of(request), query.is_ascending(request, self.order)
        after = request.query_params.get("after")
        return Query(
            owner=answering.owner_of(request),
            dialect=dialect,
            stored=dialect is not None,
            after=self.run_named(after) if after else None,
            limit=limit + 1,
            ascending=ascending,
        )

    async def answer_page(self, request: Request, wanted: Query) -> Response:
        """A page of stored runs. Rows that are not selected do not count."""
        shown: list[Struct] = []
        more = True
        while more and len(shown) < wanted.limit:
            rows = await self.parts.engine.durable.rows(wanted)
            for row in rows:
                state = await self.parts.engine.look(row.owner, row.run) if self.selects(request, row) else None
                if state is not None:
                    shown.append(self.listed(request, row, state))
            more = len(rows) == wanted.limit
            wanted = replace(wanted, after=rows[-1].run) if more else wanted
        return answering.answer(query.page(shown, wanted.limit - 1, self.id_field))

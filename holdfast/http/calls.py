"""What routes of all dialects do alike. Owns: the parts that they share, the caller's context, JSON answers, paging and
resume positions, and the one way in which a created run is answered. Refuses to know: any one dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from holdfast.core.admission import Asked
from holdfast.core.errors import ClientError, HoldfastError, not_found
from holdfast.core.ids import is_shown, run_of, run_of_any
from holdfast.core.spec import Message, Spec
from holdfast.core.state import RunState
from holdfast.dialects.approval import Reply, Talk
from holdfast.dialects.asking import Context, Profile, is_session_name
from holdfast.dialects.clients import TABLE, Client, first_of, recognise
from holdfast.dialects.shared import broken_frame
from holdfast.engine.approvals import not_pending
from holdfast.engine.base import Cut, Ended, Idle, Order, Projection, Ticket
from holdfast.engine.callers import CutOff
from holdfast.engine.engine import Engine
from holdfast.http.body import read_json, read_json_optional
from holdfast.http.keys import Key
from holdfast.http.stream import Broke, Left, RunStream, unless_gone
from holdfast.journal.base import Query, Row, Sessions

PATIENCE_S = 60.0
Body = Callable[[RunState, dict[str, str] | None], dict[str, object]]


class Scales(Protocol):
    """How long requests are, and may be."""

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """About how many tokens the model is first sent for a request, with what was said before it."""
        ...

    def window(self, model: str) -> int:
        """How many fit, by the profile; 0: not known."""
        ...


class Parts(Struct, frozen=True):
    """What the routes are made of."""

    engine: Engine
    sessions: Sessions
    profile: Profile
    scales: Scales
    secret: bytes
    max_body: int
    max_depth: int
    max_parts: int
    others: Mapping[str, Profile] = {}
    """Further profiles, by name."""
    clients: tuple[Client, ...] = TABLE
    websocket_s: float = 3600.0
    """How long a websocket may stay open."""


class Answering(Struct, frozen=True, kw_only=True):
    """How a dialect answers a created run."""

    projection: Projection
    body: Body
    refusal: Callable[[RunState], HoldfastError | None]
    """The error in place of a body, for dialects that answer a failed run with a status."""
    eager: bool
    """Send headers at once; else wait for the first frame, so that an early failure has its status (B2)."""
    answered: str = ""
    """The code of the question that this request has just answered."""
    broken: Callable[[str], bytes] = broken_frame
    """The last frame of a stream whose journal cannot be read on."""


Rest = Callable[[Reply, RunState, str], Answering]
"""How the rest of a run is shown whose question was just answered, under a fresh id (G11)."""


def no_refusal(state: RunState) -> HoldfastError | None:
    """For dialects whose body tells of failures."""
    return None


def owner_of(request: Request) -> str:
    """Whose rows this request may see."""
    key: Key = request.scope["state"]["key"]
    return key.owner


def context_of(request: Request, parts: Parts) -> Context:
    """The request as a dialect sees it."""
    key: Key = request.scope["state"]["key"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    caller = recognise(headers, parts.clients)
    special = first_of(key.settings, parts.profile.policy(), caller)
    more = (key.id, key.settings, parts.clients, caller, special)
    return Context(key.owner, headers, parts.profile, parts.secret, parts.others, *more)


async def submit(parts: Parts, context: Context, spec: Spec, asked: Asked) -> Ticket:
    """Begin the run that a POST asks for, or attach to the one that it names or whose lost connection it replaces. Give
    the ticket to created() or handed(): they note how the connection ends (G13)."""
    return await parts.engine.submit(Order(owner=context.owner, spec=spec, asked=context.waiting(asked)))


async def body_of(request: Request, parts: Parts) -> bytes:
    """The request's JSON."""
    return await read_json(request, max_bytes=parts.max_body, max_depth=parts.max_depth)


async def optional_body_of(request: Request, parts: Parts) -> bytes:
    """The request's JSON, or an empty object where there is no body."""
    return await read_json_optional(request, max_bytes=parts.max_body, max_depth=parts.max_depth)


def session_name(named: str) -> str:
    """A name that a session may have."""
    if not is_session_name(named):
        message = "A session id must be 1 to 256 letters, digits or ._:@/+=-."
        raise ClientError("invalid_session_id", message, param="id")
    return named


def taken(name: str) -> ClientError:
    """Somebody has that name."""
    message = f"There is a session {name} already. Choose another id."
    return ClientError("session_exists", message, status=409, param="id")


def answer(body: object, status: int = 200, session: str = "") -> Response:
    """A JSON answer."""
    headers = {"x-hermes-session-id": session} if session else None
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def handed(parts: Parts, owner: str, ticket: Ticket, body: object, status: int = 200) -> Response:
    """A JSON answer for a ticket; that it was delivered is noted when it was sent."""
    response = answer(body, status, ticket.session)
    if ticket.waited:
        response.background = BackgroundTask(parts.engine.handover.answered, owner, ticket.run)
    return response


def _leaving(parts: Parts, owner: str, ticket: Ticket) -> Callable[[bool], Awaitable[None]]:
    """What to do when the caller is gone, with the whole answer or without."""

    async def left(whole: bool) -> None:
        noted = parts.engine.handover
        if ticket.waited:
            await (noted.answered if whole else noted.lost)(owner, ticket.run)
        await parts.engine.left(owner, ticket.run)

    return left


async def _cut_off(parts: Parts, owner: str, ticket: Ticket) -> ASGIApp:
    """The server stops before it had anything to say. The loss is noted before the line breaks: a retry may be at
    another replica in no time (G13)."""
    if ticket.waited:
        await parts.engine.handover.lost(owner, ticket.run)
    return Broke()


async def created(request: Request, parts: Parts, ticket: Ticket, how: Answering, *, stream: bool) -> ASGIApp:
    """Answer a run that was just submitted: as a stream, or as a body when it has ended."""
    owner = owner_of(request)
    if stream:
        return await streamed(request, parts, ticket, how, after=-1)
    try:
        state = await unless_gone(request.scope, request.receive, _settled(parts, owner, ticket.run, how))
    except Left:
        await _leaving(parts, owner, ticket)(False)
        return Broke()
    except CutOff:
        return await _cut_off(parts, owner, ticket)
    if state is None:
        raise not_found("run", ticket.run)
    await parts.engine.left(owner, ticket.run)
    if refused := how.refusal(state):
        refused.spent = bool(state.facts.results)
        raise refused
    return handed(parts, owner, ticket, how.body(state, None))


async def talked(request: Request, parts: Parts, context: Context, parsed: Talk, how: Answering, rest: Rest) -> ASGIApp:
    """Answer a request whose last message may answer a question: `rest` says how the rest of that run is shown."""
    if parsed.reply is not None:
        answered = await _replied(request, parts, parsed.reply, rest, stream=parsed.stream)
        if answered is not None:
            return answered
    ticket = await submit(parts, context, parsed.spec, parsed.asked)
    return await created(request, parts, ticket, how, stream=parsed.stream)


async def _replied(request: Request, parts: Parts, reply: Reply, rest: Rest, *, stream: bool) -> ASGIApp | None:
    """The last message answers a question: give the answer, then show the rest of that run as an answer of its own,
    under a fresh id (G11). None where these are just words."""
    engine, owner = parts.engine, owner_of(request)
    state = await engine.waiting_with(owner, reply.code)
    if state is None:
        if reply.quoted:
            raise not_pending()
        return None
    await engine.approve(owner, state, reply.choice, f"key {request.state.key.id}")
    ticket = Ticket(state.facts.run, state.facts.accepted.resolved.session or "")
    return await created(request, parts, ticket, rest(reply, state, engine.new_id()), stream=stream)


async def _settled(parts: Parts, owner: str, run: str, how: Answering) -> RunState | None:
    """The end of a run. Where a person is asked, chat answers at once with the question; others wait a while for the
    answer and then show the run as it is (G11)."""
    state = await parts.engine.wait(owner, run, how.answered)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while state is not None and not state.ended and state.facts.asked is not None and how.eager:
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(left):
                state = await parts.engine.wait(owner, run, state.facts.asked.code)
        except TimeoutError:
            return state
    return state


async def streamed(request: Request, parts: Parts, ticket: Ticket, how: Answering, *, after: int) -> ASGIApp:
    """A run as a stream."""
    engine, owner = parts.engine, owner_of(request)
    subscription = engine.attach(owner, ticket.run, how.projection, after)
    headers = [(b"x-hermes-session-id", ticket.session.encode("latin-1", "replace"))] if ticket.session else []
    left = _leaving(parts, owner, ticket)
    if how.eager:
        return RunStream(subscription, headers, left, broken=how.broken)
    try:
        first = await unless_gone(request.scope, request.receive, subscription.next())
    except Left:
        subscription.close()
        await left(False)
        return Broke()
    if isinstance(first, Cut):  # before the headers: a caller that has nothing yet tries again by itself
        subscription.close()
        return await _cut_off(parts, owner, ticket)
    state = await engine.look(owner, ticket.run)
    refused = how.refusal(state) if state is not None and not state.facts.items else None
    if refused is not None and not isinstance(first, Idle | Ended):
        subscription.close()
        await left(True)
        raise refused
    return RunStream(subscription, headers, left, first, how.broken)


def run_named(dialect: str, noun: str, shown: str) -> str:
    """The run behind an id in a path; 404 where it cannot be one."""
    run = run_of_any(shown) if dialect == "runs" else run_of(dialect, shown)
    if run is None:
        raise not_found(noun, shown)
    return run


async def row_named(request: Request, parts: Parts, dialect: str, noun: str) -> Row:
    """The caller's run that the path names; the same 404 for unknown, deleted and foreign ones."""
    shown = request.path_params["id"]
    run = run_named(dialect, noun, shown)
    row = await parts.engine.find(owner_of(request), run)
    if row is None:
        raise not_found(noun, shown, expired=await parts.engine.durable.upkeep.expired(owner_of(request), run))
    if not is_shown(row.dialect) or dialect not in ("runs", row.dialect):
        raise not_found(noun, shown)
    return row


async def state_named(request: Request, parts: Parts, row: Row, noun: str) -> RunState:
    """The committed state of a row's run."""
    state = await parts.engine.look(row.owner, row.run)
    if state is None:
        raise not_found(noun, request.path_params["id"])
    return state


def metadata_of(row: Row) -> dict[str, str]:
    """The owner's notes on a run."""
    return msgspec.json.decode(row.metadata, type=dict[str, str])


def position(request: Request, *names: str) -> int:
    """Where a reader wants to go on: a query parameter, or Last-Event-ID; -1 for the beginning."""
    for name in names:
        if (given := request.query_params.get(name)) is not None:
            return _whole(given, name)
    given = request.headers.get("last-event-id")
    return _whole(given, "Last-Event-ID") if given else -1


def _whole(given: str, name: str) -> int:
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise ClientError("invalid_value", f"{name} must be a whole number from 0 on.", param=name)
    return int(given)


def wants_stream(request: Request) -> bool:
    """?stream=true."""
    given = request.query_params.get("stream", "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise ClientError("invalid_value", "stream must be true or false.", param="stream")
    return given in ("true", "1")


def page_query(request: Request, dialect: str | None, noun: str, order: str = "desc") -> Query:
    """limit, order and after; `order` is the API's own where none is given."""
    limit = limit_of(request)
    order = request.query_params.get("order", order)
    if order not in ("asc", "desc"):
        raise ClientError("invalid_value", "order must be asc or desc.", param="order")
    after = request.query_params.get("after")
    return Query(
        owner=owner_of(request),
        dialect=dialect,
        after=run_named(dialect or "runs", noun, after) if after else None,
        limit=limit + 1,
        ascending=order == "asc",
    )


def limit_of(request: Request) -> int:
    """How many of a list are wanted."""
    limit = _whole(request.query_params.get("limit", "20"), "limit")
    if not 1 <= limit <= 100:
        raise ClientError("invalid_value", "limit must be from 1 to 100.", param="limit")
    return limit


def page(items: list[dict[str, object]], limit: int, key: str = "id") -> dict[str, object]:
    """A list object; `items` may hold one more than fits."""
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0][key] if shown else None,
        "last_id": shown[-1][key] if shown else None,
        "has_more": len(items) > limit,
    }


def listed(request: Request, items: list[dict[str, object]], order: str = "desc") -> dict[str, object]:
    """A page of a list that is all in memory: limit, order and after by item id."""
    limit = limit_of(request)
    order = request.query_params.get("order", order)
    if order not in ("asc", "desc"):
        raise ClientError("invalid_value", "order must be asc or desc.", param="order")
    if order == "desc":
        items = items[::-1]
    if (after := request.query_params.get("after")) is not None:
        place = next((n for n, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise ClientError("invalid_value", f"There is no item {after} here.", param="after")
        items = items[place + 1 :]
    return page(items, limit)

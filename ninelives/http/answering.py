"""How a request is answered. Owns: the parts that routes share, the caller's context, JSON answers, and the one way in
which a run becomes a body or a stream. Refuses to know: routes and any one dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ninelives.core.errors import ClientError, NinelivesError, not_found
from ninelives.core.spec import Message, Spec
from ninelives.core.state import RunState
from ninelives.dialects.asking import Context, Profile, is_session_name, policy_of
from ninelives.dialects.clients import TABLE, Rows, first_of
from ninelives.dialects.shared import PROJECTION, broken_frame
from ninelives.engine.base import Cut, CutOff, Idle, Order, Projection, StreamEnded, Ticket
from ninelives.engine.engine import Engine
from ninelives.http.body import Aside, BodyLimits, read_json, read_json_optional
from ninelives.http.edge.access import ProfileReach
from ninelives.http.edge.kept import KeptRequest
from ninelives.http.edge.keys import ApiKey
from ninelives.http.stream import Broke, Left, OnEnd, RunStream, unless_gone
from ninelives.journal.values import RunRow
from ninelives.models.base import Ask
from ninelives.sessions.book import SessionBook

QUESTION_WAIT_S = 60.0
"""How long a request without a stream waits for a person to answer a question."""
Body = Callable[[RunState, dict[str, str] | None], Struct]


class TokenCounts(Protocol):
    """Token counts of requests, and the limit of each model."""

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """About how many tokens the first model call of a request gets, with its history."""
        ...

    def window(self, model: str) -> int:
        """The context window of a model; 0: not known."""
        ...


class ModelRequests(Protocol):
    """What models are sent."""

    def asked(self, state: RunState, history: tuple[Message, ...]) -> Ask | None:
        """What the model of a run is sent in this state, with the prompt and the tools of now. None for an agent that
        asks models itself."""
        ...


class RouteParts(Struct, frozen=True):
    """The parts that routes share."""

    engine: Engine
    sessions: SessionBook
    profile: Profile
    token_counts: TokenCounts
    model_requests: ModelRequests
    secret: bytes
    body: BodyLimits
    max_parts: int
    aside: Aside
    others: Mapping[str, Profile] = {}
    """Further profiles, by name."""
    clients: Rows = TABLE
    websocket_s: float = 3600.0
    """How long a websocket may stay open."""
    websockets: int = 64
    """How many websockets a key may have open."""
    elsewhere: tuple[str, ...] = ()
    """Other servers whose health admins may look at, also at private addresses."""


class Answering(Struct, frozen=True, kw_only=True):
    """How a dialect answers a run."""

    projection: Projection
    body: Body
    refusal: Callable[[RunState], NinelivesError | None]
    """The error in place of a body, for dialects that answer a failed run with a status."""
    eager: bool
    """Send headers at once. Otherwise wait for the first frame, so that an early failure has its status (B2)."""
    answered: str = ""
    """The code of the question that this request has just answered."""
    broken: Callable[[str], bytes] = broken_frame
    """The last frame of a stream whose journal cannot be read further."""
    name: str = ""
    """Under which another process finds it, to go on with an answer (KeptRequest). Empty: only this one can."""

    def varied(self, **fields: Any) -> Answering:
        """The same but for some fields, for one request. Another process does not know these."""
        return replace(self, name="", **fields)


def keep_client(request: Request, ticket: Ticket, how: Answering, *, stream: bool, after: int = -1) -> None:
    """From now on the client of this request outlives this process, where there is a supervisor that keeps it. Its run
    must be in the journal, and its answer must be what another process would give."""
    scope, state = request.scope, request.scope["state"]
    keep = scope.get("extensions", {}).get("ninelives.keep")
    if keep is None or "ninelives.kept" in scope["extensions"] or not how.name or ticket.in_memory or ticket.rest:
        return
    headers = (*state["headers"], *state.get("rates", ()))
    note = KeptRequest(
        how.name,
        ticket.run,
        state["key"].owner,
        ticket.session,
        ticket.attached,
        ticket.waited,
        ticket.watches,
        after,
        stream,
        PROJECTION,
        state["key"].id,
        state["request_id"],
        state["trace"],
        state["remote"],
        scope["path"],
        tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers),
    )
    keep(note.note())


def owner_of(request: Request) -> str:
    """The owner whose rows this request may see."""
    key: ApiKey = request.scope["state"]["key"]
    return key.owner


def act_for(request: Request, context: Context, owner: str) -> Context:
    """The context of a request that goes on as this owner: an admin key may have named a profile of theirs (A2)."""
    state = request.scope["state"]
    state["key"] = replace(state["key"], owner=owner)
    return replace(context, owner=owner)


async def submitted(request: Request, parts: RouteParts, order: Order) -> Ticket:
    """The run of an order. The answer tells the caller its limits, in headers."""
    ticket = await parts.engine.submit(order)
    if ticket.rates:
        request.scope["state"]["rates"] = ticket.rates
    return ticket


def context_of(request: Request, parts: RouteParts) -> Context:
    """The request as a dialect sees it, with the profiles that it may use."""
    state = request.scope["state"]
    key: ApiKey = state["key"]
    reach: ProfileReach = state.get("reach") or ProfileReach(parts.profile, parts.others)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    caller = parts.clients.recognise(headers)
    special = first_of(key.settings, policy_of(reach.profile), caller)
    more = (key.id, key.settings, parts.clients, caller, special, reach.bound)
    return Context(key.owner, headers, reach.profile, parts.secret, reach.others, *more)


async def body_of(request: Request, parts: RouteParts) -> bytes:
    """The request's JSON."""
    return await read_json(request, parts.body, parts.aside)


async def optional_body_of(request: Request, parts: RouteParts) -> bytes:
    """The request's JSON, or an empty object where there is no body."""
    return await read_json_optional(request, parts.body, parts.aside)


def checked_session_id(named: str) -> str:
    """The id of a session, checked."""
    if not is_session_name(named):
        message = "A session id must be 1 to 256 letters, digits or ._:@/+=-."
        raise ClientError("invalid_session_id", message, param="id")
    return named


def answer(body: object, status: int = 200, session: str = "") -> Response:
    """A JSON answer."""
    headers = {"x-hermes-session-id": session} if session else None
    return Response(msgspec.json.encode(body), status, headers, "application/json")


class RunAnswer(Struct):
    """An ASGI response: the run of a ticket as JSON. Its delivery is recorded after it was sent."""

    body: bytes
    status: int
    session: str
    left: OnEnd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]
        if self.session:
            headers.append((b"x-hermes-session-id", self.session.encode("latin-1", "replace")))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})
        await self.left(whole=True)


def answer_ticket(parts: RouteParts, owner: str, ticket: Ticket, body: object, status: int = 200) -> RunAnswer:
    """The answer for a ticket."""
    left = partial(parts.engine.close, owner, ticket)
    return RunAnswer(msgspec.json.encode(body), status, ticket.session, left)


async def _cut_off(parts: RouteParts, owner: str, ticket: Ticket) -> ASGIApp:
    """The caller has gone, or the server stops before it has sent anything. The loss is recorded before the connection
    breaks, because a retry may reach another replica at once (G13)."""
    await parts.engine.close(owner, ticket, whole=False)
    return Broke()


async def answer_run(request: Request, parts: RouteParts, ticket: Ticket, how: Answering, *, stream: bool) -> ASGIApp:
    """Answer a submitted run: as a stream, or as a body when it has ended."""
    if stream:
        return await stream_run(request, parts, ticket, how, after=-1)
    owner = owner_of(request)
    keep_client(request, ticket, how, stream=False)
    try:
        state = await unless_gone(request.scope, request.receive, _wait_for_end(parts, owner, ticket.run, how))
    except (Left, CutOff):
        return await _cut_off(parts, owner, ticket)
    if state is None:
        raise not_found("run", ticket.run)
    if refused := how.refusal(state):
        await parts.engine.close(owner, ticket, whole=True)
        refused.spent = bool(state.facts.results)
        raise refused
    return answer_ticket(parts, owner, ticket, how.body(state, None))


async def _wait_for_end(parts: RouteParts, owner: str, run: str, how: Answering) -> RunState | None:
    """The state of a run at its end. When a person is asked, chat answers at once with the question. Other dialects
    wait for QUESTION_WAIT_S, then show the run as it is (G11); one that is not stored could not be asked for again, so
    there the caller waits for the answer (B6)."""
    state = await parts.engine.wait(owner, run, how.answered)
    deadline = asyncio.get_running_loop().time() + QUESTION_WAIT_S
    while state is not None and not state.ended and state.facts.asked is not None and how.eager:
        left = deadline - asyncio.get_running_loop().time() if state.facts.accepted.spec.store else None
        try:
            async with asyncio.timeout(left):
                state = await parts.engine.wait(owner, run, state.facts.asked.code)
        except TimeoutError:
            return state
    return state


async def stream_run(request: Request, parts: RouteParts, ticket: Ticket, how: Answering, *, after: int) -> ASGIApp:
    """A run as a stream."""
    engine, owner = parts.engine, owner_of(request)
    keep_client(request, ticket, how, stream=True, after=after)
    subscription = engine.attach(owner, ticket.run, how.projection, after)
    headers = [(b"x-hermes-session-id", ticket.session.encode("latin-1", "replace"))] if ticket.session else []
    left = partial(engine.close, owner, ticket)
    if how.eager:
        return RunStream(subscription, headers, left, broken=how.broken)
    try:
        first = await unless_gone(request.scope, request.receive, subscription.next())
    except Left:
        subscription.close()
        return await _cut_off(parts, owner, ticket)
    if isinstance(first, Cut):  # before the headers: a caller that has nothing yet tries again by itself
        subscription.close()
        return await _cut_off(parts, owner, ticket)
    state = await engine.look(owner, ticket.run)
    refused = how.refusal(state) if state is not None and not state.facts.items else None
    if refused is not None and not isinstance(first, Idle | StreamEnded):
        subscription.close()
        await left(whole=True)
        raise refused
    return RunStream(subscription, headers, left, first, how.broken)


def stream_on(parts: RouteParts, owner: str, ticket: Ticket, how: Answering, after: int) -> ASGIApp:
    """A stream whose head was sent: from its beginning."""
    subscription = parts.engine.attach(owner, ticket.run, how.projection, after)
    return RunStream(subscription, [], partial(parts.engine.close, owner, ticket), broken=how.broken)


def metadata_of(row: RunRow) -> dict[str, str]:
    """The metadata of a stored run. Its owner may have changed it since the run started."""
    return msgspec.json.decode(row.metadata, type=dict[str, str])

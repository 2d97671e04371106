"""How a request is answered. Owns: the parts that routes share, the caller's context, JSON answers, and the one way in
which a run becomes a body or a stream: whole frames, keepalives, big frames in slices (R13), aborting without a final
chunk when the server stops (A9), and the one way in which a request learns that its client has disconnected while it
awaits something else. A connection of our own (edge/connection.py) calls back, which costs no task and no memory per
request. On any other server a task awaits ASGI's receive(). Refuses to know: routes, any one dialect, and what is in a
frame."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

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
from ninelives.dialects.sse import KEEPALIVE
from ninelives.engine.base import (
    Broken,
    Chunk,
    Cut,
    CutOff,
    Idle,
    News,
    Order,
    Projection,
    StreamEnded,
    Ticket,
)
from ninelives.engine.engine import Engine
from ninelives.engine.subscription import Subscription
from ninelives.http.body import Aside, BodyLimits, read_json, read_json_optional
from ninelives.http.edge.access import ProfileReach
from ninelives.http.edge.kept import PIECE, KeptRequest, KeptStream, pieces
from ninelives.http.edge.keys import ApiKey
from ninelives.journal.values import RunRow
from ninelives.models.base import Ask
from ninelives.sessions.book import SessionBook

QUESTION_WAIT_S = 60.0
"""How long a request without a stream waits for a person to answer a question."""
T = TypeVar("T")
OnDisconnect = Callable[[], None]
_WITH_BODY = frozenset({b"content-length", b"transfer-encoding"})
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
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


class Left(Exception):
    """The client has disconnected."""


def watch(scope: Scope, receive: Receive, on_disconnect: OnDisconnect) -> Callable[[], object]:
    """Call `on_disconnect` when the client disconnects. The returned function ends the watch."""
    subscribe = scope.get("extensions", {}).get("ninelives.disconnect")
    # An unread body stops the connection from reading, so it would not notice a disconnect; receive() discards such a
    # body. The body of a POST was read.
    if subscribe is not None and (
        scope["method"] == "POST" or not any(name in _WITH_BODY for name, _ in scope["headers"])
    ):
        return subscribe(on_disconnect)  # type: ignore[no-any-return]
    return asyncio.create_task(_ask(receive, on_disconnect)).cancel


async def _ask(receive: Receive, on_disconnect: OnDisconnect) -> None:
    await gone(receive)
    on_disconnect()


async def gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def unless_gone(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the client disconnects first, cancel it and raise Left. `work` runs in this task, as under
    asyncio.timeout: two tasks and a wait for both would cost 60 us of a request that takes 1,000."""
    task = asyncio.current_task()
    left: list[bool] = []

    def on_disconnect() -> None:
        left.append(True)
        if task is not None and asyncio.current_task() is not task:  # else `work` is running, and `left` is read after
            task.cancel()

    unwatch = watch(scope, receive, on_disconnect)
    if left:  # the client was gone before
        unwatch()
        work.close()
        raise Left
    try:
        result = await work
    except asyncio.CancelledError:
        if left and task is not None and task.uncancel() == 0:
            raise Left from None
        raise
    finally:
        unwatch()
    if left:
        raise Left
    return result


class OnEnd(Protocol):
    """What is done when a response is over."""

    def __call__(self, *, whole: bool, cut: bool = False) -> Awaitable[None]:
        """`whole`: the client was sent all of it. `cut`: it was not, and it was the server that ended the stream."""
        ...


class StreamLine(Struct, frozen=True):
    """See engine.subscription.Line: the connection of one request."""

    write: Callable[[bytes], bool]
    """Send frames without waking the task of this response."""
    abort: Callable[[], None]


class StreamBody(Protocol):
    """How a stream writes to its client."""

    def write(self, data: bytes) -> bool:
        """Write frames at once. Returns False where only send() can do it."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Write frames when the socket takes them. `last`: nothing follows."""

    async def end(self) -> None:
        """The stream is over."""

    async def beat(self) -> None:
        """Write a keepalive."""


def _not_now(data: bytes) -> bool:
    """Other HTTP servers have no such way."""
    return False


class AsgiBody(Struct, frozen=True):
    """The body of a response by ASGI. A client that outlives this process has another (edge/kept.py)."""

    asgi: Send
    write: Callable[[bytes], bool]
    """See StreamBody."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """See StreamBody. The end of the body goes with its last piece."""
        left = len(data)
        for piece in pieces(data) if left > PIECE else (data,):
            left -= len(piece)
            await self.asgi({"type": "http.response.body", "body": piece, "more_body": left > 0 or not last})

    async def end(self) -> None:
        """See StreamBody."""
        await self.asgi({"type": "http.response.body", "body": b"", "more_body": False})

    async def beat(self) -> None:
        """See StreamBody."""
        await self.asgi({"type": "http.response.body", "body": KEEPALIVE, "more_body": True})


class RunStream(Struct):
    """An ASGI response that streams one subscription."""

    subscription: Subscription
    headers: list[tuple[bytes, bytes]]
    left: OnEnd
    """Called when the response is over."""
    first: News | None = None
    broken: Callable[[str], bytes] = broken_frame
    """Makes the frame for a stream that cannot go on."""
    sending: bool = False
    early: bool = False
    """The client disconnected before the last frame was handed to the transport. Many do so right after it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the run ends, the client disconnects or the server stops."""
        unwatch = watch(scope, receive, self._gone)
        whole, extensions = False, scope.get("extensions", {})
        kept: KeptStream | None = extensions.get("ninelives.kept")
        body: StreamBody = kept or AsgiBody(send, extensions.get("ninelives.write", _not_now))
        try:
            if kept is not None:
                kept.begin()
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + self.headers})
            self.subscription.connect(StreamLine(body.write, partial(abort, scope)))
            whole = await self._pump(scope, body) and not self.early and not self.subscription.restarted
        finally:
            unwatch()
            self.subscription.close()
            await self.left(whole=whole, cut=self.subscription.restarted)

    def _gone(self) -> None:
        self.early = self.sending or not self.subscription.told
        self.subscription.cut()

    async def _pump(self, scope: Scope, body: StreamBody) -> bool:
        """Send until there is nothing more. True where the stream came to its end."""
        news = await self.subscription.next() if self.first is None else self.first
        self.first = None
        while True:
            match news:
                case Chunk():
                    self.sending, last = True, self.subscription.told
                    await body.send(news.data, last=last)
                    self.sending = False
                    if last:
                        return True
                case Idle():
                    await body.beat()
                case StreamEnded():
                    await body.end()
                    return True
                case Broken(reason):
                    await body.send(self.broken(reason), last=True)
                    return False
                case Cut():
                    abort(scope)
                    return False
            del news  # it may be large, and the next may come in an hour
            news = await self.subscription.next()


def abort(scope: Scope) -> None:
    """Abort the connection. Without a final chunk, the client knows that it should come back (A9)."""
    abort_connection = scope.get("extensions", {}).get("ninelives.abort")
    if abort_connection is not None:
        abort_connection()


class Broke:
    """An ASGI response that aborts the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See abort()."""
        abort(scope)


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

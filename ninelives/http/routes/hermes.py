"""Routes that only front ends of hermes-agent call. Owns: the status of the server, skills and model options in its
words, and chats in a session. Refuses to know: what an event looks like, and how a session is stored."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ninelives import __version__
from ninelives.core.errors import not_found
from ninelives.core.ids import wire_id
from ninelives.core.sessions import storable
from ninelives.core.state import RunState
from ninelives.dialects import fields
from ninelives.dialects.asking import unknown_model
from ninelives.dialects.hermes import body, frames, requests, shapes
from ninelives.dialects.hermes.status import ServerState, status_fields
from ninelives.dialects.shared import refusal
from ninelives.engine.base import Order
from ninelives.http import answering
from ninelives.http.answering import Answering, RouteParts
from ninelives.http.describe.operations import CREATE_ERRORS, KEY, SESSION_KEY, Endpoint, Operation
from ninelives.http.describe.shapes import Listing, OneSession, StoredItem
from ninelives.http.edge.keys import ApiKey
from ninelives.http.routes.base import Routes
from ninelives.http.routes.sessions import TITLE_CHARS, one_session
from ninelives.journal.values import NewSession, SessionRow

PROVIDER = "ninelives"
"""The one provider of models: this server."""


class HermesServerRoutes(Routes):
    """/api/status, /v1/skills, /api/model/options."""

    tag = "Server"

    def __init__(self, parts: RouteParts, state: Callable[[], ServerState]) -> None:
        self._parts = parts
        self._state = state

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "/api/status", self.status, STATUS),
            Endpoint("GET", "/api/model/options", self.options, OPTIONS),
            Endpoint("GET", "/v1/skills", self.skills, SKILLS),
        ]

    async def status(self, request: Request) -> Response:
        """How the server is. Without a key, and without a pid unless an admin asks."""
        told = status_fields(self._state())
        shown = shapes.GatewayStatus(
            version=__version__,
            gateway_running=True,
            gateway_platforms=told["platforms"],  # type: ignore[arg-type]
            pid=os.getpid() if is_admin(request) else UNSET,
            **told,  # type: ignore[arg-type]
        )
        return answering.answer(shown)

    async def options(self, request: Request) -> Response:
        """The profiles of the key, for a model picker."""
        names = answering.context_of(request, self._parts).profiles()
        provider = shapes.ModelProvider(
            slug=PROVIDER,
            name="Ninelives",
            is_current=True,
            is_user_defined=False,
            models=names,
            total_models=len(names),
            source="built-in",
            authenticated=True,
        )
        return answering.answer(shapes.ModelOptions([provider], names[0], PROVIDER))

    async def skills(self, request: Request) -> Response:
        """None: this server has no skills."""
        return answering.answer(Listing[StoredItem]("list", []))


class HermesSessionRoutes(Routes):
    """POST /api/sessions, and below /api/sessions/{id}: /chat, /chat/stream and /model."""

    tag = "Sessions"
    base = "/api/sessions"

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts
        self.how = Answering(
            projection=frames.SessionProjection(), body=_completion, refusal=refusal, eager=True, name="hermes"
        )

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("POST", "/{id:path}/chat/stream", self.stream, STREAM),
            Endpoint("POST", "/{id:path}/chat", self.chat, CHAT),
            Endpoint("POST", "/{id:path}/model", self.choose_model, MODEL),
        ]

    async def create(self, request: Request) -> Response:
        """POST: an empty session."""
        parts, context = self._parts, answering.context_of(request, self._parts)
        given = fields.decode(await answering.optional_body_of(request, parts), requests.NewSessionRequest)
        named = given.id or given.session_id or f"api-{parts.engine.new_id()}"
        chosen = context.under(given.model)
        new = NewSession(
            owner=chosen.owner,
            session=answering.checked_session_id(named),
            at=parts.engine.now_ms(),
            title=storable((given.title or "").strip()[:TITLE_CHARS]),
            source="api_server",
            model=chosen.profile.name,
        )
        return answering.answer(one_session(await parts.sessions.make(new)), 201)

    async def choose_model(self, request: Request) -> Response:
        """POST the model that answers from now on where a chat names none."""
        context = answering.context_of(request, self._parts)
        row = await self._find(request)
        raw = await answering.body_of(request, self._parts)
        wanted = fields.required(fields.decode(raw, requests.SessionModelRequest).model, "model")
        names = context.profiles()
        if wanted not in names:
            raise unknown_model(wanted, names)
        chosen = context.under(wanted)
        if chosen.owner != context.owner:
            raise unknown_model(wanted, names)  # a session stays with its owner
        await self._parts.sessions.change(context.owner, row.session, model=wanted)
        runtime = {"model": wanted, "provider": PROVIDER}
        return answering.answer(shapes.SessionModel("hermes.session.model_lock", row.session, runtime))

    async def chat(self, request: Request) -> ASGIApp:
        """POST a message; the answer when the run has ended."""
        return await self._answer(request, stream=False)

    async def stream(self, request: Request) -> ASGIApp:
        """POST a message; the events of its run."""
        return await self._answer(request, stream=True)

    async def _answer(self, request: Request, *, stream: bool) -> ASGIApp:
        parts, context = self._parts, answering.context_of(request, self._parts)
        place = await self._place(request)
        raw = await answering.body_of(request, parts)
        parsed = await parts.aside.run(len(raw), requests.parse, raw, context, place, parts.max_parts)
        if parsed.asked.owner != context.owner:
            raise not_found("session", place.id)  # a session stays with its owner
        asked = context.waiting(parsed.asked)
        order = Order(owner=asked.owner, spec=parsed.spec, asked=asked, size=len(raw), credential=context.credential)
        ticket = await answering.submitted(request, parts, order)
        return await answering.answer_run(request, parts, ticket, self.how, stream=stream)

    async def _find(self, request: Request) -> SessionRow:
        shown = request.path_params["id"]
        row = await self._parts.sessions.find(answering.owner_of(request), shown)
        if row is None:
            raise not_found("session", shown)
        return row

    async def _place(self, request: Request) -> requests.SessionPlace:
        """Where the chat goes on. A session that keeps no turns itself is a chain of runs, or a chat that sends along
        what was said in it."""
        row, owner, book = await self._find(request), answering.owner_of(request), self._parts.sessions
        if row.made or await book.keeps_turns(owner, row.session):
            return requests.SessionPlace(row.session, row.key, row.model)
        last = await book.newest(owner, row.session)
        if last is not None and last.kept == "stored" and last.status == "completed":
            return requests.SessionPlace(row.session, row.key, row.model, wire_id("runs", last.run))
        said = tuple(message for _, message in await book.messages(owner, row.session))
        return requests.SessionPlace(row.session, row.key, row.model, history=said)


def _completion(state: RunState, metadata: dict[str, str] | None) -> shapes.SessionCompletion:
    return body.completion(state)


def is_admin(request: Request) -> bool:
    """Whether the caller may see what only an admin sees of the server. Whose runs: sees_all."""
    key: ApiKey | None = request.state.key
    return key is not None and key.admin


STATUS = Operation(
    summary="How the server is, in the words of hermes-agent",
    doc="An admin key shows the pid.",
    answers={200: shapes.GatewayStatus},
    open=True,
)
OPTIONS = Operation(summary="The models of a picker", answers={200: shapes.ModelOptions})
SKILLS = Operation(summary="List skills", doc="There are none.", answers={200: Listing[StoredItem]})
CREATE = Operation(
    summary="Create a session",
    doc="It is empty, and listed at once.",
    body=requests.NewSessionRequest,
    body_optional=True,
    answers={201: OneSession},
    errors=(409,),
    example={"title": "Trip to Ulm"},
)
MODEL = Operation(
    summary="Choose the model of a session",
    doc="It answers chats in the session that name none.",
    body=requests.SessionModelRequest,
    required=("model",),
    answers={200: shapes.SessionModel},
    example={"model": "hermes-agent"},
)
CHAT = Operation(
    summary="Chat in a session",
    doc="The session gives the history and takes the finished turn. The run goes on when the caller leaves.",
    params=(KEY, SESSION_KEY),
    body=requests.SessionChatRequest,
    required=("message",),
    answers={200: shapes.SessionCompletion},
    errors=(*CREATE_ERRORS, 502, 504),
    example={"message": "Say hello."},
)
STREAM = Operation(
    summary="Chat in a session, as a stream",
    params=(KEY, SESSION_KEY),
    body=requests.SessionChatRequest,
    required=("message",),
    answers={200: None},
    stream="run.started, assistant.delta, tool.started, assistant.completed and so on, then done.",
    errors=CREATE_ERRORS,
    example={"message": "Say hello."},
)

"""Responses over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp

from ninelives.core.errors import ClientError, not_found
from ninelives.core.ids import wire_id
from ninelives.core.rope import HUGE_BYTES
from ninelives.core.spec import is_short
from ninelives.core.state import RunState
from ninelives.dialects import fields
from ninelives.dialects.asking import Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import body, compaction, parse, shapes
from ninelives.dialects.responses.reattach import ReattachProjection
from ninelives.dialects.responses.refs import references
from ninelives.engine.base import Order, Ticket
from ninelives.http import answering, query
from ninelives.http.describe.operations import (
    CREATE_ERRORS,
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    STREAM,
    Endpoint,
    Operation,
)
from ninelives.http.describe.shapes import Deleted, ListPage, StoredItem
from ninelives.http.errors import error_response
from ninelives.http.references import named_items, parse_resolved
from ninelives.http.routes.base import RunRoutes, guarded
from ninelives.http.websocket import ResponsesSocket
from ninelives.journal.earlier import would_follow


class ResponsesRoutes(RunRoutes):
    """/v1/responses."""

    base = "/v1/responses"
    noun = "response"
    deleted_object = "response.deleted"

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("POST", "/input_tokens", self.input_tokens, INPUT_TOKENS),
            Endpoint("POST", "/compact", self.compact, COMPACT),
            Endpoint("GET", "", self.upgrade, UPGRADE),
            Endpoint("GET", "/{id}", self.retrieve, RETRIEVE),
            Endpoint("DELETE", "/{id}", self.delete, DELETE),
            Endpoint("POST", "/{id}/cancel", self.cancel, CANCEL),
            Endpoint("GET", "/{id}/input_items", self.input_items, INPUT_ITEMS),
        ]

    def routes(self) -> list[BaseRoute]:
        """See Routes.routes: with the websocket."""
        serve = guarded(ResponsesSocket(self.parts, self.log).serve, "GET", self.base)
        return [*super().routes(), WebSocketRoute(self.base, serve)]

    async def parse(self, raw: bytes, context: Context) -> ParsedRequest:
        """See RunRoutes.parse."""
        return await parse_resolved(self.parts, context, raw)

    def body(self, state: RunState, metadata: dict[str, str] | None) -> shapes.Response:
        """See RunRoutes.body."""
        return body.body(state, metadata)

    async def answer_created(self, request: Request, parsed: ParsedRequest, ticket: Ticket) -> ASGIApp:
        """See RunRoutes.answer_created. A background run is answered as it is. A caller who comes back while the run
        goes on gets a snapshot in place of the frames before it (G2)."""
        how, owner = self.how, answering.owner_of(request)
        if ticket.attached or parsed.spec.background:
            state = await self.parts.engine.look(owner, ticket.run)
            if state is None:
                raise not_found(self.noun, wire_id("responses", ticket.run))
            if parsed.spec.background and not parsed.stream:
                return answering.answer_ticket(self.parts, owner, ticket, body.body(state))
            if ticket.attached and not state.ended:
                how = how.varied(projection=ReattachProjection())
        return await answering.answer_run(request, self.parts, ticket, how, stream=parsed.stream)

    async def input_tokens(self, request: Request) -> Response:
        """POST: about how many tokens a request would send to the model."""
        context = self.context(request)
        raw, aside = await self.read_body(request), self.parts.aside
        given = await aside.run(len(raw), parse.read, raw)
        context = context.under(given.model)
        known = await named_items(self.parts, context.owner, references(given.input), given.previous_response_id)
        parsed = await aside.run(len(raw), parse.parse_counted, given, context, self.parts.max_parts, known)
        earlier = await would_follow(self.parts.engine.durable, parsed.asked)
        tokens = await aside.run(len(raw), self.parts.token_counts.tokens, parsed.spec, earlier)
        return answering.answer(shapes.InputTokens("response.input_tokens", tokens))

    async def compact(self, request: Request) -> ASGIApp:
        """POST: a conversation as a sealed summary, made by one plain model call."""
        context = self.context(request)
        raw, aside = await self.read_body(request), self.parts.aside
        given = await aside.run(len(raw), fields.decode, raw, compaction.CompactRequest)
        chosen = context.under(given.model)
        context = chosen if chosen.owner == context.owner else answering.act_for(request, chosen, chosen.owner)
        known = await named_items(self.parts, context.owner, references(given.input), given.previous_response_id)
        parsed = await aside.run(len(raw), compaction.parse, given, context, self.parts.max_parts, known)
        earlier = (*await would_follow(self.parts.engine.durable, parsed.asked), *parsed.messages)
        order = Order(owner=context.owner, spec=parsed.spec, asked=parsed.asked, credential=context.credential)
        ticket = await answering.submitted(request, self.parts, order)

        def summary(state: RunState, metadata: dict[str, str] | None) -> shapes.Compaction:
            return compaction.body(state, context, earlier)

        how = self.how.varied(body=summary, refusal=compaction.failure)
        return await answering.answer_run(request, self.parts, ticket, how, stream=False)

    async def upgrade(self, request: Request) -> Response:
        """GET without an upgrade. With one, websocket.py answers."""
        words = "Open a websocket here (Upgrade: websocket), or POST to create a response."
        status, headers, content = error_response(ClientError("upgrade_required", words, status=426))
        answer = Response(content, status)
        answer.raw_headers.extend([*headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade")])
        return answer

    async def cancel(self, request: Request) -> Response:
        """POST cancel: idempotent. A finished response is answered as it is."""
        row, state = await self.cancel_named(request)
        return answering.answer(body.body(state), session=row.session)

    async def input_items(self, request: Request) -> Response:
        """GET the input."""
        row = await self.find_row(request)
        state = await self.load_state(request, row)
        size = 0 if is_short(state.facts.accepted.spec) else HUGE_BYTES + 1

        def made() -> Response:
            return answering.answer(query.page_of(request, body.input_items(state)), session=row.session)

        return await self.parts.aside.run(size, made)


CREATE = Operation(
    summary="Create a response",
    doc="All four combinations of stream and store, and background. A stored run outlives caller and server.",
    body=parse.ResponsesRequest,
    required=("input",),
    params=CREATING,
    answers={200: shapes.Response},
    stream="the documented response.* events, numbered from 0, then [DONE].",
    errors=CREATE_ERRORS,
    example={"model": "hermes-agent", "input": "Say hello.", "store": True},
)
INPUT_TOKENS = Operation(
    summary="Count the tokens of a request, about",
    body=parse.ResponsesRequest,
    answers={200: shapes.InputTokens},
    errors=(404, 409),
)
COMPACT = Operation(
    summary="Compact a conversation",
    body=compaction.CompactRequest,
    required=("model",),
    answers={200: shapes.Compaction},
    errors=(404, 409, 429, 502, 504),
)
UPGRADE = Operation(
    summary="Open a websocket",
    doc="With Upgrade: websocket. Frames: response.create with the fields of the POST; the same events come.",
    answers={101: None},
    errors=(426,),
)
RETRIEVE = Operation(
    summary="Retrieve a response, or follow it",
    params=(STREAM, STARTING_AFTER, LAST_EVENT_ID),
    answers={200: shapes.Response},
    stream="the events after starting_after, while it runs, after its end and after a restart.",
)
DELETE = Operation(
    summary="Delete a response",
    doc="An active run is cancelled first.",
    answers={200: Deleted},
)
CANCEL = Operation(
    summary="Cancel a response",
    doc="Idempotent: a finished one is answered as it is.",
    answers={200: shapes.Response},
)
INPUT_ITEMS = Operation(
    summary="List the input of a response",
    params=PAGING,
    answers={200: ListPage[StoredItem]},
)

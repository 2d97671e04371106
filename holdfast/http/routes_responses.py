"""Responses over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.core.errors import ClientError, not_found
from holdfast.core.ids import wire_id
from holdfast.dialects.responses import body, frames, parse
from holdfast.engine.base import Order, Ticket
from holdfast.http import calls, shapes
from holdfast.http.calls import Answering, Parts
from holdfast.http.describe import (
    CREATE_ERRORS,
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    STREAM,
    Operation,
    described,
)
from holdfast.http.errors import error_response

NOUN = "response"
HOW = Answering(projection=frames.ResponsesProjection(), body=body.body, refusal=calls.no_refusal, eager=True)
REATTACH = Answering(projection=frames.ReattachProjection(), body=body.body, refusal=calls.no_refusal, eager=True)


class ResponsesRoutes:
    """/v1/responses."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/responses"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base, self.upgrade, methods=["GET"]),
            Route(base + "/{id}", self.retrieve, methods=["GET"]),
            Route(base + "/{id}", self.delete, methods=["DELETE"]),
            Route(base + "/{id}/cancel", self.cancel, methods=["POST"]),
            Route(base + "/{id}/input_items", self.input_items, methods=["GET"]),
        ]

    @described(
        Operation(
            tag="Responses",
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
    )
    async def create(self, request: Request) -> ASGIApp:
        """POST: begin a run, or attach by key."""
        context = calls.context_of(request, self._parts)
        parsed = parse.parse(await calls.body_of(request, self._parts), context, self._parts.max_parts)
        engine = self._parts.engine
        ticket = await engine.submit(Order(owner=context.owner, spec=parsed.spec, asked=parsed.asked))
        how = HOW
        if ticket.attached or parsed.spec.background:
            state = await engine.look(context.owner, ticket.run)
            if state is None:
                raise not_found(NOUN, wire_id("responses", ticket.run))
            if parsed.spec.background and not parsed.stream:
                return calls.answer(body.body(state), session=ticket.session)
            how = REATTACH if ticket.attached and not state.ended else HOW
        return await calls.created(request, self._parts, ticket, how, stream=parsed.stream)

    @described(
        Operation(
            tag="Responses",
            summary="Open a websocket",
            doc="With Upgrade: websocket. Frames: response.create with the fields of the POST; the same events come.",
            answers={101: None},
            errors=(426,),
        )
    )
    async def upgrade(self, request: Request) -> Response:
        """GET without an upgrade: this is where a websocket begins (websocket.py)."""
        words = "Open a websocket here (Upgrade: websocket), or POST to create a response."
        status, headers, told = error_response(ClientError("upgrade_required", words, status=426))
        answer = Response(told, status)
        answer.raw_headers.extend([*headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade")])
        return answer

    @described(
        Operation(
            tag="Responses",
            summary="Retrieve a response, or follow it",
            params=(STREAM, STARTING_AFTER, LAST_EVENT_ID),
            answers={200: shapes.Response},
            stream="the events after starting_after, while it runs, after its end and after a restart.",
        )
    )
    async def retrieve(self, request: Request) -> ASGIApp:
        """GET one, as a body or as a stream from a position."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        if calls.wants_stream(request):
            after = calls.position(request, "starting_after")
            return await calls.streamed(request, self._parts, Ticket(row.run, row.session), HOW, after=after)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(body.body(state), session=row.session)

    @described(
        Operation(
            tag="Responses",
            summary="Delete a response",
            doc="An active run is cancelled first.",
            answers={200: shapes.Deleted},
        )
    )
    async def delete(self, request: Request) -> Response:
        """DELETE one: an active run is cancelled first."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        await self._parts.engine.delete(row.owner, row.run)
        shown = {"id": wire_id("responses", row.run), "object": "response.deleted", "deleted": True}
        return calls.answer(shown, session=row.session)

    @described(
        Operation(
            tag="Responses",
            summary="Cancel a response",
            doc="Idempotent: a finished one is answered as it is.",
            answers={200: shapes.Response},
        )
    )
    async def cancel(self, request: Request) -> Response:
        """POST cancel: idempotent; a finished one is answered with its state."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        state = await self._parts.engine.cancel(row.owner, row.run)
        if state is None:
            raise not_found(NOUN, request.path_params["id"])
        return calls.answer(body.body(state), session=row.session)

    @described(
        Operation(
            tag="Responses",
            summary="List the input of a response",
            params=PAGING,
            answers={200: shapes.Page[shapes.StoredItem]},
        )
    )
    async def input_items(self, request: Request) -> Response:
        """GET the input."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(calls.listed(request, body.input_items(state)), session=row.session)

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
from holdfast.http import calls
from holdfast.http.calls import Answering, Parts
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

    async def upgrade(self, request: Request) -> Response:
        """GET without an upgrade: this is where a websocket begins (websocket.py)."""
        words = "Open a websocket here (Upgrade: websocket), or POST to create a response."
        status, headers, told = error_response(ClientError("upgrade_required", words, status=426))
        answer = Response(told, status)
        answer.raw_headers.extend([*headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade")])
        return answer

    async def retrieve(self, request: Request) -> ASGIApp:
        """GET one, as a body or as a stream from a position."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        if calls.wants_stream(request):
            after = calls.position(request, "starting_after")
            return await calls.streamed(request, self._parts, Ticket(row.run, row.session), HOW, after=after)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(body.body(state), session=row.session)

    async def delete(self, request: Request) -> Response:
        """DELETE one: an active run is cancelled first."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        await self._parts.engine.delete(row.owner, row.run)
        shown = {"id": wire_id("responses", row.run), "object": "response.deleted", "deleted": True}
        return calls.answer(shown, session=row.session)

    async def cancel(self, request: Request) -> Response:
        """POST cancel: idempotent; a finished one is answered with its state."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        state = await self._parts.engine.cancel(row.owner, row.run)
        if state is None:
            raise not_found(NOUN, request.path_params["id"])
        return calls.answer(body.body(state), session=row.session)

    async def input_items(self, request: Request) -> Response:
        """GET the input."""
        row = await calls.row_named(request, self._parts, "responses", NOUN)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(calls.listed(request, body.input_items(state)), session=row.session)

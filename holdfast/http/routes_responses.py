"""Responses over HTTP. Owns: its routes, and finding what a request only names (items of earlier responses). Refuses to
know: what an event looks like."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.core.errors import ClientError, not_found
from holdfast.core.ids import run_of, runs_of_item, wire_id
from holdfast.core.state import RunState
from holdfast.dialects import fields
from holdfast.dialects.asking import Context
from holdfast.dialects.responses import body, compaction, frames, items, parse
from holdfast.dialects.responses.reattach import ReattachProjection
from holdfast.dialects.responses.refs import Item, references
from holdfast.engine.base import Order, Ticket
from holdfast.engine.earlier import would_follow
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
from holdfast.journal.base import Query

NOUN = "response"
ITEMS_OF = ("responses", "conversations")
"""Runs whose items can be named again: those of responses, and those that were added to conversations."""
HOW = Answering(projection=frames.ResponsesProjection(), body=body.body, refusal=calls.no_refusal, eager=True)
REATTACH = Answering(projection=ReattachProjection(), body=body.body, refusal=calls.no_refusal, eager=True)


async def named_items(parts: Parts, owner: str, ids: Sequence[str], previous: str | None) -> dict[str, Item]:
    """Those of the items that a request names which the owner has: in a response that an id tells of, or in the one
    that the request follows (a caller may have given its own input items ids of its own)."""
    found: dict[str, Item] = {}
    looked: set[str] = set()
    follows = run_of("responses", previous) if previous else None
    for shown in ids:
        for run in (*runs_of_item(shown), follows):
            if run is None or run in looked or shown in found:
                continue
            looked.add(run)
            found |= await _items_of(parts, owner, run)
    return {shown: found[shown] for shown in ids if shown in found}


async def _items_of(parts: Parts, owner: str, run: str) -> dict[str, Item]:
    row = await parts.engine.find(owner, run)
    state = await parts.engine.look(owner, run) if row is not None and row.dialect in ITEMS_OF else None
    if state is None:
        return {}
    shown = [*body.input_items(state), *(items.plain_output(item) for item in body.output(state))]
    return {str(item["id"]): item for item in shown}


async def understood(parts: Parts, context: Context, raw: bytes) -> parse.ParsedResponses:
    """A create request, with all that it names."""
    request = parse.read(raw)
    wanted = references(request.input)
    known = await named_items(parts, context.owner, wanted, request.previous_response_id)
    if len(known) < len(wanted) and await _key_known(parts, context):
        known = {**{shown: {"type": "gone"} for shown in wanted}, **known}
    parsed = parse.understood(request, context, parts.max_parts, known)
    bounded = parsed.spec.echo.get("truncation") != "auto" and parts.scales.window(parsed.spec.model) > 0
    if bounded and not await _key_known(parts, context):
        await _check_window(parts, parsed)
    return parsed


async def _key_known(parts: Parts, context: Context) -> bool:
    """The key names a run already: whatever became since of what the request names, that run is the answer."""
    key = context.key()
    return key is not None and bool(await parts.engine.durable.rows(Query(owner=context.owner, key=key, limit=1)))


async def _check_window(parts: Parts, parsed: parse.ParsedResponses) -> None:
    """What cannot fit is refused before it is begun, where the caller does not want it shortened."""
    asked, window = parsed.asked, parts.scales.window(parsed.spec.model)
    joins = asked.previous or asked.conversation or asked.session
    tokens = parts.scales.tokens(parsed.spec, await would_follow(parts.engine.durable, asked) if joins else ())
    if tokens > window:
        message = f"The conversation is about {tokens} tokens long; {window} fit. Send less, or truncation=auto."
        raise ClientError("context_length_exceeded", message, param="input")


class ResponsesRoutes:
    """/v1/responses."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/responses"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base + "/input_tokens", self.input_tokens, methods=["POST"]),
            Route(base + "/compact", self.compact, methods=["POST"]),
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
        parsed = await understood(self._parts, context, await calls.body_of(request, self._parts))
        engine = self._parts.engine
        ticket = await calls.submit(self._parts, context, parsed.spec, parsed.asked)
        how = HOW
        if ticket.attached or parsed.spec.background:
            state = await engine.look(context.owner, ticket.run)
            if state is None:
                raise not_found(NOUN, wire_id("responses", ticket.run))
            if parsed.spec.background and not parsed.stream:
                return calls.handed(self._parts, context.owner, ticket, body.body(state))
            how = REATTACH if ticket.attached and not state.ended else HOW
        return await calls.created(request, self._parts, ticket, how, stream=parsed.stream)

    @described(
        Operation(
            tag="Responses",
            summary="Count the tokens of a request, about",
            body=parse.ResponsesRequest,
            answers={200: shapes.InputTokens},
            errors=(404, 409),
        )
    )
    async def input_tokens(self, request: Request) -> Response:
        """POST: about how many tokens a request would send to the model."""
        context = calls.context_of(request, self._parts)
        given = parse.read(await calls.body_of(request, self._parts))
        known = await named_items(self._parts, context.owner, references(given.input), given.previous_response_id)
        parsed = parse.counted(given, context, self._parts.max_parts, known)
        earlier = await would_follow(self._parts.engine.durable, parsed.asked)
        tokens = self._parts.scales.tokens(parsed.spec, earlier)
        return calls.answer({"object": "response.input_tokens", "input_tokens": tokens})

    @described(
        Operation(
            tag="Responses",
            summary="Compact a conversation",
            body=compaction.CompactRequest,
            required=("model",),
            answers={200: shapes.Compaction},
            errors=(404, 409, 429, 502, 504),
        )
    )
    async def compact(self, request: Request) -> ASGIApp:
        """POST: a conversation as a sealed summary, made by one plain model call."""
        context = calls.context_of(request, self._parts)
        given = fields.decode(await calls.body_of(request, self._parts), compaction.CompactRequest)
        known = await named_items(self._parts, context.owner, references(given.input), given.previous_response_id)
        parsed = compaction.parse(given, context, self._parts.max_parts, known)
        earlier = (*await would_follow(self._parts.engine.durable, parsed.asked), *parsed.messages)
        order = Order(owner=context.owner, spec=parsed.spec, asked=parsed.asked)
        ticket = await self._parts.engine.submit(order)

        def shown(state: RunState, metadata: dict[str, str] | None) -> dict[str, object]:
            return compaction.body(state, context, earlier)

        how = Answering(projection=HOW.projection, body=shown, refusal=compaction.failure, eager=True)
        return await calls.created(request, self._parts, ticket, how, stream=False)

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
        """GET one, as a body or as a stream from a position. `include` asks for nothing that is not there anyway."""
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

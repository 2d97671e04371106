"""Chat Completions over HTTP. Owns: its routes. Refuses to know: what a chunk looks like."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.core.errors import ClientError
from holdfast.core.ids import wire_id
from holdfast.core.state import RunState
from holdfast.dialects import fields
from holdfast.dialects.approval import Reply
from holdfast.dialects.chat import body, frames, parse
from holdfast.dialects.shared import refusal
from holdfast.engine.base import Ticket
from holdfast.http import calls, shapes
from holdfast.http.calls import Answering, Parts
from holdfast.http.describe import (
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    STREAM,
    TOOL_PROGRESS,
    Operation,
    Param,
    described,
)
from holdfast.journal.base import Row

NOUN = "completion"
HOW = Answering(projection=frames.ChatProjection(), body=body.body, refusal=refusal, eager=False)


class MetadataUpdate(msgspec.Struct):
    """The one field that can be changed."""

    metadata: fields.Metadata | None = None


def _wanted(request: Request, row: Row) -> bool:
    """?model=NAME and ?metadata[KEY]=VALUE, as the SDKs send them."""
    asked = request.query_params
    notes = {name[9:-1]: value for name, value in asked.items() if name.startswith("metadata[") and name[-1] == "]"}
    kept = calls.metadata_of(row) if notes else {}
    return asked.get("model", row.model) == row.model and all(kept.get(name) == notes[name] for name in notes)


def _rest(reply: Reply, asking: RunState, new: str) -> Answering:
    """The rest of a run whose question was answered, as a completion of its own (G11)."""
    shown_id, since = wire_id("chat", new), len(asking.facts.messages)

    def rest(later: RunState, metadata: dict[str, str] | None) -> dict[str, object]:
        return {**body.body(later, metadata, since), "id": shown_id}

    projection = frames.ContinuedChat(reply.code, shown_id)
    return Answering(projection=projection, body=rest, refusal=refusal, eager=False, answered=reply.code)


class ChatRoutes:
    """/v1/chat/completions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/chat/completions"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base, self.list, methods=["GET"]),
            Route(base + "/{id}", self.retrieve, methods=["GET"]),
            Route(base + "/{id}", self.update, methods=["POST"]),
            Route(base + "/{id}", self.delete, methods=["DELETE"]),
            Route(base + "/{id}/messages", self.messages, methods=["GET"]),
        ]

    @described(
        Operation(
            tag="Chat",
            summary="Create a chat completion",
            doc="store defaults to false: leaving then cancels the run.",
            body=parse.ChatRequest,
            required=("messages",),
            params=(*CREATING, TOOL_PROGRESS),
            answers={200: shapes.Completion},
            stream="chat.completion.chunk objects, tool progress as hermes.tool.progress, then [DONE].",
            errors=(404, 409, 429, 502, 504),
            example={"model": "hermes-agent", "messages": [{"role": "user", "content": "Say hello."}]},
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        """POST: begin a run, or attach by key."""
        context = calls.context_of(request, self._parts)
        parsed = parse.parse(await calls.body_of(request, self._parts), context, self._parts.max_parts)
        return await calls.talked(request, self._parts, context, parsed, HOW, _rest)

    @described(
        Operation(
            tag="Chat",
            summary="Retrieve a stored completion, or follow it",
            params=(STREAM, STARTING_AFTER, LAST_EVENT_ID),
            answers={200: shapes.Completion},
            stream="the chunks after starting_after.",
            errors=(409, 429, 502, 504),
        )
    )
    async def retrieve(self, request: Request) -> ASGIApp:
        """GET one, as a body or as a stream from a position."""
        row = await calls.row_named(request, self._parts, "chat", NOUN)
        state = await calls.state_named(request, self._parts, row, NOUN)
        if not calls.wants_stream(request):
            return calls.answer(body.body(state, calls.metadata_of(row)), session=row.session)
        after = calls.position(request, "starting_after")
        if any(first <= after <= last for first, last in state.facts.dropped):
            raise ClientError(
                "draft_dropped",
                "The text up to there was dropped when the server failed. Leave starting_after out to replay.",
                status=409,
                param="starting_after",
            )
        return await calls.streamed(request, self._parts, Ticket(row.run, row.session), HOW, after=after)

    @described(
        Operation(
            tag="Chat",
            summary="List stored completions",
            params=(*PAGING, Param("model", "Only those of this model.")),
            answers={200: shapes.Page[shapes.Completion]},
            errors=(404,),
        )
    )
    async def list(self, request: Request) -> Response:
        """GET the stored ones, of a model or with metadata where these are asked for."""
        query = calls.page_query(request, "chat", NOUN, "asc")
        shown: list[dict[str, object]] = []
        more = True
        while more and len(shown) < query.limit:
            rows = await self._parts.engine.durable.rows(query)
            for row in rows:
                state = await self._parts.engine.look(row.owner, row.run) if _wanted(request, row) else None
                if state is not None:
                    shown.append(body.body(state, calls.metadata_of(row)))
            more = len(rows) == query.limit
            query = replace(query, after=rows[-1].run) if more else query
        return calls.answer(calls.page(shown, query.limit - 1))

    @described(
        Operation(
            tag="Chat",
            summary="Replace the metadata of a stored completion",
            body=MetadataUpdate,
            required=("metadata",),
            answers={200: shapes.Completion},
            example={"metadata": {"topic": "greeting"}},
        )
    )
    async def update(self, request: Request) -> Response:
        """POST new metadata."""
        row = await calls.row_named(request, self._parts, "chat", NOUN)
        update = fields.decode(await calls.body_of(request, self._parts), MetadataUpdate)
        metadata = fields.required(update.metadata, "metadata")
        await self._parts.engine.durable.annotate(row.owner, row.run, msgspec.json.encode(metadata))
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(body.body(state, metadata), session=row.session)

    @described(
        Operation(
            tag="Chat",
            summary="Delete a stored completion",
            answers={200: shapes.Deleted},
        )
    )
    async def delete(self, request: Request) -> Response:
        """DELETE one: an active run is cancelled first."""
        row = await calls.row_named(request, self._parts, "chat", NOUN)
        await self._parts.engine.delete(row.owner, row.run)
        shown = {"id": wire_id("chat", row.run), "object": "chat.completion.deleted", "deleted": True}
        return calls.answer(shown, session=row.session)

    @described(
        Operation(
            tag="Chat",
            summary="List the messages of a stored completion",
            params=PAGING,
            answers={200: shapes.Page[shapes.StoredItem]},
        )
    )
    async def messages(self, request: Request) -> Response:
        """GET the messages that were sent."""
        row = await calls.row_named(request, self._parts, "chat", NOUN)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(calls.listed(request, body.stored_messages(state), "asc"), session=row.session)

"""Chat Completions over HTTP. Owns: its routes. Refuses to know: what a chunk looks like."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ninelives.core.errors import ClientError, NinelivesError
from ninelives.core.state import RunState
from ninelives.dialects import fields
from ninelives.dialects.approval import Reply
from ninelives.dialects.chat import body, frames, parse, shapes
from ninelives.dialects.shared import refusal
from ninelives.engine.base import Projection
from ninelives.http import answering, query
from ninelives.http.answering import Body
from ninelives.http.describe.operations import (
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    STREAM,
    TOOL_PROGRESS,
    Endpoint,
    Operation,
    Param,
)
from ninelives.http.describe.shapes import Deleted, ListPage, StoredItem
from ninelives.http.routes.base import RunRoutes
from ninelives.journal.values import RunRow


class MetadataUpdate(msgspec.Struct):
    """The one field that can be changed."""

    metadata: fields.Metadata | None = None


class ChatRoutes(RunRoutes):
    """/v1/chat/completions."""

    base = "/v1/chat/completions"
    noun = "completion"
    deleted_object = "chat.completion.deleted"
    eager = False
    order = "asc"

    pure_parse = staticmethod(parse.parse)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("GET", "", self.list, LIST),
            Endpoint("GET", "/{id}", self.retrieve, RETRIEVE),
            Endpoint("POST", "/{id}", self.update, UPDATE),
            Endpoint("DELETE", "/{id}", self.delete, DELETE),
            Endpoint("GET", "/{id}/messages", self.messages, MESSAGES),
        ]

    def body(self, state: RunState, metadata: dict[str, str] | None) -> shapes.Completion:
        """See RunRoutes.body."""
        return body.body(state, metadata)

    def refusal(self, state: RunState) -> NinelivesError | None:
        """See RunRoutes.refusal."""
        return refusal(state)

    def continuation(self, reply: Reply, asking: RunState, shown_id: str) -> tuple[Projection, Body]:
        """See RunRoutes.continuation: a completion of its own."""
        since = len(asking.facts.messages)

        def rest(later: RunState, metadata: dict[str, str] | None) -> shapes.Completion:
            return replace(body.body(later, metadata, since), id=shown_id)

        return frames.ContinuedChat(reply.code, shown_id), rest

    def selects(self, request: Request, row: RunRow) -> bool:
        """?model=NAME and ?metadata[KEY]=VALUE, as the SDKs send them."""
        asked = request.query_params
        notes = {name[9:-1]: value for name, value in asked.items() if name.startswith("metadata[") and name[-1] == "]"}
        kept = answering.metadata_of(row) if notes else {}
        return asked.get("model", row.model) == row.model and all(kept.get(name) == notes[name] for name in notes)

    def shown(self, row: RunRow, state: RunState) -> shapes.Completion:
        """See RunRoutes.shown: metadata can be changed, so the row has it."""
        return body.body(state, answering.metadata_of(row))

    async def follow(self, request: Request, row: RunRow) -> ASGIApp:
        """See RunRoutes.follow. A position inside of text that a crash dropped is refused."""
        state, after = await self.load_state(request, row), query.position(request, *self.positions)
        if any(first <= after <= last for first, last in state.facts.dropped):
            raise ClientError(
                "draft_dropped",
                "The text up to there was dropped when the server failed. Leave starting_after out to replay.",
                status=409,
                param="starting_after",
            )
        return await super().follow(request, row)

    async def list(self, request: Request) -> Response:
        """GET the stored ones, by model or metadata."""
        return await self.answer_page(request, self.page_query(request, self.dialect.name))

    async def update(self, request: Request) -> Response:
        """POST new metadata."""
        row = await self.find_row(request)
        update = fields.decode(await self.read_body(request), MetadataUpdate)
        metadata = fields.required(update.metadata, "metadata")
        await self.parts.engine.durable.annotate(row.owner, row.run, msgspec.json.encode(metadata))
        state = await self.load_state(request, row)
        return answering.answer(body.body(state, metadata), session=row.session)

    async def messages(self, request: Request) -> Response:
        """GET the messages of the request."""
        row = await self.find_row(request)
        state = await self.load_state(request, row)
        return answering.answer(query.page_of(request, body.stored_messages(state), self.order), session=row.session)


CREATE = Operation(
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
LIST = Operation(
    summary="List stored completions",
    params=(*PAGING, Param("model", "Only those of this model.")),
    answers={200: ListPage[shapes.Completion]},
    errors=(404,),
)
RETRIEVE = Operation(
    summary="Retrieve a stored completion, or follow it",
    params=(STREAM, STARTING_AFTER, LAST_EVENT_ID),
    answers={200: shapes.Completion},
    stream="the chunks after starting_after.",
    errors=(409, 429, 502, 504),
)
UPDATE = Operation(
    summary="Replace the metadata of a stored completion",
    body=MetadataUpdate,
    required=("metadata",),
    answers={200: shapes.Completion},
    example={"metadata": {"topic": "greeting"}},
)
DELETE = Operation(summary="Delete a stored completion", answers={200: Deleted})
MESSAGES = Operation(
    summary="List the messages of a stored completion",
    params=PAGING,
    answers={200: ListPage[StoredItem]},
)

"""Anthropic Messages over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ninelives.core.errors import NinelivesError
from ninelives.core.ids import wire_id
from ninelives.core.state import RunState
from ninelives.dialects.approval import Reply
from ninelives.dialects.messages import body, errors, frames, parse, shapes
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import refusal
from ninelives.engine.base import Projection, Ticket
from ninelives.http import answering
from ninelives.http.answering import Body
from ninelives.http.describe.operations import KEY, SESSION, SESSION_KEY, TOOL_PROGRESS, Endpoint, Operation
from ninelives.http.routes.base import RunRoutes


class MessagesRoutes(RunRoutes):
    """/v1/messages. This API has no retrieval: runs are watched on /v1/runs, by their msg_ id too."""

    base = "/v1/messages"
    noun = "message"
    eager = False

    pure_parse = staticmethod(parse.parse)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("POST", "/count_tokens", self.count, COUNT),
        ]

    def body(self, state: RunState, metadata: dict[str, str] | None) -> shapes.AnthropicMessage:
        """See RunRoutes.body: a message shows no metadata."""
        return body.body(state)

    def refusal(self, state: RunState) -> NinelivesError | None:
        """See RunRoutes.refusal."""
        return refusal(state)

    def broken_frame(self, reason: str) -> bytes:
        """See RunRoutes.broken_frame."""
        return errors.broken_frame(reason)

    def continuation(self, reply: Reply, asking: RunState, shown_id: str) -> tuple[Projection, Body]:
        """See RunRoutes.continuation: a message of its own."""

        def rest(later: RunState, metadata: dict[str, str] | None) -> shapes.AnthropicMessage:
            return replace(body.body(later, asking), id=shown_id)

        return frames.ContinuedMessages(reply.code, shown_id), rest

    async def answer_created(self, request: Request, parsed: ParsedRequest, ticket: Ticket) -> ASGIApp:
        """See RunRoutes.answer_created. A caller who has the beginning gets the rest."""
        call, finished = parsed.got
        if not call or not parsed.stream:
            return await super().answer_created(request, parsed, ticket)
        shown_id = wire_id(self.dialect.name, self.parts.engine.new_id())
        how = self.how.varied(projection=frames.ResumedMessages(call, shown_id, finished=finished))
        return await answering.answer_run(request, self.parts, ticket, how, stream=True)

    async def count(self, request: Request) -> Response:
        """POST count_tokens: an estimate."""
        context = self.context(request)
        raw = await self.read_body(request)
        count = await self.parts.aside.run(len(raw), parse.count, raw, context, self.parts.max_parts)
        return answering.answer(shapes.AnthropicCount(count))


CREATE = Operation(
    summary="Create a message, in the words of Anthropic's API",
    params=(KEY, SESSION, SESSION_KEY, TOOL_PROGRESS),
    body=parse.MessagesRequest,
    required=("messages", "max_tokens"),
    answers={200: shapes.AnthropicMessage},
    stream="message_start to message_stop; with stream: true.",
    errors=(404, 409, 429, 502, 504),
    error=shapes.AnthropicError,
)
COUNT = Operation(
    summary="Count the tokens of a message, about",
    body=parse.CountRequest,
    required=("messages",),
    answers={200: shapes.AnthropicCount},
    errors=(404,),
    error=shapes.AnthropicError,
)

"""Anthropic Messages over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.core.ids import wire_id
from holdfast.core.state import RunState
from holdfast.dialects.approval import Reply
from holdfast.dialects.messages import body, frames, parse
from holdfast.dialects.messages.errors import broken_frame
from holdfast.dialects.shared import refusal
from holdfast.http import calls, shapes_messages
from holdfast.http.calls import Answering, Parts
from holdfast.http.describe import KEY, SESSION, SESSION_KEY, TOOL_PROGRESS, Operation, described

HOW = Answering(
    projection=frames.MessagesProjection(),
    body=lambda state, metadata: body.body(state),
    refusal=refusal,
    eager=False,
    broken=broken_frame,
)


def _rest(reply: Reply, asking: RunState, new: str) -> Answering:
    """The rest of a run whose question was answered, as a message of its own (G11)."""
    shown_id = wire_id("messages", new)

    def rest(later: RunState, metadata: dict[str, str] | None) -> dict[str, object]:
        return {**body.body(later, asking), "id": shown_id}

    projection = frames.ContinuedMessages(reply.code, shown_id)
    return Answering(
        projection=projection, body=rest, refusal=refusal, eager=False, answered=reply.code, broken=broken_frame
    )


class MessagesRoutes:
    """/v1/messages. There is no retrieval in this API: runs are watched on /v1/runs, by their msg_ id too."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/messages"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base + "/count_tokens", self.count, methods=["POST"]),
        ]

    @described(
        Operation(
            tag="Messages",
            summary="Create a message, in the words of Anthropic's API",
            params=(KEY, SESSION, SESSION_KEY, TOOL_PROGRESS),
            body=parse.MessagesRequest,
            required=("messages", "max_tokens"),
            answers={200: shapes_messages.AnthropicMessage},
            stream="message_start to message_stop; with stream: true.",
            errors=(404, 409, 429, 502, 504),
            error=shapes_messages.AnthropicError,
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        """POST: begin a run, or attach by key."""
        context = calls.context_of(request, self._parts)
        parsed = parse.parse(await calls.body_of(request, self._parts), context, self._parts.max_parts)
        return await calls.talked(request, self._parts, context, parsed, HOW, _rest)

    @described(
        Operation(
            tag="Messages",
            summary="Count the tokens of a message, about",
            body=parse.CountRequest,
            required=("messages",),
            answers={200: shapes_messages.AnthropicCount},
            errors=(404,),
            error=shapes_messages.AnthropicError,
        )
    )
    async def count(self, request: Request) -> Response:
        """POST count_tokens: an estimate."""
        context = calls.context_of(request, self._parts)
        raw = await calls.body_of(request, self._parts)
        return calls.answer({"input_tokens": parse.count(raw, context, self._parts.max_parts)})

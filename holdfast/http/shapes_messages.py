"""The shapes of answers in the words of Anthropic's API, for /openapi.json. See shapes.py."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.http.shapes import Count, Json


class AnthropicErrorDetail(Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(Struct):
    """An error in the shape of that API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


class AnthropicMessage(Struct):
    """The answer, in blocks."""

    id: Annotated[str, Meta(pattern="^msg_")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"] | None
    stop_sequence: None
    usage: Json


class AnthropicCount(Struct):
    """About how many tokens a request holds."""

    input_tokens: Count

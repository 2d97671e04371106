"""The JSON of a message. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
A field that is always sent has no default. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ninelives.dialects.fields import Count, Json

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class AnthropicErrorDetail(Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str
    code: str
    """Our own code: it says more than a type."""


class AnthropicError(Struct, frozen=True):
    """An error in the shape of that API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


class AnthropicUsage(Struct, frozen=True):
    """Tokens. Those read from a cache are not among input_tokens."""

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class AnthropicMessage(Struct, frozen=True):
    """The answer, in blocks."""

    id: Annotated[str, Meta(pattern="^msg_")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: StopReason | None
    stop_sequence: None
    usage: AnthropicUsage


class AnthropicCount(Struct, frozen=True):
    """About how many tokens a request holds."""

    input_tokens: Count

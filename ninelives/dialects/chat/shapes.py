"""The JSON of a chat completion. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
A field that is always sent has no default. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.core.table import Status
from ninelives.dialects.fields import Count, Json

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatUsage(Struct, frozen=True):
    """Tokens, as Chat Completions counts them."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatMessage(Struct, frozen=True):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Json] | UnsetType = UNSET


class Choice(Struct, frozen=True):
    """The one choice."""

    index: Literal[0]
    message: ChatMessage
    finish_reason: FinishReason | None
    logprobs: None


class Completion(Struct, frozen=True):
    """A chat completion."""

    id: Annotated[str, Meta(pattern="^chatcmpl-")]
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[Choice], Meta(min_length=1, max_length=1)]
    usage: ChatUsage
    metadata: dict[str, str] | UnsetType = UNSET
    status: Status | UnsetType = UNSET

"""The JSON of a response. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
A field that is always sent has no default. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.core.table import Status
from ninelives.dialects.fields import Count, Json

ItemStatus = Literal["in_progress", "completed", "incomplete"]
McpStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseUsage(Struct, frozen=True):
    """Tokens, summed over all model calls of the run."""

    input_tokens: Count
    input_tokens_details: dict[str, int]
    output_tokens: Count
    output_tokens_details: dict[str, int]
    total_tokens: Count


class MessageItem(Struct, frozen=True, tag_field="type", tag="message"):
    """What the agent said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[Json]


class ReasoningItem(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the agent thought, as a summary."""

    id: str
    summary: list[Json]
    status: ItemStatus


class FunctionCallItem(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call: of the caller's own tool, or of a server tool in the style function_call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutputItem(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """What a server tool gave; plain text in a body, parts in a frame."""

    id: str
    call_id: str
    output: str | list[Json]
    status: ItemStatus


class McpCallItem(Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A server tool's call and what it gave, in the style mcp_call."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: Json | None
    approval_request_id: str | None
    status: McpStatus


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem | McpCallItem


class Response(Struct, frozen=True, kw_only=True):
    """A response, while it runs and after."""

    id: Annotated[str, Meta(pattern="^resp_")]
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: bool
    conversation: dict[str, str] | None
    error: dict[str, str] | None
    frequency_penalty: float
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Json | None
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    ignored_tools: tuple[str, ...] | UnsetType = UNSET
    """Types of tools that the request named and that were left out, if there are any."""


class InputTokens(Struct, frozen=True):
    """About how many tokens the first model call would be sent."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class Compaction(Struct, frozen=True):
    """What the user said, then a sealed summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Json]
    usage: ResponseUsage

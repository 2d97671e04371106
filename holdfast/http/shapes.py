"""The shapes of answers, for /openapi.json. Owns: one Struct for each JSON body that the server gives; fields that are
always there have no default, and what a body may hold besides is not forbidden. Nothing is built with them: bodies come
from the dialects, and the schema tests hold the two together. Refuses to know: routes."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

T = TypeVar("T")
Json = dict[str, object]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(description="Seconds since 1970.")]
Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
RunStatus = Literal[
    "queued", "running", "waiting_for_approval", "stopping", "completed", "failed", "cancelled", "incomplete"
]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ErrorDetail(Struct):
    """What went wrong; the message says what to do next."""

    message: str
    type: str
    param: str | None
    code: str


class Error(Struct):
    """The one shape of an error."""

    error: ErrorDetail


class Page(Struct, Generic[T]):
    """A page of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Listing(Struct, Generic[T]):
    """A whole list."""

    object: Literal["list"]
    data: list[T]


class Deleted(Struct):
    """It is gone."""

    id: str
    object: str
    deleted: Literal[True]


# the server


class Health(Struct):
    """The process answers. Others than ok only where replicas share a database."""

    status: Literal["ok", "degraded", "draining"]
    platform: Literal["holdfast"]


class DetailedHealth(Struct):
    """How the parts are; 503 where one is degraded."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    uptime_s: float
    store: Json
    runs: dict[str, int]
    readers: Count
    limits: Json
    upstream: Json
    recovery: dict[str, int]
    expired: Count
    replicas: dict[str, int] | UnsetType = UNSET
    admin: Json | UnsetType = UNSET


class Model(Struct):
    """A profile, as clients choose it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Capabilities(Struct):
    """What this server does."""

    object: Literal["capabilities"]
    version: str
    models: list[str]
    dialects: list[str]
    endpoints: list[str]
    tool_items: list[str]
    tool_progress: list[str]
    store: Json
    features: Json
    limits: Json


class Toolset(Struct):
    """The tools of a profile, each with effect and approval class."""

    profile: str
    tools: list[Json]


# responses


class ResponseUsage(Struct):
    """Tokens, summed over all model calls of the run."""

    input_tokens: Count
    input_tokens_details: dict[str, int]
    output_tokens: Count
    output_tokens_details: dict[str, int]
    total_tokens: Count


class MessageItem(Struct, tag_field="type", tag="message"):
    """What the agent said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[Json]


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """What the agent thought, as a summary."""

    id: str
    summary: list[Json]
    status: ItemStatus


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    """A call: of the caller's own tool, or of a server tool in the style function_call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutputItem(Struct, tag_field="type", tag="function_call_output"):
    """What a server tool gave; plain text in a body, parts in a frame."""

    id: str
    call_id: str
    output: str | list[Json]
    status: ItemStatus


class McpCallItem(Struct, tag_field="type", tag="mcp_call"):
    """A server tool's call and what it gave, in the style mcp_call."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: Json | None
    approval_request_id: str | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]


class Response(Struct):
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
    output: list[MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem | McpCallItem]
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


class StoredItem(Struct):
    """An item or message of a request, as it was sent, with an id."""

    id: str


# chat


class ChatUsage(Struct):
    """Tokens, as Chat Completions counts them."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class ChatMessage(Struct):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Json] | UnsetType = UNSET


class Choice(Struct):
    """The one choice."""

    index: Literal[0]
    message: ChatMessage
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None
    logprobs: None


class Completion(Struct):
    """A chat completion."""

    id: Annotated[str, Meta(pattern="^chatcmpl-")]
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[Choice], Meta(min_length=1, max_length=1)]
    usage: ChatUsage
    metadata: dict[str, str] | UnsetType = UNSET
    status: Status | UnsetType = UNSET


# runs


class RunStarted(Struct):
    """The run goes on by itself."""

    run_id: Annotated[str, Meta(pattern="^run_")]
    status: Literal["started"]


class Run(Struct):
    """A run, whatever API began it."""

    object: Literal["hermes.run"]
    run_id: Annotated[str, Meta(pattern="^run_")]
    status: RunStatus
    session_id: str | None
    model: str
    created_at: Seconds
    updated_at: Seconds
    last_event: str
    output: str
    usage: ResponseUsage
    usage_incomplete: bool
    attempt: Count
    error: str | None


class RunStopped(Struct):
    """It ends soon, or has ended."""

    run_id: str
    status: RunStatus


class Pinned(Struct):
    """Whether retention leaves it alone."""

    run_id: str
    pinned: bool


class Approved(Struct):
    """The answer that was taken."""

    run_id: str
    toolCallId: str
    choice: Literal["once", "session", "always", "deny"]


class Receipt(Struct):
    """What happened to a run: attempts, steps, unknown outcomes, approvals, tokens."""

    object: Literal["hermes.run.receipt"]
    run_id: str
    status: RunStatus
    attempts: list[Json]
    recoveries: Count
    steps: list[Json]
    repeated: list[str]
    unknown_outcomes: list[str]
    drafts_dropped: Count
    approvals: list[Json]
    usage: ResponseUsage
    usage_incomplete: bool
    usage_saved_by_recovery: ResponseUsage
    error: Json | None


# sessions


class Session(Struct):
    """A named session."""

    object: Literal["session"]
    id: str
    title: str | None
    turns: Count
    created_at: Seconds
    updated_at: Seconds


# conversations


class Conversation(Struct):
    """A line of runs under one id."""

    id: Annotated[str, Meta(pattern="^conv_")]
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
    name: str | None


class InputTokens(Struct):
    """About how many tokens the first model call would be sent."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class Compaction(Struct):
    """What the user said, then a sealed summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Json]
    usage: ResponseUsage

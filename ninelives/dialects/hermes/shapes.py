"""The JSON of hermes-agent's API. Owns: its Structs, beside those of the Runs API. Answers are built with them, and
/openapi.json describes them. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ninelives.dialects.fields import Count, Seconds
from ninelives.dialects.responses.shapes import ResponseUsage
from ninelives.dialects.runs.shapes import RunStatus

GatewayState = Literal["running", "draining"]


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """How the server is, for a status page. It is open, so it names no secret, path or pid; an admin key gets the
    pid."""

    platform: Literal["hermes-agent"]
    server: Literal["ninelives"]
    version: str
    gateway_running: bool
    gateway_state: GatewayState
    active_agents: Count
    gateway_busy: bool
    platforms: dict[str, dict[str, str]]
    gateway_platforms: dict[str, dict[str, str]]
    exit_reason: str | None
    updated_at: str
    pid: int | UnsetType = UNSET


class ModelProvider(Struct, frozen=True):
    """The models of one provider. This server has one: itself."""

    slug: str
    name: str
    is_current: bool
    is_user_defined: bool
    models: list[str]
    total_models: Count
    source: str
    authenticated: bool


class ModelOptions(Struct, frozen=True):
    """What a model picker shows: the profiles of the key."""

    providers: list[ModelProvider]
    model: str
    provider: str


class SessionAnswer(Struct, frozen=True):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str


class SessionCompletion(Struct, frozen=True, kw_only=True):
    """The answer of a chat in a session."""

    object: Literal["hermes.session.chat.completion"]
    session_id: str
    message: SessionAnswer
    usage: ResponseUsage
    run_id: str
    status: RunStatus
    model: str
    created_at: Seconds


class SessionModel(Struct, frozen=True):
    """The model that answers in a session from now on."""

    object: Literal["hermes.session.model_lock"]
    session_id: str
    runtime: dict[str, str]

"""The JSON of answers that belong to no dialect. Owns: their Structs. Answers are built with them, and /openapi.json
describes them. A field that is always sent has no default. Refuses to know: routes."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.dialects.fields import Count, Json, Seconds
from ninelives.dialects.hermes.shapes import GatewayState

T = TypeVar("T")
HealthStatus = Literal["ok", "degraded", "draining"]


class ListPage(Struct, Generic[T], frozen=True):
    """A page of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Listing(Struct, Generic[T], frozen=True):
    """A whole list."""

    object: Literal["list"]
    data: list[T]


class Deleted(Struct, frozen=True):
    """It is gone."""

    id: str
    object: str
    deleted: Annotated[bool, Meta(extra_json_schema={"enum": [True]})]  # msgspec < 0.22 refuses Literal[True]


class UsageDay(Struct, frozen=True):
    """What an owner spent with a model on a day (UTC)."""

    day: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    owner: str
    model: str
    runs: Count
    """Runs that were started."""
    errors: Count
    """Runs that failed. A run can fail on a later day than it was started."""
    input_tokens: Count
    output_tokens: Count
    cached_tokens: Count
    reasoning_tokens: Count
    cost: Annotated[float, Meta(ge=0)]
    """In the currency of the prices, or of the upstream's own bill."""


class StoredItem(Struct, frozen=True):
    """An item or message of a request, as it was sent, with an id."""

    id: str


class Readiness(Struct, frozen=True, omit_defaults=True):
    """Whether the server should get requests."""

    status: HealthStatus
    reason: str = ""


class Health(Struct, frozen=True):
    """The process answers."""

    status: HealthStatus
    platform: Literal["hermes-agent"]
    """The platform whose clients can call it."""
    server: Literal["ninelives"]
    version: str | UnsetType = UNSET


class DetailedHealth(Struct, frozen=True, kw_only=True):
    """How the parts are."""

    status: HealthStatus
    version: str
    platform: Literal["hermes-agent"]
    """The platform whose clients can call it; those also read the fields down to pid."""
    server: Literal["ninelives"]
    gateway_state: GatewayState
    active_agents: Count
    gateway_busy: bool
    platforms: dict[str, dict[str, str]]
    exit_reason: str | None
    updated_at: str
    pid: int | UnsetType = UNSET
    uptime_s: float
    store: Json
    runs: dict[str, int]
    readers: Count
    limits: Json
    upstream: Json
    mcp: dict[str, int]
    """How many MCP servers are configured, and how many are connected."""
    tools: Json
    """The sandbox, whether shell tools are on, and what to do if they are not."""
    recovery: dict[str, int]
    expired: Count
    replicas: dict[str, int] | UnsetType = UNSET
    admin: Json | UnsetType = UNSET


class ModelObject(Struct, frozen=True):
    """A profile, as clients choose it. It has the fields of both families of clients: each reads its own."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    permission: list[Json]
    root: str
    parent: str | None
    type: Literal["model"]
    display_name: str
    created_at: str


class Capabilities(Struct, frozen=True, kw_only=True):
    """What this server does."""

    object: Literal["hermes.api_server.capabilities"]
    platform: Literal["hermes-agent"]
    server: Literal["ninelives"]
    version: str
    model: str
    """The default one."""
    models: list[str]
    auth: Json
    runtime: Json
    dialects: list[str]
    routes: list[str]
    """All of them, as METHOD /path."""
    endpoints: dict[str, dict[str, str]]
    """Those that clients of hermes-agent know by name."""
    tool_items: list[str]
    tool_progress: list[str]
    store: Json
    features: Json
    sandbox: Json
    """What bounds the commands of tools: its kind, and what it holds. null is no bound."""
    limits: Json


class Toolset(Struct, frozen=True):
    """The tools of a profile, and those that are off, each with the reason. `name` to `tools` are for clients of
    hermes-agent."""

    profile: str
    name: str
    label: str
    description: str
    enabled: bool
    configured: bool
    tools: list[str]
    details: list[Json]
    """The same tools with effect and approval class."""
    off: list[Json] = []


class Toolsets(Struct, frozen=True):
    """The tools of all profiles, and the MCP servers: whether each is connected, or why not, and what it lists."""

    object: Literal["list"]
    platform: Literal["api_server"]
    data: list[Toolset]
    mcp: list[Json]


class ApprovalGrant(Struct, frozen=True):
    """A call that may be made again without asking."""

    object: Literal["approval.grant"]
    id: str
    tool: str
    arguments: str
    """JSON. Exactly these arguments are covered."""
    session_id: str | None
    """The only session in which it counts; null: in all."""
    created_at: Seconds
    by: str


class Session(Struct, frozen=True, omit_defaults=True):
    """A session. The second half of the names is hermes-agent's."""

    object: Literal["session"]
    id: str
    title: str | None
    preview: str
    source: str
    model: str
    end_reason: str | None
    turns: Count
    message_count: Count
    input_tokens: Count
    output_tokens: Count
    created_at: Seconds
    updated_at: Seconds
    started_at: Seconds
    last_active: Seconds
    snippet: str = ""
    """In a search: where it was found, with >>> and <<< around the hits."""


class OneSession(Session, frozen=True, omit_defaults=True, kw_only=True):
    """A session, as it is answered alone. `session` has the same fields, where hermes-agent has them."""

    session: Session


class SessionPage(Struct, frozen=True):
    """A page of sessions."""

    object: Literal["list"]
    data: list[Session]
    first_id: str | None
    last_id: str | None
    has_more: bool
    limit: Count
    offset: Count


class SessionMessage(Struct, frozen=True):
    """A message of a session, in the form of Chat Completions. `timestamp` is the time of its turn."""

    id: str
    session_id: str
    timestamp: Seconds
    role: str


class SessionMessages(Struct, frozen=True):
    """The messages of a session, oldest first."""

    object: Literal["list"]
    session_id: str
    data: list[SessionMessage]


class SessionExport(Struct, frozen=True):
    """A session with its messages."""

    object: Literal["session.export"]
    session: Session
    messages: list[SessionMessage]

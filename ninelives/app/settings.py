"""Settings. Owns: every option with its default, unit and one line of documentation; the tables of the configuration
file; the order in which values win (argument, environment, file, default); and what is refused. With keys.py,
config_file.py and environment.py the only reader of the environment and of the configuration and key files. Refuses to
know: what the options are used for.

An empty environment variable counts as not set, so `KEY=${KEY:-}` in a compose file does no harm."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ninelives.app.config_file import FILE_ENV, FoundConfig, find_config
from ninelives.app.environment import FILE as SECRET_FILE
from ninelives.app.environment import secret_files
from ninelives.app.errors import ConfigError
from ninelives.app.keys import MAKE_KEY, weakness
from ninelives.core.hosts import LEAST, is_loopback, longest
from ninelives.core.limits import NO_LIMITS, Limits, Price
from ninelives.core.spec import ToolProgress
from ninelives.dialects.clients import MATCHED_CHARS, Client

StoreFalse = Literal["journal", "memory"]
ToolItemStyle = Literal["auto", "function_call", "mcp_call"]
Sandbox = Literal["auto", "landlock", "docker", "off"]
ClientTools = Literal["auto", "pass", "ignore"]
OnLeave = Literal["auto", "detach", "cancel"]
Approval = Literal["auto", "never", "on-write", "always"]
Mode = Literal["never", "on-write", "always"]


def _doc(text: str, **more: Any) -> Meta:
    """One line of documentation for an option, with its bounds."""
    return Meta(description=text, **more)


_MASK = "********"
_WORDS = re.compile(r"\S+|\s+")
_USER = re.compile(r"://[^/@:\s]*+:")
_PASSWORD_PARAMETER = re.compile(r"(password=)[^&\s]+")
_SECRET = {"hidden": "all"}
_PASSWORD = {"hidden": "password"}
Seconds = Annotated[float, Meta(gt=0, le=31_536_000, extra={"unit": "seconds"})]
Pause = Annotated[float, Meta(ge=0, le=31_536_000, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40, extra={"unit": "bytes"})]
HeadSize = Annotated[int, Meta(ge=8192, le=1 << 20, extra={"unit": "bytes"})]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Whole = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Room = Annotated[int, Meta(ge=0, le=1 << 50, extra={"unit": "bytes"})]
AutoRoom = Annotated[int, Meta(ge=0, le=1 << 50)] | Literal["auto"]
Notice = Annotated[float, Meta(ge=0, le=3600)] | Literal["auto"]
_NOTICE = {"unit": "seconds", "allowed": "auto, or a number of seconds, at least 0 and at most 3600"}
Share = Annotated[float, Meta(gt=0, le=1)] | Literal["auto"]
_SHARE = {"allowed": "auto, or a number more than 0 and at most 1"}
_AUTO = {"unit": "bytes", "allowed": "auto, or a whole number of bytes, at least 0 and at most 1125899906842624"}
Text = Annotated[str, Meta(min_length=1, extra={"allowed": "text that is not empty"})]
Origin = Annotated[str, Meta(pattern=r"\A(\*|[a-z][a-z0-9+.-]*://[^/\s,@*]+)\Z")]
Server = Annotated[str, Meta(pattern=r"\Ahttps?://[^/\s,@*?#]+/?\Z")]
Host = Annotated[str, Meta(pattern=r"\A([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+)\Z")]
Proxy = Annotated[str, Meta(pattern=r"\A(unix|[0-9A-Fa-f:.]+(/[0-9]{1,3})?)\Z")]
WebHost = Annotated[str, Meta(pattern=r"\A(\*|(\*\.)?[^\s/:@*,]+|[0-9A-Fa-f:.]+)\Z")]
Url = Annotated[str, Meta(pattern=r"\A(https?://\S+|[a-z][a-z0-9_-]*:([A-Za-z]\S*)?)?\Z", extra=_PASSWORD)]
HttpUrl = Annotated[str, Meta(pattern=r"\A(https?://[^\s?#]+)?\Z")]
StoreUrl = Annotated[str, Meta(pattern=r"\A(sqlite|postgres(ql)?://\S+)?\Z")]
_ORIGINS = {"allowed": "* or exact origins such as https://chat.example.org, without a path or a final slash"}
_HOSTS = {"allowed": "host names or addresses without scheme and port, such as box.lan"}
_SERVERS = {"allowed": "addresses of servers such as http://10.0.0.5:8642, also private ones"}
_PROXIES = {"allowed": "addresses, networks such as 10.0.0.0/8, and unix for the Unix socket"}
_WEB_HOSTS = {"allowed": "host names such as docs.python.org, *.example.org for all hosts below one, or * for any"}
_URL = {"allowed": "a URL that begins with http:// or https://, or NAME: for an installed model"}
_HTTP = {"hidden": "password", "allowed": "nothing, or a URL that begins with http:// or https://, without ? and #"}
_STORE = {
    "hidden": "password",
    "allowed": "nothing or sqlite, or a URL such as postgresql://user:password@host/database",
}


def without_password(url: str) -> str:
    """A URL with its password masked."""
    masked = "".join(_without_userinfo(word) for word in _WORDS.findall(url))
    return _PASSWORD_PARAMETER.sub(rf"\1{_MASK}", masked)


def _without_userinfo(word: str) -> str:
    """A password ends at the last @ of a word. It may contain any other character."""
    before, at, host = word.rpartition("@")
    found = _USER.search(before)
    return f"{before[: found.end()]}{_MASK}{at}{host}" if found else word


class Section(Struct, frozen=True):
    """One table of the configuration file. Its repr masks secrets, so logs and tracebacks cannot show them."""

    def __repr__(self) -> str:
        own = (option for option in OPTIONS.values() if _SECTIONS[option.section] is type(self))
        shown = ", ".join(f"{o.name}={o.show(getattr(self, o.name))!r}" for o in own)
        return f"{type(self).__name__}({shown})"


class ServerSettings(Section, frozen=True):
    host: Annotated[Text, _doc("Address to listen on; beyond loopback with a key and allow_remote.")] = "127.0.0.1"
    port: Annotated[int, _doc("Port to listen on; 0 picks a free one.", ge=0, le=65535)] = 8642
    uds: Annotated[str, _doc("Unix socket to listen on, instead of host and port.")] = ""
    allow_remote: Annotated[bool, _doc("Listen beyond loopback, where other machines reach the server.")] = False
    trusted_proxies: Annotated[
        tuple[Proxy, ...], _doc("Proxies that may name their client in X-Forwarded-For.", extra=_PROXIES)
    ] = ()
    key: Annotated[str | None, _doc("The admin key, sent by clients as a bearer.", extra=_SECRET)] = None
    user_jwt_secret: Annotated[
        str | None, _doc("Secret with which a front end signs its end users.", extra=_SECRET)
    ] = None
    cors_origins: Annotated[tuple[Origin, ...], _doc("Web pages that may call, by origin.", extra=_ORIGINS)] = ()
    data_dir: Annotated[Text, _doc("Directory of the store, the key and workspaces.")] = "~/.local/share/ninelives"
    allowed_hosts: Annotated[tuple[Host, ...], _doc("Names of a loopback server besides loopback.", extra=_HOSTS)] = ()
    elsewhere: Annotated[tuple[Server, ...], _doc("Other servers that the web page shows.", extra=_SERVERS)] = ()
    model_name: Annotated[Text, _doc("Model id of the default profile.")] = "hermes-agent"
    unknown_model: Annotated[
        Literal["default", "error"], _doc("Unknown model: the default profile answers, or 404.")
    ] = "default"
    tls_cert: Annotated[str, _doc("Certificate with its chain (PEM), for https; needs tls_key.")] = ""
    tls_key: Annotated[str, _doc("File with the key of tls_cert (PEM, without a password).")] = ""
    worker: Annotated[bool, _doc("Execute stored runs here; false leaves them to other replicas.")] = True
    supervisor: Annotated[bool, _doc("Restart a server that dies (Linux); false: one process.")] = True
    spare: Annotated[bool, _doc("Keep an idle process: restarts take 0.1 s, for 45 MB.")] = True
    keep_calls: Annotated[bool, _doc("Model calls survive a killed server: the supervisor keeps them.")] = True
    keep_clients: Annotated[bool, _doc("Streams survive a killed server: the supervisor keeps clients.")] = True
    replica: Annotated[str, _doc("Name of this replica in health; empty is host:port.")] = ""

    @property
    def data_path(self) -> Path:
        """The data directory with ~ resolved."""
        return Path(self.data_dir).expanduser()


class StoreSettings(Section, frozen=True):
    url: Annotated[StoreUrl, _doc("Empty: SQLite in data_dir; postgresql://...: many machines.", extra=_STORE)] = ""
    direct_url: Annotated[StoreUrl, _doc("The same past a pooler such as pgbouncer, for LISTEN.", extra=_STORE)] = ""
    prepared: Annotated[bool, _doc("Prepare statements; false for poolers that cannot (pgbouncer).")] = True
    lanes: Annotated[int, _doc("Connections of a replica that write the log.", ge=1, le=64)] = 2
    pool: Annotated[int, _doc("Connections of a replica for all other queries.", ge=1, le=1000)] = 4
    wait_s: Annotated[float, _doc("Longest wait for a database that is down at the start (seconds).", ge=0, le=1e6)] = (
        30.0
    )
    lease_s: Annotated[Seconds, _doc("Silence of a replica after which others take its runs (PostgreSQL).")] = 15.0
    hold_s: Annotated[Seconds, _doc("How long new requests wait for a database that is away. Then: 503.")] = 10.0
    durability: Annotated[Literal["normal", "full"], _doc("full survives power loss too, at an fsync each.")] = "normal"
    max_responses: Annotated[Whole, _doc("Stored runs per owner, least recently used go first; 0: no bound.")] = 10_000
    unstored_hours: Annotated[float, _doc("Hours that unstored chats stay; 0: until delivered.", ge=0, le=1e6)] = 24.0
    max_days: Annotated[float, _doc("Days since a run was last used, then it goes; 0: no bound.", ge=0, le=36500)] = 0.0
    owner_bytes: Annotated[Room, _doc("Bytes that one owner may keep, files of tools included; 0: no bound.")] = 0
    total_bytes: Annotated[AutoRoom, _doc("The same of all owners; auto: half of the disk.", extra=_AUTO)] = "auto"
    audit_days: Annotated[float, _doc("Days that the audit log is kept; 0: no bound.", ge=0, le=36500)] = 90.0
    audit_rows: Annotated[Whole, _doc("Entries of the audit log that are kept; 0: no bound.")] = 1_000_000
    retention_s: Annotated[Seconds, _doc("Time between two checks of the bounds above.")] = 30.0
    low_water_bytes: Annotated[Room, _doc("Free disk under which new runs are refused; 0: none.")] = 67_108_864
    ballast_bytes: Annotated[Room, _doc("A file given back when the disk is short; 0: none.")] = 16_777_216

    @property
    def shared(self) -> bool:
        """Is it a database that other machines use too?"""
        return self.url not in ("", "sqlite")


class ModelSettings(Section, frozen=True):
    url: Annotated[Url, _doc("OpenAI-compatible upstream, NAME: of an installed model, or demo:.", extra=_URL)] = ""
    name: Annotated[str, _doc("Model to ask for upstream; empty is the first that it lists.")] = ""
    api_key: Annotated[str | None, _doc("Key of the upstream.", extra=_SECRET)] = None
    connect_s: Annotated[Seconds, _doc("Longest wait for a connection to the upstream.")] = 10.0
    first_byte_s: Annotated[Seconds, _doc("Longest wait for the first byte of an answer.")] = 120.0
    stall_s: Annotated[Seconds, _doc("Longest silence in the middle of an answer.")] = 60.0
    total_s: Annotated[Seconds, _doc("Longest time for one whole answer.")] = 1800.0
    retries: Annotated[int, _doc("Further tries after a failure before the first token.", ge=0, le=20)] = 2


class AgentSettings(Section, frozen=True):
    system_prompt: Annotated[str, _doc("System prompt of the default profile.")] = ""
    max_rounds: Annotated[Count, _doc("Model calls in one run; then it ends incomplete.")] = 50
    max_message_bytes: Annotated[Bytes, _doc("Size of one message; then it ends incomplete.")] = 4_194_304
    tool_progress: Annotated[ToolProgress, _doc("Tool progress in chat; off for openai-node 4.x.")] = "compatible"
    tool_items: Annotated[ToolItemStyle, _doc("Items by which Responses show server tools.")] = "auto"
    output_event_bytes: Annotated[Bytes, _doc("Tool output shown in an event; the journal has all.")] = 16_384
    store_false: Annotated[StoreFalse, _doc("Where runs with store=false are: journal or memory.")] = "journal"
    resend_window_s: Annotated[Seconds, _doc("How long the same request joins a run whose connection broke.")] = 900.0
    resend_anonymous_s: Annotated[Seconds, _doc("The same, where no id of a user or chat is sent.")] = 120.0
    on_disconnect: Annotated[OnLeave, _doc("What a disconnect does when store is left out; auto: by client.")] = "auto"
    client_tools: Annotated[ClientTools, _doc("Tools in requests; auto ignores Open WebUI's own.")] = "auto"
    context_tokens: Annotated[int, _doc("The model's window in tokens; 0 leaves nothing out.", ge=0, le=10**9)] = 0
    on_unknown: Annotated[Literal["tell", "ask"], _doc("An interrupted write: tell the model, or ask.")] = "tell"
    object: Annotated[str, _doc("Agent of your own, as module:object or file.py:object.")] = ""


class ToolSettings(Section, frozen=True):
    sandbox: Annotated[Sandbox, _doc("How shell and file tools are fenced; auto is bubblewrap.")] = "auto"
    docker_image: Annotated[Text, _doc("Image of the containers of sandbox docker; it is never pulled.")] = (
        "python:3.12-slim"
    )
    docker_program: Annotated[str, _doc("docker, podman or a path; empty: the first that is installed.")] = ""
    docker_network: Annotated[Text, _doc("Network of the containers, as docker names it.")] = "none"
    docker_memory_bytes: Annotated[Bytes, _doc("Memory of a container.")] = 2_147_483_648
    approval: Annotated[Approval, _doc("When to ask a person; auto: never in bubblewrap, else on-write.")] = "auto"
    workspace: Annotated[Literal["owner", "session"], _doc("Whose chats share one workspace.")] = "owner"
    approval_ttl_s: Annotated[Seconds, _doc("How long a question waits for its answer; then denied.")] = 3600.0
    modules: Annotated[tuple[str, ...], _doc("Python modules with tools of your own.")] = ()
    workspace_bytes: Annotated[Room, _doc("Bytes that one workspace may hold; 0: no bound.")] = 10_737_418_240


class WebSettings(Section, frozen=True):
    allow: Annotated[tuple[WebHost, ...], _doc("Hosts that web_fetch may visit unasked.", extra=_WEB_HOSTS)] = ()
    searxng_url: Annotated[
        HttpUrl, _doc("SearXNG server for the web_search tool; it must offer JSON.", extra=_HTTP)
    ] = ""
    tavily_key: Annotated[str | None, _doc("Key of Tavily, for web_search without SearXNG.", extra=_SECRET)] = None


class LogSettings(Section, frozen=True):
    level: Annotated[
        Literal["info", "warning", "error"], _doc("The least important lines that are written; info: one per request.")
    ] = "info"


class MetricsSettings(Section, frozen=True):
    open: Annotated[bool, _doc("GET /metrics needs no key.")] = False


class TraceSettings(Section, frozen=True):
    url: Annotated[HttpUrl, _doc("Where OTLP traces go, such as http://HOST:4318/v1/traces.", extra=_HTTP)] = ""
    authorization: Annotated[str | None, _doc("The Authorization header of traces.", extra=_SECRET)] = None
    content: Annotated[bool, _doc("Traces carry what was said, and arguments and results of tools.")] = False


class LimitSettings(Section, frozen=True):
    concurrent_runs: Annotated[Count, _doc("Runs at work at the same time.")] = 256
    connections: Annotated[Count, _doc("Connections at the same time; idle ones give way, then 503.")] = 16_384
    idle_s: Annotated[Seconds, _doc("Silence of a new connection before its first byte; then it is closed.")] = 10.0
    head_s: Annotated[Seconds, _doc("How long the head of a request may take to arrive; then 408.")] = 20.0
    head_bytes: Annotated[HeadSize, _doc("Size of request line and headers; then 431.")] = 65_536
    unread_bytes: Annotated[Bytes, _doc("What clients may leave unread, all together; then cut.")] = 134_217_728
    queue: Annotated[int, _doc("Runs that wait for a place; then 429 with Retry-After.", ge=0, le=10**9)] = 1024
    queue_bytes: Annotated[Bytes, _doc("Bytes of the requests that wait for a place; then 429.")] = 1_073_741_824
    queue_share: Annotated[float, _doc("What part of the queue one owner may fill.", gt=0, le=1)] = 0.75
    owner_share: Annotated[
        Share, _doc("What part of concurrent_runs one owner may fill; auto: 0.75 once others came.", extra=_SHARE)
    ] = "auto"
    body_bytes: Annotated[Bytes, _doc("Size of a request body; then 413.")] = 10_000_000
    body_s: Annotated[Seconds, _doc("How long a request body may take to arrive; then 408.")] = 120.0
    json_depth: Annotated[int, _doc("Nesting of a JSON body, in levels; then 400.", ge=4, le=512)] = 64
    json_values: Annotated[Count, _doc("Values in a JSON body: members and elements; then 400.")] = 100_000
    parts: Annotated[Count, _doc("Messages, items and content parts in one request; then 400.")] = 2048
    keepalive_s: Annotated[Seconds, _doc("Silence on a stream before a keepalive comment.")] = 15.0
    drain_s: Annotated[Seconds, _doc("Time for running work to reach a safe point on SIGTERM.")] = 10.0
    drain_notice_s: Annotated[
        Notice, _doc("How long a server that stops still listens. auto: as long as it drains.", extra=_NOTICE)
    ] = "auto"
    tool_timeout_s: Annotated[Seconds, _doc("Longest time for one tool call.")] = 60.0
    tool_output_bytes: Annotated[Bytes, _doc("Output kept of one tool call; the rest is counted.")] = 1_048_576
    subscriber_bytes: Annotated[Bytes, _doc("What may wait for a slow reader; then it must resume.")] = 1_048_576
    websockets: Annotated[Count, _doc("Open websockets of one key; then 429.")] = 64
    websocket_s: Annotated[Seconds, _doc("Longest life of a websocket; then its client opens another.")] = 3600.0
    stall_s: Annotated[Seconds, _doc("Stall of the reader that owns a run before it is cancelled.")] = 60.0
    leave_grace_s: Annotated[Pause, _doc("Time to come back where leaving stops a run; 0: none.")] = 2.0
    chores: Annotated[Count, _doc("Front ends' titles, tags and follow-ups, and compactions, at the same time.")] = 8

    @property
    def notice_s(self) -> float | None:
        """drain_notice_s as a number; None: as long as the server drains."""
        return None if self.drain_notice_s == "auto" else self.drain_notice_s

    @property
    def stop_s(self) -> float:
        """The longest time that a stop waits for running work and for balancers."""
        return max(self.drain_s, self.notice_s or 0.0)


class ProfileTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[profiles.NAME]: another agent under its own model name. Options left out are those of the default profile."""

    owner: str | None = None
    """Whose profile it is: its runs, sessions, files and notes are kept apart from those of others."""
    key: str | None = None
    """The API key of that owner, with this profile as its default model."""
    system_prompt: str | None = None
    model_url: str | None = None
    model_name: str | None = None
    model_api_key: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of its tools; left out: all."""
    approval: Mode | None = None
    web_allow: tuple[WebHost, ...] | None = None
    workspace: Literal["owner", "session"] | None = None
    store_false: Literal["journal", "memory"] | None = None
    on_disconnect: Literal["auto", "detach", "cancel"] | None = None
    client_tools: Literal["auto", "pass", "ignore"] | None = None
    tool_items: Literal["auto", "function_call", "mcp_call"] | None = None
    context_tokens: int | None = None
    agent: str | None = None
    """An agent of your own, as module:object or file.py:object; left out: the built-in agent."""
    limits: Limits = NO_LIMITS
    """What all who use the profile may use together."""


class OwnerTable(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[owners.NAME]: what an owner may use. The table "*" is for all owners, where their own table says nothing."""

    weight: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """The share of the slots while others wait too; 1 where nothing is said."""
    stored_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    """In place of store.owner_bytes, for what the store keeps. Files of tools still count by store.owner_bytes."""

    def limits(self) -> Limits:
        """What may be used at a time."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


class ApprovalRule(Struct, frozen=True, forbid_unknown_fields=True):
    """[[approvals]]: when to ask before calls of a tool (or `*`) whose arguments match an expression. See
    agents/rules.py."""

    tool: str
    ask: Mode
    match: str = ""
    field: str = ""


class Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """The tables whose names the user chooses. They come from the file only, never from the environment, a flag or a
    request."""

    profiles: dict[str, ProfileTable] = {}
    approvals: tuple[ApprovalRule, ...] = ()
    mcp: dict[str, dict[str, Any]] = {}
    clients: tuple[Client, ...] = ()
    """[[clients]]: rows that come before the built-in table of clients."""
    owners: dict[str, OwnerTable] = {}
    prices: dict[str, Price] = {}
    """[prices."MODEL"]: what a million tokens cost, by the name of a model at its upstream or of a profile."""


_TABLES = Tables.__struct_fields__


class Settings(Struct, frozen=True):
    """All settings of a server."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    model: ModelSettings = ModelSettings()
    agent: AgentSettings = AgentSettings()
    tools: ToolSettings = ToolSettings()
    web: WebSettings = WebSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()
    tables: Tables = Tables()

    @property
    def own_agents(self) -> list[str]:
        """The agents of the user that these settings name, as `module:object`."""
        given = (self.agent.object, *(table.agent for table in self.tables.profiles.values()))
        return [name for name in given if name]

    @classmethod
    def load(
        cls,
        options: Mapping[str, object] | None = None,
        *,
        config: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read settings as `ninelives serve` does: `options` win over the environment, which wins over the file.

        `options` have dotted names: {"server.port": 0}. `config` is the configuration file (default: the usual
        places). `env` replaces the process environment. Warns of a file that is not trusted. Raises ConfigError."""
        path = None if config is None else Path(config)
        return _warned(load(path, os.environ if env is None else env, options or {}, "the program")).settings


class Option(Struct, frozen=True):
    """One option, as documentation, errors and `config show` need it."""

    section: str
    name: str
    type: Any  # Any: a type expression, which has no type of its own
    default: object
    doc: str
    allowed: str
    hidden: Literal["nothing", "password", "all"]

    @property
    def key(self) -> str:
        """Its name in the file, dotted."""
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        """Its name in the environment."""
        return f"NINELIVES_{self.section}_{self.name}".upper()

    def show(self, value: object) -> str:
        """The value as text, secrets masked."""
        if self.hidden == "all" and value is not None:
            return _MASK
        if self.hidden == "password" and isinstance(value, str):
            return without_password(value)
        return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


class OptionRow(Struct, frozen=True):
    """A line of `config show`."""

    key: str
    value: str
    origin: str
    doc: str


class LoadedSettings(Struct, frozen=True):
    """Settings, and where each value came from."""

    settings: Settings
    origins: dict[str, str]
    file: Path | None = None
    """The configuration file that was read."""
    ignored: str = ""
    """Which file was passed over, why, and what to do; empty for none."""

    @property
    def tables(self) -> Tables:
        """The tables of the configuration file."""
        return self.settings.tables

    def describe(self) -> list[OptionRow]:
        """One row per option, secrets masked."""
        return [
            OptionRow(o.key, o.show(getattr(getattr(self.settings, o.section), o.name)), self.origins[o.key], o.doc)
            for o in OPTIONS.values()
        ]


_SECTIONS: dict[str, type[Section]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if issubclass(kind, Section)
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most"}


def _allowed(kind: Any, metas: list[Meta], unit: str) -> str:
    """The values that an option takes, in words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    bounds = (f"{_BOUNDS[n]} {bound}" for meta in metas for n in _BOUNDS if (bound := getattr(meta, n)) is not None)
    noun = {int: "a whole number", float: "a number"}.get(kind, "text")
    return " ".join(filter(None, (noun, unit and f"of {unit},", " and ".join(bounds))))


def _options() -> Iterator[Option]:
    """Derive the options from the Structs above, so there is only one list of them."""
    for section, cls in _SECTIONS.items():
        for field in msgspec.structs.fields(cls):
            kind, *rest = get_args(field.type)
            metas = [meta for meta in rest if isinstance(meta, Meta)]
            extra: dict[str, Any] = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
            unit = extra.get("unit", "")
            doc = next(meta.description for meta in metas if meta.description)
            yield Option(
                section=section,
                name=field.name,
                type=field.type,
                default=field.default,
                doc=f"{doc[:-1]} ({unit})." if unit else doc,
                allowed=extra.get("allowed") or _allowed(kind, metas, unit),
                hidden=extra.get("hidden", "nothing"),
            )


OPTIONS: dict[str, Option] = {option.key: option for option in _options()}
"""Every option by its dotted name, in the order of the file."""

_ENV = {option.env: option.key for option in OPTIONS.values()}
_LEGACY_ENV = {
    "API_SERVER_KEY": "server.key",
    "API_SERVER_HOST": "server.host",
    "API_SERVER_PORT": "server.port",
    "API_SERVER_CORS_ORIGINS": "server.cors_origins",
    "API_SERVER_MODEL_NAME": "server.model_name",
    "TAVILY_API_KEY": "web.tavily_key",
}
SECRET_ENV = {
    name: key for known in (_LEGACY_ENV, _ENV) for name, key in known.items() if OPTIONS[key].hidden != "nothing"
}
"""The variables that may hold a secret. Each may name a file instead: NAME_FILE."""
Given = tuple[str, object, str]
"""A dotted key, its raw value and where it was found."""


def load(
    path: Path | None, env: Mapping[str, str], flags: Mapping[str, object], flags_from: str = "command line"
) -> LoadedSettings:
    """Settings from defaults, file, environment and flags. `flags` have the names in OPTIONS; None means not given."""
    values: dict[str, object] = {key: option.default for key, option in OPTIONS.items()}
    origins = dict.fromkeys(OPTIONS, "default")
    file = find_config(path, env)
    document, found = _read_file(file)
    tables = _read_tables({name: document.pop(name) for name in _TABLES if name in document}, found)
    for key, raw, origin in (
        *_from_file(document, found),
        *secret_files(env, SECRET_ENV),
        *_from_env(env),
        *_from_flags(flags, flags_from),
    ):
        if key not in OPTIONS:
            raise _unknown(key, origin)
        values[key] = _convert(OPTIONS[key], raw, origin)
        origins[key] = origin
    sections: dict[str, Any] = {
        section: cls(**{o.name: values[key] for key, o in OPTIONS.items() if o.section == section})
        for section, cls in _SECTIONS.items()
    }
    settings = Settings(**sections, tables=tables)
    check_settings(settings, origins)
    return LoadedSettings(settings, origins, file.path, file.ignored)


def load_given(settings: Settings | None) -> LoadedSettings:
    """Settings that a program made, checked; None: those of the environment and the file."""
    if settings is None:
        return _warned(load(None, os.environ, {}))
    origins: dict[str, str] = {}
    values: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for key, option in OPTIONS.items():
        value = getattr(getattr(settings, option.section), option.name)
        origins[key] = "default" if value == option.default else "the program"
        values[option.section][option.name] = _convert(option, value, "the program")
    _check_patterns(settings.tables, "the program")
    sections: dict[str, Any] = {section: cls(**values[section]) for section, cls in _SECTIONS.items()}
    checked = Settings(**sections, tables=settings.tables)
    check_settings(checked, origins)
    return LoadedSettings(checked, origins)


def check_settings(settings: Settings, origins: Mapping[str, str]) -> None:
    """Refuse settings that do not fit together. Raises ConfigError."""
    _check_key(settings.server, origins)
    if bool(settings.server.tls_cert) != bool(settings.server.tls_key):
        raise ConfigError(
            "server.tls_cert and server.tls_key belong together: set both (--tls-cert, --tls-key) or none."
        )
    if settings.server.uds and settings.server.tls_cert:
        raise ConfigError(
            "A Unix socket (server.uds) is for a proxy on this machine, without TLS: drop server.tls_cert."
        )
    for proxy in settings.server.trusted_proxies:
        if not _is_proxy(proxy):
            raise ConfigError(
                f"server.trusted_proxies cannot have {proxy} (from {origins['server.trusted_proxies']}). "
                f"Allowed: {_PROXIES['allowed']}."
            )
    if not settings.server.worker and not settings.store.shared:
        raise ConfigError(
            f"server.worker is false (from {origins['server.worker']}), so no process would execute stored runs. "
            "This needs a store that workers share: --store postgresql://..."
        )
    if "*" in settings.tables.owners and settings.tables.owners["*"].weight:
        raise ConfigError(
            'weight in [owners."*"] would change nothing: it is a share against others. Set it for one owner.'
        )


def _is_proxy(word: str) -> bool:
    try:
        return word == "unix" or bool(ipaddress.ip_network(word, strict=False))
    except ValueError:
        return False


def _read_tables(found: dict[str, Any], origin: str) -> Tables:
    try:
        tables = msgspec.convert(found, Tables)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error} (from {origin}).") from error
    _check_patterns(tables, origin)
    _check_allow_rules(tables, origin)
    return tables


def _check_patterns(tables: Tables, origin: str) -> None:
    """Refuse what is not a regular expression, or can take too long. Raises ConfigError."""
    asked = [(f"[[approvals]] tool {each.tool}: match", each.match, LEAST) for each in tables.approvals]
    named = [(row.name, each) for row in tables.clients for each in (row.agent, *row.headers.values())]
    known = [(f"[[clients]] {name}:", each, MATCHED_CHARS) for name, each in named]
    for where, pattern, least in (*asked, *known):
        shown = repr(pattern if len(pattern) <= 80 else f"{pattern[:79]}…")
        try:
            re.compile(pattern)
            most = longest(pattern, search=True)
        except (re.error, OverflowError, RecursionError) as error:
            words = f"{where} {shown} is not a regular expression: {error}"
            raise ConfigError(f"{words} (from {origin}).") from error
        if most < least:
            raise ConfigError(
                f"{where} {shown} could take minutes on a text of {least} characters. Begin it with \\A, write fewer "
                f"repeats, and no repeat inside a repeat unless it is possessive, as in (a++)+ (from {origin})."
            )


def _warned(loaded: LoadedSettings) -> LoadedSettings:
    """Warn a program of a file that was passed over. A command prints the same line itself."""
    if loaded.ignored:
        warnings.warn(loaded.ignored, stacklevel=3)
    return loaded


def _check_allow_rules(tables: Tables, origin: str) -> None:
    """Refuse a rule that lets calls pass and does not say which value it reads. Raises ConfigError."""
    for rule in tables.approvals:
        by_command = rule.tool in ("terminal", "process")
        if rule.ask == "never" and rule.match and (rule.tool == "*" or not (rule.field or by_command)):
            raise ConfigError(
                f'[[approvals]] tool {rule.tool}: ask = "never" with match lets calls pass, so name one tool and the '
                f'argument that the expression fits, such as field = "path" (from {origin}).'
            )


def _read_file(file: FoundConfig) -> tuple[dict[str, Any], str]:
    """The document, and its name in errors."""
    if file.path is None:
        return {}, ""
    origin = f"file {file.path}"
    try:
        return tomllib.loads(file.content.decode("utf-8")), origin
    except ValueError as error:
        raise ConfigError(f"The configuration {origin} cannot be read: {error}") from error


def _from_file(document: dict[str, Any], origin: str) -> Iterator[Given]:
    for section, table in document.items():
        if not isinstance(table, dict) or (not table and section not in _SECTIONS):
            yield section, table, origin
        else:
            yield from ((f"{section}.{name}", value, origin) for name, value in table.items())


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    for name in sorted(env):
        known = name in _ENV or name == FILE_ENV or name.removesuffix(SECRET_FILE) in SECRET_ENV
        if name.startswith("NINELIVES_") and not known:
            yield name, env[name], "the environment"
    for names in (_LEGACY_ENV, _ENV):
        for name, key in names.items():
            if text := env.get(name, "").strip():
                yield key, text, f"env {name}"


def _from_flags(flags: Mapping[str, object], origin: str) -> Iterator[Given]:
    for key, value in flags.items():
        if value is not None:
            yield key, str(value) if isinstance(value, Path) else value, origin


_REMOVED = {
    "agent.durable_chat": "It was removed: chats survive a crash by default. Delete it.",
    "limits.disconnect_grace_s": "It is called limits.leave_grace_s now.",
}


def _unknown(name: str, origin: str) -> ConfigError:
    for key, instead in _REMOVED.items():
        if name in (key, f"NINELIVES_{key.replace('.', '_').upper()}"):
            return ConfigError(f"There is no option {name} (found in {origin}). {instead}")
    known = _ENV if name.startswith("NINELIVES_") else OPTIONS
    last = name.rpartition(".")[2]
    near = [key for key in known if key.rpartition(".")[2] == last or key.partition(".")[0] == name]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near[:3])}?" if near else "`ninelives config show` lists all options."
    return ConfigError(f"There is no option {name} (found in {origin}). {hint}")


def _convert(option: Option, raw: object, origin: str) -> object:
    """The value in the option's type. Text from a shell is converted ("8642" is a port); values in a file are not."""
    lenient = not origin.startswith("file ")
    if lenient and isinstance(raw, str) and isinstance(option.default, tuple):
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    try:
        if isinstance(raw, str):
            raw.encode("utf-8")
        return msgspec.convert(raw, option.type, strict=not lenient)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        shown = option.show(raw) if option.hidden != "nothing" else repr(raw)[:200]
        raise ConfigError(f"{option.key} cannot be {shown} (from {origin}). Allowed: {option.allowed}.") from error


def _check_key(server: ServerSettings, origins: Mapping[str, str]) -> None:
    remote = not server.uds and not is_loopback(server.host)
    reached = f"server.host is {server.host} (from {origins['server.host']}), which others can reach"
    if remote and server.key is None:
        raise ConfigError(f"{reached}: set server.key or API_SERVER_KEY. {MAKE_KEY}")
    if remote and not server.allow_remote:
        raise ConfigError(
            f"{reached}. If you want that, say so: --allow-remote, server.allow_remote = true or "
            "NINELIVES_SERVER_ALLOW_REMOTE=true. Keys are sent with every request, so use TLS (docs/how-to/tls.md)."
        )
    if server.key is not None and (why := weakness(server.key)):
        raise ConfigError(f"server.key (from {origins['server.key']}) is refused: it {why}. {MAKE_KEY}")

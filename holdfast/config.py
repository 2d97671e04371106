"""Settings. Owns: every option with its default, unit and one line of doc; where a value may come from (flag, then
environment, then file, then default) and what is refused at the door. The only reader of the environment and of
the configuration and key files. Refuses to know: what the options are used for.

An empty environment variable counts as not set, so that `KEY=${KEY:-}` in a compose file does no harm."""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from holdfast.config_keys import MAKE_KEY, ConfigError, weakness
from holdfast.config_tables import TABLES, Tables, read_tables
from holdfast.core.spec import ToolProgress

ToolItemStyle = Literal["auto", "function_call", "mcp_call"]
Sandbox = Literal["auto", "landlock", "off"]
ClientTools = Literal["auto", "pass", "ignore"]
OnLeave = Literal["auto", "detach", "cancel"]
Approval = Literal["auto", "never", "on-write", "always"]


def _doc(text: str, **more: Any) -> Meta:
    """What an option is for, in one line, besides its bounds."""
    return Meta(description=text, **more)


_MASK = "********"
_SECRET = {"hidden": "all"}
_PASSWORD = {"hidden": "password"}
Seconds = Annotated[float, Meta(gt=0, le=31_536_000, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40, extra={"unit": "bytes"})]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Whole = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Room = Annotated[int, Meta(ge=0, le=1 << 50, extra={"unit": "bytes"})]
Text = Annotated[str, Meta(min_length=1, extra={"allowed": "text that is not empty"})]
Origin = Annotated[str, Meta(pattern=r"\A(\*|[a-z][a-z0-9+.-]*://[^/\s,@*]+)\Z")]
Host = Annotated[str, Meta(pattern=r"\A([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+)\Z")]
Url = Annotated[str, Meta(pattern=r"\A(https?://\S+)?\Z", extra=_PASSWORD)]
StoreUrl = Annotated[str, Meta(pattern=r"\A(sqlite|postgres(ql)?://\S+)?\Z")]
_ORIGINS = {"allowed": "* or exact origins such as https://chat.example.org, without a path or a final slash"}
_HOSTS = {"allowed": "host names or addresses without scheme and port, such as box.lan"}
_URL = {"allowed": "a URL that begins with http:// or https://"}
_STORE = {
    "hidden": "password",
    "allowed": "nothing or sqlite, or a URL such as postgresql://user:password@host/database",
}


def without_password(url: str) -> str:
    """A URL as anybody may see it."""
    url = re.sub(r"(://[^/@:\s]*:)\S*@", rf"\1{_MASK}@", url)
    return re.sub(r"(password=)[^&\s]+", rf"\1{_MASK}", url)


class Section(Struct, frozen=True):
    """A table of the file, named like it. Its repr hides secrets, so that no log line or traceback can tell one."""

    def __repr__(self) -> str:
        name = type(self).__name__
        own = (option for option in OPTIONS.values() if option.section == name.lower())
        return f"{name}({', '.join(f'{o.name}={o.show(getattr(self, o.name))!r}' for o in own)})"


class Server(Section, frozen=True):
    host: Annotated[Text, _doc("Address to listen on; beyond loopback a key is required.")] = "127.0.0.1"
    port: Annotated[int, _doc("Port to listen on; 0 picks a free one.", ge=0, le=65535)] = 8642
    key: Annotated[str | None, _doc("The admin key, sent by clients as a bearer.", extra=_SECRET)] = None
    cors_origins: Annotated[tuple[Origin, ...], _doc("Web pages that may call, by origin.", extra=_ORIGINS)] = ()
    data_dir: Annotated[Text, _doc("Directory of the store, the key and workspaces.")] = "~/.local/share/holdfast"
    allowed_hosts: Annotated[tuple[Host, ...], _doc("Names of a loopback server besides loopback.", extra=_HOSTS)] = ()
    model_name: Annotated[Text, _doc("Model id of the default profile.")] = "hermes-agent"
    unknown_model: Annotated[Literal["error", "default"], _doc("What a request for an unknown model gets.")] = "error"
    worker: Annotated[bool, _doc("Carry out stored runs here; false leaves them to other replicas.")] = True
    replica: Annotated[str, _doc("Name of this replica in health; empty is host:port.")] = ""

    @property
    def data_path(self) -> Path:
        """The data directory with ~ resolved."""
        return Path(self.data_dir).expanduser()


class Store(Section, frozen=True):
    url: Annotated[StoreUrl, _doc("Empty: SQLite in data_dir; postgresql://...: many machines.", extra=_STORE)] = ""
    direct_url: Annotated[StoreUrl, _doc("The same past a pooler such as pgbouncer, for LISTEN.", extra=_STORE)] = ""
    prepared: Annotated[bool, _doc("Prepare statements; false for poolers that cannot (pgbouncer).")] = True
    lanes: Annotated[int, _doc("Connections of a replica that write the log.", ge=1, le=64)] = 2
    pool: Annotated[int, _doc("Connections of a replica for all other queries.", ge=1, le=1000)] = 4
    wait_s: Annotated[float, _doc("Patience with a database that is down at the start (seconds).", ge=0, le=1e6)] = 30.0
    lease_s: Annotated[Seconds, _doc("Silence of a replica after which others take its runs (PostgreSQL).")] = 15.0
    durability: Annotated[Literal["normal", "full"], _doc("full survives power loss too, at an fsync each.")] = "normal"
    max_responses: Annotated[Whole, _doc("Stored runs per owner, least recently used go first; 0: no bound.")] = 10_000
    max_days: Annotated[float, _doc("Days since a run was last used, then it goes; 0: no bound.", ge=0, le=36500)] = 0.0
    owner_bytes: Annotated[Room, _doc("Bytes that the runs of one owner may keep; 0: no bound.")] = 0
    total_bytes: Annotated[Room, _doc("Bytes that all runs may keep; 0: no bound.")] = 0
    retention_s: Annotated[Seconds, _doc("How often the bounds above are looked after.")] = 30.0
    low_water_bytes: Annotated[Room, _doc("Free disk under which new runs are refused; 0: none.")] = 67_108_864
    ballast_bytes: Annotated[Room, _doc("A file given back when the disk is short; 0: none.")] = 16_777_216

    @property
    def shared(self) -> bool:
        """Is it a database that other machines use too?"""
        return self.url not in ("", "sqlite")


class Model(Section, frozen=True):
    url: Annotated[Url, _doc("Base URL of an OpenAI-compatible upstream.", extra=_URL)] = ""
    name: Annotated[str, _doc("Model to ask for upstream; empty is the first that it lists.")] = ""
    api_key: Annotated[str | None, _doc("Key of the upstream.", extra=_SECRET)] = None
    connect_s: Annotated[Seconds, _doc("Longest wait for a connection to the upstream.")] = 10.0
    first_byte_s: Annotated[Seconds, _doc("Longest wait for the first byte of an answer.")] = 120.0
    stall_s: Annotated[Seconds, _doc("Longest silence in the middle of an answer.")] = 60.0
    total_s: Annotated[Seconds, _doc("Longest time for one whole answer.")] = 1800.0
    retries: Annotated[int, _doc("Further tries after a failure before the first token.", ge=0, le=20)] = 2


class Agent(Section, frozen=True):
    system_prompt: Annotated[str, _doc("System prompt of the default profile.")] = ""
    max_rounds: Annotated[Count, _doc("Model calls in one run; then it ends incomplete.")] = 50
    max_message_bytes: Annotated[Bytes, _doc("Size of one message; then it ends incomplete.")] = 4_194_304
    tool_progress: Annotated[ToolProgress, _doc("Tool progress in chat; off for openai-node 4.x.")] = "compatible"
    tool_items: Annotated[ToolItemStyle, _doc("Items by which Responses show server tools.")] = "auto"
    output_event_bytes: Annotated[Bytes, _doc("Tool output shown in an event; the journal has all.")] = 16_384
    durable_chat: Annotated[bool, _doc("Store chats and messages unless the request says store=false.")] = False
    resend_window_s: Annotated[Seconds, _doc("How long a durable chat that broke off can be asked for again.")] = 900.0
    on_disconnect: Annotated[OnLeave, _doc("What leaving means where store was left out; auto: by client.")] = "auto"
    client_tools: Annotated[ClientTools, _doc("Tools in requests; auto ignores Open WebUI's own.")] = "auto"
    context_tokens: Annotated[int, _doc("The model's window in tokens; 0 leaves nothing out.", ge=0, le=10**9)] = 0
    on_unknown: Annotated[Literal["tell", "ask"], _doc("An interrupted write: tell the model, or ask.")] = "tell"


class Tools(Section, frozen=True):
    sandbox: Annotated[Sandbox, _doc("How shell and file tools are fenced; auto is bubblewrap.")] = "auto"
    approval: Annotated[Approval, _doc("When to ask a person; auto: never in bubblewrap, else on-write.")] = "auto"
    workspace: Annotated[Literal["owner", "session"], _doc("Whose chats share one workspace.")] = "owner"
    approval_ttl_s: Annotated[Seconds, _doc("How long a question waits for its answer; then denied.")] = 3600.0
    modules: Annotated[tuple[str, ...], _doc("Python modules with tools of your own.")] = ()


class Limits(Section, frozen=True):
    concurrent_runs: Annotated[Count, _doc("Runs at work at the same time.")] = 256
    head_s: Annotated[Seconds, _doc("How long the head of a request may take to arrive.")] = 20.0
    queue: Annotated[int, _doc("Runs that wait for a place; then 429 with Retry-After.", ge=0, le=10**9)] = 1024
    body_bytes: Annotated[Bytes, _doc("Size of a request body; then 413.")] = 10_000_000
    json_depth: Annotated[int, _doc("Nesting of a JSON body, in levels; then 400.", ge=4, le=512)] = 64
    parts: Annotated[Count, _doc("Messages, items and content parts in one request; then 400.")] = 2048
    keepalive_s: Annotated[Seconds, _doc("Silence on a stream before a keepalive comment.")] = 15.0
    drain_s: Annotated[Seconds, _doc("Time for running work to reach a safe point on SIGTERM.")] = 10.0
    tool_timeout_s: Annotated[Seconds, _doc("Longest time for one tool call.")] = 60.0
    tool_output_bytes: Annotated[Bytes, _doc("Output kept of one tool call; the rest is counted.")] = 1_048_576
    subscriber_bytes: Annotated[Bytes, _doc("What may wait for a slow reader; then it must resume.")] = 1_048_576
    websocket_s: Annotated[Seconds, _doc("Longest life of a websocket; then its client opens another.")] = 3600.0
    stall_s: Annotated[Seconds, _doc("Stall of the reader that owns a run before it is cancelled.")] = 60.0
    disconnect_grace_s: Annotated[Seconds, _doc("Time to come back where leaving means stop.")] = 5.0
    chores: Annotated[Count, _doc("Front ends' titles, tags and follow-ups, and compactions, at the same time.")] = 8


class Settings(Struct, frozen=True):
    """All of it."""

    server: Server = Server()
    store: Store = Store()
    model: Model = Model()
    agent: Agent = Agent()
    tools: Tools = Tools()
    limits: Limits = Limits()


class Option(Struct, frozen=True):
    """One option as docs, errors and `config show` need it."""

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
        return f"HOLDFAST_{self.section}_{self.name}".upper()

    def show(self, value: object) -> str:
        """The value as a person may see it."""
        if self.hidden == "all" and value is not None:
            return _MASK
        if self.hidden == "password" and isinstance(value, str):
            return without_password(value)
        return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


class Row(Struct, frozen=True):
    """A line of `config show`."""

    key: str
    value: str
    origin: str
    doc: str


class Loaded(Struct, frozen=True):
    """Settings, and where each value came from."""

    settings: Settings
    origins: dict[str, str]
    tables: Tables = Tables()

    def describe(self) -> list[Row]:
        """One row per option, secrets masked."""
        return [
            Row(o.key, o.show(getattr(getattr(self.settings, o.section), o.name)), self.origins[o.key], o.doc)
            for o in OPTIONS.values()
        ]


_SECTIONS: dict[str, type[Section]] = get_type_hints(Settings)
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most"}


def _allowed(kind: Any, metas: list[Meta], unit: str) -> str:
    """What an option takes, in words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    bounds = (f"{_BOUNDS[n]} {bound}" for meta in metas for n in _BOUNDS if (bound := getattr(meta, n)) is not None)
    noun = {int: "a whole number", float: "a number"}.get(kind, "text")
    return " ".join(filter(None, (noun, unit and f"of {unit},", " and ".join(bounds))))


def _options() -> Iterator[Option]:
    """Read the options off the Structs above, so that there is no second list of them."""
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
}
_FILE_ENV = "HOLDFAST_CONFIG"
Given = tuple[str, object, str]
"""A dotted key, its raw value and where it was found."""


def load(path: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """The settings from all four places. `flags` are named like OPTIONS; None means that a flag was not given."""
    values: dict[str, object] = {key: option.default for key, option in OPTIONS.items()}
    origins = dict.fromkeys(OPTIONS, "default")
    document, found = _read_file(_find_file(path, env))
    tables = read_tables({name: document.pop(name) for name in TABLES if name in document}, found)
    for key, raw, origin in (*_from_file(document, found), *_from_env(env), *_from_flags(flags)):
        if key not in OPTIONS:
            raise _unknown(key, origin)
        values[key] = _convert(OPTIONS[key], raw, origin)
        origins[key] = origin
    sections: dict[str, Any] = {
        section: cls(**{o.name: values[key] for key, o in OPTIONS.items() if o.section == section})
        for section, cls in _SECTIONS.items()
    }
    settings = Settings(**sections)
    _check_key(settings.server, origins)
    if not settings.server.worker and not settings.store.shared:
        raise ConfigError(
            f"server.worker is false (from {origins['server.worker']}): nobody would carry out stored runs. "
            "That needs a store that others use too: --store postgresql://..."
        )
    return Loaded(settings, origins, tables)


def _find_file(path: Path | None, env: Mapping[str, str]) -> Path | None:
    named = path or (Path(env[_FILE_ENV]).expanduser() if env.get(_FILE_ENV) else None)
    if named is not None:
        if not named.exists() or named.is_dir():  # a pipe will do: --config <(command)
            raise ConfigError(f"There is no configuration file {named}: check --config and {_FILE_ENV}.")
        return named
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    usual = (Path("holdfast.toml"), home / ".config" / "holdfast" / "holdfast.toml")
    return next((place for place in usual if place.is_file()), None)


def _read_file(path: Path | None) -> tuple[dict[str, Any], str]:
    """The document, and how to speak of it."""
    if path is None:
        return {}, ""
    origin = f"file {path}"
    try:
        return tomllib.loads(path.read_text("utf-8")), origin
    except (OSError, ValueError) as error:
        raise ConfigError(f"The configuration {origin} cannot be read: {error}") from error


def _from_file(document: dict[str, Any], origin: str) -> Iterator[Given]:
    for section, table in document.items():
        if not isinstance(table, dict) or (not table and section not in _SECTIONS):
            yield section, table, origin
        else:
            yield from ((f"{section}.{name}", value, origin) for name, value in table.items())


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    for name in sorted(env):
        if name.startswith("HOLDFAST_") and name not in _ENV and name != _FILE_ENV:
            yield name, env[name], "the environment"
    for known in (_LEGACY_ENV, _ENV):
        for name, key in known.items():
            if text := env.get(name, "").strip():
                yield key, text, f"env {name}"


def _from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    for key, value in flags.items():
        if value is not None:
            yield key, str(value) if isinstance(value, Path) else value, "command line"


def _unknown(name: str, origin: str) -> ConfigError:
    known = _ENV if name.startswith("HOLDFAST_") else OPTIONS
    last = name.rpartition(".")[2]
    near = [key for key in known if key.rpartition(".")[2] == last or key.partition(".")[0] == name]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near[:3])}?" if near else "`holdfast config show` lists all options."
    return ConfigError(f"There is no option {name} (found in {origin}). {hint}")


def _convert(option: Option, raw: object, origin: str) -> object:
    """The value in the option's own type. Only text from a shell is read leniently ("8642" is a port there)."""
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


@lru_cache(64)
@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True where only this machine is meant: localhost or a loopback address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_key(server: Server, origins: Mapping[str, str]) -> None:
    if server.key is None and not is_loopback(server.host):
        raise ConfigError(
            f"server.host is {server.host} (from {origins['server.host']}), which others can reach: "
            f"set server.key or API_SERVER_KEY. {MAKE_KEY}"
        )
    if server.key is not None and (why := weakness(server.key)):
        raise ConfigError(f"server.key (from {origins['server.key']}) is refused: it {why}. {MAKE_KEY}")

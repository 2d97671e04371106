"""The composition root. Owns: which store, engine, agents and application a server has, made from settings. Refuses to
know: the command line, and who runs the application."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ninelives.app.agents import AgentEnvironment, Agents, build_agents, choose_sandbox, keyless_profiles
from ninelives.app.errors import ConfigError
from ninelives.app.extensions import NO_EXTENSIONS, Extensions
from ninelives.app.keys import ADMIN_OWNER, profile_keys
from ninelives.app.known_secrets import known_secrets
from ninelives.app.settings import LoadedSettings, Settings
from ninelives.app.store import (
    OpenedStore,
    ProcessRole,
    ServerStore,
    id_maker,
    new_code,
    now_ms,
    open_store,
    store_bytes,
    total_bytes,
)
from ninelives.core.hosts import is_loopback
from ninelives.dialects.clients import TABLE, Rows
from ninelives.engine.alarm import FineAlarm
from ninelives.engine.base import EngineLimits, EngineParts, Keep, unknown_death
from ninelives.engine.engine import Engine
from ninelives.engine.limits import LimitBook
from ninelives.http.answering import RouteParts
from ninelives.http.app import build_app, build_health_app
from ninelives.http.body import Aside, BodyLimits
from ninelives.http.edge.end_users import EndUsers
from ninelives.http.edge.gate import Gate, Rules
from ninelives.http.edge.keys import Keyring, StoredKeys
from ninelives.http.edge.proxies import TrustedProxies
from ninelives.http.edge.scopes import ADMIN, OPEN_PATHS, OPEN_PREFIXES, USER_SCOPES
from ninelives.http.routes import DialectsError
from ninelives.http.routes.server import About
from ninelives.journal.accounts.trail import AuditKeep, AuditTrail
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import Gone
from ninelives.models.base import Model
from ninelives.observe.alive import AliveMark, BadExit
from ninelives.observe.log import Log
from ninelives.observe.runs import RunCounts, RunObserver
from ninelives.sessions.book import SessionBook
from ninelives.tools.mcp.tools import Status
from ninelives.tools.registry import SHELL_TOOLS

if TYPE_CHECKING:
    from ninelives.observe.metrics import Metrics
    from ninelives.observe.traces import SpanTraces


class Assembled(Struct):
    """A server that can be started."""

    app: Gate
    parts: RouteParts
    engine: Engine
    store: ServerStore
    agents: Agents
    opened: OpenedStore
    keyring: Keyring
    stored_keys: StoredKeys
    audit: AuditTrail
    alive: AliveMark
    traces: SpanTraces | None = None

    async def start(self, adopted: frozenset[Gone] = frozenset()) -> None:
        """Start the tools, then the engine, so that recovered runs find their tools. `adopted`: see Engine.start."""
        self.alive.begin()
        await self.stored_keys.start()
        await self.audit.start()
        await self.agents.start()
        await self.engine.start(adopted)

    async def stop(self) -> None:
        """Stop the engine, then what it depends on."""
        await self.engine.stop()
        await self.agents.close()
        await self.stored_keys.stop()
        await self.audit.stop()
        self.alive.end()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        await self.opened.close()


SERVER = ProcessRole()
KEYLESS = "model.api_key is not sent to its model_url, which has another origin than model.url. Set its model_api_key"


async def assemble(
    loaded: LoadedSettings,
    key: str,
    log: Log,
    model: Model,
    role: ProcessRole = SERVER,
    extensions: Extensions = NO_EXTENSIONS,
) -> Assembled:
    """Open the store and build the server on it. Raises ConfigError, StoreDown and errors of the store."""
    settings = loaded.settings
    log.secrets.hide({key, *known_secrets(settings, os.environ)})
    settings.server.data_path.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = await open_store(settings, role, log)
    try:
        sandbox = await asyncio.to_thread(choose_sandbox, settings, os.environ)
        environment = AgentEnvironment(new_code, opened.steady_ms, opened.homes, _mcp_notices(log), role.connections)
        agents = build_agents(settings, opened.store, model, sandbox, environment, extensions)
        for name in keyless_profiles(settings):
            log.warning("profile_without_key", profile=name, note=KEYLESS)
        if sandbox.kind == "refused":
            log.warning("shell_tools_off", tools=SHELL_TOOLS, why=sandbox.says)
        alive = AliveMark(settings.server.data_path)
        return _join(settings, key, log, role, _Parts(opened, agents, model, alive, alive.read()))
    except BaseException:
        await opened.close()
        raise


def _mcp_notices(log: Log) -> Callable[[Status], None]:
    """Logs what becomes of MCP servers."""

    def notice(status: Status) -> None:
        if not status.connected:
            log.warning("mcp_server_lost", server=status.name, reason=status.fault, stderr=status.last_line)
            return
        log.info("mcp_server_connected", server=status.name, tools=status.tools)
        if status.left_out:
            log.warning("mcp_tools_left_out", server=status.name, tools=list(status.left_out))

    return notice


class _Parts(Struct, frozen=True):
    """What the engine and the application are made of."""

    opened: OpenedStore
    agents: Agents
    model: Model
    alive: AliveMark
    bad_exit: BadExit | None


def _join(settings: Settings, key: str, log: Log, role: ProcessRole, made: _Parts) -> Assembled:
    opened, agents, store = made.opened, made.agents, made.opened.store
    new_id = id_maker()
    audit = AuditTrail(store.audit, now_ms, log, AuditKeep(settings.store.audit_days, settings.store.audit_rows))
    stored_keys = StoredKeys(store.keys, opened.steady_ms, log, opened.notifier if store.peers.shared else None)
    counts, traces = RunCounts(), _traces(settings, agents)
    engine = Engine(
        EngineParts(
            store,
            MemoryStore(time.monotonic, now_ms=opened.steady_ms),
            opened.notifier,
            agents.by_profile[agents.default.name].agent,
            _limits(settings),
            log,
            now_ms,
            new_id,
            opened.steady_ms,
            holder=opened.holder,
            mask=log.secrets.mask,
            outside=agents.holdings,
            audit=audit,
            limits_of=_limit_book(settings, stored_keys).of,
            price_of=agents.price_of if agents.prices else None,
            death_of=made.bad_exit.death_of if made.bad_exit and not settings.store.shared else unknown_death,
            observer=RunObserver(counts, log, traces),
            alarm=FineAlarm,
            agents={name: each.agent for name, each in agents.by_profile.items()},
        )
    )
    keyring = Keyring(stored_keys)
    keyring.add(key, ADMIN_OWNER, {ADMIN})
    for each in profile_keys(settings, key):
        keyring.add(each.secret, each.owner, USER_SCOPES, profile=each.profile)
    parts = RouteParts(
        engine=engine,
        sessions=SessionBook(engine),
        profile=agents.default,
        token_counts=agents,
        model_requests=agents,
        secret=opened.secret,
        body=BodyLimits(
            bytes=settings.limits.body_bytes,
            depth=settings.limits.json_depth,
            values=settings.limits.json_values,
            seconds=settings.limits.body_s,
        ),
        max_parts=settings.limits.parts,
        aside=Aside(),
        others=agents.others,
        clients=Rows((*settings.tables.clients, *TABLE)),
        websocket_s=settings.limits.websocket_s,
        websockets=settings.limits.websockets,
        elsewhere=settings.server.elsewhere,
    )
    about = _about(settings, parts, made, stored_keys, _metrics_of(counts, settings), log.secrets.mask)
    try:
        app = (build_app if role.serves else build_health_app)(
            about, keyring, _rules(settings, log, audit), new_id, log
        )
    except DialectsError as error:
        raise ConfigError(str(error)) from error
    return Assembled(app, parts, engine, store, agents, opened, keyring, stored_keys, audit, made.alive, traces)


def _traces(settings: Settings, agents: Agents) -> SpanTraces | None:
    chosen = settings.traces
    if not chosen.url:
        return None
    try:
        from ninelives.observe.traces import otlp_traces
    except ImportError as error:
        words = "traces.url needs the package opentelemetry-sdk. Run: pip install '.[otel]' in a checkout."
        raise ConfigError(words) from error
    return otlp_traces(chosen.url, chosen.authorization or "", agents.model_of, content=chosen.content)


def _limit_book(settings: Settings, keys: StoredKeys) -> LimitBook:
    owners = {name: table.limits() for name, table in settings.tables.owners.items()}
    profiles = {name: table.limits for name, table in settings.tables.profiles.items()}
    return LimitBook(owners, profiles, keys.limits)


def _limits(settings: Settings) -> EngineLimits:
    chosen = settings.limits
    owners = settings.tables.owners
    bounds = {name: table.stored_bytes for name, table in owners.items() if table.stored_bytes is not None}
    return EngineLimits(
        works=settings.server.worker,
        concurrent_runs=chosen.concurrent_runs,
        queue=chosen.queue,
        queue_bytes=chosen.queue_bytes,
        queue_share=chosen.queue_share,
        owner_share=None if chosen.owner_share == "auto" else chosen.owner_share,
        weights={name: each.weight for name, each in owners.items() if each.weight},
        chores=chosen.chores,
        subscriber_bytes=chosen.subscriber_bytes,
        keepalive_s=chosen.keepalive_s,
        stall_s=chosen.stall_s,
        leave_grace_s=chosen.leave_grace_s,
        lease_s=settings.store.lease_s if settings.store.shared else EngineLimits().lease_s,
        hold_s=settings.store.hold_s if settings.store.shared else 0.0,
        keep=Keep(
            runs=settings.store.max_responses,
            owner_bytes=bounds.pop("*", settings.store.owner_bytes),
            owners=bounds,
            total_bytes=total_bytes(settings),
            days=settings.store.max_days,
            unstored_hours=settings.store.unstored_hours,
            every_s=settings.store.retention_s,
        ),
    )


def _rules(settings: Settings, log: Log, audit: AuditTrail) -> Rules:
    return Rules(
        loopback=not settings.server.uds and is_loopback(settings.server.host),
        max_body=settings.limits.body_bytes,
        max_head=settings.limits.head_bytes,
        cors_origins=settings.server.cors_origins,
        allowed_hosts=settings.server.allowed_hosts,
        open_paths=OPEN_PATHS | ({"/metrics"} if settings.metrics.open else frozenset()),
        open_prefixes=OPEN_PREFIXES,
        audit=audit,
        proxies=TrustedProxies.of(settings.server.trusted_proxies),
        end_users=EndUsers(settings.server.user_jwt_secret or "", time.time),
        mask=log.secrets.mask,
    )


def _mcp_server(status: Status, mask: Callable[[str], str]) -> dict[str, object]:
    return {
        "name": status.name,
        "connected": status.connected,
        "tools": status.tools,
        "left_out": [mask(each) for each in status.left_out],
        "fault": mask(status.fault),
        "stderr": mask(status.last_line),
    }


ShowMetrics = Callable[[Mapping[str, object]], tuple[bytes, str]]


def _metrics_of(counts: RunCounts, settings: Settings) -> ShowMetrics:
    """The text of /metrics, and its type. prometheus_client is imported when the server is ready (app/serve.py): it
    would be a tenth of the start."""

    @cache
    def series() -> Metrics:
        from ninelives.observe.metrics import Metrics

        return Metrics(counts)

    def show(stats: Mapping[str, object]) -> tuple[bytes, str]:
        made = series()
        return made.exposition(stats, store_bytes(settings)), made.content_type

    return show


def _about(
    settings: Settings,
    parts: RouteParts,
    made: _Parts,
    stored_keys: StoredKeys,
    metrics: ShowMetrics,
    mask: Callable[[str], str],
) -> About:
    agents, store = made.agents, made.opened.store
    probe, peers, upkeep = Probe(made.model), store.peers, store.upkeep
    limits = settings.limits
    return About(
        parts=parts,
        stored_keys=stored_keys,
        store={
            **made.opened.health,
            "sandbox": agents.sandbox.kind,
            "sandbox_says": agents.sandbox.says,
            "data_dir": str(settings.server.data_path),
        },
        sandbox={"kind": agents.sandbox.kind, **msgspec.structs.asdict(agents.sandbox.holds)},
        tools_off=agents.tools_off(),
        limits={
            "concurrent_runs": limits.concurrent_runs,
            "queue": limits.queue,
            "body_bytes": limits.body_bytes,
            "keepalive_s": limits.keepalive_s,
            "drain_s": limits.drain_s,
            "tool_timeout_s": limits.tool_timeout_s,
        },
        toolsets=agents.toolsets,
        mcp=lambda: [_mcp_server(status, mask) for status in agents.mcp.status()],
        started_at=time.monotonic(),
        now=time.monotonic,
        clock=time.time,
        killed_at=made.bad_exit.died_at / 1000 if made.bad_exit is not None else None,
        upstream=probe.look,
        created=int(time.time()),
        metrics=metrics,
        hold_s=settings.store.hold_s,
        cors=bool(settings.server.cors_origins),
        replicas=peers.replicas if peers.shared else None,
        away=(lambda: parts.engine.lease.trouble or upkeep.trouble()) if peers.shared else lambda: None,
    )


class Probe:
    """Whether the upstream answers. The result is cached, so a busy /health does not load the upstream."""

    def __init__(self, model: Model, every_s: float = 5.0) -> None:
        self._model = model
        self._every_s = every_s
        self._asked_at = float("-inf")
        self._reachable = True
        self._lock = asyncio.Lock()

    async def look(self) -> dict[str, object]:
        """What /health/detailed shows."""
        async with self._lock:
            if time.monotonic() - self._asked_at > self._every_s:
                self._reachable = await self._model.probe()
                self._asked_at = time.monotonic()
        return {"model": self._model.name, "reachable": self._reachable}

"""Where parts are chosen and joined. Owns: which store, model, tools and agent a server has, made from settings. Only
cli imports it. Refuses to know: the command line."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable

from msgspec import Struct
from starlette.applications import Starlette

from holdfast.assemble_agents import Agents, Chance, build_agents
from holdfast.assemble_store import Backing, Role, Shelf, open_shelf
from holdfast.config import Loaded, Settings, is_loopback
from holdfast.dialects.clients import TABLE, Rows
from holdfast.engine.base import Keep, Limits
from holdfast.engine.drivers import Parts as EngineParts
from holdfast.engine.engine import Engine
from holdfast.http.app import build_app, build_health_app
from holdfast.http.calls import Parts
from holdfast.http.gate import Rules
from holdfast.http.keys import Keyring
from holdfast.http.routes_server import OPEN_PATHS, About
from holdfast.journal.memory import MemoryStore
from holdfast.models.base import Model
from holdfast.observe.log import Log
from holdfast.tools.sandbox import choose

APPROVAL_S = 3600.0
PROMPT = (
    "You are a helpful agent. You have tools that work in a workspace which keeps its files between conversations. "
    "Use them when they help, and say briefly what you did."
)


def id_maker() -> Callable[[], str]:
    """Makes ids of 24 random characters: 96 bits. The system is asked for many at a time: each question lets the other
    threads run and then waits for them, which cost 70 us an id while the store was busy, and a request has three."""
    pool: list[str] = []
    os.register_at_fork(after_in_child=pool.clear)

    def new_id() -> str:
        if not pool:
            fresh = secrets.token_hex(12 * 256)
            pool.extend(fresh[place : place + 24] for place in range(0, len(fresh), 24))
        return pool.pop()

    return new_id


def new_code() -> str:
    """A code that a person can type: 30 bits, and it works for its owner only."""
    return "".join(secrets.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(6))


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def steady_clock(ahead_ms: int = 0) -> Callable[[], int]:
    """The wall clock as it was at the start, going on by itself: a clock that is set while the server runs lets
    nothing expire too early and nothing be forgotten (P12). `ahead_ms`: how far the clock that all machines go by is
    ahead of this one's."""
    begun = time.monotonic_ns() // 1_000_000
    wall = now_ms() + ahead_ms
    return lambda: wall + time.monotonic_ns() // 1_000_000 - begun


class Assembled(Struct):
    """A server, ready to be started."""

    app: Starlette
    engine: Engine
    store: Backing
    agents: Agents
    shelf: Shelf
    keyring: Keyring

    async def start(self) -> None:
        """Begin: tools first, so that recovered runs find them."""
        await self.agents.start()
        await self.engine.start()

    async def stop(self) -> None:
        """Let go of everything, in the order in which parts depend on each other."""
        await self.engine.stop()
        await self.agents.close()
        await self.shelf.close()


SERVER = Role()


async def assemble(loaded: Loaded, key: str, log: Log, model: Model, role: Role = SERVER) -> Assembled:
    """Build the server over its store and its data directory."""
    settings = loaded.settings
    data = settings.server.data_path
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    shelf = await open_shelf(settings, role, log)
    try:
        return await _assemble(loaded, key, log, model, role, shelf)
    except BaseException:
        await shelf.close()
        raise


async def _assemble(loaded: Loaded, key: str, log: Log, model: Model, role: Role, shelf: Shelf) -> Assembled:
    settings, store = loaded.settings, shelf.store
    sandbox = await asyncio.to_thread(choose, settings.tools.sandbox)
    steady_ms = steady_clock(shelf.ahead_ms)
    agents = build_agents(loaded, store, model, sandbox, Chance(new_code, steady_ms, shelf.homes))
    memory = MemoryStore(time.monotonic, sessions=store)
    new_id = id_maker()
    limits = _limits(settings)
    joined = EngineParts(
        store, memory, shelf.bell, agents.agent, limits, log, now_ms, new_id, steady_ms, holder=shelf.holder
    )
    engine = Engine(joined)
    keyring = Keyring()
    keyring.add(key, "default", frozenset({"admin"}))
    log.secrets.update({key, *agents.secrets})
    parts = Parts(
        engine=engine,
        sessions=store.sessions,
        profile=agents.default,
        scales=agents,
        secret=shelf.secret,
        max_body=settings.limits.body_bytes,
        max_depth=settings.limits.json_depth,
        max_parts=settings.limits.parts,
        others=agents.others,
        clients=Rows((*loaded.tables.clients, *TABLE)),
        websocket_s=settings.limits.websocket_s,
    )
    about = _about(settings, parts, agents, model, shelf)
    app = (build_app if role.serves else build_health_app)(about, keyring, _rules(settings), new_id, log)
    return Assembled(app, engine, store, agents, shelf, keyring)


def _limits(settings: Settings) -> Limits:
    chosen = settings.limits
    return Limits(
        works=settings.server.worker,
        concurrent_runs=chosen.concurrent_runs,
        queue=chosen.queue,
        chores=chosen.chores,
        subscriber_bytes=chosen.subscriber_bytes,
        keepalive_s=chosen.keepalive_s,
        stall_s=chosen.stall_s,
        grace_s=chosen.disconnect_grace_s,
        lease_s=settings.store.lease_s if settings.store.shared else Limits().lease_s,
        keep=Keep(
            runs=settings.store.max_responses,
            owner_bytes=settings.store.owner_bytes,
            total_bytes=settings.store.total_bytes,
            days=settings.store.max_days,
            every_s=settings.store.retention_s,
        ),
    )


def _rules(settings: Settings) -> Rules:
    return Rules(
        loopback=is_loopback(settings.server.host),
        max_body=settings.limits.body_bytes,
        cors_origins=settings.server.cors_origins,
        allowed_hosts=settings.server.allowed_hosts,
        open_paths=OPEN_PATHS,
    )


def _about(settings: Settings, parts: Parts, agents: Agents, model: Model, shelf: Shelf) -> About:
    probe, peers, upkeep = Probe(model), shelf.store.peers, shelf.store.upkeep
    limits = settings.limits
    return About(
        parts=parts,
        store={
            **shelf.shown,
            "sandbox": agents.sandbox.kind,
            "sandbox_says": agents.sandbox.says,
            "data_dir": str(settings.server.data_path),
        },
        limits={
            "concurrent_runs": limits.concurrent_runs,
            "queue": limits.queue,
            "body_bytes": limits.body_bytes,
            "keepalive_s": limits.keepalive_s,
            "drain_s": limits.drain_s,
            "tool_timeout_s": limits.tool_timeout_s,
        },
        toolsets=agents.toolsets,
        started_at=time.monotonic(),
        now=time.monotonic,
        upstream=probe.look,
        created=int(time.time()),
        replicas=peers.replicas if peers.shared else None,
        away=(lambda: parts.engine.lease.trouble() or upkeep.trouble()) if peers.shared else lambda: None,
    )


class Probe:
    """Is the upstream there? Asked at most every few seconds, however often health is."""

    def __init__(self, model: Model, every_s: float = 5.0) -> None:
        self._model = model
        self._every_s = every_s
        self._asked_at = float("-inf")
        self._reachable = True
        self._lock = asyncio.Lock()

    async def look(self) -> dict[str, object]:
        """What health shows."""
        async with self._lock:
            if time.monotonic() - self._asked_at > self._every_s:
                self._reachable = await self._model.probe()
                self._asked_at = time.monotonic()
        return {"model": self._model.name, "reachable": self._reachable}

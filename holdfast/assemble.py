"""Where parts are chosen and joined. Owns: which store, model, tools and agent a server has, made from settings. Only
cli imports it. Refuses to know: the command line."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from starlette.applications import Starlette

from holdfast.assemble_agents import Agents, Chance, build_agents
from holdfast.config import Loaded, Settings, is_loopback
from holdfast.dialects.clients import TABLE
from holdfast.engine.base import Keep, Limits
from holdfast.engine.drivers import Parts as EngineParts
from holdfast.engine.engine import Engine
from holdfast.http.app import build_app
from holdfast.http.calls import Parts
from holdfast.http.gate import Rules
from holdfast.http.keys import Keyring
from holdfast.http.routes_server import OPEN_PATHS, About
from holdfast.journal.bell import LocalBell
from holdfast.journal.lock import DirectoryLock
from holdfast.journal.memory import MemoryStore
from holdfast.journal.space import Space
from holdfast.journal.sqlite import SqliteStore
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


def steady_clock() -> Callable[[], int]:
    """The wall clock as it was at the start, going on by itself: a clock that is set while the server runs lets
    nothing expire too early and nothing be forgotten (P12)."""
    begun = time.monotonic_ns() // 1_000_000
    wall = now_ms()
    return lambda: wall + time.monotonic_ns() // 1_000_000 - begun


class Assembled(Struct):
    """A server, ready to be started."""

    app: Starlette
    engine: Engine
    store: SqliteStore
    agents: Agents
    lock: DirectoryLock
    keyring: Keyring

    async def start(self) -> None:
        """Begin: tools first, so that recovered runs find them."""
        await self.agents.start()
        await self.engine.start()

    async def stop(self) -> None:
        """Let go of everything, in the order in which parts depend on each other."""
        await self.engine.stop()
        await self.agents.close()
        await self.store.close()
        self.lock.release()


async def assemble(loaded: Loaded, key: str, log: Log, model: Model) -> Assembled:
    """Build the server over its data directory."""
    settings = loaded.settings
    data = settings.server.data_path
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = DirectoryLock(data)
    space = Space(data, settings.store.low_water_bytes, settings.store.ballast_bytes)
    store = await SqliteStore.open_at(data / "holdfast.db", settings.store.durability, time.monotonic, space=space)
    if store.lost:
        log.warning("power_loss", entries=store.lost, note="the machine lost what was not on its disk yet")
    sandbox = await asyncio.to_thread(choose, settings.tools.sandbox)
    steady_ms = steady_clock()
    agents = build_agents(loaded, store, model, sandbox, Chance(new_code, steady_ms))
    memory = MemoryStore(time.monotonic, sessions=store)
    new_id = id_maker()
    limits = _limits(settings)
    engine = Engine(EngineParts(store, memory, LocalBell(), agents.agent, limits, log, now_ms, new_id, steady_ms))
    keyring = Keyring()
    keyring.add(key, "default", frozenset({"admin"}))
    log.secrets.update({key, *agents.secrets})
    parts = Parts(
        engine=engine,
        sessions=store.sessions,
        profile=agents.default,
        scales=agents,
        secret=secret_of(data),
        max_body=settings.limits.body_bytes,
        max_depth=settings.limits.json_depth,
        max_parts=settings.limits.parts,
        others=agents.others,
        clients=(*loaded.tables.clients, *TABLE),
        websocket_s=settings.limits.websocket_s,
    )
    app = build_app(_about(settings, parts, agents, model), keyring, _rules(settings), new_id, log)
    return Assembled(app, engine, store, agents, lock, keyring)


def _limits(settings: Settings) -> Limits:
    chosen = settings.limits
    return Limits(
        concurrent_runs=chosen.concurrent_runs,
        queue=chosen.queue,
        chores=chosen.chores,
        subscriber_bytes=chosen.subscriber_bytes,
        keepalive_s=chosen.keepalive_s,
        stall_s=chosen.stall_s,
        grace_s=chosen.disconnect_grace_s,
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


def _about(settings: Settings, parts: Parts, agents: Agents, model: Model) -> About:
    probe = Probe(model)
    limits = settings.limits
    return About(
        parts=parts,
        store={
            "kind": "sqlite",
            "durability": settings.store.durability,
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


def secret_of(data: Path) -> bytes:
    """This data directory's own secret, made at first use: names of derived sessions depend on it."""
    path = data / "secret"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return hashlib.sha256(path.read_bytes()).digest()
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_bytes(32))
    return hashlib.sha256(path.read_bytes()).digest()

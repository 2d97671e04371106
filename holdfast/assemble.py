"""Where parts are chosen and joined. Owns: which store, model, tools and agent a server has, made from settings. Only
cli imports it. Refuses to know: the command line."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from starlette.applications import Starlette

from holdfast.agents.approval import Approvals, Mode
from holdfast.agents.loop import LoopAgent, LoopSettings
from holdfast.config import Settings, is_loopback
from holdfast.core import events as e
from holdfast.core.state import RunState
from holdfast.dialects.asking import Profile
from holdfast.engine.base import Limits
from holdfast.engine.engine import Engine
from holdfast.engine.engine import Parts as EngineParts
from holdfast.http.app import build_app
from holdfast.http.calls import Parts
from holdfast.http.gate import Rules
from holdfast.http.keys import Keyring
from holdfast.http.routes_server import OPEN_PATHS, About
from holdfast.journal.bell import LocalBell
from holdfast.journal.lock import DirectoryLock
from holdfast.journal.memory import MemoryStore
from holdfast.journal.sqlite import SqliteStore
from holdfast.models.base import Model
from holdfast.models.openai import OpenAIModel, Upstream
from holdfast.models.scripted import ScriptedModel
from holdfast.observe.log import Log
from holdfast.tools.base import Place
from holdfast.tools.reaper import end_leftover
from holdfast.tools.registry import Toolbox, builtin_tools
from holdfast.tools.threads import Threads
from holdfast.tools.workspace import workspace_for

APPROVAL_S = 3600.0
PROMPT = (
    "You are a helpful agent. You have tools that work in a workspace which keeps its files between conversations. "
    "Use them when they help, and say briefly what you did."
)


def new_id() -> str:
    """24 random characters: 96 bits."""
    return secrets.token_hex(12)


def new_code() -> str:
    """A code that a person can type: 30 bits, and it works for its owner only."""
    return "".join(secrets.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(6))


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def wall() -> str:
    """The wall clock for logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Assembled(Struct):
    """A server, ready to be started."""

    app: Starlette
    engine: Engine
    store: SqliteStore
    model: Model
    threads: Threads
    lock: DirectoryLock
    keyring: Keyring

    async def stop(self) -> None:
        """Let go of everything, in the order in which parts depend on each other."""
        await self.engine.stop()
        await self.store.close()
        await self.model.close()
        self.threads.close()
        self.lock.release()


def choose_model(settings: Settings, found: Upstream | None) -> tuple[Model, str]:
    """The model, and how to speak of it."""
    m = settings.model
    if m.url:
        upstream = Upstream(
            url=m.url,
            name=m.name or "default",
            api_key=m.api_key or "",
            connect_s=m.connect_s,
            first_byte_s=m.first_byte_s,
            stall_s=m.stall_s,
            total_s=m.total_s,
            retries=m.retries,
        )
        return OpenAIModel(upstream), f"{upstream.name} at {upstream.url}"
    if found is not None:
        return OpenAIModel(found), f"{found.name} at {found.url} (found by itself)"
    return ScriptedModel(), "the built-in scripted demo model"


async def assemble(settings: Settings, key: str, log: Log, model: Model) -> Assembled:
    """Build the server over its data directory."""
    data = settings.server.data_path
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = DirectoryLock(data)
    store = await SqliteStore.open_at(data / "holdfast.db", settings.store.durability, time.monotonic)
    bell = LocalBell()
    limits = _limits(settings)
    threads = Threads()
    toolbox = Toolbox(builtin_tools(settings.tools.sandbox, threads))
    approvals = _approvals(settings, store)
    agent = LoopAgent(model, toolbox, _loop_settings(settings), _places(settings, data), _ender(threads), approvals)
    memory = MemoryStore(time.monotonic, sessions=store)
    engine = Engine(EngineParts(store, memory, bell, agent, limits, log, now_ms, new_id))
    keyring = Keyring()
    keyring.add(key, "default", frozenset({"admin"}))
    log.secrets.update({key} | ({settings.model.api_key} if settings.model.api_key else set()))
    parts = Parts(
        engine=engine,
        profile=_profile(settings),
        secret=secret_of(data),
        max_body=settings.limits.body_bytes,
        max_depth=settings.limits.json_depth,
        max_parts=settings.limits.parts,
    )
    app = build_app(_about(settings, parts, toolbox, model), keyring, _rules(settings), new_id, log)
    return Assembled(app, engine, store, model, threads, lock, keyring)


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
    )


def _loop_settings(settings: Settings) -> LoopSettings:
    agent = settings.agent
    return LoopSettings(agent.system_prompt or PROMPT, agent.max_rounds, agent.max_message_bytes)


def _approvals(settings: Settings, store: SqliteStore) -> Approvals:
    chosen = settings.tools.approval
    mode: Mode = "never" if chosen == "auto" else chosen
    return Approvals(mode, (), store.granted, new_code, now_ms, APPROVAL_S)


def _profile(settings: Settings) -> Profile:
    agent = settings.agent
    return Profile(
        settings.server.model_name,
        agent.tool_items,
        agent.tool_progress,
        agent.output_event_bytes,
        agent.durable_chat,
        settings.server.unknown_model,
    )


def _places(settings: Settings, data: Path) -> Callable[[RunState, str], Place]:
    root = data / "workspaces"

    def place(state: RunState, call_id: str) -> Place:
        accepted = state.facts.accepted
        session = accepted.resolved.session or ""
        shared = settings.tools.workspace == "owner"
        name = accepted.owner if shared else f"{accepted.owner}/{session}"
        return Place(
            owner=accepted.owner,
            session=session,
            call_id=call_id,
            workspace=workspace_for(root, name),
            state=workspace_for(data / "tools", accepted.owner),
            timeout_s=settings.limits.tool_timeout_s,
            output_bytes=settings.limits.tool_output_bytes,
        )

    return place


def _ender(threads: Threads) -> Callable[[e.Process, str], Awaitable[bool]]:
    async def end(process: e.Process, call_id: str) -> bool:
        return await threads.run(end_leftover, process, call_id)

    return end


def _rules(settings: Settings) -> Rules:
    return Rules(
        loopback=is_loopback(settings.server.host),
        max_body=settings.limits.body_bytes,
        cors_origins=settings.server.cors_origins,
        allowed_hosts=settings.server.allowed_hosts,
        open_paths=OPEN_PATHS,
    )


def _about(settings: Settings, parts: Parts, toolbox: Toolbox, model: Model) -> About:
    probe = Probe(model)
    tools: list[dict[str, object]] = []
    for name in toolbox.names():
        tool = toolbox.get(name)
        if tool is not None:
            shown = {"name": name, "description": tool.description, "effect": tool.effect, "emoji": tool.emoji}
            tools.append({**shown, "approval": "never"})
    limits = settings.limits
    return About(
        parts=parts,
        store={
            "kind": "sqlite",
            "durability": settings.store.durability,
            "sandbox": settings.tools.sandbox,
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
        toolset=tools,
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

"""Several engines on one store, in one event loop. Owns: House (the shared store and its engines), Valve (one engine's
way to the store, which a test can shut), and waiting for a condition with a deadline. Refuses to know: what is
tested."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ninelives.agents.approval import ApprovalPolicy, Approvals
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.agents.rules import Rule
from ninelives.core.admission import Asked
from ninelives.core.events import Effect
from ninelives.core.spec import Kept, Spec
from ninelives.core.state import RunState
from ninelives.dialects.runs.frames import RunsProjection
from ninelives.engine.base import (
    Chunk,
    EngineLimits,
    EngineParts,
    Idle,
    Limited,
    News,
    Order,
    Projection,
    StreamEnded,
    no_limits,
)
from ninelives.engine.engine import Engine
from ninelives.journal.accounts.trail import NoTrail, Trail
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres.store import Identity, PostgresStore
from ninelives.journal.values import StoreUnavailable
from ninelives.testing.playbook import PlaybookModel, Step
from ninelives.testing.shared import SharedMemory
from ninelives.tools.base import FunctionTool, Output, Place
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox
from tests.pg import killed, opened, server

OWNER = "ann"
DEADLINE_S = 60.0
LEASE_S = 2.0
EFFECTS: dict[str, Effect] = {"look": "read", "note": "write"}


async def until(what: Callable[[], Any | Awaitable[Any]], why: str = "it") -> Any:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = what()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{why} did not happen within {DEADLINE_S:g} s")


class Quiet:
    """A log that keeps names and fields."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, name: str, **fields: object) -> None:
        """See Log.info."""
        self.lines.append((name, fields))

    warning = error = info


class Valve:
    """The store, as one engine sees it. `down`: every call fails, as while the database is away; `refused`: those of a
    name do. Closed (`opened` is clear): no call returns until the valve is opened again. `late`: calls of a name are
    carried out, and answered when their event is set. `unanswered`: the next call of a name is carried out, and its
    answer is lost."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.down = False
        self.opened = asyncio.Event()
        self.opened.set()
        self.refused: set[str] = set()
        self.late: dict[str, asyncio.Event] = {}
        self.unanswered: set[str] = set()
        self.calls: Counter[str] = Counter()
        """How many were carried out."""
        self.deliveries = _Valved(self, store.deliveries)

    @property
    def parallel(self) -> bool:
        return bool(self._store.parallel)

    @property
    def peers(self) -> Any:
        return _Peers(self, self._store.peers)

    @property
    def upkeep(self) -> Any:
        return self._store.upkeep

    @property
    def conversations(self) -> Any:
        return self._store.conversations

    @property
    def sessions(self) -> Any:
        return _Valved(self, self._store.sessions)

    @property
    def ledger(self) -> Any:
        return _Valved(self, self._store.ledger)

    def foregone(self, asked: Any) -> Any:
        return self._store.foregone(asked)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            return await self.through(getattr(self._store, name), *args, **named)

        return call

    async def through(self, work: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        """Carry out one call."""
        name = work.__name__
        if self.down or name in self.refused:
            raise StoreUnavailable("the database is away", passing=True, away=True)
        await self.opened.wait()
        answer = await work(*args, **named)
        self.calls[name] += 1
        if name in self.unanswered:
            self.unanswered.discard(name)
            raise StoreUnavailable("the connection broke", passing=True, away=True)
        if name in self.late:
            await self.late[name].wait()
        return answer


class _Valved:
    def __init__(self, valve: Valve, inner: Any) -> None:
        self._valve = valve
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            return await self._valve.through(getattr(self._inner, name), *args, **named)

        return call


class _Peers(_Valved):
    @property
    def shared(self) -> bool:
        return bool(self._inner.shared)


class House:
    """One shared store and its engines."""

    def __init__(self) -> None:
        self.deaf = False
        """No process is told what the others do."""
        self.store = SharedMemory(time.monotonic, self.now_ms, LEASE_S, lambda topic: self.deaf)
        self.books: dict[str, list[list[Step]]] = {}
        self.asked: list[str] = []
        """What the model was asked."""
        self.deeds: Counter[str] = Counter()
        self.holds: dict[str, asyncio.Event] = {}
        """Tools wait for the event of their `n`, where there is one."""
        self.engines: list[Engine] = []
        self.valves: list[Valve] = []
        self.logs: list[Quiet] = []
        self._ids = itertools.count(1)

    @staticmethod
    def now_ms() -> int:
        return int(time.time() * 1000)

    limits_of: Callable[[str, str, str], Limited] = staticmethod(no_limits)
    audit: Trail = NoTrail()

    def new_id(self) -> str:
        return f"{next(self._ids):024d}"

    async def begin(self) -> None:
        """Before the first process."""

    async def rows(self) -> dict[str, tuple[str | None, int]]:
        """All runs: who holds each, and its attempt."""
        return {name: (run.holder, run.attempt) for name, run in self.store._runs.items()}

    async def is_lost(self, run: str) -> bool:
        """Whether the store knows that the caller of a run has no connection."""
        return self.store._runs[run].lost_at > 0

    async def dies(self, n: int) -> None:
        """kill -9: nothing more is said, and the lease runs out."""
        await self.engines[n].stop()

    async def erase(self, run: str) -> None:
        """Another process deletes a run, without a word before."""
        await self.store.seat("x", LocalNotifier()).delete(OWNER, run)
        self.store.leave("x")

    async def seat(self, holder: str, bell: LocalNotifier, limits: EngineLimits) -> Any:
        """The store, for one more process."""
        return self.store.seat(holder, bell, works=limits.works)

    async def engine(self, **limits: Any) -> Engine:
        """One more process."""
        given = EngineLimits(**{"lease_s": LEASE_S, "keepalive_s": 0.5, "leave_grace_s": 0.2, **limits})
        holder, bell, log = f"p{len(self.engines)}", LocalNotifier(), Quiet()
        valve: Any = Valve(await self.seat(holder, bell, given))
        box = Toolbox([self._tool(name) for name in EFFECTS])
        policy = ApprovalPolicy("never", (Rule("*", "always", "true", "ask"),))
        asks = Approvals(policy, valve.granted, self.new_id, self.now_ms, 60.0)
        environment = CallEnvironment(_place, _no_leftover, OutputFiles())
        agent = LoopAgent(Books(self), box, LoopSettings(max_rounds=6), environment, asks)
        memory: Any = MemoryStore(time.monotonic)
        parts = EngineParts(
            *(valve, memory, bell, agent, given, log, self.now_ms, self.new_id, None, holder),
            limits_of=self.limits_of,
            audit=self.audit,
        )
        engine = Engine(parts)
        await engine.start()
        self.engines.append(engine)
        self.valves.append(valve)
        self.logs.append(log)
        return engine

    def _tool(self, name: str) -> FunctionTool:
        async def work(arguments: dict[str, Any], place: Place) -> Output:
            self.deeds[place.call_id] += 1
            held = self.holds.get(str(arguments["n"]))
            if held is not None:
                await held.wait()
            return Output(f"{name} gave {arguments['n']}")

        properties = {"n": {"type": "integer"}, "ask": {"type": "boolean"}}
        schema: dict[str, object] = {"type": "object", "properties": properties}
        return FunctionTool(name=name, description=name, schema=schema, fn=work, effect=EFFECTS[name])

    async def close(self) -> None:
        """All processes end."""
        for valve in self.valves:
            valve.opened.set()
            valve.down = False
            valve.refused.clear()
            for event in valve.late.values():
                event.set()
        for engine in self.engines:
            await engine.stop()


class AloneHouse(House):
    """One engine that has its store to itself."""

    async def seat(self, holder: str, bell: LocalNotifier, limits: EngineLimits) -> Any:
        """See House.seat."""
        return MemoryStore(time.monotonic, LEASE_S, self.now_ms)


class PostgresHouse(House):
    """The same on a real PostgreSQL."""

    async def begin(self) -> None:
        """See House.begin."""
        self._url = await server().database()
        self._stores: list[PostgresStore] = []

    async def rows(self) -> dict[str, tuple[str | None, int]]:
        """See House.rows."""
        found = await server().run(self._url, "SELECT id, holder, attempt FROM runs")
        return {row["id"]: (row["holder"], row["attempt"]) for row in found}

    async def is_lost(self, run: str) -> bool:
        """See House.is_lost."""
        found = await server().run(self._url, "SELECT lost_at > 0 AS lost FROM runs WHERE id = '%s'" % run)  # noqa: UP031
        return bool(found[0]["lost"])

    async def dies(self, n: int) -> None:
        """See House.dies."""
        await super().dies(n)
        await killed(self._stores[n])

    async def erase(self, run: str) -> None:
        """See House.erase."""
        store = await opened(self._url, "x", LocalNotifier(), LEASE_S)
        await store.delete(OWNER, run)
        await store.close()

    async def seat(self, holder: str, bell: LocalNotifier, limits: EngineLimits) -> Any:
        """See House.seat."""
        store = await PostgresStore.open_at(self._url, Identity(holder, holder, limits.works), bell, LEASE_S)
        self._stores.append(store)
        return store

    async def close(self) -> None:
        """See House.close."""
        await super().close()
        for store in self._stores:
            await store.close()


class Books(PlaybookModel):
    """Says what the books of the house hold for the user's last words."""

    def __init__(self, house: House) -> None:
        super().__init__([])
        self._house = house

    async def stream(self, ask: Any) -> Any:
        """See Model.stream."""
        text = next(str(m["content"]) for m in reversed(ask.messages) if m["role"] == "user")
        self._house.asked.append(text)
        async for parts in PlaybookModel(self._house.books[text]).stream(ask):
            yield parts


def order(text: str, *, kept: Kept = "stored", **joins: Any) -> Order:
    """A request. What is not stored can be joined by the same request, and is parked when its caller leaves."""
    store, message = kept == "stored", {"role": "user", "content": text}
    leaves: Any = "detach" if store else "park"
    spec = Spec(dialect="runs", model="m", input=(message,), store=store, kept=kept, on_disconnect=leaves)
    if not store and kept != "memory":
        joins = {"match": f"match {text}", "credential": "key", "resend_ms": 60_000, **joins}
    asked = Asked(owner=OWNER, fingerprint=f"of {text}", derived_session="d", kept=kept, **joins)
    return Order(owner=OWNER, spec=spec, asked=asked)


class Ear:
    """A reader in a task of its own."""

    def __init__(self, engine: Engine, run: str, projection: Projection | None = None) -> None:
        self.data = b""
        self.idles = 0
        self.last: News | None = None
        self.subscription = engine.attach(OWNER, run, projection or RunsProjection())
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            news = await self.subscription.next()
            match news:
                case Chunk(data):
                    self.data += data
                case Idle():
                    self.idles += 1
                case _:
                    self.last = news
                    self.subscription.close()
                    return

    async def whole(self) -> bytes:
        """All that it was told, when the run has ended."""
        await asyncio.wait_for(self.task, DEADLINE_S)
        assert isinstance(self.last, StreamEnded), self.last
        return self.data


def _place(state: RunState, call: str) -> Place:
    return Place(owner=OWNER, session="s", call_id=call, workspace=Path("/nonexistent"))


async def _no_leftover(process: Any, call: str) -> bool:
    return True

"""What a seed happens in. Owns: the World (the journal's content, the deeds of tools, what the model was asked: all
that outlives a process) and a Life (one engine with its readers, from its start to its death). Refuses to know: what is
right (watch.py, checks.py) and what is to happen (play.py)."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from ninelives.agents.approval import ApprovalPolicy, Approvals
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.core.state import RunState
from ninelives.dialects import DIALECTS
from ninelives.drill.checks import Told
from ninelives.engine.base import Broken, Chunk, Cut, EngineParts, Idle, StreamEnded, Ticket
from ninelives.engine.engine import Engine
from ninelives.engine.subscription import Subscription
from ninelives.journal.base import Notifier
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import Opened, Verdict
from ninelives.models.base import Ask, Part
from ninelives.models.scripted import text_of
from ninelives.testing.playbook import PlaybookModel, Step, said
from ninelives.testing.shared import SharedMemory
from ninelives.tools.base import FunctionTool, Output, Place, Reach
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox
from tests.sim.dice import EFFECTS, Plan, Reading
from tests.sim.loop import SimLoop, SimTask
from tests.sim.store import Door, Side
from tests.sim.watch import Track, Watch

T = TypeVar("T")
OWNER = "owner"
READ_AS = ("responses", "runs", "chat")
"""The dialects that runs are read in."""
EPOCH_MS = 1_000_000_000_000
"""When a seed begins: a clock that jumps back by a day is not before all time."""
NOWHERE = Path("/nonexistent")
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)
EXPECTED = frozenset({"store_unavailable", "store_failed", "run_sealed", "run_not_recovered"})
"""Errors that a log may tell of: they are what was done to it."""
KNOWN: dict[str, object] = {
    "n": {"type": "integer"},
    "s": {"type": "number"},
    "tells": {"type": "integer"},
    **{name: {"type": "boolean"} for name in ("ask", "fails", "dies")},
}


class SimLog:
    """Whatever the engine calls an error is one, unless it was done to it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def info(self, name: str, **fields: object) -> None:
        """See Log.info."""

    def warning(self, name: str, **fields: object) -> None:
        """See Log.warning."""
        self._watch.note(f"warning {name} {fields}")

    def error(self, name: str, **fields: object) -> None:
        """See Log.error."""
        self._watch.note(f"error {name} {fields}")
        if name not in EXPECTED:
            self._watch.wrong("logged", str(fields.get("run", "")), f"{name} {fields}")


class SimModel(PlaybookModel):
    """Says what the books hold for the user's last words, at a pace that the dice give. `asks` are those of processes
    that had the run: others are refused when they tell of the answer."""

    def __init__(self, world: World) -> None:
        super().__init__([])
        self._world = world
        self.books: dict[str, list[list[Step]]] = {}

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream."""
        text = next((text_of(m) for m in reversed(ask.messages) if m["role"] == "user"), "")
        life = LIFE.get()
        if life is not None and any(self._world.astray(life, track) for track in self._world.watch.asking(text)):
            self._world.watch.note(f"ask {text} astray")
        else:
            self.asks.append(ask)
            self._world.watch.note(f"ask {text}")
        player = PlaybookModel(self.books.get(text.split(".")[0], [said("ok ", "then")]))
        async for parts in player.stream(ask):
            await self._world.pause()
            yield parts


class World:
    """All that outlives a process."""

    def __init__(self, plan: Plan, loop: SimLoop) -> None:
        self.plan = plan
        self.loop = loop
        self.chance = random.Random(f"world {plan.seed}")
        self.watch = Watch(loop.time)
        self.lapsed = 0.0
        self.jumped_ms = 0
        self.down_until = 0.0
        """Until then nobody reaches a store that is shared."""
        self.store: MemoryStore
        if plan.replicas > 1:
            self.share(SharedMemory)
        else:
            self.store = MemoryStore(lambda: loop.now + self.lapsed, now_ms=self.steady_ms)
        self._holders: dict[str, tuple[Life, float]] = {}
        """Who has claimed a run, and when."""
        self._callers: dict[str, Life] = {}
        """The process at which the caller of a run waits."""
        self._frozen: list[tuple[Life, asyncio.Handle]] = []
        loop.stands_still = self._stands_still
        self.model = SimModel(self)
        self._life: Life | None = None
        self.lives: list[Life] = []
        self.told: list[tuple[str, Told]] = []
        self.make_engine: Callable[[EngineParts], Engine] = Engine
        self.make_agent: Callable[..., LoopAgent] = LoopAgent
        self.make_door: Callable[..., Any] = Door
        self.toolbox = Toolbox([self._tool(name) for name in EFFECTS])
        self._ids = 0
        self._died: set[str] = set()
        loop.made = _tag

    def share(self, kind: type[SharedMemory]) -> None:
        """Several processes use a store of this kind."""
        lease_s = self.plan.limits.lease_s
        self.store = kind(lambda: self.loop.now, self.steady_ms, lease_s, self._is_lost, self._ring)
        self.watch.leased = True

    def _is_lost(self, topic: str) -> bool:
        return self.chance.random() < self.plan.lossy

    def _ring(self, bell: Notifier, topics: list[str]) -> None:
        life = next(life for life in self.lives if life.bell is bell)
        delay = self.chance.choice((0.0, 0.0, 0.002, 0.05))
        self.loop.call_later(delay, bell.ring, topics, context=life.context)

    def _stands_still(self, handle: asyncio.Handle) -> bool:
        life = handle._context.get(LIFE)  # type: ignore[attr-defined]
        if life is None or not life.frozen:
            return False
        self._frozen.append((life, handle))
        return True

    def thaw(self, life: Life) -> None:
        """It goes on where it stood."""
        life.frozen = False
        for waiting, handle in self._frozen:
            if waiting is life and not handle.cancelled():
                self.loop._ready.append(handle)  # type: ignore[attr-defined]
        self._frozen = [kept for kept in self._frozen if kept[0] is not life]

    @property
    def life(self) -> Life | None:
        """A server that answers: the one, or any."""
        if self.plan.replicas == 1:
            return self._life
        up = self.up()
        return self.chance.choice(up) if up else None

    @life.setter
    def life(self, life: Life | None) -> None:
        self._life = life

    def up(self) -> list[Life]:
        """Those to which a caller would be sent."""
        return [life for life in self.lives if not (life.dead or life.leaving or life.frozen) and life.begun]

    def note_claims(self, life: Life, call: Any, result: Any) -> None:
        """Who holds what, told by the calls alone: nobody takes from one who has it."""
        name, args, _ = call
        if name == "open" and (isinstance(result, Opened) or result.again) and result.run in self.watch.tracks:
            self._waits_at(result.run, life)
        match name:
            case "beat":
                life.beats()
            case "open" if isinstance(result, Opened) and args[0].holder:
                self._holders[result.run] = life, self.loop.now
            case "claim" if result is not None:
                held, since = self._holders.get(result.run, (None, 0.0))
                if self.plan.replicas > 1 and held is not None and held.holds(since):
                    self.watch.wrong("claim", result.run, f"life {life.n} took it from life {held.n}, which holds it")
                self._holders[result.run] = life, self.loop.now
                self.watch.tracks[result.run].abandoned = self._known_dead(self._callers.get(result.run))
            case "append":
                for part, verdict in zip(args[0], result, strict=True):
                    if part.opening is not None and verdict is Verdict.WRITTEN:
                        self._holders[part.run] = life, self.loop.now
                        self._waits_at(part.run, life)
                    over = part.mark is not None and (part.mark.parked or part.mark.ended)
                    if verdict is Verdict.WRITTEN and over:
                        self._holders.pop(part.run, None)
                self.watch.counts["refused_slices"] += sum(verdict is Verdict.FENCED for verdict in result)

    def _waits_at(self, run: str, life: Life) -> None:
        self._callers[run] = life
        self.watch.tracks[run].abandoned = False

    def _known_dead(self, life: Life | None) -> bool:
        """Does the store know that this process is dead? Among peers it sees that only when the lease is over; alone it
        is the one that starts after it."""
        if life is None or not life.dead or life.leaving:
            return False
        return self.plan.replicas == 1 or life.beaten + self.plan.limits.lease_s <= self.loop.now

    def astray(self, life: Life, track: Track) -> bool:
        """Does a process act for a run that is not its own? Where there are leases, one without has none of those
        that are stored."""
        if not track.stored:
            return track.home is not life
        held, since = self._holders.get(track.run, (None, 0.0))
        return held is not life or not (self.plan.replicas == 1 or life.holds(since))

    def now_ms(self) -> int:
        """The wall's clock, which may jump."""
        return EPOCH_MS + int(self.loop.now * 1000) + self.jumped_ms

    def steady_ms(self) -> int:
        """A clock that nobody sets, by which things expire."""
        return EPOCH_MS + int(self.loop.now * 1000)

    def new_id(self) -> str:
        """A fresh id."""
        self._ids += 1
        return f"{self._ids:024d}"

    async def pause(self) -> None:
        """A moment, by the dice."""
        kind = self.chance.random()
        if kind < 0.4:
            return
        await asyncio.sleep(0 if kind < 0.7 else 0.01 if kind < 0.96 else self.chance.uniform(0.2, 3.0))

    async def begin(self) -> Life:
        """A process starts on what is there. The leases of the one before are over with it."""
        self.lapsed += 3600.0  # which nobody looks at where a store is shared
        if self.plan.replicas == 1:
            self.store.deliveries.restart()
        life = Life(self, len(self.lives) + 1)
        self.lives.append(life)
        self.watch.note(f"life {life.n} begins")
        self.watch.calm_since = max(self.loop.now, self.watch.calm_since if self.plan.replicas > 1 else 0.0)
        self.watch.counts["lives"] += 1
        await asyncio.wait([life.spawn(life.start())])
        if not life.dead:
            life.begun = True
            self._life = life
        return life

    def _tool(self, name: str) -> FunctionTool:
        async def work(arguments: dict[str, Any], place: Place) -> Output:
            life = LIFE.get()
            if life is None or life.dead:
                raise asyncio.CancelledError
            self.watch.did(place.call_id, name, lambda track: self.astray(life, track))
            for n in range(int(arguments.get("tells", 0))):
                place.progress(f"{n} done")
                await self.pause()
            if arguments.get("s"):
                await asyncio.sleep(float(arguments["s"]))
            if arguments.get("dies") and place.call_id not in self._died:
                self._died.add(place.call_id)
                life.crash("by a tool")
                await asyncio.sleep(0)
            if arguments.get("fails"):
                raise RuntimeError("the tool is broken")
            return Output(f"{name} gave {arguments['n']}")

        schema: dict[str, object] = {"type": "object", "properties": KNOWN}
        return FunctionTool(name=name, description=name, schema=schema, fn=work, effect=EFFECTS[name], reach=_reach)


def _reach(arguments: dict[str, object]) -> Reach:
    """A call asks where its arguments say so."""
    return Reach("write" if arguments.get("ask") is True else "none")


def _tag(task: SimTask) -> None:
    life = LIFE.get()
    if life is not None:
        life.tasks.append(task)
        if life.dead:
            task.cancel()


class NoFiles(OutputFiles):
    """The agent has no files to forget: there are no threads in virtual time."""

    async def forget(self, place: Place, path: str) -> bool:
        return True


class Life:
    """One engine, from its start to its death."""

    def __init__(self, world: World, n: int) -> None:
        self.world = world
        self.n = n
        self.dead = False
        self.leaving = False
        """It drains: no new caller comes to it."""
        self.begun = False
        self.frozen = False
        self.beaten = self.since = world.loop.now
        """When the store heard its last beat, and the first of that unbroken line."""
        self.tasks: list[SimTask] = []
        self.readers: list[Reader] = []
        self.over = asyncio.Event()
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)
        self.bell, self.holder = LocalNotifier(), ""
        limits, inner = world.plan.limits, world.store
        if isinstance(world.store, SharedMemory):
            self.holder = f"life{n}"
            if world.plan.idle_one and n == 2:
                limits = replace(limits, works=False)
            inner = world.store.seat(self.holder, self.bell, works=limits.works)  # type: ignore[assignment]
        self.door: Any = world.make_door(self, inner, random.Random(f"door {world.plan.seed} {n}"))
        self.side = MemoryStore(lambda: world.loop.now, now_ms=world.steady_ms)
        plan = world.plan
        approvals = Approvals(ApprovalPolicy("on-write"), self.door.granted, world.new_id, world.steady_ms, plan.ttl_s)
        settings = LoopSettings(max_rounds=6, on_unknown=plan.on_unknown)
        environment = CallEnvironment(_place, _no_leftover, NoFiles())
        agent = world.make_agent(world.model, world.toolbox, settings, environment, approvals)
        parts: Any = (self.door, Side(self, self.side), self.bell, agent)
        clocks: Any = (world.now_ms, world.new_id, world.steady_ms)
        self.parts = EngineParts(*parts, limits, SimLog(world.watch), *clocks, self.holder)
        self.engine: Engine

    async def start(self) -> None:
        """Start the engine."""
        self.engine = self.world.make_engine(self.parts)
        await self.engine.start()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that dies with this life."""
        task = self.world.loop.create_task(work, context=self.context.copy())
        self.tasks.append(task)  # type: ignore[arg-type]
        if self.dead:
            task.cancel()
        return task

    def beats(self) -> None:
        """The store has heard it."""
        if self.beaten + self.world.plan.limits.lease_s <= self.world.loop.now:
            self.since = self.world.loop.now
        self.beaten = self.world.loop.now

    def holds(self, claimed: float) -> bool:
        """Is what it claimed then its own still?"""
        now, lease_s = self.world.loop.now, self.world.plan.limits.lease_s
        in_line = self.beaten + lease_s > now and self.since < claimed + lease_s
        return not self.dead and (claimed + lease_s > now or in_line)

    def crash(self, how: str) -> None:
        """kill -9: nothing of this life runs on, nothing that it had not committed is there."""
        if self.dead:
            return
        self.world.watch.note(f"life {self.n} dies {how}")
        self.world.watch.counts["crashes"] += 1
        self._end()
        if isinstance(self.world.store, SharedMemory):
            self.world.watch.calm_since = self.world.loop.now + self.world.plan.limits.lease_s
            self.world.store.bells.pop(self.holder, None)
            if self.world.chance.random() < 0.5:  # the store notices that its connection is gone
                self.world.store.leave(self.holder)

    def _end(self) -> None:
        self.dead = True
        for reader in self.readers:
            reader.died()
        for task in self.tasks:
            task.cancel()
        if self.world._life is self:
            self.world._life = None
        self.over.set()

    async def leave(self, seconds: float) -> None:
        """SIGTERM: drain, then stop."""
        self.leaving = True
        self.world.watch.note(f"life {self.n} drains")
        draining = self.spawn(self.engine.drain(seconds))
        await asyncio.wait([draining])
        if self.dead:
            return
        for reader in list(self.readers):
            reader.done_with()
        self.world.watch.note(f"life {self.n} stops")
        self._end()
        if isinstance(self.world.store, SharedMemory):
            self.world.store.leave(self.holder)

    async def buried(self) -> None:
        """Wait until the last task of a dead life is gone."""
        for _ in range(50):
            left = [task for task in self.tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.05)
        names = [repr(task.get_coro())[:120] for task in self.tasks if not task.done()]
        self.world.watch.wrong("leak", "", f"tasks outlive their process: {names}")

    def watch_run(self, ticket: Ticket, reading: Reading, after: int = -1) -> Reader:
        """A client begins to read."""
        reader = Reader(self, ticket, reading, after)
        self.readers.append(reader)
        reader.task = self.spawn(reader.read())
        return reader


class Reader:
    """A client that keeps every byte."""

    def __init__(self, life: Life, ticket: Ticket, reading: Reading, after: int) -> None:
        self.run = run = ticket.run
        self._ticket = ticket
        self.reading = reading
        self.after = after
        self.end = ""
        """How its stream ended; empty while it goes on."""
        self.ended_at = 0.0
        self.subscription: Subscription = life.engine.attach(OWNER, run, DIALECTS[reading.dialect].projection(), after)
        self.task: asyncio.Task[None]
        self._life = life
        self._data = bytearray()
        self._chance = life.world.chance

    async def read(self) -> None:
        """Until the end, or until it has had enough."""
        pieces = 0
        while not self.end:
            news = await self.subscription.next()
            match news:
                case Chunk(data):
                    self._hear(data)
                    pieces += 1
                    if pieces == self.reading.leaves_after:
                        self.end = "left"
                case Idle():
                    continue
                case StreamEnded() if self.subscription.restarted:
                    self.end = "restarted"
                case StreamEnded() | Cut():
                    self.end = type(news).__name__.lower()
                case Broken(reason):
                    self.end = f"broken: {reason}"
            if self.reading.pause_s and self._chance.random() < 0.5:
                await asyncio.sleep(self.reading.pause_s)
        self.ended_at = self._life.world.loop.now
        self.done_with()
        whole = self.end == "streamended"
        await self._life.engine.close(OWNER, self._ticket, whole=whole, cut=self.end == "restarted")

    def _hear(self, data: bytes) -> None:
        if self.after < 0:
            self._life.world.watch.heard(self.run, self.reading.dialect, len(self._data), data)
        self._data += data

    def died(self) -> None:
        """The server is gone; what was on its way arrives, or does not."""
        if not self.end:
            if self.subscription.backlog() and self._chance.random() < 0.5:
                data = b"".join(self.subscription._buffer)
                self._hear(data)
            self.end = "died"
            self.done_with()

    def done_with(self) -> None:
        """Nothing more comes."""
        self.end = self.end or "cut"
        self.subscription.close()
        told = Told(self.reading.dialect, self.after, bytes(self._data))
        self._life.world.told.append((self.run, told))
        self._data = bytearray()
        if self in self._life.readers and not self._life.dead:
            self._life.readers.remove(self)


def _place(state: RunState, call: str) -> Place:
    return Place(owner=OWNER, session="s", call_id=call, workspace=NOWHERE)


async def _no_leftover(process: Any, call: str) -> bool:
    return True

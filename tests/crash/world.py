"""A server without a process, that can die at any call of its store. Owns: MortalStore (the hook), a World that
outlives its engines (the store's content, the effects of tools, what the model was asked) and a Life (one engine, its
readers, and its death). Refuses to know: what is right; that is checks.py."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ninelives.agents.approval import ApprovalPolicy, Approvals
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.core import codec
from ninelives.core.admission import Asked
from ninelives.core.events import Effect, ToolFinished
from ninelives.core.spec import Spec
from ninelives.dialects import DIALECTS
from ninelives.dialects.responses import body
from ninelives.dialects.runs.body import body as run_body
from ninelives.drill.checks import Evidence, Told, frames_of, position
from ninelives.engine.base import Broken, Chunk, Cut, EngineLimits, EngineParts, Order, StreamEnded
from ninelives.engine.engine import Engine
from ninelives.engine.subscription import Subscription
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Query, Verdict
from ninelives.models.base import Ask, Part, Text, Thinking
from ninelives.models.scripted import since_user
from ninelives.testing.playbook import PlaybookModel, Step, said
from ninelives.tools.base import FunctionTool, Output, Place, Tool
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox

OWNER = "owner"
READ_AS = ("responses", "runs", "chat")
"""The dialects that runs are read in."""
DEADLINE_S = 60.0
EFFECTS: dict[str, Effect] = {"look": "read", "keep": "idempotent", "note": "write"}
When = Literal["before", "after"]


class Crash(NamedTuple):
    """Death at the nth open, append, claim or signal of a life, before or after the store has done it."""

    at: int
    when: When


class MortalStore:
    """A store whose process can die: from then on no call reaches it and none returns. (The store of ninelives.testing
    raises instead: here the dead must not even run their except and finally blocks before they are cancelled.)"""

    STEPS = frozenset({"open", "append", "claim", "signal"})

    def __init__(self, inner: Any, crash: Crash | None, mark: int = 0) -> None:
        self.inner = inner
        self.crash = crash
        self.steps = 0
        self.reached = asyncio.Event()
        """Set at the step `mark`: something is to happen then."""
        self._mark = mark
        self.finished: set[str] = set()
        """Calls whose result is committed."""
        self.died = asyncio.Event()
        self._appended = asyncio.Condition()
        self._appends = 0

    @property
    def deliveries(self) -> MortalStore:
        """That part of the inner store, which dies with this one."""
        part = MortalStore(self.inner.deliveries, None)
        part.died = self.died
        return part

    @property
    def upkeep(self) -> Any:
        """Retention is no place to die at."""
        return self.inner.upkeep

    @property
    def sessions(self) -> Any:
        """Listing is no place to die at: the next process lists what is missing."""
        return self.inner.sessions

    @property
    def ledger(self) -> Any:
        """Counting is no place to die at."""
        return self.inner.ledger

    @property
    def peers(self) -> Any:
        """One process has the store to itself."""
        return self.inner.peers

    def foregone(self, asked: Any) -> Any:
        """What is known at once is no place to die at."""
        return self.inner.foregone(asked)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            return await self._call(name, args, named)

        return call

    async def _call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        here = False
        if name in self.STEPS and not self.died.is_set():
            self.steps += 1
            if self.steps == self._mark:
                self.reached.set()
            here = self.crash is not None and self.steps == self.crash.at
            if here and self.crash is not None and self.crash.when == "before":
                self.die()
        await self._unless_dead()
        result = await getattr(self.inner, name)(*args, **named)
        if name == "append":
            self._note(args[0], result)
        if here:
            self.die()
        await self._unless_dead()
        if name == "append":
            await self._say_appended()
        return result

    def die(self) -> None:
        """The process is gone."""
        self.died.set()

    async def _unless_dead(self) -> None:
        if self.died.is_set():
            await asyncio.get_running_loop().create_future()

    def _note(self, slices: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
        for part, verdict in zip(slices, verdicts, strict=True):
            if verdict is Verdict.WRITTEN:
                events = [codec.decode(record.data) for record in part.records]
                self.finished |= {event.call_id for event in events if isinstance(event, ToolFinished)}

    async def _say_appended(self) -> None:
        async with self._appended:
            self._appends += 1
            self._appended.notify_all()

    @property
    def appends(self) -> int:
        """How many appends have come back."""
        return self._appends

    async def next_append(self, after: int) -> None:
        """Wait until more than `after` have."""
        async with self._appended:
            await self._appended.wait_for(lambda: self._appends > after)


class SteppedModel(PlaybookModel):
    """A playbook whose every delta is an append of its own, so that there is a crash point at each. `Die` in it kills
    the process. Text of a user that the books do not name is answered with ok."""

    def __init__(self, books: dict[str, Sequence[Sequence[Step]]]) -> None:
        super().__init__([])
        self._books = books
        self.store: MortalStore | None = None

    async def stream(self, ask: Ask) -> AsyncIterator[list[Part]]:
        """See Model.stream."""
        text = next((str(m["content"]) for m in reversed(ask.messages) if m["role"] == "user"), "")
        player = PlaybookModel(self._books.get(text, [said("ok")]))
        self.asks.append(ask)
        assert self.store is not None
        async for parts in player.stream(ask):
            before = self.store.appends
            if parts == [DIE]:
                self.store.die()
                await asyncio.get_running_loop().create_future()
            yield parts
            if isinstance(parts[0], Text | Thinking):
                await self.store.next_append(before)


DIE = Text("die")
"""A step of a playbook: the process is gone."""


class Quiet:
    """A log that nobody reads, but whose errors are kept."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def info(self, name: str, **fields: object) -> None:
        return

    def warning(self, name: str, **fields: object) -> None:
        return

    def error(self, name: str, **fields: object) -> None:
        self.errors.append(f"{name} {fields}")


@dataclass
class World:
    """What outlives a crash."""

    folder: Path
    backend: Literal["memory", "sqlite"]
    books: dict[str, Sequence[Sequence[Step]]]
    effects: Counter[str] = field(default_factory=Counter)
    late: list[str] = field(default_factory=list)
    limits: EngineLimits = field(default_factory=EngineLimits)
    make_engine: Callable[[EngineParts], Engine] = Engine
    make_agent: Callable[..., LoopAgent] = LoopAgent
    tool_effects: dict[str, Effect] = field(default_factory=lambda: dict(EFFECTS))
    log: Quiet = field(default_factory=Quiet)
    tools: Sequence[Tool] = ()
    """Beside the counted ones."""
    ended: list[str] = field(default_factory=list)
    """Calls whose leftover processes were ended."""

    def __post_init__(self) -> None:
        self.now = 1_000_000.0
        self.ids = 0
        self.model = SteppedModel(self.books)
        self._memory = MemoryStore(lambda: self.now)
        self.store: MortalStore

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:024d}"

    async def begin(self, crash: Crash | None = None, mark: int = 0) -> Life:
        """A process starts on what is there; it dies at `crash`, and tells when it comes to its step `mark`."""
        self.now += 3600.0  # the leases of the last process are over
        inner: Any = self._memory
        self._memory.deliveries.restart()
        if self.backend == "sqlite":
            inner = await SqliteStore.open_at(self.folder / "crash.db", "normal", self._now_ms)
        self.store = self.model.store = MortalStore(inner, crash, mark)
        toolbox = Toolbox([*(self._tool(name) for name in self.tool_effects), *self.tools])
        approvals = Approvals(ApprovalPolicy("never"), self.store.granted, self.new_id, self._now_ms, 3600.0)
        environment = CallEnvironment(self._place, self._end_leftover, OutputFiles())
        agent = self.make_agent(self.model, toolbox, LoopSettings(), environment, approvals)
        parts: Any = (self.store, MemoryStore(lambda: self.now), LocalNotifier(), agent)
        engine = self.make_engine(EngineParts(*parts, self.limits, self.log, self._now_ms, self.new_id))
        await engine.start()
        return Life(self, engine, self.store)

    def _now_ms(self) -> int:
        self.now += 0.001
        return int(self.now * 1000)

    def _place(self, state: Any, call: str) -> Place:
        return Place(owner=OWNER, session="s", call_id=call, workspace=self.folder)

    async def _end_leftover(self, process: Any, call: str) -> bool:
        if not self.store.died.is_set():
            self.ended.append(call)
        return True

    def _tool(self, name: str) -> FunctionTool:
        async def work(arguments: dict[str, object], place: Place) -> Output:
            store = self.store
            if store.died.is_set():
                await asyncio.get_running_loop().create_future()
            self.effects[place.call_id] += 1
            if place.call_id in store.finished:
                self.late.append(place.call_id)
            if arguments.get("die"):
                store.die()
            await asyncio.sleep(0)
            return Output(f"{name} gave {json.dumps(arguments)}")

        known = {"n": {"type": "integer"}, "die": {"type": "boolean"}}
        schema: dict[str, object] = {"type": "object", "properties": known}
        return FunctionTool(name=name, description=name, schema=schema, fn=work, effect=self.tool_effects[name])


class Life:
    """One engine, from its start to its death."""

    def __init__(self, world: World, engine: Engine, store: MortalStore) -> None:
        self.world = world
        self.engine = engine
        self.store = store
        self.readers: list[Reader] = []

    async def submit(self, order: Order) -> str | None:
        """The run; None when the process died over it."""
        return await self.unless_dead(self._submit(order))

    async def _submit(self, order: Order) -> str:
        return (await self.engine.submit(order)).run

    async def wait(self, run: str) -> str | None:
        """How a run ended; None when the process died before."""
        return await self.unless_dead(self._wait(run))

    async def _wait(self, run: str) -> str:
        state = await self.engine.wait(OWNER, run)
        assert state is not None
        return state.status

    async def unless_dead(self, work: Any) -> Any:
        """The result of `work`, or None when the process dies first."""
        doing = asyncio.ensure_future(work)
        dying = asyncio.create_task(self.store.died.wait())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait((doing, dying), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            doing.cancel()
            dying.cancel()
            await asyncio.gather(doing, dying, return_exceptions=True)

    def watch(self, run: str, dialect: str, after: int = -1) -> Reader:
        """A client begins to read."""
        reader = Reader(self.engine.attach(OWNER, run, DIALECTS[dialect].projection(), after), dialect, after)
        self.readers.append(reader)
        return reader

    async def rows(self) -> list[str]:
        """The runs that are stored, oldest first."""
        found = await self.store.inner.rows(Query(owner=OWNER, limit=1000, ascending=True))
        return [row.run for row in found]

    async def end(self) -> list[tuple[str, Told]]:
        """The process is dead: what its readers were told of which run. Nothing reaches the store after this."""
        self.store.die()
        told = [(reader.subscription.run, await reader.close()) for reader in self.readers]
        await self.engine.stop()
        if isinstance(self.store.inner, SqliteStore):
            await self.store.inner.close()
        return told

    async def read(self, run: str, dialect: str, after: int = -1) -> bytes:
        """A whole stream, to its end."""
        subscription = self.engine.attach(OWNER, run, DIALECTS[dialect].projection(), after)
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(news := await subscription.next(), StreamEnded):
                assert isinstance(news, Chunk), f"{news} in the replay of {run}"
                data += news.data
        subscription.close()
        return data

    async def evidence(self, run: str, asks: list[Ask], told: list[Told], stride: int = 1) -> Evidence:
        """All that can be known of a run that has ended; resumed at every `stride`th place."""
        state = await self.engine.look(OWNER, run)
        assert state is not None
        shown = run_body(state)
        found = Evidence(run, "responses", shown.status, shown.output, told)
        for dialect in READ_AS:
            found.replay[dialect] = await self.read(run, dialect)
            places = (position(dialect, frame) for frame in frames_of(found.replay[dialect]))
            for k in sorted({place for place in places if place is not None})[::stride]:
                found.tails.append(Told(dialect, k, await self.read(run, dialect, k)))
        found.body = msgspec.json.decode(msgspec.json.encode(body.body(state)))
        found.asks = [list(ask.messages) for ask in asks]
        mine = {call: n for call, n in self.world.effects.items() if run in call}
        found.effects, found.late = Counter(mine), [call for call in self.world.late if run in call]
        found.counted = frozenset(EFFECTS)
        found.repeatable = frozenset(name for name, effect in EFFECTS.items() if effect != "write")
        return found


class Reader:
    """A client that keeps every byte."""

    def __init__(self, subscription: Subscription, dialect: str, after: int) -> None:
        self.subscription = subscription
        self._dialect = dialect
        self._after = after
        self._data = bytearray()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            match await self.subscription.next():
                case Chunk(data):
                    self._data += data
                case StreamEnded() | Cut() | Broken():
                    return

    async def close(self) -> Told:
        """All that was told: also what was on its way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        while self.subscription.backlog():
            news = await self.subscription.next()
            assert isinstance(news, Chunk)
            self._data += news.data
        self.subscription.close()
        return Told(self._dialect, self._after, bytes(self._data))


def order(text: str = "go", **joins: Any) -> Order:
    """A request; `joins` says what it joins (key, previous, conversation, session)."""
    spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": text},))
    asked = Asked(owner=OWNER, fingerprint=f"of {text} {sorted(joins)}", derived_session="derived", **joins)
    return Order(owner=OWNER, spec=spec, asked=asked)


def asks_of(world: World, text: str) -> list[Ask]:
    """What the model was asked about one user's message."""
    return [ask for ask in world.model.asks if since_text(ask) == text]


def since_text(ask: Ask) -> str:
    """The last message of the user."""
    own = since_user(ask.messages)
    return str(ask.messages[len(ask.messages) - len(own) - 1].get("content"))


def crashes() -> Iterator[Crash]:
    """Every point, without end: stop when a life outlives its plan."""
    at = 0
    while True:
        at += 1
        yield Crash(at, "before")
        yield Crash(at, "after")

"""One life's way to the journal. Owns: Door, a façade over the memory journal that behaves as the thread of a real
store does (writes one after the other in the order they were asked for, also those whose caller has gone; answers that
come later), tells the watch of every commit, refuses while the disk is full or broken, and can end the life before or
after any write. What was committed stays; what was not never was. Refuses to know: who calls.

The dead: a call of a life that is over raises CancelledError, and none that was under way is ever answered."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.journal.base import Deliveries, StoreUnavailable
from holdfast.journal.base_peers import Peers
from holdfast.journal.base_upkeep import Upkeep
from holdfast.journal.memory import MemoryStore
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from tests.sim.world import Life

WRITES = frozenset({"open", "append", "claim", "signal", "delete", "beat", "grant", "remember", "annotate"})
STEPS = frozenset({"open", "append", "claim", "signal", "delete"})
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def observe(watch: Watch, call: Call, result: Any, home: Life | None) -> None:
    """Tell the watch what the store has done."""
    name, args, _ = call
    match name:
        case "open":
            watch.opened(args[0], result, home)
        case "append":
            watch.appended(args[0], result)
        case "claim":
            watch.claimed(result)
        case "signal":
            watch.signalled(args[1], result, home)
        case "delete":
            watch.removed(args[1], result)


def at_once(work: Awaitable[Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value
    raise RuntimeError("the journal in memory waited for something")


class Door:
    """The durable store, as one life sees it."""

    def __init__(self, life: Life, inner: Any, chance: random.Random) -> None:
        self._life = life
        self._inner = inner
        self._side = {"context": contextvars.Context()} if life.world.plan.replicas > 1 else {}
        """A database does not stand still with the process that asked it."""
        self.down_until = 0.0
        self._chance = chance
        self._watch = life.world.watch
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[Call, asyncio.Future[Any]]] = deque()
        self.steps = 0
        self.crash_at = 0
        self.crash_when = "before"
        self.full_until = 0.0
        self.broken = False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        ask = self._write if name in WRITES else self._read

        def call(*args: Any, **named: Any) -> Awaitable[Any]:
            return ask((name, args, named))

        self.__dict__[name] = call
        return call

    @property
    def deliveries(self) -> Deliveries:
        """Who waits for which answer: at once, and only while this life lasts."""
        self._alive()
        return self._inner.deliveries

    @property
    def upkeep(self) -> Upkeep:
        """Retention is not played: nothing goes, and there is always room."""
        return self._inner.upkeep

    @property
    def peers(self) -> Peers:
        """Whether this life has the store to itself."""
        found: Peers = self._inner.peers
        return DoorPeers(self, found) if found.shared else found  # type: ignore[return-value]

    async def _read(self, call: Call) -> Any:
        self._alive()
        if self._chance.random() < 0.4:
            await asyncio.sleep(self._delay())
            self._alive()
        self._reached()
        name, args, named = call
        return await getattr(self._inner, name)(*args, **named)

    def _reached(self) -> None:
        if self._loop.time() < max(self.down_until, self._life.world.down_until):
            raise StoreUnavailable("out of reach", passing=True)

    async def asked(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """A question about the other processes."""
        self._alive()
        self._reached()
        return await work()

    async def _write(self, call: Call) -> Any:
        self._alive()
        future = self._loop.create_future()
        self._jobs.append((call, future))
        self._later(self._next)
        return await future

    def _alive(self) -> None:
        if self._life.dead:
            raise asyncio.CancelledError

    def _delay(self) -> float:
        kind = self._chance.random()
        return 0.0 if kind < 0.7 else 0.002 if kind < 0.95 else self._chance.uniform(0.0, 0.3)

    def _later(self, work: Callable[..., None], *args: Any) -> None:
        delay = self._delay()
        if delay:
            self._loop.call_later(delay, work, *args, **self._side)  # type: ignore[arg-type]
        else:
            self._loop.call_soon(work, *args, **self._side)  # type: ignore[arg-type]

    def _next(self) -> None:
        """The thread takes the next job: whatever callback it is that came first, jobs keep their order."""
        if self._life.dead:
            return
        call, future = self._jobs.popleft()
        counted = call[0] in STEPS
        self.steps += counted
        here = counted and self.steps == self.crash_at
        if here and self.crash_when == "before":
            self._life.crash(f"before {call[0]} (step {self.steps})")
            return
        if self._refuses():
            _fail(future, StoreUnavailable("simulated", passing=not self.broken))
            return
        self._do(call, future, crash=here)

    def _refuses(self) -> bool:
        until = max(self.full_until, self.down_until, self._life.world.down_until)
        return self.broken or self._loop.time() < until

    def _do(self, call: Call, future: asyncio.Future[Any], *, crash: bool) -> None:
        name, args, named = call
        try:
            result = at_once(getattr(self._inner, name)(*args, **named))
        except Exception as error:
            if name == "open":
                self._watch.refused(args[0], error)
            _fail(future, error)
            return
        self._life.world.note_claims(self._life, call, result)
        observe(self._watch, call, result, None)
        if crash:
            self._life.crash(f"after {name} (step {self.steps})")
        elif self._chance.random() < 0.5:
            _settle(future, result)
        else:
            self._later(self._answer, future, result)

    def _answer(self, future: asyncio.Future[Any], result: Any) -> None:
        if not self._life.dead:
            _settle(future, result)


class DoorPeers:
    """The other processes, as one life sees them."""

    shared = True

    def __init__(self, door: Door, inner: Any) -> None:
        self._door = door
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any) -> Awaitable[Any]:
            return self._door.asked(lambda: getattr(self._inner, name)(*args))

        return call


class Side:
    """The journal of runs that are not stored, as one life sees it: it dies with the life."""

    def __init__(self, life: Life, inner: MemoryStore) -> None:
        self._life = life
        self._inner = inner
        self.inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            if self._life.dead:
                raise asyncio.CancelledError
            result = await getattr(self._inner, name)(*args, **named)
            watch = self._life.world.watch
            track = watch.tracks.get(args[1]) if name == "delete" else None
            if track is None or not track.stored:  # a run that was made durable is only forgotten here
                observe(watch, (name, args, named), result, self._life)
            return result

        self.__dict__[name] = call
        return call


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

"""One life's way to the journal. Owns: Door, a façade over the memory journal that behaves as the thread of a real
store does (writes one after the other in the order they were asked for, also those whose caller has gone; answers that
come later), tells the watch of every commit, refuses while the disk is full or broken, and can end the life before or
after any write. What was committed stays; what was not never was. Refuses to know: who calls.

The unheard: an answer may be lost though the store did what it was asked, and others may be faster meanwhile. What a
store for many processes promises then is kept here: a batch that is tried again is known by its records, and an opening
or a claim that nobody heard of is given back with the next beat.

The dead: a call of a life that is over raises CancelledError, and none that was under way is ever answered."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ninelives.core import codec
from ninelives.core.admission import Asked
from ninelives.core.events import AttemptStarted
from ninelives.core.spec import Resolved
from ninelives.journal.base import Deliveries, Ledger, Peers, Sessions, Upkeep
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import Claim, Mark, Opened, Slice, StoreUnavailable, Verdict
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from tests.sim.world import Life

WRITES = frozenset({"open", "append", "claim", "signal", "delete", "beat", "grant", "revoke", "annotate", "forget"})
STEPS = frozenset({"open", "append", "claim", "signal", "delete"})
UNHEARD = frozenset({"open", "append", "claim", "signal", "delete", "beat"})
FIRST = 2
"""An opening that goes with a slice has the first two of its records: it was accepted and claimed."""
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def observe(watch: Watch, call: Call, result: Any, home: Life | None) -> None:
    """Tell the watch what the store has done."""
    name, args, _ = call
    match name:
        case "open":
            watch.opened(args[0], result, home)
        case "append":
            watch.appended([_opened(watch, part, home) for part in args[0]], result)
        case "claim":
            watch.claimed(result)
        case "signal":
            watch.signalled(args[1], result, home)
        case "delete":
            watch.removed(args[1], result)
        case "forget":
            watch.forgotten([run for _, run in args[0]])


def _opened(watch: Watch, part: Slice, home: Life | None) -> Slice:
    """Tell the watch of a run that a slice has opened; the rest of the slice."""
    if part.opening is None or part.opening.foregone is None:
        return part
    watch.opened(part.opening, Opened(part.run, part.opening.foregone, part.records[:FIRST]), home)
    return replace(part, records=part.records[FIRST:], opening=None)


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
        self.deaf_until = 0.0
        self.hung_until = 0.0
        self._unheard: list[Slice] = []
        self._doubts: list[tuple[str, int]] = []
        """(run, attempt) that this life holds and does not know of."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        ask = self._write if name in WRITES else self._read

        def call(*args: Any, **named: Any) -> Awaitable[Any]:
            return ask((name, args, named))

        self.__dict__[name] = call
        return call

    @property
    def parallel(self) -> bool:
        """See Journal.parallel."""
        found: bool = self._inner.parallel
        return found

    def foregone(self, asked: Asked) -> Resolved | None:
        """See Catalog.foregone."""
        self._alive()
        found: Resolved | None = self._inner.foregone(asked)
        return found

    @property
    def deliveries(self) -> Deliveries:
        """Who waits for which answer."""
        return DoorDeliveries(self, self._inner.deliveries, self._watch)

    @property
    def sessions(self) -> Sessions:
        """See Store.sessions. Listing runs is no step that a life dies at."""
        sessions: Sessions = self._inner.sessions
        return sessions

    @property
    def ledger(self) -> Ledger:
        """See Store.ledger. Counting is no step that a life dies at."""
        ledger: Ledger = self._inner.ledger
        return ledger

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
        await self._hung()
        self._reached()
        self._lost(call[0])
        name, args, named = call
        return await getattr(self._inner, name)(*args, **named)

    async def _hung(self) -> None:
        while self._loop.time() < self.hung_until:
            await asyncio.sleep(self.hung_until - self._loop.time())
            self._alive()

    def _lost(self, name: str) -> None:
        if self._deaf():
            self._watch.note(f"the answer to {name} is lost")
            raise StoreUnavailable("unheard", passing=True)

    def _deaf(self) -> bool:
        return self._loop.time() < self.deaf_until and self._chance.random() < 0.5

    def _reached(self) -> None:
        if self._loop.time() < max(self.down_until, self._life.world.down_until):
            raise StoreUnavailable("out of reach", passing=True)

    async def asked(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """A question about the other processes."""
        self._alive()
        await self._hung()
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
        call, future = self._taken()
        counted = call[0] in STEPS
        self.steps += counted
        here = counted and self.steps == self.crash_at
        if here and self.crash_when == "before":
            self._life.crash(f"before {call[0]} (step {self.steps})")
            return
        if self._refuses():
            _fail(future, StoreUnavailable("simulated", passing=not self.broken))
            return
        if call[0] == "claim" and self._deaf():
            self._passes_by(call[1][0])
        self._do(call, future, crash=here)

    def _taken(self) -> tuple[Call, asyncio.Future[Any]]:
        """The next job. Of two appends that are on their way at the same time, any may be first."""
        first = self._jobs.popleft()
        both = self.parallel and self._jobs and first[0][0] == self._jobs[0][0][0] == "append"
        if both and self._chance.random() < 0.5:
            first, self._jobs[0] = self._jobs[0], first
        return first

    def _refuses(self) -> bool:
        until = max(self.full_until, self.down_until, self._life.world.down_until)
        return self.broken or self._loop.time() < until

    def _do(self, call: Call, future: asyncio.Future[Any], *, crash: bool) -> None:
        name, args, _ = call
        try:
            result = self._append(args[0]) if name == "append" else self._carry_out(call)
        except Exception as error:
            if name == "open":
                self._watch.refused(args[0], error)
            _fail(future, error)
            return
        if name == "beat":
            self._give_back()
        if crash:
            self._life.crash(f"after {name} (step {self.steps})")
        elif self._loop.time() < self.hung_until:
            at = self.hung_until + self._chance.choice((0.0, self._chance.uniform(0.0, 3.0)))
            self._loop.call_at(at, self._answer, future, result, **self._side)  # type: ignore[arg-type]
        elif name in UNHEARD and self._deaf():
            self._not_heard(call, result)
            self._later(_fail, future, StoreUnavailable("unheard", passing=True))
        elif self._chance.random() < 0.5:
            _settle(future, result)
        else:
            self._later(self._answer, future, result)

    def _carry_out(self, call: Call) -> Any:
        name, args, named = call
        result = at_once(getattr(self._inner, name)(*args, **named))
        observe(self._watch, call, result, None)
        self._life.world.note_claims(self._life, call, result)
        return result

    def _passes_by(self, run: str) -> None:
        """Another process has it for a moment, right before this one: what was looked at before the claim is old."""
        at = self._life.world.now_ms()
        claim = self._carry_out(("claim", (run, "passer-by", _began, at), {}))
        if claim is not None:
            mark = Mark(status="queued", at=at, parked=True)
            self._carry_out(("append", ([Slice(run, claim.attempt, [], mark)],), {}))

    def _append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """What was written by a try whose answer was lost is there already."""
        fresh = [part for part in slices if part not in self._unheard]
        verdicts = iter(self._carry_out(("append", (fresh,), {})) if fresh or not slices else [])
        found = [next(verdicts) if part in fresh else Verdict.WRITTEN for part in slices]
        self._unheard = [part for part in self._unheard if part not in slices]
        return found

    def _not_heard(self, call: Call, result: Any) -> None:
        self._watch.counts["unheard"] += 1
        self._watch.note(f"the answer to {call[0]} is lost")
        if call[0] == "open" and (isinstance(result, Opened) or result.again):  # its caller is told of a failure
            asked = call[1][0].asked
            at_once(self._inner.deliveries.lost(asked.owner, result.run, self._life.world.steady_ms(), left=False))
        match result:
            case Opened() if call[1][0].holder:
                self._doubts.append((result.run, 1))
            case Claim():
                self._doubts.append((result.run, result.attempt))
            case [*verdicts]:
                written = zip(call[1][0], verdicts, strict=True)
                for part in (part for part, verdict in written if verdict is Verdict.WRITTEN):
                    if part.opening is None:
                        self._unheard.append(part)
                    else:  # its caller is told of a failure, and the run is tried no more
                        asked = part.opening.asked
                        at_once(
                            self._inner.deliveries.lost(asked.owner, part.run, self._life.world.steady_ms(), left=False)
                        )
                        self._doubts.append((part.run, 1))

    def _give_back(self) -> None:
        doubts, self._doubts = self._doubts, []
        mark = Mark(status="queued", at=self._life.world.now_ms(), parked=True)
        if doubts:
            self._carry_out(("append", ([Slice(run, attempt, [], mark) for run, attempt in doubts],), {}))

    def _answer(self, future: asyncio.Future[Any], result: Any) -> None:
        if not self._life.dead:
            _settle(future, result)


class DoorDeliveries:
    """Who waits for which answer, as one life says it: at once, while it lasts and the store can be reached."""

    def __init__(self, door: Door, inner: Any, watch: Watch) -> None:
        self._door = door
        self._inner = inner
        self._watch = watch

    def _reach(self) -> None:
        self._door._alive()
        if self._door._refuses():
            raise StoreUnavailable("simulated", passing=not self._door.broken)

    async def answered(self, told: Sequence[tuple[str, str]]) -> None:
        """See Deliveries.answered."""
        self._reach()
        self._watch.delivered([run for _, run in told])
        await self._inner.answered(told)

    async def rest_given(self, owner: str, run: str) -> None:
        """See Deliveries.rest_given."""
        self._reach()
        await self._inner.rest_given(owner, run)

    async def lost(self, owner: str, run: str, at: int, *, left: bool) -> None:
        """See Deliveries.lost."""
        self._reach()
        self._watch.note(f"lost {run[-4:]}")
        await self._inner.lost(owner, run, at, left=left)

    async def strand(self, at: int, besides: Any = ()) -> None:
        """See Deliveries.strand."""
        self._reach()
        await self._inner.strand(at, besides)


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
        self.has = inner.has
        self.parallel = inner.parallel
        self.peers = inner.peers

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            if self._life.dead:
                raise asyncio.CancelledError
            result = await getattr(self._inner, name)(*args, **named)
            observe(self._life.world.watch, (name, args, named), result, self._life)
            return result

        self.__dict__[name] = call
        return call


def _began(attempt: int, clean: bool, lost: int) -> bytes:
    return codec.encode(AttemptStarted(clean))


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

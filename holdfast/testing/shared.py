"""A store that several engines share, in memory: the twin of a database that many processes use. Owns: SharedMemory
(what is in the database: runs, and one lease per process) and Seat (one process's way to it, with a bell that the
others' doings ring, if the ring is not lost). Refuses to know: engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from holdfast.journal.base import Attached, Bell, Claim, Mark, Opened, Opening, Signal, Slice, Verdict
from holdfast.journal.base_conversations import Conversations
from holdfast.journal.base_peers import Peers, Replica
from holdfast.journal.base_upkeep import Upkeep
from holdfast.journal.memory import MemoryStore, _Run

Lost = Callable[[str], bool]


class SharedMemory(MemoryStore):
    """The content. A run is held for one lease from its claim, and longer as long as its holder beats without a gap; a
    process that goes takes its claims along. `now_ms` is by what parked runs are woken."""

    def __init__(self, clock: Callable[[], float], now_ms: Callable[[], int], lease_s: float = 15.0) -> None:
        super().__init__(clock, lease_s)
        self._now_ms = now_ms
        self._leases: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """When the unbroken line of a process's beats began."""
        self._left: set[str] = set()
        self._works: dict[str, bool] = {}
        self._naps: dict[str, tuple[int, str]] = {}
        self._homes: dict[tuple[str, str], str] = {}
        self._callers: dict[str, str] = {}
        """Whose caller waits for a run."""
        self.bells: dict[str, Bell] = {}
        self.lost: Lost = lambda topic: False
        """Is a ring lost on its way?"""
        self.tell: Callable[[Bell, list[str]], None] = lambda bell, topics: bell.ring(topics)
        """How a ring arrives."""
        self.peers: Peers = Among(self)

    def seat(self, holder: str, bell: Bell, *, works: bool = True) -> Seat:
        """A process begins to use it."""
        self.bells[holder], self._works[holder] = bell, works
        self._beaten(holder)
        return Seat(self, holder)

    def leave(self, holder: str) -> None:
        """A process has ended, and the store knows: nobody waits for its lease."""
        self.bells.pop(holder, None)
        self._leases.pop(holder, None)
        self._left.add(holder)

    def ring(self, holder: str, topics: Iterable[str]) -> None:
        """Tell all others."""
        told = list(topics)
        for name, bell in list(self.bells.items()):
            if name != holder and (heard := [topic for topic in told if not self.lost(topic)]):
                self.tell(bell, heard)

    def alive(self, holder: str) -> bool:
        """Has it beaten within a lease?"""
        return self._leases.get(holder, 0.0) > self._clock()

    def _held(self, run: _Run) -> bool:
        if run.holder is None or run.holder in self._left:
            return False
        in_line = self.alive(run.holder) and self._since[run.holder] < run.lease_until
        return run.lease_until > self._clock() or in_line

    async def beat(self, holder: str) -> None:
        """See Journal.beat. One row for all its runs: a beat after the end of the lease begins a new line of beats, and
        what was held before is free."""
        self._beaten(holder)

    def _beaten(self, holder: str) -> None:
        if not self.alive(holder):
            self._since[holder] = self._clock()
        self._leases[holder] = self._clock() + self._lease_s
        self._left.discard(holder)

    def _mark(self, run: _Run, mark: Mark) -> None:
        super()._mark(run, mark)
        self._naps.pop(run.opening.run, None)
        if mark.parked and mark.wake_at:
            self._naps[run.opening.run] = (mark.wake_at, mark.asks)

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        claim = await super().claim(run, holder, first, at)
        if claim is not None:
            self._naps.pop(run, None)
        return claim

    def naps(self, run: str) -> bool:
        """Is it parked until later, and nothing came for it?"""
        if run not in self._naps:
            return False
        wake_at, asks = self._naps[run]
        return wake_at > self._now_ms() and not any(
            signal.kind != "approval" or signal.key == asks for signal in self._signals.get(run, [])
        )

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """See Catalog.claimable."""
        free = [found for found in await super().claimable(len(self._runs)) if not self.naps(found[1])]
        free.sort(key=lambda found: not self._signals.get(found[1]))
        return free[:limit]

    def strand(self, at: int) -> None:
        """The connections of processes that are gone are lost now."""
        for name, run in self._runs.items():
            if run.waits and not self.alive(self._callers.get(name, "")):
                run.waits, run.lost_at = False, at


class Among:
    """The Peers of a shared memory."""

    shared = True

    def __init__(self, store: SharedMemory) -> None:
        self._store = store

    async def wished(self, holder: str) -> Sequence[tuple[str, str]]:
        """See Peers.wished."""
        runs = self._store._runs
        return [(runs[run].owner, run) for run, kept in self._store._signals.items() if kept and _by(runs, run, holder)]

    async def queued(self) -> int:
        """See Peers.queued."""
        return len(await self._store.claimable(1_000_000))

    async def settle(self, owner: str, place: str, home: str) -> str:
        """See Peers.settle."""
        return self._store._homes.setdefault((owner, place), home)

    async def replicas(self) -> Sequence[Replica]:
        """See Peers.replicas."""
        store, now = self._store, self._store._clock()
        seen = {name: int((now - until + store._lease_s) * 1000) for name, until in store._leases.items()}
        held = [run.holder for run in store._runs.values() if not run.ended]
        found = [Replica(name, name, store._works[name], ms, held.count(name)) for name, ms in seen.items()]
        return sorted(found, key=lambda replica: replica.seen_ms)


def _by(runs: dict[str, _Run], run: str, holder: str) -> bool:
    return run in runs and runs[run].holder == holder


class _Deliveries:
    """Who waits, as one process tells it."""

    def __init__(self, store: SharedMemory) -> None:
        self._store = store
        self.answered = store.deliveries.answered
        self.lost = store.deliveries.lost

    async def strand(self, at: int) -> None:
        """See Deliveries.strand: only those of processes that are gone."""
        self._store.strand(at)


class Seat:
    """The store, as one process uses it. What it does rings the bells of the others; its own engine rings its own."""

    def __init__(self, store: SharedMemory, holder: str) -> None:
        self._store = store
        self._holder = holder
        self.deliveries = _Deliveries(store)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        found: Callable[..., Awaitable[Any]] = getattr(self._store, name)
        return found

    @property
    def conversations(self) -> Conversations:
        """See Store."""
        return self._store.conversations

    @property
    def upkeep(self) -> Upkeep:
        """See Store."""
        return self._store.upkeep

    @property
    def peers(self) -> Peers:
        """See Store."""
        return self._store.peers

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        opened = await self._store.open(opening)
        self._store._callers[opened.run] = self._holder
        if isinstance(opened, Opened) and opening.holder is None:
            self._store.ring(self._holder, ["work"])
        return opened

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        verdicts = await self._store.append(slices)
        written = [part for part, verdict in zip(slices, verdicts, strict=True) if verdict is Verdict.WRITTEN]
        parked = any(part.mark is not None and part.mark.parked for part in written)
        self._store.ring(self._holder, [*(part.run for part in written), *(["work"] if parked else [])])
        return verdicts

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        claim = await self._store.claim(run, holder, first, at)
        if claim is not None:
            self._store.ring(self._holder, [run])
        return claim

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        kept = await self._store.signal(owner, signal)
        if kept:
            held = self._store._held(self._store._runs[signal.run])
            self._store.ring(self._holder, [f"signal:{signal.run}", *([] if held else ["work"])])
        return kept

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        gone = await self._store.delete(owner, run)
        if gone:
            self._store.ring(self._holder, [run])
        return gone

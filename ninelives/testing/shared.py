"""A store in memory that several engines share; it behaves like a database that many processes use. Owns: SharedMemory
(the content: runs, and one lease per process) and Seat (the store as one process sees it, which notifies the others of
what it does, unless the notification is lost). Refuses to know: engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from ninelives.core.admission import Asked
from ninelives.journal.accounts.base import AuditLog, Keys
from ninelives.journal.base import Conversations, Ledger, Notifier, Peers, Sessions, Upkeep
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.memory.deliveries import MemoryDeliveries
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.memory.tables import MemoryRun
from ninelives.journal.values import (
    Attached,
    Claim,
    FirstRecord,
    Gone,
    HeldRun,
    Opened,
    Opening,
    Replica,
    Signal,
    Slice,
    Verdict,
)


def _keep(topic: str) -> bool:
    """No notification is lost."""
    return False


def _ring_now(bell: Notifier, topics: list[str]) -> None:
    bell.ring(topics)


class SharedMemory(MemoryStore):
    """The content. A claim lasts for one lease, and longer as long as its holder beats without a gap. It ends when the
    holder leaves. `now_ms` is the clock of the store: it wakes runs and ends the time in which a request joins."""

    def __init__(
        self,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        lease_s: float = 15.0,
        is_lost: Callable[[str], bool] = _keep,
        deliver: Callable[[Notifier, list[str]], None] = _ring_now,
    ) -> None:
        """`is_lost` is asked for each notification and process; `deliver` hands over those that are not lost."""
        self._leases: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """Since when each process has beaten without a gap."""
        self._left: dict[str, float] = {}
        """Processes that ended, or whose end was noticed, and when."""
        self._works: dict[str, bool] = {}
        self._homes: dict[tuple[str, str], str] = {}
        self._callers: dict[str, str] = {}
        """At which process the caller of a run waits, or is thought to have waited when that process ended."""
        self._speaker = ""
        """The process whose opening, or question for work, is carried out."""
        super().__init__(clock, lease_s, now_ms)
        self.bells: dict[str, Notifier] = {}
        self._is_lost = is_lost
        self._deliver = deliver
        self.peers: Peers = Among(self)

    def _make_deliveries(self) -> MemoryDeliveries:
        return SharedDeliveries(self)

    def seat(self, holder: str, bell: Notifier, *, works: bool = True) -> Seat:
        """Let a process use the store."""
        self.bells[holder], self._works[holder] = bell, works
        self._beaten(holder)
        return Seat(self, holder)

    def leave(self, holder: str) -> None:
        """A process ended cleanly: its claims are free at once."""
        self.bells.pop(holder, None)
        self._leases.pop(holder, None)
        self._left[holder] = self._clock()

    def ring(self, holder: str, topics: Iterable[str]) -> None:
        """Notify all other processes."""
        all_topics = list(topics)
        for name, bell in list(self.bells.items()):
            if name != holder and (arriving := [topic for topic in all_topics if not self._is_lost(topic)]):
                self._deliver(bell, arriving)

    def alive(self, holder: str) -> bool:
        """True where the process has beaten within the last lease."""
        return self._leases.get(holder, 0.0) > self._clock()

    def _is_held(self, run: MemoryRun) -> bool:
        if run.holder is None or run.holder in self._left:
            return False
        in_line = self.alive(run.holder) and self._since[run.holder] < run.lease_until
        return run.lease_until > self._clock() or in_line

    async def beat(self, holder: str) -> None:
        """See Journal.beat. There is one lease for all runs of a process. A beat that comes after its end starts a new
        one, and the claims from before are free."""
        self._beaten(holder)

    def _beaten(self, holder: str) -> None:
        if not self.alive(holder):
            self._since[holder] = self._clock()
            self._welcome_back(holder)
        self._leases[holder] = self._clock() + self._lease_s
        self._left.pop(holder, None)

    def _welcome_back(self, holder: str) -> None:
        """The callers of a process that was taken for gone wait there again."""
        for name, run in self._runs.items():
            if self._callers.get(name) == holder and not run.waits and run.lost_at:
                self.deliveries.wait_again(name, run.credential)

    def heard_since_free(self, process: str, run: MemoryRun) -> bool:
        """Whether a process has beaten since nobody holds the run. Before that both may have died in one moment."""
        holder = run.holder
        if holder is None:
            return True
        if holder in self._left:
            free = self._left[holder]
        elif self._since.get(holder, 0.0) < run.lease_until:
            free = max(self._leases.get(holder, 0.0), run.lease_until)
        else:
            free = self._since[holder]
        return self._leases.get(process, 0.0) - self._lease_s >= free

    def _time(self, given: int) -> int:
        return self._now_ms()

    def waits_at(self, run: str, holder: str) -> bool:
        """Whether a caller waits for the run at this process, as far as that process knows."""
        found = self._runs.get(run)
        return found is not None and (found.waits or found.lost_at > 0) and self._callers.get(run) == holder

    async def open_for(self, holder: str, opening: Opening) -> Opened | Attached:
        """Open a run for a caller of this process. The caller waits there from now on."""
        self._speaker = holder
        opened = await self.open(opening)
        if isinstance(opened, Opened) or opened.again:
            self._callers[opened.run] = holder
        return opened


class SharedDeliveries(MemoryDeliveries):
    """The callers of all processes."""

    def __init__(self, store: SharedMemory) -> None:
        super().__init__(store._tables, store._is_held, store._now_ms)
        self._store = store

    def caller_waits(self, name: str) -> bool:
        """See MemoryDeliveries.caller_waits. Of its own callers a process knows it."""
        run, process = self._runs[name], self._store._callers.get(name, "")
        known = process == self._store._speaker or self._store.heard_since_free(process, run)
        return run.waits and self._store.alive(process) and known

    def _speaks_of(self, name: str) -> bool:
        return True  # SeatDeliveries has checked at which process

    def _can_join(self, name: str, asked: Asked, at: int) -> bool:
        """A run whose connection was lost. Also one whose caller waits at another process, if that process is gone or
        an SDK says that it retries with the same API key (G13)."""
        if super()._can_join(name, asked, self._now_ms()):
            return True
        run, process = self._runs[name], self._store._callers.get(name, "")
        if not run.waits or process == self._store._speaker:
            return False
        return not self._store.alive(process) or (asked.counted and asked.credential == run.credential)

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """See Deliveries.lost. No process speaks of this caller any more."""
        await super().lost(owner, run, at, left=left)
        if self._runs[run].owner == owner:
            self._store._callers.pop(run, None)

    async def strand(self, at: int, besides: Collection[Gone] = ()) -> None:
        """See Deliveries.strand. Marks the callers of processes that are gone as lost."""
        for name, run in self._runs.items():
            if run.waits and not self._store.alive(self._store._callers.get(name, "")):
                run.waits, run.lost_at, run.left = False, self._now_ms(), False
                if run.status == "running" and not self._is_held(run):
                    run.status = "queued"


class Among:
    """The Peers of a SharedMemory."""

    shared = True

    def __init__(self, store: SharedMemory) -> None:
        self._store = store

    async def held(self, holder: str) -> Sequence[HeldRun]:
        """See Peers.held."""
        return self._store._waiting.held(holder, self._store._now_ms())

    async def queued(self) -> int:
        """See Peers.queued."""
        return self._store._waiting.queued(self._store._now_ms())

    async def active(self, owner: str) -> int:
        """See Peers.active."""
        return self._store._waiting.active(owner)

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


class SeatDeliveries:
    """The Deliveries of one process. It speaks of its own callers only."""

    def __init__(self, store: SharedMemory, holder: str) -> None:
        self._store = store
        self._holder = holder
        self.strand = store.deliveries.strand
        self.rest_given = store.deliveries.rest_given

    async def answered(self, told: Sequence[Gone]) -> None:
        """See Deliveries.answered."""
        await self._store.deliveries.answered([each for each in told if self._store.waits_at(each[1], self._holder)])

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """See Deliveries.lost."""
        if self._store.waits_at(run, self._holder):
            await self._store.deliveries.lost(owner, run, self._store._now_ms(), left=left)


class Seat:
    """The store, as one process uses it. Its writes notify the other processes; its own engine notifies itself."""

    parallel = True

    def __init__(self, store: SharedMemory, holder: str) -> None:
        self._store = store
        self._holder = holder
        self.deliveries = SeatDeliveries(store, holder)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        found: Callable[..., Awaitable[Any]] = getattr(self._store, name)
        return found

    @property
    def keys(self) -> Keys:
        """See Store.keys."""
        return self._store.keys

    @property
    def audit(self) -> AuditLog:
        """See Store.audit."""
        return self._store.audit

    @property
    def conversations(self) -> Conversations:
        """See Store."""
        return self._store.conversations

    @property
    def sessions(self) -> Sessions:
        """See Store.sessions."""
        return self._store.sessions

    @property
    def upkeep(self) -> Upkeep:
        """See Store."""
        return self._store.upkeep

    @property
    def peers(self) -> Peers:
        """See Store."""
        return self._store.peers

    @property
    def ledger(self) -> Ledger:
        """See Store."""
        return self._store.ledger

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        opened = await self._store.open_for(self._holder, opening)
        if opened.again if isinstance(opened, Attached) else opening.holder is None:
            self._store.ring(self._holder, ["work"])
        return opened

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        verdicts = await self._store.append(slices)
        written = [part for part, verdict in zip(slices, verdicts, strict=True) if verdict is Verdict.WRITTEN]
        parked = any(part.mark is not None and part.mark.parked for part in written)
        self._store.ring(self._holder, [*(part.run for part in written), *(["work"] if parked else [])])
        return verdicts

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[Gone]:
        """See Catalog.claimable."""
        self._store._speaker = self._holder
        return await self._store.claimable(limit, now, fairness)

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""
        claim = await self._store.claim(run, holder, first, at)
        if claim is not None:
            self._store.ring(self._holder, [run])
        return claim

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        kept = await self._store.signal(owner, signal)
        if kept:
            held = self._store._is_held(self._store._runs[signal.run])
            self._store.ring(self._holder, [f"signal:{signal.run}", *([] if held else ["work"])])
        return kept

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        gone = await self._store.delete(owner, run)
        if gone:
            self._store.ring(self._holder, [run])
        return gone

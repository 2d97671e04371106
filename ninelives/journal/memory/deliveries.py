"""Callers and runs that wait, in memory. Owns: who waits for which answer, which run a retried request joins, and which
runs wait to be claimed. Refuses to know: how a run is opened or claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ninelives.core.admission import Asked
from ninelives.journal.base import Alone
from ninelives.journal.fair import FAIR, Fairness, WaitingRun, in_turn
from ninelives.journal.memory.tables import MemoryRun, MemoryTables
from ninelives.journal.values import WAKING, Gone, HeldRun, Mark


class MemoryDeliveries:
    """See journal.base.Deliveries."""

    def __init__(self, tables: MemoryTables, is_held: Callable[[MemoryRun], bool], now_ms: Callable[[], int]) -> None:
        self._runs = tables.runs
        self._is_held = is_held
        self._now_ms = now_ms
        self._stranded: set[str] = set()
        """Runs whose caller waited at the last process, until strand() says so."""

    def caller_waits(self, name: str) -> bool:
        """Whether a caller waits for the run at a living process."""
        return self._runs[name].waits and name not in self._stranded

    def _speaks_of(self, name: str) -> bool:
        """Whether a report about the caller of this run counts."""
        return self.caller_waits(name)

    def find_lost(self, asked: Asked, at: int) -> str | None:
        """The newest run that the same request joins."""
        if not asked.match or not at:
            return None
        for name, run in reversed(self._runs.items()):
            first = run.opening.asked
            same = (run.owner, first.match) == (asked.owner, asked.match)
            if same and not run.hidden and self._can_join(name, asked, at):
                return name
        return None

    def _can_join(self, name: str, asked: Asked, at: int) -> bool:
        run = self._runs[name]
        return run.lost_at > 0 and run.window_end >= at

    def wait_again(self, name: str, credential: str) -> None:
        """A retried request takes over a run."""
        run = self._runs[name]
        run.waits, run.lost_at, run.left, run.credential = True, 0, False, credential
        run.wake_at = run.wake_at if run.asks else 0

    async def answered(self, told: Sequence[Gone]) -> None:
        """See Deliveries.answered."""
        for owner, name in told:
            run = self._runs.get(name)
            if run is not None and run.owner == owner and self._speaks_of(name):
                deliver(run, self._now_ms())

    async def rest_given(self, owner: str, run: str) -> None:
        """See Deliveries.rest_given."""
        found = self._runs.get(run)
        if found is not None and found.owner == owner and found.ended and not (found.waits or found.lost_at):
            found.delivered = found.delivered or self._now_ms()

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """See Deliveries.lost."""
        found = self._runs.get(run)
        if found is None or found.owner != owner or not self._speaks_of(run):
            return
        found.waits, found.lost_at, found.left = False, at, left
        if not found.asks and found.kept != "stored" and not self._is_held(found):
            found.wake_at = found.window_end

    async def strand(self, at: int, besides: Collection[Gone] = ()) -> None:
        """See Deliveries.strand."""
        stranded, self._stranded = self._stranded, set()
        for name in stranded & self._runs.keys():
            run = self._runs[name]
            if run.waits and (run.owner, name) not in besides:
                run.waits, run.lost_at = False, at
                if run.status == "running" and not self._is_held(run):
                    run.status = "queued"

    def restart(self) -> None:
        """The process ends: all its callers are lost, as soon as the next one calls strand()."""
        self._stranded = {name for name, run in self._runs.items() if run.waits}


def deliver(run: MemoryRun, at: int) -> None:
    """Nobody waits for the answer any more. If the run has ended, it was delivered."""
    run.waits, run.lost_at, run.left, run.delivered = False, 0, False, at if run.ended else 0


def wake_at(run: MemoryRun, mark: Mark) -> int:
    """Until when a run waits after this mark."""
    if not mark.left:
        return mark.wake_at
    return 0 if run.waits else (run.lost_at or mark.wake_at or mark.at) + run.opening.asked.resend_ms


class MemoryWaiting:
    """Which runs wait to be claimed, and for what."""

    def __init__(
        self, tables: MemoryTables, is_held: Callable[[MemoryRun], bool], caller_waits: Callable[[str], bool]
    ) -> None:
        self._runs = tables.runs
        self._signals = tables.signals
        self._is_held = is_held
        self._caller_waits = caller_waits

    def claimable(self, limit: int, now: int, fairness: Fairness) -> list[Gone]:
        """See Catalog.claimable."""
        live = {name: run for name, run in self._runs.items() if not (run.ended or run.hidden)}
        held = Counter(run.owner for run in live.values() if self._is_held(run))
        free = [
            WaitingRun(run.owner, name, self._is_wished(name))
            for name, run in live.items()
            if not (self._is_held(run) or self._sleeps(name, now))
        ]
        return in_turn(free, held, fairness, limit)

    def queued(self, now: int) -> int:
        """See Peers.queued."""
        return len(self.claimable(len(self._runs), now, FAIR))

    def _sleeps(self, name: str, now: int) -> bool:
        """The run waits for a time, a person or its caller, and has no signal that ends this."""
        return (self._runs[name].wake_at > now or self._misses_caller(name, now)) and not self._is_wished(name)

    def _is_wished(self, name: str) -> bool:
        asks = self._runs[name].asks
        waiting = self._signals.get(name, [])
        return any(signal.kind in WAKING or (signal.kind == "approval" and signal.key == asks) for signal in waiting)

    def _misses_caller(self, name: str, now: int) -> bool:
        run = self._runs[name]
        if run.kept != "delivery" or run.asks or self._caller_waits(name):
            return False
        return run.waits or (run.lost_at > 0 and run.window_end > now)

    def is_overdue(self, name: str, at: int) -> bool:
        """See Claim.overdue."""
        run = self._runs[name]
        left = run.kept == "delivery" and not run.waits and run.lost_at > 0 and not run.asks
        return 0 < run.wake_at <= at or (left and run.window_end <= at)

    def active(self, owner: str) -> int:
        """See Peers.active."""
        return sum(run.owner == owner and not (run.ended or run.hidden or run.asks) for run in self._runs.values())

    def held(self, holder: str, now: int) -> list[HeldRun]:
        """See Peers.held."""
        return [
            HeldRun(run.owner, name, run.attempt, bool(self._signals.get(name)), left_ms(run, now))
            for name, run in self._runs.items()
            if run.holder == holder and not run.ended and self._is_held(run)
        ]


def left_ms(run: MemoryRun, now: int) -> int:
    """See HeldRun.left_ms."""
    counts = run.kept == "delivery" or (run.kept == "hours" and run.left)
    return max(1, now - run.lost_at) if run.lost_at and counts else 0


class MemoryPeers(Alone):
    """See journal.base.Peers."""

    def __init__(self, waiting: MemoryWaiting, now_ms: Callable[[], int]) -> None:
        self._waiting = waiting
        self._now_ms = now_ms

    async def held(self, holder: str) -> Sequence[HeldRun]:
        """See Peers.held."""
        return self._waiting.held(holder, self._now_ms())

    async def queued(self) -> int:
        """See Peers.queued."""
        return self._waiting.queued(self._now_ms())

    async def active(self, owner: str) -> int:
        """See Peers.active."""
        return self._waiting.active(owner)

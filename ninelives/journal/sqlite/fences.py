"""What the writer knows about open runs. Owns: the fences (attempt, last seq, checksum, holder), and what each open run
waits for: a time, a person, its caller. Refuses to know: SQL, threads, tails in memory.

Theory of operation. Each open run has a fence in a dict that only the writer thread uses. It is loaded at start, under
the lock of the data directory (docs/architecture.md, R5), without a holder: a claim ends with its process. Changes to
fences are staged and take effect after COMMIT, so a batch that is rolled back leaves no trace in them (R6)."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from ninelives.journal.fair import Fairness, WaitingRun, in_turn
from ninelives.journal.values import WAKING, Gone, HeldRun, Mark


class Fence(Struct, frozen=True, kw_only=True):
    """What the writer knows about an open run."""

    owner: str
    n: int
    attempt: int
    seq: int
    crc: int
    parked: bool
    holder: str | None = None
    conversation: str | None = None
    """The conversation whose active run it is."""
    kept: str = "stored"
    resend_ms: int = 0
    waits: bool = False
    lost_at: int = 0
    left: bool = False
    """With `lost_at`: this process saw the caller leave. What the process before saw is not known."""
    wake_at: int = 0
    asks: str = ""
    signals: frozenset[tuple[str, str]] = frozenset()
    """(kind, key) of its pending signals."""

    @property
    def is_wished(self) -> bool:
        """A signal is pending that ends any wait (Catalog.claimable)."""
        return any(kind in WAKING or (kind == "approval" and key == self.asks) for kind, key in self.signals)

    def _sleeps(self, now: int) -> bool:
        return self.wake_at > now or (self._misses_caller and self.lost_at + self.resend_ms > now)

    @property
    def _misses_caller(self) -> bool:
        return self.kept == "delivery" and not self.waits and self.lost_at > 0 and not self.asks

    def is_claimable(self, now: int) -> bool:
        """See Catalog.claimable."""
        return self.holder is None and (not self._sleeps(now) or self.is_wished)

    def is_overdue(self, at: int) -> bool:
        """See Claim.overdue."""
        return 0 < self.wake_at <= at or (self._misses_caller and self.lost_at + self.resend_ms <= at)

    def after_mark(self, mark: Mark) -> Fence | None:
        """The fence that the next slice must find; None if the run has ended."""
        if mark.ended:
            return None
        wake_at = self._left_until(mark) if mark.left else mark.wake_at
        if mark.parked:
            return replace(self, holder=None, parked=True, wake_at=wake_at, asks=mark.asks)
        return replace(self, wake_at=wake_at, asks=mark.asks)

    def _left_until(self, mark: Mark) -> int:
        return 0 if self.waits else (self.lost_at or mark.wake_at or mark.at) + self.resend_ms

    def after_loss(self, at: int, *, left: bool) -> Fence:
        """The connection of the waiting caller was lost."""
        waits_for_caller = self.holder is None and self.kept != "stored" and not self.asks
        wake_at = at + self.resend_ms if waits_for_caller else self.wake_at
        return replace(self, waits=False, lost_at=at, left=left, wake_at=wake_at)

    def after_join(self) -> Fence:
        """A retried request took over the run."""
        return replace(self, waits=True, lost_at=0, left=False, wake_at=self.wake_at if self.asks else 0)

    def left_ms(self, now: int) -> int:
        """See HeldRun.left_ms."""
        counts = self.kept == "delivery" or (self.kept == "hours" and self.left)
        return max(1, now - self.lost_at) if self.lost_at and counts else 0


class Fences:
    """The fences of all open runs: committed ones, and the changes that the current transaction stages."""

    def __init__(self) -> None:
        self.committed: dict[str, Fence] = {}
        self.staged: dict[str, Fence | None] = {}
        """What this transaction changes; None: the run has ended."""
        self.staged_id = 0
        """The last row of the log, as the current transaction sees it."""
        self.last_id = 0
        """The last committed row of the log."""
        self.last_n = 0
        """The number of the newest run. The number of a forgotten run is not given again: records of that run may still
        be on their way into a segment. A number that a rollback leaves unused does not matter."""
        self.stranded: list[Gone] = []
        """Runs whose caller waited at the last process, until Deliveries.strand() says so."""

    def load(self, fences: dict[str, Fence], last_n: int, stranded: list[Gone]) -> None:
        """Take over what a start found in the store."""
        self.committed, self.last_n, self.stranded = fences, last_n, stranded

    def get(self, run: str) -> Fence | None:
        """The fence as the current transaction sees it."""
        return self.staged[run] if run in self.staged else self.committed.get(run)

    def commit(self) -> None:
        """The transaction was committed."""
        for run, fence in self.staged.items():
            if fence is None:
                self.committed.pop(run, None)
            else:
                self.committed[run] = fence
        self.staged.clear()
        self.last_id = max(self.last_id, self.staged_id)

    def rollback(self) -> None:
        """The transaction was rolled back."""
        self.staged.clear()
        self.staged_id = self.last_id

    def claimable(self, limit: int, now: int, fairness: Fairness) -> list[Gone]:
        """See Catalog.claimable."""
        held: Counter[str] = Counter()
        free: list[tuple[int, WaitingRun]] = []
        for run, fence in self.committed.items():
            if fence.holder is not None:
                held[fence.owner] += 1
            elif fence.is_claimable(now):
                free.append((fence.n, WaitingRun(fence.owner, run, fence.is_wished)))
        free.sort(key=lambda found: found[0])
        return in_turn((waiting for _, waiting in free), held, fairness, limit)

    def queued(self, now: int) -> int:
        """See Peers.queued."""
        return sum(fence.is_claimable(now) for fence in self.committed.values())

    def active(self, owner: str) -> int:
        """See Peers.active."""
        return sum(fence.owner == owner and not fence.asks for fence in self.committed.values())

    def held(self, holder: str, now: int) -> list[HeldRun]:
        """See Peers.held."""
        return [
            HeldRun(fence.owner, run, fence.attempt, bool(fence.signals), fence.left_ms(now))
            for run, fence in self.committed.items()
            if fence.holder == holder
        ]

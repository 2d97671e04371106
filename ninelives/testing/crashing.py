"""A store that dies on command. Owns: the crash before or after one of the calls that write (open, append, claim). The
inner store survives it. This is kill -9 without a process: wrap a store, run until Crash, wrap the same inner store
again and recover. Refuses to know: what is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from ninelives.core.admission import Asked
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.base import AuditLog, Keys
from ninelives.journal.base import Conversations, Deliveries, Ledger, Peers, Sessions, Store, Upkeep
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.values import (
    Attached,
    Claim,
    FirstRecord,
    Gone,
    Grant,
    Opened,
    Opening,
    Query,
    Record,
    RunRow,
    Signal,
    Slice,
    Verdict,
)

T = TypeVar("T")


class Crash(BaseException):
    """The process is gone. No `except Exception` survives it."""


class CrashingStore:
    """Passes calls to `inner` until the `die_at`-th call (from 1) of open, append or claim. From then on every call
    raises Crash, and so does every call that was under way. `when="before"`: that call never reached the store;
    `"after"`: it did, and its answer was lost. With `die_at=0` it never dies; `calls` then counts the points."""

    def __init__(self, inner: Store, *, die_at: int = 0, when: Literal["before", "after"] = "before") -> None:
        self._inner = inner
        self._die_at = die_at
        self._when = when
        self.calls = 0
        self.dead = False

    async def _counted(self, call: Callable[[], Awaitable[T]]) -> T:
        self._alive()
        self.calls += 1
        fatal = self.calls == self._die_at
        if fatal and self._when == "before":
            self.dead = True
        self._alive()
        answer = await call()
        self.dead = self.dead or fatal
        self._alive()
        return answer

    async def _plain(self, call: Callable[[], Awaitable[T]]) -> T:
        self._alive()
        answer = await call()
        self._alive()
        return answer

    def _alive(self) -> None:
        if self.dead:
            raise Crash(f"died {self._when} call {self._die_at}")

    @property
    def parallel(self) -> bool:
        """See Journal.parallel."""
        return self._inner.parallel

    @property
    def deliveries(self) -> Deliveries:
        """See Store.deliveries. Raises Crash once this store is dead."""
        self._alive()
        return self._inner.deliveries

    @property
    def upkeep(self) -> Upkeep:
        """See Store.upkeep. Retention is no crash point."""
        return self._inner.upkeep

    @property
    def peers(self) -> Peers:
        """See Store.peers."""
        return self._inner.peers

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        return await self._counted(lambda: self._inner.open(opening))

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        return await self._counted(lambda: self._inner.append(slices))

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""
        return await self._counted(lambda: self._inner.claim(run, holder, first, at))

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        await self._plain(lambda: self._inner.beat(holder))

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """See Journal.read."""
        return await self._plain(lambda: self._inner.read(owner, run, after, seen))

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        return await self._plain(lambda: self._inner.signal(owner, signal))

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        return await self._plain(lambda: self._inner.delete(owner, run))

    async def forget(self, gone: Sequence[Gone]) -> None:
        """See Journal.forget."""
        await self._plain(lambda: self._inner.forget(gone))

    async def find(self, owner: str, run: str) -> RunRow | None:
        """See Catalog.find."""
        return await self._plain(lambda: self._inner.find(owner, run))

    async def owner_of(self, run: str) -> str | None:
        """See Catalog.owner_of."""
        return await self._plain(lambda: self._inner.owner_of(run))

    async def rows(self, query: Query) -> list[RunRow]:
        """See Catalog.rows."""
        return await self._plain(lambda: self._inner.rows(query))

    async def resolve(self, asked: Asked) -> Resolved:
        """See Catalog.resolve."""
        return await self._plain(lambda: self._inner.resolve(asked))

    def foregone(self, asked: Asked) -> Resolved | None:
        """See Catalog.foregone."""
        return self._inner.foregone(asked)

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        return await self._plain(lambda: self._inner.turns(owner, resolved))

    async def asking(self, owner: str, code: str) -> str | None:
        """See Catalog.asking."""
        return await self._plain(lambda: self._inner.asking(owner, code))

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[tuple[str, str]]:
        """See Catalog.claimable."""
        return await self._plain(lambda: self._inner.claimable(limit, now, fairness))

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return await self._plain(lambda: self._inner.annotate(owner, run, metadata))

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return await self._plain(lambda: self._inner.signals(run))

    async def grant(self, given: Grant) -> None:
        """See Pending.grant."""
        await self._plain(lambda: self._inner.grant(given))

    async def granted(self, owner: str, ids: Sequence[str]) -> bool:
        """See Pending.granted."""
        return await self._plain(lambda: self._inner.granted(owner, ids))

    async def grants(self, owner: str) -> list[Grant]:
        """See Pending.grants."""
        return await self._plain(lambda: self._inner.grants(owner))

    async def revoke(self, owner: str, grant: str) -> bool:
        """See Pending.revoke."""
        return await self._plain(lambda: self._inner.revoke(owner, grant))

    @property
    def keys(self) -> Keys:
        """See Store.keys."""
        return self._inner.keys

    @property
    def audit(self) -> AuditLog:
        """See Store.audit."""
        return self._inner.audit

    @property
    def conversations(self) -> Conversations:
        """See Store.conversations. Edits are no crash points."""
        return self._inner.conversations

    @property
    def ledger(self) -> Ledger:
        """See Store.ledger. Counting is no crash point."""
        return self._inner.ledger

    @property
    def sessions(self) -> Sessions:
        """See Store.sessions. Listing is no crash point: the next process lists what is missing."""
        return self._inner.sessions


_CHECKED: type[Store] = CrashingStore
"""Makes the type checker report a method of Store that is missing here."""

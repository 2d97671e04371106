"""A store that dies on command. Owns: the moment of death around one of the calls that write (open, append, claim).
Refuses to know: what is written. Around a store that survives (any inner one: it is never told of the crash), this is
kill -9 without a process: wrap, run until Crash, wrap the same inner store again and recover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from holdfast.core.admission import Asked
from holdfast.core.spec import Resolved
from holdfast.journal.base import (
    Attached,
    Claim,
    Deliveries,
    Opened,
    Opening,
    Query,
    Record,
    Row,
    Signal,
    Slice,
    Store,
    Verdict,
)
from holdfast.journal.base_conversations import Conversations
from holdfast.journal.base_peers import Peers
from holdfast.journal.base_upkeep import Upkeep

T = TypeVar("T")


class Crash(BaseException):
    """The process is gone. No `except Exception` survives it."""


class CrashingStore:
    """`inner` until the `die_at`-th (from 1) call of open, append or claim; from then on every call raises Crash, and
    so does every call that was under way. `when="before"`: that call never reached the store; `"after"`: it did, and
    its answer was lost. `die_at=0` never dies: run once and read `calls` to know how many points there are."""

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
    def deliveries(self) -> Deliveries:
        """See Store.deliveries: told to the inner store as long as this one lives."""
        self._alive()
        return self._inner.deliveries

    @property
    def upkeep(self) -> Upkeep:
        """See Store.upkeep: retention is no place to die at."""
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

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        return await self._counted(lambda: self._inner.claim(run, holder, first, at))

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        await self._plain(lambda: self._inner.beat(holder))

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """See Journal.read."""
        return await self._plain(lambda: self._inner.read(owner, run, after))

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        return await self._plain(lambda: self._inner.signal(owner, signal))

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        return await self._plain(lambda: self._inner.delete(owner, run))

    async def find(self, owner: str, run: str) -> Row | None:
        """See Catalog.find."""
        return await self._plain(lambda: self._inner.find(owner, run))

    async def rows(self, query: Query) -> list[Row]:
        """See Catalog.rows."""
        return await self._plain(lambda: self._inner.rows(query))

    async def resolve(self, asked: Asked) -> Resolved:
        """See Catalog.resolve."""
        return await self._plain(lambda: self._inner.resolve(asked))

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        return await self._plain(lambda: self._inner.turns(owner, resolved))

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        """See Catalog.remember."""
        await self._plain(lambda: self._inner.remember(owner, session, at, turn))

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """See Catalog.claimable."""
        return await self._plain(lambda: self._inner.claimable(limit))

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return await self._plain(lambda: self._inner.annotate(owner, run, metadata))

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return await self._plain(lambda: self._inner.signals(run))

    async def grant(self, owner: str, session: str, tool: str) -> None:
        """See Pending.grant."""
        await self._plain(lambda: self._inner.grant(owner, session, tool))

    async def granted(self, owner: str, session: str, tool: str) -> bool:
        """See Pending.granted."""
        return await self._plain(lambda: self._inner.granted(owner, session, tool))

    @property
    def conversations(self) -> Conversations:
        """See Store.conversations; edits are no crash points of their own."""
        return self._inner.conversations


_CHECKED: type[Store] = CrashingStore
"""The type checker says here when a Store has learned something that this one has not."""

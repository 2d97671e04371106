"""The way into the audit log. Owns: entries of this process until they are stored, and how long the log is kept.
Refuses to know: what is worth an entry.

Theory of operation. Entries go to the store in batches. Whoever did something that must not be missing waits for its
entry (`keep`): the answer to a request, and the next step of a run, come after it. A process that is killed before that
has told nobody. What a stored run does goes another way: its entries are written with its records (Slice.audit)."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from ninelives.journal.accounts.base import AuditEntry, AuditLog
from ninelives.journal.base import Logger
from ninelives.journal.values import StoreUnavailable

FLUSH_S = 0.5
"""How long entries wait for others."""
TRIM_S = 600.0
MOST = 10_000
"""More entries than this are not kept while the store is away."""
AT_ONCE = 500
KEEP_S = 10.0
"""The longest wait for an entry. It is stored later, when the store is back."""


class Trail(Protocol):
    """Where parts of the server say what was done."""

    def note(self, entry: AuditEntry) -> None:
        """Somebody did something. The entry has no content of a request or an answer; its time is now."""
        ...

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        """The same, and wait until they are stored, but not for longer than KEEP_S."""
        ...


class NoTrail:
    """The Trail of a process without an audit log."""

    def note(self, entry: AuditEntry) -> None:
        """See Trail.note."""

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        """See Trail.keep."""


class AuditKeep(Struct, frozen=True):
    """How much of the log is kept; 0 is no bound."""

    days: float = 90.0
    rows: int = 1_000_000


class AuditTrail:
    """See Trail. Call `start`, then `stop`."""

    def __init__(self, audit: AuditLog, now_ms: Callable[[], int], log: Logger, keep: AuditKeep) -> None:
        self._audit = audit
        self._now_ms = now_ms
        self._log = log
        self._keep = keep
        self._waiting: deque[AuditEntry] = deque()
        self._stored = 0
        """How many entries of this process are stored."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until so many are."""
        self._due, self._urgent = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def note(self, entry: AuditEntry) -> None:
        """See Trail.note."""
        if len(self._waiting) >= MOST:
            self._log.error("audit_not_written", **asdict(entry))
            return
        short = {"object": entry.object[:256], "detail": entry.detail[:256], "id": entry.id or os.urandom(16).hex()}
        self._waiting.append(replace(entry, at=self._now_ms(), **short))
        self._due.set()

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        """See Trail.keep."""
        for entry in entries:
            self.note(entry)
        if not self._waiting:
            return
        stored = asyncio.get_running_loop().create_future()
        self._waiters.append((self._stored + len(self._waiting), stored))
        self._urgent.set()
        await asyncio.wait([stored], timeout=KEEP_S)

    async def start(self) -> None:
        """Begin to store entries."""
        self._running = asyncio.create_task(self._run(), name="audit")

    async def stop(self) -> None:
        """Store what is left."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self.flush()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        trimmed_at = float("-inf")
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TRIM_S):
                    await self._due.wait()
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._urgent.wait()
            self._urgent.clear()
            if not await self.flush():
                await asyncio.sleep(FLUSH_S)
            if loop.time() - trimmed_at > TRIM_S:
                trimmed_at = loop.time()
                await self._trim()

    async def flush(self) -> bool:
        """Store the entries that wait. What cannot be stored now stays, and is tried again. False: some stay."""
        while self._waiting:
            some = list(islice(self._waiting, AT_ONCE))
            try:
                await self._audit.add(some)
            except StoreUnavailable as error:
                self._log.warning("audit_not_stored", reason=str(error), entries=len(some))
                self._due.set()
                return False
            for _ in some:
                self._waiting.popleft()
            self._stored += len(some)
            for place, waiter in self._waiters:
                if place <= self._stored and not waiter.done():
                    waiter.set_result(None)
            self._waiters = [(place, waiter) for place, waiter in self._waiters if place > self._stored]
        return True

    async def _trim(self) -> None:
        before = self._now_ms() - int(self._keep.days * 86_400_000) if self._keep.days else 0
        try:
            while await self._audit.trim(before, self._keep.rows or 2**62):
                continue
        except StoreUnavailable as error:
            self._log.warning("audit_not_trimmed", reason=str(error))

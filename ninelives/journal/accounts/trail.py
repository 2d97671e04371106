"""The way into the audit log. Owns: entries of this process until they are stored, and how long the log is kept.
Entries go to the store in batches, so that nobody waits for them. A process that is killed loses those of the last
moment. Refuses to know: what is worth an entry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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


class Trail(Protocol):
    """Where parts of the server say what was done."""

    def note(self, entry: AuditEntry) -> None:
        """Somebody did something. The entry has no content of a request or an answer; its time is now."""
        ...


class NoTrail:
    """The Trail of a process without an audit log."""

    def note(self, entry: AuditEntry) -> None:
        """See Trail.note."""


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
        self._due = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def note(self, entry: AuditEntry) -> None:
        """See Trail.note."""
        if len(self._waiting) >= MOST:
            self._log.error("audit_not_written", **asdict(entry))
            return
        short = {"object": entry.object[:256], "detail": entry.detail[:256]}
        self._waiting.append(replace(entry, at=self._now_ms(), **short))
        self._due.set()

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
            await asyncio.sleep(FLUSH_S)
            await self.flush()
            if loop.time() - trimmed_at > TRIM_S:
                trimmed_at = loop.time()
                await self._trim()

    async def flush(self) -> None:
        """Store the entries that wait. What cannot be stored now is tried again."""
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            try:
                await self._audit.add(some)
            except StoreUnavailable as error:
                self._log.warning("audit_not_stored", reason=str(error), entries=len(some))
                self._waiting.extendleft(reversed(some))
                self._due.set()
                return

    async def _trim(self) -> None:
        before = self._now_ms() - int(self._keep.days * 86_400_000) if self._keep.days else 0
        try:
            while await self._audit.trim(before, self._keep.rows or 2**62):
                continue
        except StoreUnavailable as error:
            self._log.warning("audit_not_trimmed", reason=str(error))

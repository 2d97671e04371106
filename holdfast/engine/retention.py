"""Keeps the store within its bounds while the server runs. Owns: which runs were used lately, and the rounds in which
runs without room go. Refuses to know: how a store finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.engine.drivers import Parts
from holdfast.journal.base import StoreUnavailable
from holdfast.journal.base_upkeep import Retention

USES = 100_000
"""More than this many used runs are not remembered between two rounds: they then count as used when they ended."""


class Retainer:
    """Rounds of retention for one store."""

    def __init__(self, parts: Parts, being_read: Callable[[], Iterable[str]]) -> None:
        self._upkeep = parts.durable.upkeep
        self._keep = parts.limits.keep
        self._now_ms = parts.clock()
        self._being_read = being_read
        self._log = parts.log
        self._uses: dict[tuple[str, str], int] = {}
        self.evicted = 0

    def used(self, owner: str, run: str) -> None:
        """Somebody looked at a run."""
        if len(self._uses) < USES:
            self._uses[owner, run] = self._now_ms()

    async def run(self) -> None:
        """A round now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._keep.every_s)
            try:
                await self.round()
            except StoreUnavailable as error:
                self._log.warning("retention_failed", reason=str(error))

    async def round(self) -> int:
        """One round; how many runs went."""
        uses, self._uses = self._uses, {}
        await self._upkeep.touch([(owner, run, at) for (owner, run), at in uses.items()])
        now, keep = self._now_ms(), self._keep
        rule = Retention(
            at=now,
            runs=keep.runs,
            owner_bytes=keep.owner_bytes,
            total_bytes=keep.total_bytes,
            before=int(now - keep.days * 86_400_000) if keep.days else 0,
        )
        gone = await self._upkeep.evict(rule, frozenset(self._being_read()))
        self.evicted += len(gone)
        if gone:
            self._log.info("runs_expired", runs=len(gone))
        return len(gone)

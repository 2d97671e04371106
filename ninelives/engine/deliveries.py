"""Whether answers reached those who waited for them. Owns: telling the store. An answer is delivered when its last byte
was handed to the transport. A connection is lost when it broke before that. At a start all connections of the process
before are lost, however it ended (`strand`). Refuses to know: connections, and what follows for a run.

Theory of operation. Delivered answers are told in batches: one write for all within a moment
(`TELL_S`). A loss is told at once, because a retry may be on its way already. If the store did not take a loss, it is
told before the next run is opened, or the retry would begin a second run.

A draining server that has its store to itself tells of no loss. Its next start does, so the time in which a caller may
come back begins when there is a server again. On a shared store another replica takes the retry at once. There the
loss is told before the connection breaks (`_cut_off` in http/answering.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ninelives.engine.base import EngineParts, Tasks
from ninelives.journal.values import Gone, StoreUnavailable

TELL_S = 0.02
"""How long delivered answers are gathered. A death meanwhile: the same request gets the same answer once more."""


class DeliveryTracker:
    """What one process says about its callers."""

    def __init__(self, parts: EngineParts, tasks: Tasks) -> None:
        self._deliveries = parts.durable.deliveries
        self._now_ms = parts.clock()
        self._log = parts.log
        self._tasks = tasks
        self._delivered: list[Gone] = []
        self._untold: dict[Gone, int] = {}
        """Losses that the store has not taken yet, and when they happened."""
        self._tells_at_drain = parts.durable.peers.shared
        self._draining = False

    def stop(self) -> None:
        """The server stops."""
        self._draining = True

    @property
    def untold(self) -> bool:
        """True while the store may not know of a loss: then it must be asked what a request joins."""
        return bool(self._untold)

    async def strand(self) -> None:
        """Before the first request, and now and then: whoever waited at a process that is gone has no connection."""
        await self._say(self._deliveries.strand(self._now_ms()))

    def answered(self, owner: str, run: str) -> None:
        """All that there is was handed over."""
        self._delivered.append((owner, run))
        if len(self._delivered) == 1:
            self._tasks.spawn(self._tell_delivered())

    async def _tell_delivered(self) -> None:
        """Answers that are delivered in the next moment go with the same write."""
        if not self._draining:
            await asyncio.sleep(TELL_S)
        told, self._delivered = self._delivered, []
        await self._say(self._deliveries.answered(told))

    async def rest_given(self, owner: str, run: str) -> None:
        """Who answered the question of a run has all that came after it."""
        await self._say(self._deliveries.rest_given(owner, run))

    async def lost(self, owner: str, run: str) -> None:
        """The connection broke before."""
        if not self._draining or self._tells_at_drain:
            self._untold[owner, run] = self._now_ms()
            await self._say(self.tell_losses())

    async def tell_losses(self) -> None:
        """Tell what was not told yet. Raises StoreUnavailable."""
        for (owner, run), at in list(self._untold.items()):
            await self._deliveries.lost(owner, run, at)
            self._untold.pop((owner, run), None)

    async def _say(self, word: Awaitable[None]) -> None:
        """A store that takes nothing now costs a retry its run, never the caller its answer."""
        try:
            await word
        except StoreUnavailable as error:
            self._log.warning("delivery_not_noted", reason=str(error))

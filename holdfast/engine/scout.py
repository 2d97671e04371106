"""Finds runs that nobody holds in a store that several processes share. Owns: when the store is asked for them and for
how many, which are left alone for a while, and how many wait in all. Refuses to know: how a run is claimed and driven.

Theory of operation. Nothing waits in a process here: a run that was taken in without a slot, was parked or lost its
holder is unclaimed in the store, and whoever has a slot takes it; a race for one is decided by the claim. The bell
says "work" when there is some; a lost ring costs one round of polling. A run with a signal waits for no slot. Rounds
never ask for more than could be begun, so a backlog of any length costs nobody memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from holdfast.engine.base import Limits, Log
from holdfast.journal.base import Bell, Store, StoreUnavailable

WORK = "work"
"""The bell's word for: something can be claimed."""
POLL_S = 0.7
URGENT_ROUNDS = 4
"""Every so many rounds a process without a slot looks for runs that a signal waits for."""
URGENT = 16
MOST = 256
"""A round asks for at most so many runs."""
REST_S = 5.0


class Scout:
    """One process's look-out."""

    def __init__(self, store: Store, bell: Bell, limits: Limits, log: Log) -> None:
        self._store = store
        self._bell = bell
        self._works = limits.works
        self._log = log
        self._kick = asyncio.Event()
        self._urgent = False
        self._rests: dict[str, float] = {}
        self._parked: dict[str, str] = {}
        self._count_at = 0.0
        self.queued = 0
        """How many wait to be claimed, as far as is known."""
        self.backlog = False
        """The store has more than could be begun here: who comes now stands behind them."""
        self.free: Callable[[], int] = lambda: 0
        self.may: Callable[[], bool] = lambda: True
        """May anything be begun now?"""
        self.driven: Callable[[str], bool] = lambda run: False
        """Is it here already?"""
        self.take: Callable[[str, str], None] = lambda owner, run: None

    def seek(self) -> None:
        """Look now."""
        self._kick.set()

    def seek_urgent(self) -> None:
        """Look now; a signal may wait for a run that nobody holds."""
        self._urgent = True
        self._kick.set()

    def opened(self) -> None:
        """One more waits."""
        self.queued += 1
        self.seek()

    def released(self) -> None:
        """A slot is free."""
        if self.backlog or self.queued:
            self.seek()

    def rest(self, run: str, seconds: float = REST_S) -> None:
        """Leave it alone for a while: it cannot go on here now."""
        self._rests[run] = asyncio.get_running_loop().time() + seconds

    def parks(self, run: str, code: str) -> bool:
        """A run waits for a person, and the store gave it to us all the same. If its holder died before it was parked
        somebody must park it: once. A store whose clock differs may go on offering it."""
        if self._parked.get(run) == code:
            self.rest(run)
            return False
        while len(self._parked) >= MOST:
            del self._parked[next(iter(self._parked))]
        self._parked[run] = code
        return True

    async def run(self) -> None:
        """Look whenever the bell says so, and now and then, until cancelled."""
        unlisten = self._bell.listen(WORK, self.seek_urgent)
        rounds = 0
        try:
            while True:
                self._kick.clear()
                urgent = self._urgent or rounds % URGENT_ROUNDS == 0
                self._urgent = False
                rounds += 1
                try:
                    await self._round(urgent)
                except StoreUnavailable as error:
                    self._log.warning("claimable_not_read", reason=str(error))
                except Exception as error:  # the edge of a task that must not end
                    self._log.error("scout_failed", error=repr(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):  # wait_for of 3.11 can lose a cancellation
                        await self._kick.wait()
        finally:
            unlisten()

    async def _round(self, urgent: bool) -> None:
        if self._works and self.may():
            await self._look(urgent)
        now = asyncio.get_running_loop().time()
        if now >= self._count_at:
            self._count_at = now + POLL_S
            self.queued = await self._store.peers.queued()

    async def _look(self, urgent: bool) -> None:
        free, now = max(0, self.free()), asyncio.get_running_loop().time()
        self._rests = {run: until for run, until in self._rests.items() if until > now}
        if not free and not urgent:
            self.backlog = self.queued > 0
            return
        most = min(MOST, free + (URGENT if urgent else 0) + len(self._rests))
        found = await self._store.claimable(most)
        left = 0
        for owner, run in found:
            if run in self._rests or self.driven(run):
                continue
            if self.free() > 0 or (urgent and await self._store.signals(run)):
                if self.may() and not self.driven(run):
                    self.take(owner, run)
            else:
                left += 1
        self.backlog = left > 0 or (len(found) == most and self.free() <= 0)

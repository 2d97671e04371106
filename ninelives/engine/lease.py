"""How long this process may believe that its claims are its own. Owns: the beat of one process, when it last came
through, and whether the lease has held since a claim was asked for. Refuses to know: what a claim is good for.

Theory of operation. A beat is a heartbeat to the store. Each one that arrives renews the lease, by the store's clock.
This process counts from the moment before it sends the beat, by a clock that nobody sets. So its own count ends first.

The lease lapses when the store is out of reach for its whole length, or when this process stood still. Other processes
may have its runs then. `Notices.lease_lapsed` is called once, and nothing is claimed until a beat comes through.

A claim can be asked for before a lapse and answered after it. Such a claim is not ours. So whoever asks for a claim
takes the `span` first, and calls its `held` when the answer is there. A lapse ends the span, and begins another one. A
store with one process has leases without end."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from ninelives.engine.base import EngineParts, LeaseSpan, Notices
from ninelives.journal.values import StoreUnavailable

AGAIN_S = 0.5
"""After a beat that failed the next one comes so soon."""
BEAT_S = 5.0
"""The longest time between two beats."""


class Lease:
    """The lease of one process on one store."""

    def __init__(self, parts: EngineParts, holder: str, notices: Notices) -> None:
        self._store = parts.durable
        self._holder = holder
        self._length_s = parts.limits.lease_s
        self._log = parts.log
        self._clock = parts.clock()
        self._notices = notices
        self._beaten: float | None = None
        self._fresh_from: float | None = None
        """From when on it is counted: the last beat that came through, or the first that was tried."""
        self.trouble: str | None = None
        """Why nothing new should begin, if so."""
        self._roused = asyncio.Event()
        """The lease has lapsed since the last beat began: the next beat does not wait for its time."""
        self._willing = True
        self.span = LeaseSpan(self if self._length_s < math.inf else None)
        """Take it before claim() or open(): it says later whether the lease was held without a break since."""
        self.over = False
        """No beat came through for a whole lease."""

    def resign(self) -> None:
        """This process cannot write any more: it lets its lease run out, so that others take over."""
        self._willing = False

    def age_s(self) -> float | None:
        """How long ago the last beat came through; None before the first."""
        return None if self._beaten is None else self._clock() / 1000 - self._beaten

    def check(self) -> None:
        """Notice whether it is over, before something is relied upon. Not by the clock of the loop: that may stand
        still within one turn of the loop (uvloop's does), and a process that was stopped there would not see it."""
        if self.over or self._fresh_from is None:
            return
        spent_s = self._clock() / 1000 - self._fresh_from
        if spent_s >= self._length_s:
            self.over = True
            self.span = LeaseSpan(self)
            self.trouble = self.trouble or "no beat came through"
            self._log.warning("lease_lapsed", age_s=round(spent_s, 1))
            self._roused.set()  # nothing is taken in until a beat comes through: the next one must not wait
            self._notices.lease_lapsed()

    async def beat(self) -> None:
        """Keep the claims of this process fresh, until cancelled."""
        self._fresh_from = self._clock() / 1000
        pause_s = min(BEAT_S, self._length_s / 3)
        while True:
            self._roused.clear()
            self.check()  # this process may have stood still
            try:
                if self._willing:
                    await self._beat_once()
            except StoreUnavailable as error:
                self.trouble = str(error)
                self._log.warning("beat_failed", reason=str(error))
            except Exception as error:  # the edge of a task that must not end: without a beat the lease is over
                self.trouble = f"the beat failed ({type(error).__name__})"
                self._log.error("beat_failed", error=repr(error))
            with suppress(TimeoutError):  # no wait where the lease lapsed during this beat: its answer came too late
                async with asyncio.timeout(AGAIN_S if self.trouble else pause_s):
                    await self._roused.wait()

    async def _beat_once(self) -> None:
        began = self._clock() / 1000
        await self._store.beat(self._holder)
        self.check()  # it may have arrived after the end of the lease before it: then what was held is free
        self._beaten = self._fresh_from = began
        self.trouble = None
        if self.over:
            self._log.info("lease_back")
        self.over = False
        await self._notices.beaten()

    async def watch(self) -> None:
        """Notice the end of the lease also while a beat is under way, until cancelled."""
        while self._length_s < math.inf:
            left = self._length_s
            if self._fresh_from is not None and not self.over:
                left -= self._clock() / 1000 - self._fresh_from
            await asyncio.sleep(max(left, 0.01))
            self.check()

"""How long this process may believe that its claims are its own. Owns: the beat of one process, when it last came
through, and what else is asked on that occasion: which runs have a signal that no ring told of, whose callers are
stranded. Refuses to know: what a claim is good for.

Theory of operation. The store gives a process a lease by its own clock, from the moment a beat arrives. Here the time
is taken before the beat is sent and by a clock that nobody sets, so what is counted here is over first. When it is over
(the store is out of reach, or this process stood still), somebody else may have the runs: `lapsed` is called once, and
nothing is claimed until a beat comes through again. What was asked of the store before and is answered after that is
not ours either, though no beat missed it: whoever asks for a claim takes a `span` first, and looks at it when it has
the answer. A store that one process has to itself needs none of that: there the beat only beats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.engine.base import Limits, Log
from holdfast.journal.base import Store, StoreUnavailable

AGAIN_S = 0.5
"""After a beat that failed the next one comes so soon."""


async def _nothing() -> None:
    """Nothing more is to be asked."""


class Lease:
    """The lease of one process on one store."""

    def __init__(
        self, store: Store, holder: str, limits: Limits, log: Log, steady: Callable[[], float] | None = None
    ) -> None:
        """`steady`: seconds by a clock that nobody sets; None: the loop's, which may stand still within one turn of
        the loop (uvloop's does), so that a process that was stopped in the middle of one does not see it at once."""
        self._store = store
        self._holder = holder
        self._length_s = limits.lease_s
        self._log = log
        self._now = steady or (lambda: asyncio.get_running_loop().time())
        self._beaten: float | None = None
        self._fresh_from: float | None = None
        """From when on it is counted: the last beat that came through, or the first that was tried."""
        self._lapses = 0
        self._failed = ""
        self._roused = asyncio.Event()
        self.over = False
        """No beat came through for a whole lease."""
        self.willing: Callable[[], bool] = lambda: True
        """May this process go on at all? One that cannot write any more lets its lease run out: others take over."""
        self.lapsed: Callable[[], None] = lambda: None
        self.wished: Callable[[str], None] = lambda run: None
        """Told of each run of this process for which a signal waits."""
        self.besides: Callable[[], Awaitable[None]] = _nothing
        """Done after each beat."""

    def age_s(self) -> float | None:
        """How long ago the last beat came through; None before the first."""
        return None if self._beaten is None else self._now() - self._beaten

    def _spent_s(self) -> float:
        return 0.0 if self._fresh_from is None else self._now() - self._fresh_from

    def trouble(self) -> str | None:
        """Why nothing new should begin, if so."""
        return self._failed or None

    def span(self) -> Callable[[], bool]:
        """Taken before a claim or an opening is sent: has the lease held from now to the moment when that is asked?"""
        lapses = self._lapses

        def held() -> bool:
            self.mind()
            return not self.over and self._lapses == lapses

        return held

    async def beat(self) -> None:
        """Keep the claims of this process fresh, until cancelled."""
        if self._store.peers.shared:
            await self._beat_among_peers()
        while True:
            await asyncio.sleep(self._length_s / 3)
            try:
                await self._store.beat(self._holder)
            except StoreUnavailable as error:
                self._log.warning("beat_failed", reason=str(error))

    async def _beat_among_peers(self) -> None:
        self._fresh_from = self._now()
        while True:
            self._roused.clear()
            self.mind()  # this process may have stood still
            try:
                if self.willing():
                    await self._beat_once()
            except StoreUnavailable as error:
                self._failed = str(error)
                self._log.warning("beat_failed", reason=str(error))
            except Exception as error:  # the edge of a task that must not end: without a beat the lease is over
                self._failed = f"the beat failed ({type(error).__name__})"
                self._log.error("beat_failed", error=repr(error))
            with suppress(TimeoutError):  # roused while the beat was under way: it was answered too late to count
                await asyncio.wait_for(self._roused.wait(), AGAIN_S if self._failed else self._length_s / 3)

    async def _beat_once(self) -> None:
        began = self._now()
        await self._store.beat(self._holder)
        self.mind()  # it may have arrived after the end of the lease before it: then what was held is free
        self._beaten = self._fresh_from = began
        self._failed = ""
        if self.over:
            self._log.info("lease_back")
        self.over = False
        for _owner, run in await self._store.peers.wished(self._holder):
            self.wished(run)
        await self.besides()

    async def watch(self) -> None:
        """Notice the end of the lease also while a beat is under way, until cancelled."""
        while self._store.peers.shared:
            left = self._length_s if self._fresh_from is None or self.over else self._length_s - self._spent_s()
            await asyncio.sleep(max(left, 0.01))
            self.mind()

    def mind(self) -> None:
        """Is it over? Asked by whoever is about to rely on it after a wait."""
        if self._spent_s() >= self._length_s and not self.over:
            self.over = True
            self._lapses += 1
            self._failed = self._failed or "no beat came through"
            self._log.warning("lease_lapsed", age_s=round(self._spent_s(), 1))
            self._roused.set()  # nothing is taken in until a beat comes through: the next one must not wait
            self.lapsed()

"""Who reads and who waits. Owns: the runs that this process drives, the open subscriptions, one keepalive ticker for
all of them (a timer per event and reader would cost more than the event), and callers that wait for the end of a run
without a stream. Refuses to know: what is in a frame, and what callers do with an answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from ninelives.core.state import RunState
from ninelives.engine.base import RETRY_S, CutOff, EngineParts, Projection
from ninelives.engine.run import ClaimedRun
from ninelives.engine.subscription import EndedRuns, ReadRequest, Subscription
from ninelives.journal.base import Notifier, Store
from ninelives.journal.values import StoreUnavailable

LOOK_AGAIN_S = 3.0
"""Who waits for a run that is not driven here looks this often by itself: a notification may be lost."""


class Readers:
    """The live runs of one process, and all who read them."""

    def __init__(self, parts: EngineParts) -> None:
        self.notifier: Notifier = parts.notifier
        self.kept = EndedRuns()
        self._parts = parts
        self._limits = parts.limits
        self._lives: dict[str, ClaimedRun] = {}
        self._subscriptions: dict[Subscription, float] = {}
        self._by_run: Counter[str] = Counter()
        self._read = asyncio.Event()
        """Set while there are readers."""

    def live(self, run: str) -> ClaimedRun | None:
        """See Source.live."""
        return self._lives.get(run)

    def store_of(self, run: str) -> Store:
        """See Source.store_of."""
        return self._parts.store_of(run)

    def add(self, live: ClaimedRun) -> None:
        """A worker begins."""
        self._lives[live.run] = live

    def remove(self, live: ClaimedRun) -> None:
        """Its worker is done: readers that are behind go on from the journal."""
        if self._lives.get(live.run) is live:
            del self._lives[live.run]
        if live.committed.ended:
            self.kept.note(live.committed)
        else:
            live.dismiss()
        self.notifier.ring([live.run])

    def subscribe(self, owner: str, run: str, projection: Projection, after: int) -> Subscription:
        """A new reader; `after` is -1 for all."""
        reading = ReadRequest(projection, after)
        subscription = Subscription(self, owner, run, reading, self._limits.subscriber_bytes)
        self._subscriptions[subscription] = asyncio.get_running_loop().time()
        self._by_run[run] += 1
        self._read.set()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """See Source.forget."""
        if self._subscriptions.pop(subscription, None) is not None:
            self._by_run[subscription.run] -= 1
            if not self._by_run[subscription.run]:
                del self._by_run[subscription.run]

    def count(self, run: str | None = None) -> int:
        """How many subscriptions are open, in all or of one run."""
        return len(self._subscriptions) if run is None else self._by_run[run]

    def being_read(self) -> set[str]:
        """The runs that have open subscriptions."""
        return set(self._by_run)

    def vanish(self, run: str, reason: str) -> None:
        """The run was deleted: its readers end with an error."""
        for subscription in list(self._subscriptions):
            if subscription.run == run:
                subscription.vanish(reason)

    def cut_all(self) -> None:
        """Break off every stream, without an end."""
        for subscription in list(self._subscriptions):
            subscription.cut()

    async def tick(self) -> None:
        """Let idle readers say that they are alive, until cancelled."""
        loop = asyncio.get_running_loop()
        interval = self._limits.keepalive_s
        while True:
            if not self._subscriptions:  # an idle server sleeps
                self._read.clear()
                await self._read.wait()
            await asyncio.sleep(min(1.0, interval / 4))
            now = loop.time()
            for subscription, since in list(self._subscriptions.items()):
                if subscription.active:
                    subscription.active = False
                    self._subscriptions[subscription] = now
                elif now - since >= interval:
                    self._subscriptions[subscription] = now
                    subscription.tick()


class Look(Protocol):
    """How the state of a run is found."""

    def __call__(self, owner: str, run: str) -> Awaitable[RunState | None]:
        """The state now."""
        ...


class FoundState(Struct, frozen=True):
    """What a caller that waits has found."""

    seq: int
    """The last entry that was looked at, of a run that is not driven here."""
    settled: bool = False
    """There is nothing more to wait for."""
    state: RunState | None = None


class Waiters:
    """Callers that wait for the end of a run without a stream."""

    def __init__(self, readers: Readers, look: Look) -> None:
        self._readers = readers
        self._look = look
        self._waiters: set[asyncio.Future[None]] = set()
        self._waiting: Counter[str] = Counter()

    def wait_for(self, run: str) -> bool:
        """Does anybody wait for the end of a run? Such a caller has not left (C4)."""
        return self._waiting[run] > 0

    def cut(self) -> None:
        """The server stops."""
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(CutOff())

    async def wait(self, owner: str, run: str, answered: str) -> RunState | None:
        """The state of a run once it has ended or waits for a person (with a question other than the one just
        `answered`); None where the owner has none. CutOff when the server stops."""
        self._waiting[run] += 1
        try:
            return await self._wait(owner, run, answered)
        finally:
            self._waiting[run] -= 1
            if not self._waiting[run]:
                del self._waiting[run]

    async def _wait(self, owner: str, run: str, answered: str) -> RunState | None:
        found = FoundState(0)
        while True:
            live = self._readers.live(run)
            if live is not None and live.committed.ended:
                return live.committed if live.owner == owner else None
            heard, unlisten = self._news_of(run, live)
            self._waiters.add(heard)
            try:
                patience = LOOK_AGAIN_S if live is None else None
                try:
                    found = await self._find(owner, run, answered, -1 if live is not None else found.seq)
                except StoreUnavailable as error:
                    if not error.passing:
                        raise
                    patience = RETRY_S
                if found.settled:
                    return found.state
                await self._hear(heard, patience)
            finally:
                unlisten()
                self._waiters.discard(heard)
                if not heard.cancel() and not heard.cancelled():
                    heard.exception()  # a cut that came while the answer was found: nobody else asks for it

    async def _find(self, owner: str, run: str, answered: str, seen: int) -> FoundState:
        """Whether a caller has its answer. Of a run that is not driven here only the row is read, until it is beyond
        `seen`: it grows with a claim, a question and an end. So a run that waits for a slot takes no memory here."""
        if seen >= 0:
            row = await self._readers.store_of(run).find(owner, run)
            if row is not None and row.last_seq <= seen:
                return FoundState(seen)
            seen = row.last_seq if row is not None else seen
        state = await self._look(owner, run)
        if state is None or state.ended or _asks_anew(state, answered):
            return FoundState(seen, True, state)
        return FoundState(max(seen, 0))

    async def _hear(self, heard: asyncio.Future[None], patience: float | None) -> None:
        if patience is None:
            await heard
        elif (await asyncio.wait([heard], timeout=patience))[0]:
            heard.result()

    def _news_of(self, run: str, live: ClaimedRun | None) -> tuple[asyncio.Future[None], Callable[[], None]]:
        """A future for the end of a run that is driven here, else for the next notification about it."""
        if live is not None:
            return live.until_over(), _listened_to_nothing
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return heard, self._readers.notifier.listen(run, lambda: _done(heard))


def _listened_to_nothing() -> None:
    """There is no listener to remove."""


def _asks_anew(state: RunState, answered: str) -> bool:
    """Does the run wait for a person, with a question other than the one just answered?"""
    asked = state.facts.asked
    return asked is not None and asked.code != answered


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

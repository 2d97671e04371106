"""Who reads, who waits, and whether answers reached them. Owns: the runs that this process drives, the open
subscriptions, one keepalive ticker for all of them (a timer per event and reader would cost more than the event),
callers that wait for the end of a run without a stream, and telling the store which answers were delivered
(DeliveryTracker). Refuses to know: what is in a frame, connections, and what follows for a run.

Theory of operation of deliveries. An answer is delivered when its last byte was handed to the transport. A connection
is lost when it broke before that. At a start all connections of the process before are lost, however it ended
(`strand`). Delivered answers are told in batches: one write for all within a moment (`TELL_S`). SQLite writes it with
the next transaction, or a moment later (`late` in `DatabaseThread.ask`). A loss is told at once, because a retry may be
on its way already. If the store did not take a loss, it is told before the next run is opened, or the retry would
begin a second run.

A draining server that has its store to itself tells of no loss. Its next start does, so the time in which a caller may
come back begins when there is a server again. On a shared store another replica takes the retry at once. There the
loss is told before the connection breaks (`_cut_off` in http/answering.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection
from functools import partial
from weakref import WeakValueDictionary

from ninelives.core.state import RunState
from ninelives.engine.base import RETRY_S, CutOff, EngineParts, Projection, Tasks
from ninelives.engine.replay import LONG, EndedRuns, SharedReading, read_kept, read_state
from ninelives.engine.run import ClaimedRun
from ninelives.engine.subscription import Subscription
from ninelives.journal.base import Notifier, Store
from ninelives.journal.values import Gone, StoreUnavailable

TELL_S = 0.02
"""How long delivered answers are gathered. A death meanwhile: the same request gets the same answer once more."""
LOOKS = 4
"""How many runs are read at once for one owner. Each may have megabytes."""
LOOK_AGAIN_S = 3.0
"""Who waits for a run that is not driven here looks this often by itself: a notification may be lost."""


class Readers:
    """The live runs of one process, and all who read them."""

    def __init__(self, parts: EngineParts) -> None:
        self.notifier: Notifier = parts.notifier
        self.kept = EndedRuns()
        self.shared = SharedReading()
        self._parts = parts
        self._limits = parts.limits
        self.lives: dict[str, ClaimedRun] = {}
        """The runs that workers of this process drive."""
        self._subscriptions: dict[Subscription, float] = {}
        self._by_run: Counter[str] = Counter()
        self._waiters: set[asyncio.Future[None]] = set()
        self._waiting: Counter[str] = Counter()
        self._read = asyncio.Event()
        """Set while there are readers."""
        self._is_cut = False
        self._looks: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def store_of(self, run: str) -> Store:
        """The store that has it."""
        return self._parts.store_of(run)

    def remove(self, live: ClaimedRun) -> None:
        """Its worker is done: readers that are behind go on from the journal."""
        if self.lives.get(live.run) is live:
            del self.lives[live.run]
        state = live.committed
        if not state.ended:
            live.dismiss()
        elif state.seq >= LONG:
            self.kept.note(state)
        self.notifier.ring([live.run])

    def subscribe(self, owner: str, run: str, projection: Projection, after: int = -1) -> Subscription:
        """A new reader; `after` is -1 for all."""
        subscription = Subscription(self, owner, run, projection, after, self._limits.subscriber_bytes)
        self._subscriptions[subscription] = asyncio.get_running_loop().time()
        self._by_run[run] += 1
        self._read.set()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """It is closed."""
        if self._subscriptions.pop(subscription, None) is not None:
            self._by_run[subscription.run] -= 1
            if not self._by_run[subscription.run]:
                del self._by_run[subscription.run]

    async def look(self, owner: str, run: str) -> RunState | None:
        """The committed state of a run now."""
        live = self.lives.get(run)
        if live is not None and not live.gone:  # what was lost goes on elsewhere, or is gone
            return live.committed if live.owner == owner else None
        store = self._parts.store_of(run)
        if store is self._parts.memory:
            return await read_state(store, owner, run)
        async with self.looking(owner):
            return await read_kept(store, self.kept, owner, run)

    def looking(self, owner: str) -> asyncio.Semaphore:
        """Held while a run of this owner is read from the store and decoded."""
        return self._looks.setdefault(owner, asyncio.Semaphore(LOOKS))

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

    def cut(self) -> None:
        """Break off every stream and every wait, without an end. Nothing is waited for here any more: a wait may be
        between two looks now, where nobody would wake it."""
        self._is_cut = True
        for subscription in list(self._subscriptions):
            subscription.cut()
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(CutOff())

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

    # those who wait for the end of a run without a stream

    def is_read(self, run: str) -> bool:
        """Does anybody read a run, or wait for its end? Such a caller has not left (C4)."""
        return self._by_run[run] > 0 or self._waiting[run] > 0

    async def wait(self, owner: str, run: str, answered: str = "") -> RunState | None:
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
        seen = 0
        while True:
            live = self.lives.get(run)
            if live is None or live.gone:  # what was lost goes on elsewhere, or is gone
                settled, seen, state = await self._find(owner, run, answered, seen)
                if settled:
                    return state
                continue
            if live.owner != owner:
                return None
            state = live.committed
            if state.ended or _asks_anew(state, answered):
                return state
            if self._is_cut:
                raise CutOff()
            over, seen = live.until_over(), -1
            self._waiters.add(over)
            try:
                await over
            finally:
                self._waiters.discard(over)

    async def _find(self, owner: str, run: str, answered: str, seen: int) -> tuple[bool, int, RunState | None]:
        """Look for the answer in the store, then wait a while for a notification. Whether there is nothing more to wait
        for; the last entry that was looked at; the state. Only the row is read until it is beyond `seen`: it grows with
        a claim, a question and an end. So a run that waits for a slot takes no memory here."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        unlisten = self.notifier.listen(run, partial(_done, heard))
        self._waiters.add(heard)
        try:
            patience = LOOK_AGAIN_S
            try:
                row = await self.store_of(run).find(owner, run)
                if row is None or row.last_seq > seen:
                    state = await self.look(owner, run)
                    seen = state.seq if state is not None else seen  # a commit may be on its way: the row is ahead
                    if state is None or state.ended or _asks_anew(state, answered):
                        return True, seen, state
            except StoreUnavailable as error:
                if not error.passing:
                    raise
                patience = RETRY_S
            if self._is_cut:
                raise CutOff()
            if (await asyncio.wait([heard], timeout=patience))[0]:
                heard.result()
            return False, seen, None
        finally:
            unlisten()
            self._waiters.discard(heard)
            if not heard.cancel() and not heard.cancelled():
                heard.exception()  # a cut that came while the answer was found: nobody else asks for it


def _asks_anew(state: RunState, answered: str) -> bool:
    """Does the run wait for a person, with a question other than the one just answered?"""
    asked = state.facts.asked
    return asked is not None and asked.code != answered


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class DeliveryTracker:
    """What one process says about its callers."""

    def __init__(self, parts: EngineParts, tasks: Tasks) -> None:
        self._deliveries = parts.durable.deliveries
        self._now_ms = parts.clock()
        self._log = parts.log
        self._tasks = tasks
        self._delivered: list[Gone] = []
        self.untold: dict[Gone, tuple[int, bool]] = {}
        """Losses that the store has not taken yet, when they happened, and whether the caller left. It must be asked
        then what a request joins."""
        self._tells_at_drain = parts.durable.peers.shared
        self._draining = False

    def stop(self, *, keeps_clients: bool) -> None:
        """The server stops. `keeps_clients`: its callers are handed to its successor, and are not lost."""
        self._draining = True
        self._tells_at_drain = self._tells_at_drain and not keeps_clients

    async def strand(self, besides: Collection[Gone] = ()) -> None:
        """Before the first request, and now and then: whoever waited at a process that is gone has no connection.
        `besides`: those who have one, because the supervisor kept it."""
        await self._say(self._deliveries.strand(self._now_ms(), besides))

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

    async def lost(self, owner: str, run: str, *, left: bool) -> None:
        """The connection broke before. `left`: it was the caller who went."""
        if not self._draining or self._tells_at_drain:
            self.untold[owner, run] = self._now_ms(), left
            await self._say(self.tell_losses())

    async def tell_losses(self) -> None:
        """Tell what was not told yet. Raises StoreUnavailable."""
        for (owner, run), (at, left) in list(self.untold.items()):
            await self._deliveries.lost(owner, run, at, left=left)
            self.untold.pop((owner, run), None)

    async def _say(self, word: Awaitable[None]) -> None:
        """A store that takes nothing now costs a retry its run, never the caller its answer."""
        try:
            await word
        except StoreUnavailable as error:
            self._log.warning("delivery_not_noted", reason=str(error))

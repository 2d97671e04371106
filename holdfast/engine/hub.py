"""Who is live and who reads. Owns: the Lives of this process, the open subscriptions, and one keepalive ticker for all
of them (a timer per event and reader would cost more than the event). Refuses to know: what is in a frame."""

from __future__ import annotations

import asyncio

from holdfast.engine.base import Limits, Projection
from holdfast.engine.live import Live
from holdfast.engine.replay import Ended
from holdfast.engine.subscription import Reading, Subscription
from holdfast.journal.base import Bell, Store


class Hub:
    """The live runs and readers of one journal."""

    def __init__(self, journal: Store, bell: Bell, limits: Limits) -> None:
        self.journal = journal
        self.bell = bell
        self.kept = Ended()
        self.shared = False
        """Other processes drive runs of this journal too."""
        self._limits = limits
        self._lives: dict[str, Live] = {}
        self._subscriptions: dict[Subscription, float] = {}
        self._read = asyncio.Event()
        """Set while there are readers."""

    def live(self, run: str) -> Live | None:
        """See Source.live."""
        return self._lives.get(run)

    def lives(self) -> list[Live]:
        """All live runs."""
        return list(self._lives.values())

    def add(self, live: Live) -> None:
        """A worker begins."""
        self._lives[live.run] = live

    def remove(self, live: Live) -> None:
        """Its worker is done: readers that are behind go on from the journal."""
        if self._lives.get(live.run) is live:
            del self._lives[live.run]
        if live.committed.ended:
            self.kept.note(live.committed)
        else:
            live.lose()
        self.bell.ring([live.run])

    def subscribe(self, owner: str, run: str, projection: Projection, after: int) -> Subscription:
        """A new reader; `after` is -1 for all."""
        reading = Reading(projection, after)
        subscription = Subscription(self, owner, run, reading, self._limits.subscriber_bytes)
        self._subscriptions[subscription] = asyncio.get_running_loop().time()
        self._read.set()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """See Source.forget."""
        self._subscriptions.pop(subscription, None)

    def readers(self, run: str | None = None) -> int:
        """How many subscriptions are open, in all or of one run."""
        if run is None:
            return len(self._subscriptions)
        return sum(1 for subscription in self._subscriptions if subscription.run == run)

    def being_read(self) -> set[str]:
        """The runs that have open subscriptions."""
        return {subscription.run for subscription in self._subscriptions}

    def hand_over(self, live: Live, other: Hub) -> None:
        """A run moves to the other store, with its readers."""
        self._lives.pop(live.run, None)
        other.add(live)
        for subscription in [each for each in self._subscriptions if each.run == live.run]:
            other._subscriptions[subscription] = self._subscriptions.pop(subscription)
            other._read.set()
            subscription.move(other)

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

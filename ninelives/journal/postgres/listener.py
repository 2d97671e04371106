"""The listening connection of a process. Owns: NOTIFY between processes, the session lock that shows that this process
lives, and the watch over the locks of others. Refuses to know: what a notification is about.

Theory of operation. A NOTIFY can be lost with a connection. So all local topics are notified after every connect and
every SWEEP_S: a lost NOTIFY costs time only.

PostgreSQL releases a session lock when its connection ends, however the process ended. A lock that is free at two looks
in a row, AGAIN_S apart, means that its process died. This is known long before its lease expires.

A free lock proves nothing in two cases, and then only leases count, for one lease. After a start of the database all
locks are free. And what broke the connection of this process (a failover, a pooler) may have cut off others too. Both
end for a process as soon as its lock was seen taken since this one connected: it is back, and may be judged again.

After a break this process connects at once, takes its lock and renews its lease. If it cannot connect, it reports
`on_disconnected`. Its lock is then removed from its row, so that others go by its lease."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

import asyncpg

from ninelives.journal import queries
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres.connections import (
    CONNECT_S,
    PLAN_ONCE,
    Connection,
    Wiring,
    options_of,
    retry_collisions,
)
from ninelives.journal.values import StoreUnavailable

SQL = queries.load("postgres", "peers")
CHANNEL = "ninelives"
PAYLOAD_BYTES = 7_000
"""PostgreSQL limits a NOTIFY payload to less than 8,000 bytes."""
START_S = 10.0
STOP_S = 1.0
WATCH_S = 0.25
AGAIN_S = 0.2
"""How soon a lock that is free is looked at again. A process that only lost its connection has so long to take its lock
again, or to say that it has none."""
SWEEP_S = 2.0
TOPICS_AT_ONCE = 200
SPREAD_S = 0.4
"""A sweep over many topics is spread over this time, because each topic may cause a query."""
FOLLOWS = "follows:"
"""The topic with which a process says that it follows a run."""
TELL_S = 3.0
FOLLOWED_S = 10.0
"""How long a run counts as followed after that was last said."""
ANSWER_S = 5.0
LOCK_TRIES = 10


def lock_key(holder: str) -> int:
    """The number of a process's session lock."""
    return int.from_bytes(hashlib.blake2b(holder.encode(), digest_size=8).digest(), "big", signed=True)


def notify_payloads(holder: str, topics: Iterable[str]) -> list[str]:
    """The NOTIFY payloads for these topics: the sender, then topics, separated by spaces."""
    payloads, payload = [], holder
    for topic in topics:
        if len(payload) + len(topic) + 1 > PAYLOAD_BYTES:
            payloads.append(payload)
            payload = holder
        payload += " " + topic
    return [*payloads, payload] if payload != holder else payloads


class ListenerEvents(Protocol):
    """What a listener reports to its store."""

    async def on_connected(self) -> None:
        """The listener is connected, or has got its lock later than its connection."""
        ...

    async def on_tick(self) -> None:
        """Called every WATCH_S while connected."""
        ...

    async def on_disconnected(self) -> None:
        """The connection broke, or could still not be replaced."""
        ...


class Followed:
    """The runs that other processes follow. Only their rows are notified: each NOTIFY wakes every listener, and most
    runs are read where they are driven. A process that reads a run which it does not hold, and listens for it, says so
    to all, and again as long as it reads. All remember it for a while, so whoever holds the run, or claims it, knows.
    """

    def __init__(self, notifier: LocalNotifier) -> None:
        self._notifier = notifier
        self._until: dict[str, float] = {}
        self._told: dict[str, float] = {}
        """When this process last said that it follows a run."""
        self._fresh: set[str] = set()

    def __contains__(self, run: str) -> bool:
        return run in self._until

    def to_tell(self, runs: Iterable[str]) -> list[str]:
        """Those of the runs that this process follows, where the others should hear it now."""
        now = asyncio.get_running_loop().time()
        due = [run for run in runs if self._notifier.has(run) and now - self._told.get(run, -TELL_S) >= TELL_S]
        self._told.update(dict.fromkeys(due, now))
        return due

    def note(self, topics: Iterable[str]) -> None:
        """Another process has said what it follows."""
        for topic in topics:
            if topic.startswith(FOLLOWS):
                run = topic.removeprefix(FOLLOWS)
                if run not in self._until:
                    self._fresh.add(run)
                self._until[run] = asyncio.get_running_loop().time() + FOLLOWED_S

    def take_fresh(self) -> set[str]:
        """Those that are new since the last call: what was written before they were known was not notified. Forgets
        runs that nobody follows any more."""
        now = asyncio.get_running_loop().time()
        self._until = {run: until for run, until in self._until.items() if until > now}
        self._told = {run: at for run, at in self._told.items() if at > now - FOLLOWED_S}
        fresh, self._fresh = self._fresh, set()
        return fresh


class Listener:
    """Keeps the listening connection, from start() to stop()."""

    def __init__(self, url: str, holder: str, notifier: LocalNotifier, lease_s: float, events: ListenerEvents) -> None:
        self._url = url
        options = options_of(Wiring(), "listens")
        options["server_settings"] |= PLAN_ONCE
        self._options = {**options, "command_timeout": ANSWER_S}
        self._holder = holder
        self._notifier = notifier
        self.followed = Followed(notifier)
        self._lease_s = lease_s
        self._events = events
        self._suspects: set[str] = set()
        self._seen: set[str] = set()
        """Whose lock was taken at a look since the last connect."""
        self._distrust_until = 0.0
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()
        self.locked = False
        """Does this process hold its session lock?"""
        self.trouble: str | None = None

    @property
    def trusts_locks(self) -> bool:
        """Does a free lock prove to this process that another one died?"""
        return self.connected.is_set() and asyncio.get_running_loop().time() >= self._distrust_until

    async def start(self) -> None:
        """Connect, and stay connected. Raises StoreUnavailable where that takes longer than START_S."""
        self._task = asyncio.create_task(self._run(), name="journal listens")
        try:
            async with asyncio.timeout(START_S):
                await self.connected.wait()
        except TimeoutError:
            raise StoreUnavailable(self.trouble or "the database does not answer", passing=True, away=True) from None

    async def stop(self) -> None:
        """Close the connection."""
        while self._task is not None and not self._task.done():
            self._task.cancel()  # more than once: asyncpg drops a cancellation that arrives together with a connection
            await asyncio.wait([self._task], timeout=STOP_S)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._listen()
                self.trouble = "the listening connection was closed"
            except Exception as error:  # an edge: whatever happened, the process must listen again
                self.trouble = f"the listening connection broke: {error or type(error).__name__}"
            self.locked = False
            self._suspects.clear()
            self._seen.clear()
            if self.connected.is_set():
                self.connected.clear()
                self._distrust_until = loop.time() + self._lease_s
            await self._events.on_disconnected()
            await asyncio.sleep(0.1)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._url, **self._options)
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        try:
            await connection.add_listener(CHANNEL, self._on_notify)
            self.locked = await self._acquire_lock(connection)
            await self._events.on_connected()
            self.trouble = None
            self.connected.set()
            await self._notify_all()
            await self._watch(connection, broken)
        finally:
            with suppress(Exception):
                await connection.close(timeout=CONNECT_S)

    async def _acquire_lock(self, connection: Connection) -> bool:
        """Try several times: the broken connection may still have the lock, and others take it to look at it."""
        for _ in range(LOCK_TRIES):
            if await connection.fetchval(SQL["lock"], lock_key(self._holder)):
                return True
            await asyncio.sleep(0.02)
        return False

    async def _watch(self, connection: Connection, broken: asyncio.Event) -> None:
        rounds = 0
        await self._bury_dead(connection)  # at once: who is there now may be judged as soon as it is gone
        while not connection.is_closed():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(AGAIN_S, WATCH_S) if self._suspects else WATCH_S):
                    await broken.wait()
                return
            rounds += 1
            await self._events.on_tick()
            if self.locked:
                if await _change(connection, "revive", self._holder):
                    await _change(connection, "welcome_back", self._holder, notify_payloads(self._holder, ["work"])[0])
            elif await self._acquire_lock(connection):
                self.locked = True
                await self._events.on_connected()
            await self._bury_dead(connection)
            if rounds % max(1, round(SWEEP_S / WATCH_S)) == 0:
                await _change(connection, "strand", self._holder)
                await _change(connection, "forget", self._holder)
                await self._notify_all()

    async def _bury_dead(self, connection: Connection) -> None:
        """Mark processes as dead whose lock was free at two looks in a row."""
        rows = await connection.fetch(SQL["locks"], self._holder, self._lease_s)
        self._seen = {holder for holder, free, _ in rows if not free or holder in self._seen}
        free = {holder for holder, free, settled in rows if free and self._judges(holder, settled)}
        dead = sorted(free & self._suspects)
        self._suspects = free
        if dead and await _change(connection, "bury", dead, notify_payloads(self._holder, ["work"])[0]):
            await _change(connection, "strand", self._holder)
            self._notifier.ring(["work"])

    def _judges(self, holder: str, settled: bool) -> bool:
        """Does a free lock of this process say anything?"""
        return holder in self._seen or (settled and self.trusts_locks)

    def _on_notify(self, connection: Connection, pid: int, channel: str, payload: str) -> None:
        sender, *topics = payload.split(" ")
        if sender != self._holder:
            self.followed.note(topics)
            self._notifier.ring(topics)

    async def _notify_all(self) -> None:
        topics = self._notifier.topics()
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            self._notifier.ring(topics[start : start + TOPICS_AT_ONCE])
            await asyncio.sleep(SPREAD_S * TOPICS_AT_ONCE / len(topics) if len(topics) > TOPICS_AT_ONCE else 0)


async def _change(connection: Connection, name: str, *values: Any) -> Any:
    """Run a statement that changes several rows. Others may lock the same rows in another order."""
    return await retry_collisions(lambda: connection.fetch(SQL[name], *values))

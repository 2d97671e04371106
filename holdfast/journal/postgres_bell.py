"""The one connection of a process that listens. Owns: NOTIFY as a ring of the local bell, the session lock that says
"this process lives", and the watch over the locks of others. Refuses to know: what the news is.

Theory of operation. A NOTIFY can be lost (a connection that breaks, a moment without one), so after every connect and
every SWEEP_S all ears are rung: a lost ring costs time only. The session lock is let go by the database when the
connection ends, however the process ended, so a lock that others can take twice, WATCH_S apart, tells of a death long
before the lease is over. After a start of the database all locks are free at once and say nothing: for one lease
nobody is judged by them, nor by a process whose own connection broke, because whatever broke it may have broken others
(a failover, a pooler). When the connection breaks, the process comes back at once, takes its lock again and beats. One
that cannot come back, though its other connections work, says so (`lock_gone`): a free lock tells nothing of it then,
and only its lease counts until it has its lock again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg

from holdfast.journal import queries
from holdfast.journal.bell import LocalBell
from holdfast.journal.postgres_lines import CONNECT_S, Line, Wiring, collided, options_of
from holdfast.journal.postgres_log import notes

SQL = queries.load("postgres_peers.sql")
CHANNEL = "holdfast"
WATCH_S = 0.5
SWEEP_S = 2.0
RING_AT_ONCE = 200
RING_S = 0.4
"""Many ears are rung over this time: each may ask the database what there is."""
ANSWER_S = 5.0
LOCK_TRIES = 10


def lock_key(holder: str) -> int:
    """The number of a process's session lock."""
    return int.from_bytes(hashlib.blake2b(holder.encode(), digest_size=8).digest(), "big", signed=True)


async def _do(line: Line, name: str, *values: Any) -> Any:
    """A statement over several rows, which others may have in hand in another order."""
    return await collided(lambda: line.fetch(SQL[name], *values))


class Listener:
    """Keeps the connection, until cancelled (`run`)."""

    def __init__(self, url: str, wiring: Wiring, holder: str, bell: LocalBell, lease_s: float) -> None:
        self._url = wiring.direct_url or url
        self._options = {**options_of(Wiring(), "listens"), "command_timeout": ANSWER_S}
        self._holder = holder
        self._bell = bell
        self._lease_s = lease_s
        self._suspects: set[str] = set()
        self._just_after = 0.0
        """Until then nobody is judged: this process lost its own connection, so others may have lost theirs."""
        self.connected = asyncio.Event()
        self.back: Callable[[], Awaitable[None]] = self._nothing
        """Called after each connect, when the lock is taken."""
        self.besides: Callable[[], Awaitable[None]] = self._nothing
        """Called every WATCH_S."""
        self.lock_gone: Callable[[], Awaitable[None]] = self._nothing
        """Called when the connection broke, and again as long as there is none."""
        self.locked = False
        """Is the session lock held?"""
        self.trouble: str | None = None

    @property
    def judges(self) -> bool:
        """May this process judge others by their locks?"""
        return self.connected.is_set() and asyncio.get_running_loop().time() >= self._just_after

    async def _nothing(self) -> None:
        return None

    async def run(self) -> None:
        """Listen, and come back when the connection breaks."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._listen()
                self.trouble = "the connection that listens was closed"
            except Exception as error:  # an edge: whatever it was, the process must hear again
                self.trouble = f"the connection that listens is broken: {error or type(error).__name__}"
            self.locked = False
            if self.connected.is_set():
                self.connected.clear()
                self._just_after = loop.time() + self._lease_s
            await self.lock_gone()
            await asyncio.sleep(0.1)

    async def _listen(self) -> None:
        line = await asyncpg.connect(self._url, **self._options)
        broken = asyncio.Event()
        line.add_termination_listener(lambda _: broken.set())
        try:
            await line.add_listener(CHANNEL, self._heard)
            self.locked = await self._lock(line)
            await self.back()
            self.trouble = None
            self._suspects.clear()
            self.connected.set()
            await self._ring_all()
            await self._watch(line, broken)
        finally:
            with suppress(Exception):
                await line.close(timeout=CONNECT_S)

    async def _lock(self, line: Line) -> bool:
        """Take the lock. A connection that broke may still have it, until the database knows; others take it for a
        moment, to look."""
        for _ in range(LOCK_TRIES):
            if await line.fetchval(SQL["lock"], lock_key(self._holder)):
                return True
            await asyncio.sleep(0.02)
        return False

    async def _watch(self, line: Line, broken: asyncio.Event) -> None:
        rounds = 0
        while not line.is_closed():
            with suppress(TimeoutError):
                await asyncio.wait_for(broken.wait(), WATCH_S)
                return
            rounds += 1
            await self.besides()
            if self.locked:
                await _do(line, "revive", self._holder)
            elif await self._lock(line):
                self.locked = True
                await self.back()
            await self._judge(line)
            if rounds % max(1, round(SWEEP_S / WATCH_S)) == 0:
                await _do(line, "strand", self._holder)
                await _do(line, "forget", self._holder)
                await self._ring_all()

    async def _judge(self, line: Line) -> None:
        """Who has lost the lock twice in a row is gone."""
        if not self.judges:
            return
        free = {row["holder"] for row in await line.fetch(SQL["unlocked"], self._holder, self._lease_s)}
        gone = sorted(free & self._suspects)
        self._suspects = free
        if gone and await _do(line, "bury", gone, notes(self._holder, ["work"])[0]):
            await _do(line, "strand", self._holder)
            self._bell.ring(["work"])

    def _heard(self, line: Any, pid: int, channel: str, payload: str) -> None:
        sender, *topics = payload.split(" ")
        if sender != self._holder:
            self._bell.ring(topics)

    async def _ring_all(self) -> None:
        topics = self._bell.topics()
        for start in range(0, len(topics), RING_AT_ONCE):
            self._bell.ring(topics[start : start + RING_AT_ONCE])
            await asyncio.sleep(RING_S * RING_AT_ONCE / len(topics) if len(topics) > RING_AT_ONCE else 0)

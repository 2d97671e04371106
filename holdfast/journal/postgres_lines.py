"""Connections to PostgreSQL. Owns: the two pools of a process (lanes, which write the log, and queries for everything
else), their bounds and timeouts, what is tried again when a connection breaks, and PostgreSQL's errors in our words.
Refuses to know: what is asked.

A statement that broke may have happened. So only work that may be done twice is tried again here (`ask`); for the rest
(`once`) the caller finds out what became of it.

All work has a time by which it is over, from the moment it asks for a connection. A database that takes a question and
never answers (stopped, or behind a wall that swallows packets) cannot be asked to stop either: then the connection is
cut, and the work ends as with any that broke. Work that only waits its turn, while others of this process are answered,
waits on: that is load, not an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
from msgspec import Struct

from holdfast.core.errors import ClientError, Damaged
from holdfast.journal.base import StoreUnavailable

T = TypeVar("T")
Line = Any
"""A connection of asyncpg, which has no types."""
Job = Callable[[Line], Awaitable[T]]

CONNECT_S = 2.0
ASK_S = 1.8
"""By then somebody who asks for something new is told, whatever the database does: P15 says two seconds."""
WORK_S = 15.0
"""The same for what a process does of itself: writing its runs, reading pages, keeping house."""
AGAIN_S = 1.5
"""How long work is tried again after its connection broke."""
IDLE_TRANSACTION_MS = 3_000
"""A process that is stopped inside a transaction holds its locks so long and no longer: whoever ends a run of the same
conversation waits for them, and with it the batch that its end was written in."""
ROUNDS = 40
BY_INDEX = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""Lanes touch rows by their keys alone. A plan that was made while a table was small would read all of it later."""

_PASSING = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection whose end was told while it was idle, and not noticed yet
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.InvalidAuthorizationSpecificationError,
    asyncpg.exceptions.InvalidCatalogNameError,
    asyncpg.exceptions.LockNotAvailableError,
)
"""The database is not there, or cannot do it now. Whatever the reason, it may be back in a moment: nothing of ours is
broken by it."""
COLLISIONS = (
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.SerializationError,
    asyncpg.exceptions.UniqueViolationError,
)
"""Two came to the same place at once: nothing was written, the same work again finds what the other left."""


class Wiring(Struct, frozen=True):
    """How a process is connected: `lanes` that write, `queries` for the rest, and one connection that listens."""

    lanes: int = 2
    queries: int = 4
    direct_url: str = ""
    """For the connection that listens and holds the session lock, where the other url leads through a pooler that
    shares connections between transactions."""
    prepared: bool = True
    """Statements are prepared; off for such a pooler."""


def passing(error: BaseException) -> bool:
    """Is it the database that is away, and not a mistake?"""
    return isinstance(error, _PASSING) and not isinstance(error, ValueError)


def translate(error: BaseException) -> BaseException:
    """PostgreSQL's error in our words."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database does not answer", passing=True)
    if passing(error):
        reason = str(error).partition("\n")[0] or type(error).__name__
        return StoreUnavailable(f"the database cannot be used now: {reason}", passing=True)
    if isinstance(error, asyncpg.exceptions.CharacterNotInRepertoireError):
        return ClientError("invalid_value", "A name or title must not contain the character U+0000.")
    if isinstance(error, asyncpg.exceptions.DataCorruptedError | asyncpg.exceptions.IndexCorruptedError):
        return Damaged(f"the database is damaged: {error}")
    return error


async def _as_it_is(line: Line) -> None:
    """A connection goes back to its pool as it is: nothing here changes its state, and asking costs a round trip."""


class Lines:
    """The pools of one process. Make them with `await Lines.to(...)`."""

    def __init__(self, writing: Any, asking: Any, wiring: Wiring) -> None:
        self._writing = writing
        self._asking = asking
        self._lanes = [asyncio.Lock() for _ in range(wiring.lanes)]
        self._prepared = wiring.prepared
        self._answers = 0
        self.trouble: str | None = None
        """Why the database could not be reached the last time."""

    @classmethod
    async def to(cls, url: str, wiring: Wiring, name: str) -> Lines:
        """Make the pools. Nothing is connected before it is needed."""
        options = options_of(wiring, name)
        settings = {**options.get("server_settings", {}), **BY_INDEX} if wiring.prepared else {}
        lane = {**options, "server_settings": settings}
        writing = await asyncpg.create_pool(url, min_size=0, max_size=wiring.lanes, reset=_as_it_is, **lane)
        asking = await asyncpg.create_pool(url, min_size=0, max_size=wiring.queries, reset=_as_it_is, **options)
        return cls(writing, asking, wiring)

    async def close(self) -> None:
        """End all connections; what is under way is cut off after a moment."""
        for pool in (self._writing, self._asking):
            try:
                await asyncio.wait_for(pool.close(), 2.0)
            except TimeoutError:
                pool.terminate()

    def lane_of(self, run: str) -> int:
        """The lane of a run: all that is written of it goes in order."""
        return hash(run) % len(self._lanes)

    async def once(self, job: Job[T], until: float | None = None) -> T:
        """Work that is not tried again, to be over at a time of the loop (WORK_S from now)."""
        async with self._held(self._asking, until or by(WORK_S)) as line:
            return await job(line)

    async def on_lane(self, lane: int, job: Job[T]) -> T:
        """Work in the order of a lane; not tried again."""
        async with self._lanes[lane], self._held(self._writing, by(WORK_S)) as line:
            return await job(line)

    async def ask(self, job: Job[T], limit_s: float | None = None) -> T:
        """Work that may be done twice: tried again where it collided or its connection broke, for a short while."""
        until = by(limit_s or ASK_S)
        return await settled(lambda: collided(lambda: self.once(job, until)), until)

    async def transact(self, job: Job[T], limit_s: float | None = None) -> T:
        """One transaction, begun anew where it collided with another; not where its connection broke."""
        until = by(limit_s or WORK_S)
        return await collided(lambda: self.once(lambda line: within(line, job), until))

    @asynccontextmanager
    async def _held(self, pool: Any, until: float) -> AsyncIterator[Line]:
        late = False

        def cut(line: Line) -> None:
            nonlocal late
            late = True
            line.terminate()

        try:
            line, until = await self._acquired(pool, until)
            timer = asyncio.get_running_loop().call_at(until, cut, line)
            try:
                if self._prepared:
                    yield line
                else:  # a pooler may give each statement outside a transaction, and each half of it, to another server
                    async with line.transaction():
                        yield line
            finally:
                timer.cancel()
                await pool.release(line, timeout=CONNECT_S)
        except Exception as error:
            told = translate(TimeoutError() if late else error)
            if isinstance(told, StoreUnavailable):
                self.trouble = str(told)
            if told is error:
                raise
            raise told from error
        self._answers += 1
        self.trouble = None

    async def _acquired(self, pool: Any, until: float) -> tuple[Line, float]:
        """A connection, and until when it may be used: the time in which others were answered does not count."""
        loop = asyncio.get_running_loop()
        left, last = max(until - loop.time(), 0.01), by(WORK_S)
        while True:
            answers = self._answers
            try:
                line = await pool.acquire(timeout=left)
            except TimeoutError:
                if self._answers == answers or loop.time() > last:
                    raise
            else:
                return line, until if self._answers == answers else loop.time() + left
            until = loop.time() + left


def by(seconds: float) -> float:
    """That many seconds from now, as a time of the loop."""
    return asyncio.get_running_loop().time() + seconds


def options_of(wiring: Wiring, name: str) -> dict[str, Any]:
    """What every connection of a process is made with."""
    options: dict[str, Any] = {"timeout": CONNECT_S}
    if not wiring.prepared:
        return {**options, "statement_cache_size": 0}
    settings = {"application_name": f"holdfast {name}"[:63]}
    settings["idle_in_transaction_session_timeout"] = str(IDLE_TRANSACTION_MS)
    return {**options, "server_settings": settings}


async def within(line: Line, job: Job[T]) -> T:
    """A job in a transaction."""
    async with line.transaction():
        return await job(line)


async def settled(work: Callable[[], Awaitable[T]], until: float | None = None) -> T:
    """Work again, while the database is away, for a short while."""
    end = min(by(AGAIN_S), until or by(AGAIN_S))
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if not error.passing or asyncio.get_running_loop().time() > end:
                raise
        await asyncio.sleep(0.05)


async def collided(work: Callable[[], Awaitable[T]]) -> T:
    """Work again, where it met with other work."""
    for n in range(ROUNDS):
        try:
            return await work()
        except COLLISIONS as error:
            if n == ROUNDS - 1:
                if isinstance(error, asyncpg.UniqueViolationError):
                    raise
                raise StoreUnavailable("too many are at the same at once", passing=True) from error
        await asyncio.sleep(0.002 * n)
    raise AssertionError("unreachable")

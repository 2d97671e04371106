"""Connections to PostgreSQL. Owns: the two pools of a process (lanes write the log, queries do the rest), their limits
and timeouts, retries after a broken connection, and the translation of PostgreSQL's errors. Refuses to know: what is
asked.

A statement whose connection broke may have been committed. So `ask` retries only work that may run twice. For other
work (`once`, `on_lane`, `transact`) the caller finds out what happened.

All work has a deadline, counted from the moment it asks for a connection. A database that accepts a statement and never
answers cannot be asked to cancel it either. The connection is then closed, and the work fails like any other whose
connection broke. Work that only waits for its turn, while the database answers others, keeps waiting: that is load, not
an outage."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import asyncpg
from msgspec import Struct

from ninelives.core.errors import ClientError, Damaged
from ninelives.journal.values import StoreUnavailable

T = TypeVar("T")
Connection = Any
"""An asyncpg connection; asyncpg has no types."""
Job = Callable[[Connection], Awaitable[T]]

CONNECT_S = 2.0
ASK_S = 1.8
"""Deadline of a request for something new. P15 promises an answer within two seconds, whatever the database does."""
WORK_S = 15.0
"""Deadline of a process's own work: writing its runs, reading pages, retention."""
AGAIN_S = 1.5
"""How long work is retried after its connection broke."""
IDLE_TRANSACTION_MS = 3_000
"""How long a process that stops inside a transaction keeps its locks. A run that ends in the same conversation waits
for them, and so does the whole batch that its end is part of."""
ISOLATION = "read committed"
"""What the statements are written for: each looks at the rows that it changes. Where the default of a database is
serializable, PostgreSQL would refuse appends of runs that have nothing to do with each other."""
ROUNDS = 40
BY_INDEX = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""Lanes find rows by key only. A plan made while a table was small would later scan all of it."""
PLAN_ONCE = {"plan_cache_mode": "force_generic_plan"}
"""A statement is planned once per connection. By itself PostgreSQL would plan most of them anew each time, because
lists are shorter than the ten rows that it expects. That takes longer than the statement: 0.16 ms for an append, 0.45
ms for one with a mark, 0.5 ms for an opening, 1.1 ms for a look for work."""
PLAN_FOR_VALUES = "SET LOCAL plan_cache_mode = force_custom_plan"
"""But a page of a list, or a sum, has filters that are left out (NULL). One plan for any values would use no index for
them (`Connections.fetch_filtered`)."""
LISTS = "SELECT $1::boolean[], $2::integer[], $3::bigint[], $4::float8[], $5::bytea[]"
"""All lists that statements take, besides lists of text. asyncpg looks the types of a statement up before its first use
on a connection, which takes PostgreSQL 3 to 8 ms, so it does that for all of them when a connection is opened."""
BY_ANY_JOIN = {"enable_hashjoin": "on", "enable_mergejoin": "on"}
"""Queries may join many rows, but scan no table that has an index for them."""

FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
"""Parameters of a URL that name files."""
_TRANSIENT = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection was closed while idle, and asyncpg has not noticed yet
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.InvalidAuthorizationSpecificationError,
    asyncpg.exceptions.InvalidCatalogNameError,
    asyncpg.exceptions.LockNotAvailableError,
)
"""The database is away or cannot do it now. It may be back in a moment."""
_REFUSED = (
    asyncpg.exceptions.DiskFullError,
    asyncpg.exceptions.OutOfMemoryError,
    asyncpg.exceptions.QueryCanceledError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.LockNotAvailableError,
)
"""Those of them with which the database answers a statement. Nothing was written."""
COLLISIONS = (
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.SerializationError,
    asyncpg.exceptions.UniqueViolationError,
)
"""Two transactions met. Nothing was written; a retry sees what the other one wrote."""


class Wiring(Struct, frozen=True):
    """How a process is connected: `lanes` that write, `queries` for the rest, and one listening connection."""

    lanes: int = 2
    queries: int = 4
    direct_url: str = ""
    """For the connection that listens and holds the session lock. Needed where the other URL leads to a pooler that
    shares connections between transactions."""
    prepared: bool = True
    """Prepare statements; off for such a pooler."""

    @property
    def needs(self) -> str:
        """How many connections a process needs, in words."""
        total = self.lanes + self.queries + 1
        return f"{total} needed: store.lanes {self.lanes} + store.pool {self.queries} + 1 that listens"


def translate(error: BaseException) -> BaseException:
    """The error of this package for one of PostgreSQL's; the error itself where there is none."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database does not answer", passing=True, away=True)
    if isinstance(error, ssl.SSLError):  # also a ValueError and an OSError
        why = (getattr(error, "verify_message", "") or error.reason or str(error)).rstrip(".")
        return StoreUnavailable(
            f"the certificate of the database is not accepted: {why}. Check the host name in the URL, sslmode and "
            "sslrootcert",
            passing=False,
            away=True,
        )
    if isinstance(error, _TRANSIENT) and not isinstance(error, ValueError):  # a bad URL is both
        reason = str(error).partition("\n")[0] or type(error).__name__
        away = not isinstance(error, _REFUSED)
        return StoreUnavailable(f"the database cannot be used now: {reason}", passing=True, away=away)
    if isinstance(error, asyncpg.exceptions.CharacterNotInRepertoireError):
        return ClientError("invalid_value", "A name or title must not contain the character U+0000.")
    if isinstance(error, asyncpg.exceptions.DataCorruptedError | asyncpg.exceptions.IndexCorruptedError):
        return Damaged(f"the database is damaged: {error}")
    return error


async def connect_to(url: str, options: dict[str, Any]) -> Connection:
    """One connection. Raises StoreUnavailable where there is none, also for a URL that is none."""
    try:
        await asyncio.to_thread(_check_files, url)
        return await asyncpg.connect(url, **options)
    except Exception as error:
        known = _url_refused(error) if isinstance(error, ValueError) else translate(error)
        if known is error:
            raise
        raise known from None


def _check_files(url: str) -> None:
    for name, value in parse_qsl(urlsplit(url).query):
        if name in FILES and not Path(value).expanduser().is_file():
            raise StoreUnavailable(f"{name} in the URL: there is no file {value}", passing=False)


def _url_refused(error: ValueError) -> BaseException:
    """Why a URL cannot be used."""
    if isinstance(error, ssl.SSLError):
        return translate(error)
    reason = str(error).partition("\n")[0]
    if "certificate file" not in reason:  # its text may contain parts of a password
        reason = "this is not the URL of a database. In a password, write @ / : # ? as %40 %2F %3A %23 %3F"
    return StoreUnavailable(reason, passing=False)


class NotAsked(StoreUnavailable):
    """There was no connection to the database. Nothing was asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, passing=True, away=True)


class NoConnection(NotAsked):
    """The database refuses one more connection."""


async def _learn_types(connection: Connection) -> None:
    """Prepare a new connection of a pool: see LISTS."""
    await connection.fetch(LISTS, [], [], [], [], [])


async def _no_reset(connection: Connection) -> None:
    """Return a connection to its pool as it is. Nothing here changes its state, and a reset costs a round trip."""


class Connections:
    """The pools of one process. Create them with `await Connections.create(...)`."""

    def __init__(self, writing: Any, asking: Any, wiring: Wiring) -> None:
        self._writing = writing
        self._asking = asking
        self._lanes = [asyncio.Lock() for _ in range(wiring.lanes)]
        self._kept: dict[int, Connection] = {}
        """The connections of lanes. To take one from its pool and to give it back costs a fifth of a small append."""
        self._prepared = wiring.prepared
        self._answers = 0
        self.trouble: str | None = None
        """Why the last statement could not reach the database; None after one that did."""

    @classmethod
    async def create(cls, url: str, wiring: Wiring, name: str) -> Connections:
        """Create the pools and all their connections, so that a process that lacks one does not start. Raises
        StoreUnavailable."""
        options = options_of(wiring, name)
        settings = {**options.get("server_settings", {}), **BY_INDEX} if wiring.prepared else {}
        lane_settings = {**settings, **PLAN_ONCE} if wiring.prepared else {}
        lane = {**options, "server_settings": lane_settings, "max_inactive_connection_lifetime": 0}
        query = {**options, "server_settings": {**lane_settings, **BY_ANY_JOIN} if wiring.prepared else {}}
        pool_options = {"min_size": 0, "init": _learn_types, "reset": _no_reset}
        pools: list[Any] = []
        try:
            for size, kind in ((wiring.lanes, lane), (wiring.queries, query)):
                pools.append(await asyncpg.create_pool(url, max_size=size, **pool_options, **kind))
                await _open_all(pools[-1], size)
        except Exception as error:
            for pool in pools:
                pool.terminate()
            known = translate(error)
            if isinstance(error, asyncpg.TooManyConnectionsError):
                known = StoreUnavailable(f"{known} ({wiring.needs})", passing=True, away=True)
            if known is error:
                raise
            raise known from error
        return cls(pools[0], pools[1], wiring)

    async def close(self) -> None:
        """Close all connections. Work in progress gets two seconds."""
        for connection in self._kept.values():
            with suppress(*_TRANSIENT, TimeoutError):  # then its pool is terminated below
                await self._writing.release(connection, timeout=CONNECT_S)
        for pool in (self._writing, self._asking):
            try:
                async with asyncio.timeout(2.0):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._lanes)

    async def once(self, job: Job[T], until: float | None = None) -> T:
        """Run a job without retries. `until` is its deadline by the clock of the event loop (default: in WORK_S)."""
        async with self._borrow(self._asking, until or deadline_in(WORK_S)) as connection:
            return await job(connection)

    async def after_writes(self, job: Job[T]) -> T:
        """Run a job after all writes that have begun, without retries."""
        async with AsyncExitStack() as stack:
            for lane in self._lanes:
                await stack.enter_async_context(lane)
            return await self.once(job)

    async def on_lane(self, lane: int, job: Job[T]) -> T:
        """Run a job on a lane, in order and without retries."""
        async with self._lanes[lane]:
            try:
                async with self._borrow(self._writing, deadline_in(WORK_S), lane) as connection:
                    return await job(connection)
            except NoConnection:  # nothing was asked yet: a query connection does it
                return await self.once(job)

    async def ask(self, job: Job[T], limit_s: float | None = None) -> T:
        """Run a job that may run twice. Retries for a short while after collisions and broken connections."""
        until = deadline_in(limit_s or ASK_S)
        return await retry_while_away(lambda: retry_collisions(lambda: self.once(job, until)), until)

    async def execute(self, sql: str, *values: Any, limit_s: float | None = None) -> None:
        """Run one statement that may run twice (see ask)."""
        await self.ask(lambda connection: connection.execute(sql, *values), limit_s)

    async def fetch(self, sql: str, *values: Any, limit_s: float | None = None) -> list[Any]:
        """The rows of one."""
        rows: list[Any] = await self.ask(lambda connection: connection.fetch(sql, *values), limit_s)
        return rows

    async def fetch_filtered(self, sql: str, *values: Any, limit_s: float | None = None) -> list[Any]:
        """The rows of a statement whose plan depends on its values."""

        async def work(connection: Connection) -> list[Any]:
            if self._prepared:
                await connection.execute(PLAN_FOR_VALUES)
            rows: list[Any] = await connection.fetch(sql, *values)
            return rows

        return await self.ask(lambda connection: in_transaction(connection, work), limit_s)

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        """The first row of one, or None."""
        return await self.ask(lambda connection: connection.fetchrow(sql, *values))

    async def fetchval(self, sql: str, *values: Any, limit_s: float | None = None) -> Any:
        """The first value of one."""
        return await self.ask(lambda connection: connection.fetchval(sql, *values), limit_s)

    async def transact(self, job: Job[T], until: float | None = None) -> T:
        """Run a job in one transaction. Retries after collisions, not after a broken connection."""
        end = until or deadline_in(WORK_S)
        return await retry_collisions(lambda: self.once(lambda connection: in_transaction(connection, job), end))

    @asynccontextmanager
    async def _borrow(self, pool: Any, until: float, lane: int = -1) -> AsyncIterator[Connection]:
        """A lane keeps its connection after work that succeeded."""
        late = False

        def cut(connection: Connection) -> None:
            nonlocal late
            late = True
            connection.terminate()

        try:
            connection = self._kept.pop(lane, None)
            if connection is None or _is_closed(connection):
                connection, until = await self._connected(pool, until)
            timer = asyncio.get_running_loop().call_at(until, cut, connection)
            try:
                if self._prepared:
                    yield connection
                else:  # outside a transaction, a pooler may send each half of a statement to another server
                    async with connection.transaction(isolation=ISOLATION.replace(" ", "_")):
                        yield connection
                if lane >= 0:
                    self._kept[lane] = connection
            finally:
                timer.cancel()
                if lane not in self._kept:
                    await pool.release(connection, timeout=CONNECT_S)
        except Exception as error:
            known = translate(TimeoutError() if late else error)
            if isinstance(known, StoreUnavailable):
                self.trouble = str(known)
            if known is error:
                raise
            raise known from error
        self._answers += 1
        self.trouble = None

    async def _connected(self, pool: Any, until: float) -> tuple[Connection, float]:
        """See _acquire. Raises NotAsked where the database is away."""
        try:
            return await self._acquire(pool, until)
        except asyncpg.TooManyConnectionsError as error:
            raise NoConnection(f"the database takes no more connections: {error}") from error
        except Exception as error:
            known = translate(error)
            if isinstance(known, StoreUnavailable) and known.passing and known.away:
                raise NotAsked(str(known)) from error
            raise

    async def _acquire(self, pool: Any, until: float) -> tuple[Connection, float]:
        """A connection and its deadline. Waiting does not count against the deadline while others get answers."""
        loop = asyncio.get_running_loop()
        left, last = max(until - loop.time(), 0.01), deadline_in(WORK_S)
        while True:
            answers = self._answers
            try:
                connection = await pool.acquire(timeout=left)
            except TimeoutError:
                if self._answers == answers or loop.time() > last:
                    raise
            else:
                return connection, until if self._answers == answers else loop.time() + left
            until = loop.time() + left


def _is_closed(connection: Connection) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:  # its pool has taken it back: the other side closed it
        return True


@asynccontextmanager
async def in_turn(lock: AbstractAsyncContextManager[Any], until: float | None) -> AsyncIterator[None]:
    """Hold a lock. Raises StoreUnavailable where it is not free at a time of the event loop: those before were not
    answered."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout_at(until):
                await stack.enter_async_context(lock)
        except TimeoutError:
            raise NotAsked("the database does not answer") from None
        yield


async def _open_all(pool: Any, size: int) -> None:
    """Open all connections of a pool, one after the other: a failure leaves none half open."""
    opened = []
    try:
        for _ in range(size):
            opened.append(await pool.acquire(timeout=CONNECT_S))
    finally:
        for connection in opened:
            await pool.release(connection)


def deadline_in(seconds: float) -> float:
    """The time of the event loop that many seconds from now."""
    return asyncio.get_running_loop().time() + seconds


def options_of(wiring: Wiring, name: str) -> dict[str, Any]:
    """The options of every connection of a process."""
    options: dict[str, Any] = {"timeout": CONNECT_S}
    if not wiring.prepared:
        return {**options, "statement_cache_size": 0}
    settings = {"application_name": f"ninelives {name}"[:63]}
    settings["idle_in_transaction_session_timeout"] = str(IDLE_TRANSACTION_MS)
    settings["default_transaction_isolation"] = ISOLATION
    return {**options, "server_settings": settings}


async def in_transaction(connection: Connection, job: Job[T]) -> T:
    """Run a job in a transaction."""
    async with connection.transaction():
        return await job(connection)


async def retry_while_away(work: Callable[[], Awaitable[T]], until: float | None = None) -> T:
    """Retry work for AGAIN_S, but not beyond `until`, while the database is away."""
    end = min(deadline_in(AGAIN_S), until or deadline_in(AGAIN_S))
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if not error.passing or asyncio.get_running_loop().time() > end:
                raise
        await asyncio.sleep(0.05)


async def retry_collisions(work: Callable[[], Awaitable[T]]) -> T:
    """Retry work that collided with another transaction."""
    for n in range(ROUNDS - 1):
        with suppress(*COLLISIONS):
            return await work()
        await asyncio.sleep(0.002 * n)
    try:
        return await work()
    except (asyncpg.exceptions.DeadlockDetectedError, asyncpg.exceptions.SerializationError) as error:
        raise StoreUnavailable("too many transactions collide, try again", passing=True) from error

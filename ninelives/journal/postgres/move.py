"""Work on a PostgreSQL store from outside a server. Owns: checking a whole database, and a database as one side of a
move (Carrier). PostgreSQL itself does the rest: backup, restore, giving space back. Refuses to know: where the rows of
a move come from or go to, and what an event means (the caller passes a judge).

Theory of operation. A move is one transaction on one connection, including the reading back. Before `keep` nobody sees
anything of it, and a move that is interrupted leaves nothing. The tables are locked, so no replica can join or write
meanwhile. Rows are copied in batches; runs are numbered anew in their order. If the answer to the commit is lost, the
number of the transaction tells what became of it. The source may stay in use only where nothing was kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
from msgspec.structs import astuple, replace

from ninelives.core.errors import Damaged
from ninelives.journal import move as c
from ninelives.journal import queries
from ninelives.journal.move import Carried, HalfMoved, InUse
from ninelives.journal.postgres.connections import Connection, Wiring, connect_to, options_of, translate
from ninelives.journal.postgres.log import packed, unpacked
from ninelives.journal.postgres.peers import SQL as PEERS
from ninelives.journal.postgres.schema import SQL as SCHEMA
from ninelives.journal.postgres.schema import migrate
from ninelives.journal.segments import origin
from ninelives.journal.values import PAGE_BYTES, Judge, Record, Report, StoreUnavailable

SQL = queries.load("postgres", "move")
BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024
CONNECT_S = 10.0
OUTCOME_S = 60.0
"""How long to ask the database what became of a move."""
NAME = "migrate"
NOBODY = "moved"
"""The process at which callers of moved runs wait. It does not exist, so they count as disconnected."""

KINDS: dict[type[Carried], tuple[str, str]] = {
    c.CarriedKey: ("keys", "keys"),
    c.CarriedConversation: ("conversations", "conversations"),
    c.CarriedEdit: ("edits", "conversation_edits"),
    c.CarriedTurn: ("turns", "session_turns"),
    c.CarriedSession: ("sessions", "sessions"),
    c.CarriedText: ("texts", "session_texts"),
    c.CarriedSignal: ("wishes", "signals"),
    c.CarriedGrant: ("grants", "call_grants"),
    c.CarriedUsage: ("usage", "usage_days"),
    c.CarriedApiKey: ("api_keys", "api_keys"),
    c.CarriedAudit: ("audit", "audit_log"),
}
"""What is copied as it is, in order: the query and the table of each kind."""
_NAMES = {"key": "idem", "delivered": "delivered_at"}
_RUN = (*(_NAMES.get(name, name) for name in c.CarriedRun.__struct_fields__), "ended_at", "waiter", "bytes")
_LOG = ("owner", "run", "first_seq", "last_seq", "attempt", "at", "crc_before", "crc_after", "data")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise StoreUnavailable or Damaged for PostgreSQL's errors. InsufficientPrivilegeError passes: the caller has a
    better message for it."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError:
        raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        known = translate(error)
        if not isinstance(known, StoreUnavailable | Damaged):
            known = StoreUnavailable(f"the database refused a statement: {error}", passing=False)
        raise known from error


async def connect(url: str) -> Connection:
    """Open a connection without timeouts. Raises StoreUnavailable."""
    connection = await connect_to(url, options_of(Wiring(), NAME))
    with translated_errors():
        await connection.execute(SQL["quiet"])
    return connection


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection, closed at the end. PostgreSQL's errors are translated."""
    connection = await connect(url)
    try:
        with translated_errors():
            yield connection
    finally:
        await connection.close()


async def describe(url: str) -> str:
    """The release and the durability settings of a database."""
    async with connected(url) as connection:
        return " ".join(str(value) for value in await connection.fetchrow(SQL["describe"]))


async def settle_all(url: str, workspaces: Iterable[tuple[str, str]], home: str) -> None:
    """Make `home` the home of these workspaces (owner, name), unless they have one."""
    async with connected(url) as connection:
        await connection.executemany(PEERS["settle_home"], [(owner, name, home) for owner, name in workspaces])


async def refuse_moved(url: str) -> None:
    """Raises InUse where the store of this database was moved elsewhere. Raises StoreUnavailable."""
    async with connected(url) as connection:
        moved = await connection.fetchval(SQL["moved"]) if await connection.fetchval(SQL["has_meta"]) else None
    if moved is not None:
        raise InUse(
            f"the store in this database was moved elsewhere ({moved}). Serve it from there, or use another database. "
            "To use the old data again: DELETE FROM meta WHERE name = 'moved'."
        )


async def check(url: str, judge: Judge, progress: Callable[[int, int], None]) -> Report:
    """Check the whole store in one snapshot: all checksums, each run by `judge`, all references. Replicas may use it
    meanwhile. `progress` is called with the runs done and the runs in all. Raises StoreUnavailable."""
    async with connected(url) as connection:
        if not await connection.fetchval(SQL["has_meta"]):
            raise StoreUnavailable("there is no store in this database", passing=False)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await _check(connection, judge, progress)


async def _check(connection: Connection, judge: Judge, progress: Callable[[int, int], None]) -> Report:
    report = Report(schema=await connection.fetchval(SCHEMA["version"]))
    report.bytes, count = await connection.fetchval(SQL["size"]), await connection.fetchval(SQL["count"])
    async for run, log in _runs_with_logs(connection):
        if run.hidden:
            continue
        progress(report.runs, count)
        report.runs += 1
        try:
            records = _records_of(run, log)
            if run.ended and records[-1].seq != run.last_seq:
                raise Damaged(f"run {run.id}: entries follow its end")
            judge(run.id, records)
            report.entries += len(records)
        except Damaged as error:
            report.problems.append(str(error))
    report.problems += [str(text) for (text,) in await connection.fetch(SQL["loose_ends"])]
    return report


class PostgresCarrier:
    """See Carrier. `url` must lead to the database itself, not to a pooler."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection = None
        self._transaction: Any = None
        self._backend = 0
        self._kept = False
        self._run: tuple[c.CarriedRun, list[Record]] | None = None
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._size = 0

    async def lend(self) -> None:
        """See Carrier.lend."""
        await refuse_moved(self._url)
        with translated_errors():
            await self._begin("lock_source", "repeatable_read")

    async def receive(self) -> None:
        """See Carrier.receive."""
        with translated_errors():
            await self._begin("lock_target", "read_committed")
            full = await self._connection.fetchval(SQL["full"])
        if full:
            raise InUse("the database is not empty. Use a new one (CREATE DATABASE).")

    async def _begin(self, lock: str, isolation: str) -> None:
        await migrate(self._url, Wiring(), NAME)
        self._connection = await connect(self._url)
        self._backend = self._connection.get_server_pid()
        self._transaction = self._connection.transaction(isolation=isolation)
        await self._transaction.start()
        try:
            await self._connection.execute(SQL[lock])
        except asyncpg.LockNotAvailableError as error:
            raise InUse("the database is in use. Stop all replicas first.") from error
        alive = await self._connection.fetch(SQL["alive"])
        if alive:
            names = ", ".join(str(row["name"]) for row in alive)
            raise InUse(
                f"replicas use the database: {names}. Stop them first. A replica that was killed counts as running "
                f"for {max(row['seconds'] for row in alive)} s more."
            )

    async def rows(self) -> AsyncIterator[Carried]:
        """See Carrier.rows."""
        with translated_errors():
            await self._finish_run()
            await self._flush()
            async for row in self._rows():
                yield row

    async def _rows(self) -> AsyncIterator[Carried]:
        kept = await self._connection.fetchval(SQL["secret"])
        yield c.CarriedSecret(bytes.fromhex(kept or ""))
        async for run, log in _runs_with_logs(self._connection):
            if run.hidden:
                yield run
                continue
            records = _records_of(run, log)
            yield replace(run, last_seq=records[-1].seq, attempt=max(run.attempt, records[-1].attempt))
            yield c.CarriedLog(run.id, records)
        for kind, (query, _) in KINDS.items():
            async for found in self._connection.cursor(SQL[query], prefetch=BATCH):
                yield kind(*found)

    async def put(self, row: Carried) -> None:
        """See Carrier.put."""
        with translated_errors():
            await self._put(row)

    async def _put(self, row: Carried) -> None:
        match row:
            case c.CarriedLog():
                if self._run is None or self._run[0].id != row.run:
                    raise ValueError("the log of a run must follow its row")
                self._run[1].extend(row.records)
                return
            case c.CarriedSecret():
                if row.value:
                    await self._connection.execute(SQL["put_secret"], row.value.hex())
                return
        await self._finish_run()
        values = astuple(row)
        if any(isinstance(value, str) and "\0" in value for value in values):
            noun = type(row).__name__.removeprefix("Carried").lower()
            raise Damaged(f"a {noun} has a text with the character U+0000, which PostgreSQL cannot store")
        if isinstance(row, c.CarriedRun):
            self._run = (row, [])
        else:
            await self._add(KINDS[type(row)][1], values)

    async def _finish_run(self) -> None:
        if self._run is None:
            return
        (run, records), self._run = self._run, None
        crc, size = origin(run.id), 0
        for part in _parts(records):
            row = packed(part, crc)
            crc, size = row.after, size + len(row.data)
            values = (run.owner, run.id, row.first, row.last, part[-1].attempt, row.at, row.before, row.after, row.data)
            await self._add("run_log", values, len(row.data))
        weight = size + len(run.turn or b"")
        await self._add("runs", _run_values(run, weight), len(run.turn or b""))

    async def _add(self, table: str, values: tuple[Any, ...], size: int = 100) -> None:
        self._waiting.setdefault(table, []).append(values)
        self._size += size
        if self._size > BATCH_BYTES or len(self._waiting[table]) >= BATCH:
            await self._flush()

    async def _flush(self) -> None:
        columns = {"runs": _RUN, "run_log": _LOG} | {
            table: kind.__struct_fields__ for kind, (_, table) in KINDS.items()
        }
        for table, rows in self._waiting.items():
            await self._connection.copy_records_to_table(table, records=rows, columns=columns[table])
        self._waiting.clear()
        self._size = 0

    async def keep(self) -> None:
        """See Carrier.keep."""
        with translated_errors():
            number = await self._connection.fetchval(SQL["transaction"])
        try:
            with translated_errors():
                await self._transaction.commit()
        except StoreUnavailable as error:
            await self._find_outcome(number, error)
        self._transaction, self._kept = None, True

    async def _find_outcome(self, number: str, error: StoreUnavailable) -> None:
        """The answer to a commit was lost. Return where it was committed, raise `error` where it was not."""
        end = time.monotonic() + OUTCOME_S
        aborted = False
        while time.monotonic() < end:
            with suppress(StoreUnavailable), translated_errors():
                await self._reconnect()
                fate = await self._connection.fetchval(SQL["fate"], number)
                if fate == "committed":
                    return
                aborted = fate == "aborted"
            if aborted:
                raise error
            await asyncio.sleep(0.5)
        raise HalfMoved(
            f"the answer to the commit was lost ({error}), and the database does not say whether it happened. Look "
            "into the new database (SELECT count(*) FROM runs) before you serve either store. If it has runs, the move "
            "is complete: never serve the old store again (drop it, or move its files away). If not, move again."
        ) from error

    async def _reconnect(self) -> None:
        """Connect again, and end what the broken connection may still do in the database."""
        self._connection.terminate()
        connection = await connect(self._url)
        try:
            await connection.fetch(SQL["end_backend"], self._backend)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def retire(self) -> str:
        """See Carrier.retire."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        with translated_errors():
            try:
                await self._connection.execute(SQL["retire"], when)
                await self._transaction.commit()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                await self._reconnect()
                await self._connection.execute(SQL["retire"], when)
        self._transaction = None
        return "the old database still has all data, and servers refuse to use it. Drop it when you like"

    async def close(self) -> None:
        """See Carrier.close. Rolls back what was not kept, and updates the planner's statistics for what was."""
        if self._connection is None:
            return
        connection, self._connection, self._transaction = self._connection, None, None
        with suppress(StoreUnavailable), translated_errors():
            if self._kept:
                await connection.execute(SQL["analyze"])
            await connection.close(timeout=CONNECT_S)


def _run_values(run: c.CarriedRun, size: int) -> tuple[Any, ...]:
    """The columns of a moved run. When it ended and was delivered is not carried: it counts from its last change."""
    values = dict(zip(_RUN, astuple(run), strict=False))
    over = max(run.updated_at, 1)
    values |= {"ended_at": over if run.ended else 0, "delivered_at": over if run.delivered else 0}
    values |= {"waiter": NOBODY if run.waits or run.lost_at else None, "bytes": size}
    return tuple(values[name] for name in _RUN)


def _parts(records: Sequence[Record]) -> list[list[Record]]:
    """Split records into rows, several of which fit into a page."""
    parts: list[list[Record]] = []
    room = 0
    for record in records:
        if room <= 0:
            parts.append([])
            room = PAGE_BYTES // 4
        parts[-1].append(record)
        room -= len(record.data) + 16
    return parts


async def _runs_with_logs(connection: Connection) -> AsyncIterator[tuple[c.CarriedRun, list[Any]]]:
    """Each run and the rows of its log (none for a tombstone). Call it in a transaction."""
    async for found in connection.cursor(SQL["runs"], prefetch=BATCH):
        run = c.CarriedRun(**dict(zip(c.CarriedRun.__struct_fields__, found, strict=True)))
        yield run, [] if run.hidden else await connection.fetch(SQL["log"], run.owner, run.id)


def _records_of(run: c.CarriedRun, rows: Sequence[Any]) -> list[Record]:
    """The whole log of a run. Raises Damaged where a part of it is missing or was changed."""
    records: list[Record] = []
    crc = origin(run.id)
    for row in rows:
        if row["crc_before"] != crc or row["first_seq"] != len(records):
            raise Damaged(f"run {run.id}: entry {len(records)} does not follow the one before it")
        crc = row["crc_after"]
        records += unpacked(run.id, row)
    if not records or records[-1].seq < run.last_seq:
        raise Damaged(f"run {run.id}: its last entries are missing, up to {run.last_seq} were written")
    return records

"""A PostgreSQL store that moves. Owns: a database as a Carrier: telling all of its rows in one snapshot, and filling an
empty one in one transaction. Refuses to know: where the rows come from or go to.

Theory of operation. The whole move is one transaction on one connection, reading back included: before `keep` nobody
sees anything of it, and a move that is cut off leaves nothing. The tables are locked, so that no replica can join or
write meanwhile. Rows are copied in batches; the numbers of runs are given anew in their order. A commit whose answer
was lost is looked for by the number of its transaction: the source may stay in use only where nothing was kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg
from msgspec.structs import astuple, replace

from holdfast.core.errors import Damaged
from holdfast.journal import base_carry as c
from holdfast.journal import queries
from holdfast.journal.base import PAGE_BYTES, Record, StoreUnavailable
from holdfast.journal.base_carry import Carried, HalfMoved, InUse
from holdfast.journal.postgres_lines import Line, Wiring, options_of, translate
from holdfast.journal.postgres_log import packed, unpacked
from holdfast.journal.postgres_schema import migrate
from holdfast.journal.segments import origin

SQL = queries.load("postgres_carry.sql")
PEERS = queries.load("postgres_peers.sql")
BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024
CONNECT_S = 10.0
LOOK_S = 60.0
"""How long it is tried to find out what became of a move."""
NAME = "migrate"
NOBODY = "moved"
"""Whose connection waits for a run that moved: it was lost with the server that had it."""

KINDS: dict[type[Carried], tuple[str, str]] = {
    c.Key: ("keys", "keys"),
    c.Conversation: ("conversations", "conversations"),
    c.Edit: ("edits", "conversation_edits"),
    c.SessionTurn: ("turns", "session_turns"),
    c.SessionTitle: ("titles", "session_titles"),
    c.Wish: ("wishes", "signals"),
    c.Grant: ("grants", "grants"),
}
"""What is told and put as it is, in order: the query and the table of each kind."""
_RUN = (*("idem" if name == "key" else name for name in c.Run.__struct_fields__), "waiter", "bytes")
_LOG = ("run", "first_seq", "last_seq", "attempt", "at", "crc_before", "crc_after", "data")


@contextmanager
def in_our_words() -> Iterator[None]:
    """PostgreSQL's errors in our words: StoreUnavailable, or Damaged; but for what the role may not do, which others
    know better how to mend."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError:
        raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        known = translate(error)
        if not isinstance(known, StoreUnavailable | Damaged):
            known = StoreUnavailable(f"the database refused: {error}", passing=False)
        raise known from error


async def connect(url: str) -> Line:
    """A connection of its own. Raises StoreUnavailable."""
    try:
        line = await asyncpg.connect(url, **options_of(Wiring(), NAME))
        await line.execute(SQL["quiet"])
    except ValueError:  # its text may hold pieces of a password
        raise StoreUnavailable(
            "this is not a URL of a database. Write signs such as @ / : # ? in its password as %40 %2F %3A %23 %3F",
            passing=False,
        ) from None
    except Exception as error:
        raise translate(error) from error
    return line


async def describe(url: str) -> str:
    """What a database says of itself."""
    line = await connect(url)
    try:
        with in_our_words():
            return " ".join(str(value) for value in await line.fetchrow(SQL["describe"]))
    finally:
        await line.close()


async def settle_all(url: str, workspaces: Iterable[tuple[str, str]], home: str) -> None:
    """These workspaces (owner, name) are at `home`, unless they have another."""
    line = await connect(url)
    try:
        with in_our_words():
            await line.executemany(PEERS["settle"], [(owner, name, home) for owner, name in workspaces])
    finally:
        await line.close()


async def refuse_moved(url: str) -> None:
    """Raises InUse where the store of this database has moved elsewhere, StoreUnavailable where it goes away."""
    line = await connect(url)
    try:
        with in_our_words():
            moved = await line.fetchval(SQL["moved"]) if await line.fetchval(SQL["has_meta"]) else None
    finally:
        await line.close()
    if moved is not None:
        raise InUse(
            f"the store in this database was moved elsewhere ({moved}): serve it from there, or use another database. "
            "To go back to what is still here: DELETE FROM meta WHERE name = 'moved'."
        )


class PostgresCarrier:
    """See Carrier. `url` leads to the database itself, not to a pooler."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._line: Line = None
        self._transaction: Any = None
        self._backend = 0
        self._kept = False
        self._run: tuple[c.Run, list[Record]] | None = None
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._size = 0

    async def lend(self) -> None:
        """See Carrier.lend."""
        await refuse_moved(self._url)
        with in_our_words():
            await self._begin("lock_source", "repeatable_read")

    async def receive(self) -> None:
        """See Carrier.receive."""
        with in_our_words():
            await self._begin("lock_target", "read_committed")
            full = await self._line.fetchval(SQL["full"])
        if full:
            raise InUse("the database is not empty: use a new one (CREATE DATABASE).")

    async def _begin(self, lock: str, isolation: str) -> None:
        await migrate(self._url, Wiring(), NAME)
        self._line = await connect(self._url)
        self._backend = self._line.get_server_pid()
        self._transaction = self._line.transaction(isolation=isolation)
        await self._transaction.start()
        try:
            await self._line.execute(SQL[lock])
        except asyncpg.LockNotAvailableError as error:
            raise InUse("the database is in use: stop all replicas first.") from error
        alive = await self._line.fetch(SQL["alive"])
        if alive:
            names = ", ".join(str(row["name"]) for row in alive)
            raise InUse(
                f"replicas use the database: {names}. Stop them first; one that was killed counts as there for "
                f"{max(row['seconds'] for row in alive)} s more."
            )

    async def rows(self) -> AsyncIterator[Carried]:
        """See Carrier.rows."""
        with in_our_words():
            await self._finish_run()
            await self._flush()
            async for row in self._rows():
                yield row

    async def _rows(self) -> AsyncIterator[Carried]:
        kept = await self._line.fetchval(SQL["secret"])
        yield c.Secret(bytes.fromhex(kept or ""))
        async for run, log in logs_of(self._line):
            if run.hidden:
                yield run
                continue
            records = records_of(run, log)
            yield replace(run, last_seq=records[-1].seq, attempt=max(run.attempt, records[-1].attempt))
            yield c.Log(run.id, records)
        for kind, (query, _) in KINDS.items():
            async for found in self._line.cursor(SQL[query], prefetch=BATCH):
                yield kind(*found)

    async def put(self, row: Carried) -> None:
        """See Carrier.put."""
        with in_our_words():
            await self._put(row)

    async def _put(self, row: Carried) -> None:
        match row:
            case c.Log():
                if self._run is None or self._run[0].id != row.run:
                    raise ValueError("the log of a run follows it")
                self._run[1].extend(row.records)
                return
            case c.Secret():
                if row.value:
                    await self._line.execute(SQL["put_secret"], row.value.hex())
                return
        await self._finish_run()
        values = astuple(row)
        if any(isinstance(value, str) and "\0" in value for value in values):
            raise Damaged(
                f"a {type(row).__name__.lower()} has a name with the character U+0000: PostgreSQL has no such"
            )
        if isinstance(row, c.Run):
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
            attempt = part[-1].attempt
            await self._add(
                "run_log",
                (run.id, row.first, row.last, attempt, row.at, row.before, row.after, row.data),
                len(row.data),
            )
        weight = size + len(run.turn or b"")
        await self._add("runs", (*astuple(run), NOBODY if run.waits else None, weight), len(run.turn or b""))

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
            await self._line.copy_records_to_table(table, records=rows, columns=columns[table])
        self._waiting.clear()
        self._size = 0

    async def keep(self) -> None:
        """See Carrier.keep."""
        with in_our_words():
            number = await self._line.fetchval(SQL["transaction"])
        try:
            with in_our_words():
                await self._transaction.commit()
        except StoreUnavailable as error:
            await self._look_for(number, error)
        self._transaction, self._kept = None, True

    async def _look_for(self, number: str, error: StoreUnavailable) -> None:
        """The answer to a commit was lost. Returns where it happened; raises `error` where it did not."""
        end = time.monotonic() + LOOK_S
        aborted = False
        while time.monotonic() < end:
            with suppress(StoreUnavailable), in_our_words():
                await self._afresh()
                fate = await self._line.fetchval(SQL["fate"], number)
                if fate == "committed":
                    return
                aborted = fate == "aborted"
            if aborted:
                raise error
            await asyncio.sleep(0.5)
        raise HalfMoved(
            f"the answer to the last step was lost ({error}), and the database does not say what became of it. Look "
            "into the new one (SELECT count(*) FROM runs) before you serve either: where there are runs, all was moved "
            "and the old store must never be served again (drop it, or move its files away); where there are none, "
            "move again."
        ) from error

    async def _afresh(self) -> None:
        """Another connection; what the broken one has begun comes to its end."""
        self._line.terminate()
        line = await connect(self._url)
        try:
            await line.fetch(SQL["end_backend"], self._backend)
        except BaseException:
            line.terminate()
            raise
        self._line = line

    async def retire(self) -> str:
        """See Carrier.retire."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        with in_our_words():
            try:
                await self._line.execute(SQL["retire"], when)
                await self._transaction.commit()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                await self._afresh()
                await self._line.execute(SQL["retire"], when)
        self._transaction = None
        return "the old database still has all of it, and servers refuse to use it: drop it when you like"

    async def close(self) -> None:
        """See Carrier.close. What was not kept is rolled back; of what was kept the planner knows nothing yet."""
        if self._line is None:
            return
        line, self._line, self._transaction = self._line, None, None
        with suppress(StoreUnavailable), in_our_words():
            if self._kept:
                await line.execute(SQL["analyze"])
            await line.close(timeout=CONNECT_S)


def _parts(records: Sequence[Record]) -> list[list[Record]]:
    """Records in rows of a size that a page of a reader holds several of."""
    parts: list[list[Record]] = []
    room = 0
    for record in records:
        if room <= 0:
            parts.append([])
            room = PAGE_BYTES // 4
        parts[-1].append(record)
        room -= len(record.data) + 16
    return parts


async def logs_of(line: Line) -> AsyncIterator[tuple[c.Run, list[Any]]]:
    """Each run as its row tells it, and the rows of its log; a tombstone has none. Within a transaction."""
    async for found in line.cursor(SQL["runs"], prefetch=BATCH):
        run = c.Run(**dict(zip(c.Run.__struct_fields__, found, strict=True)))
        yield run, [] if run.hidden else await line.fetch(SQL["log"], run.id)


def records_of(run: c.Run, rows: Sequence[Any]) -> list[Record]:
    """The whole log of a run; Damaged where something of it is missing or was changed."""
    records: list[Record] = []
    crc = origin(run.id)
    for row in rows:
        if row["crc_before"] != crc or row["first_seq"] != len(records):
            raise Damaged(f"run {run.id}: entry {len(records)} does not follow the one before it")
        crc = row["crc_after"]
        records += unpacked(run.id, row)
    if not records or records[-1].seq < run.last_seq:
        raise Damaged(f"run {run.id}: its last entries are gone, up to {run.last_seq} were written")
    return records

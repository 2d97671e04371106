"""An open SQLite database. Owns: the file, its three threads (writer, reader, upkeep), the fences of the writer, the
tails in memory, the sealing of runs into segments, checkpoints. Refuses to know: what a job does, and the store's
Protocols.

Theory of operation. All writes go through one thread (database_thread.py), whose batches are transactions. The hot
table `entries` is append-only and has no index on (run, seq). A reader finds the newest records of a run in its Tail in
memory, and older ones in segments. Only a start reads the hot table: once, in the order of writing.

When a run ends, is parked, or its tail grows long, the upkeep thread packs its records into segments and the writer
stores them; then the tail drops them. A reader that misses the tail therefore always finds the segment. Rows below the
lowest id that any tail needs are deleted in slices. A short run is packed by the writer, in the transaction of its end.

Checkpoints run on the upkeep connection (wal_autocheckpoint is 0 on the writer). Once the write-ahead log is past its
bound, the writer itself checkpoints between two batches (docs/architecture.md, R10).

Deleted content is overwritten in the database (secure_delete). Older copies of its pages are in the write-ahead log, so
upkeep empties that file some seconds after runs were forgotten, and after each start (B6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
from msgspec import Struct

from ninelives.journal.sqlite.database_thread import DatabaseThread
from ninelives.journal.sqlite.fences import Fences
from ninelives.journal.sqlite.load import (
    BUSY_MS,
    LoadedStore,
    connect_other,
    connect_writer,
    lost_entries,
    tip_of,
    verify,
)
from ninelives.journal.sqlite.rows import SQL
from ninelives.journal.sqlite.segments import Segment, pack_all, store_segments
from ninelives.journal.sqlite.space import Space, watch_space
from ninelives.journal.sqlite.tails import JoinableRuns, SealDelay, Tail, Tails
from ninelives.journal.sqlite.tip import TipFile
from ninelives.journal.values import Record, StoreUnavailable

R = TypeVar("R")
Durability = Literal["normal", "full"]
WAL_PAGES = 4000
SOME_PAGES = 1000
"""Under load, upkeep leaves a shorter write-ahead log alone: a checkpoint is two fsyncs, and the next write may have
to wait for them."""
HOT_ROWS = 200_000
UPKEEP_S = 0.25
SCRUB_S = 10.0
"""How long forgotten runs stay in the write-ahead log. All that were forgotten in this time leave it together."""
SCRUB_AGAIN_S = 1.0
SCRUB_WAIT_MS = 100
"""How long emptying the log waits for readers. Writers wait meanwhile."""
TRIM_ROWS = 2000
"""At most so many rows leave the hot table in one transaction (the LIMIT of the query `trim`)."""
CHECK_BYTES = 64 * 1024 * 1024
"""After an unclean stop, a bigger database is not checked at the start; `ninelives store check` does that."""


class Packing(Struct):
    """Records of one tail on their way into segments."""

    run: str
    tail: Tail
    records: list[Record]
    crc: int
    ended: bool
    segments: list[Segment] = []


class SqliteDatabase:
    """One database file. Make one with `await SqliteDatabase.open_at(...)`."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._durability = durability
        self._tip = TipFile(tip_of(path))
        self.lost = 0
        """Committed entries of the last process that a power loss took."""
        self.fences = Fences()
        self.tails = Tails()
        self.joinable = JoinableRuns()
        self.shortage: str | None = None
        """Why nothing new should be stored: the disk is nearly full."""
        self.problem: str | None = None
        """Why sealing, trimming and checkpoints fail at the moment."""
        self._trimmed = 0
        self._wal_pages = 0
        self._checkpointing = threading.Lock()
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._seal_delay = SealDelay()
        self._scrub_at: float | None = None
        """When the write-ahead log must be emptied, by the clock of the loop."""
        self.writer = DatabaseThread(
            "ninelives-writer",
            self._connect_writer,
            "BEGIN IMMEDIATE",
            self._after_commit,
            self.fences.rollback,
            wakes=(self._dirty, self._written),  # upkeep, and the watch of free space
        )
        self.write = self.writer.ask
        """Runs a job in the writer's next transaction."""
        self.reader: DatabaseThread
        self.upkeep_thread: DatabaseThread
        self.upkeep: asyncio.Task[None]
        self._space_watch: asyncio.Task[None] | None = None

    @classmethod
    async def open_at(cls, path: Path, durability: Durability, now: int, space: Space | None) -> SqliteDatabase:
        """Open or create the file, migrate it, verify and load the hot table, start the threads. `now` is the time in
        milliseconds, `space` the disk space to watch."""
        database = cls(path, durability)
        try:
            await database.writer.ready()
            loaded = await database.writer.ask(lambda db: database._load(db, now), quiet=True)
        except BaseException:
            await database.writer.close()
            database._tip.close()
            raise
        database.tails.load(loaded.tails, loaded.end_id)
        database.joinable.add(loaded.joinable, now)
        database.reader = DatabaseThread("ninelives-reader", database._connect_other, "BEGIN")
        database.upkeep_thread = DatabaseThread("ninelives-upkeep", database._connect_other, "")
        await database.reader.ready()
        await database.upkeep_thread.ready()
        database._dirty.set()
        database.scrub_soon()  # the last process may have died before it did
        database.upkeep = asyncio.create_task(database.keep_up(), name="journal upkeep")
        if space is not None:
            watch = watch_space(space, database._note_shortage, database._written)
            database._space_watch = asyncio.create_task(watch, name="space")
        return database

    async def close(self) -> None:
        """Commit the queued jobs and stop the threads. The next start seals what is not sealed yet."""
        tasks = [task for task in (self.upkeep, self._space_watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreUnavailable):  # then the next start checks the file
            await self.writer.ask(lambda db: db.execute(SQL["set_clean"], ("1",)).fetchall(), quiet=True)
        for thread in (self.writer, self.reader, self.upkeep_thread):
            await thread.close()
        self._tip.close()

    # Jobs

    async def ask_fences(self, question: Callable[[Fences], list[R]]) -> list[R]:
        """Ask the fences in the writer thread, which alone may use them. While no run is open, the thread is not woken
        (R19)."""
        if not self.fences.committed:
            return []
        return await self.writer.ask(lambda db: question(self.fences), quiet=True)

    def query(self, job: Callable[[apsw.Connection], R]) -> asyncio.Future[R]:
        """Run a job that only reads. Each is one read transaction, so none lives across an await (R10)."""
        return self.reader.ask(job)

    def execute(self, sql: str, values: Sequence[apsw.SQLiteValue]) -> asyncio.Future[list[Any]]:
        """Write with one statement. Returns its rows."""
        return self.write(lambda db: db.execute(sql, values).fetchall())

    def select(self, sql: str, values: Sequence[apsw.SQLiteValue] = ()) -> asyncio.Future[list[Any]]:
        """Read with one statement. Returns its rows."""
        return self.query(lambda db: db.execute(sql, values).fetchall())

    # Connections

    def _connect_writer(self) -> apsw.Connection:
        db = connect_writer(self._path, self._durability, self._tip)
        db.set_wal_hook(self._note_pages)
        return db

    def _connect_other(self) -> apsw.Connection:
        return connect_other(self._path)

    def _note_pages(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

    def _after_commit(self, db: apsw.Connection) -> None:
        """Must not raise: the batch is committed, whatever happens here."""
        self.fences.commit()
        if self.fences.last_id > self._tip.last:
            self._tip.write(self.fences.last_id)
        if self._wal_pages > WAL_PAGES:
            try:
                self.checkpoint(db)
            except apsw.Error as error:  # a full disk: the next batch tries again
                self.problem = self.writer.note_failure(error)

    def _load(self, db: apsw.Connection, now: int) -> LoadedStore:
        verify(db, CHECK_BYTES)
        loaded = LoadedStore(db, now)
        self.lost = lost_entries(self._tip, loaded.end_id, self._durability)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # until here, closing must leave every file as it is
        self._tip.write(loaded.end_id - 1)
        self.fences.load(loaded.fences, loaded.last_n, loaded.stranded)
        return loaded

    # Upkeep

    def trouble(self) -> str | None:
        """What does not work at the moment, for health: the writer, or upkeep."""
        return str(self.writer.broken) if self.writer.broken is not None else self.problem

    def _note_shortage(self, shortage: str | None) -> None:
        self.shortage = shortage

    async def keep_up(self) -> None:
        """Seal, trim and checkpoint after writes, until cancelled."""
        while True:
            await self._some_work()
            try:
                if not self._seal_delay.is_over(self.tails.end_id, len(self.tails.to_seal)):
                    self._dirty.set()
                else:
                    await self.seal_all()
                if self._wal_pages > SOME_PAGES or (self._wal_pages and not self._dirty.is_set()):
                    await self.upkeep_thread.ask(self.checkpoint)
                await self._scrub_if_due()
                self.problem = None
            except StoreUnavailable as error:
                self.problem = self.writer.note_failure(error)
                if not error.passing:  # the state of the disk is unknown: move and delete nothing until a restart
                    return
                self._dirty.set()
            await asyncio.sleep(UPKEEP_S)

    async def _some_work(self) -> None:
        """Wait for a write, or until the write-ahead log must be emptied."""
        left_s = None if self._scrub_at is None else max(0.0, self._scrub_at - asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._dirty.wait()
        self._dirty.clear()

    async def _scrub_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._scrub_at is None or self._scrub_at > now:
            return
        self._scrub_at, done = None, False  # what is forgotten from here on needs another round
        try:
            done = await self.upkeep_thread.ask(self.scrub)
        finally:
            if not done:
                self._scrub_at = now + SCRUB_AGAIN_S

    def scrub_soon(self) -> None:
        """Something was forgotten that must leave the write-ahead log."""
        if self._scrub_at is None:
            self._scrub_at = asyncio.get_running_loop().time() + SCRUB_S

    async def seal_all(self) -> None:
        """Seal the runs that wait for it, then those that keep too much of the hot table; then trim it."""
        tails = self.tails
        todo, tails.to_seal = list(dict.fromkeys(tails.to_seal)), []
        try:
            while todo:
                some = tails.last_to_pack(todo)
                await self.seal(some)
                del todo[-len(some) :]
        finally:
            tails.to_seal += todo
        while tails.end_id - tails.needed_from() > HOT_ROWS:
            await self.seal([tails.oldest()])
        await self.trim()

    async def seal(self, runs: list[str]) -> None:
        """Pack the tails of `runs` into segments, with one job in each thread. A tail drops its records once the
        segments are committed."""
        end_id, by_run = self.tails.end_id, self.tails.by_run
        tails = [(run, by_run[run]) for run in runs if run in by_run]
        work = [Packing(run, tail, list(tail.records), tail.crc, tail.ended) for run, tail in tails]
        for _, tail in tails:
            tail.packed = True

        def pack(db: apsw.Connection) -> None:
            for one in work:
                one.segments = pack_all(one.records, one.crc)

        def store(db: apsw.Connection) -> None:
            store_segments(db, [(one.tail.n, one.segments) for one in work if one.segments])

        await self.upkeep_thread.ask(pack)
        await self.writer.ask(store, quiet=True)
        for one in work:
            if one.segments:
                one.tail.drop_first(len(one.records), one.segments[-1].crc_after, end_id)
            if one.ended and not one.tail.records and by_run.get(one.run) is one.tail:
                del by_run[one.run]

    async def trim(self) -> None:
        """Delete the rows of the hot table that no tail needs, in slices."""
        floor = self.tails.needed_from()
        while floor > self._trimmed:
            if await self.writer.ask(partial(_trim, floor), quiet=True) < TRIM_ROWS:
                self._trimmed = floor

    def checkpoint(self, db: apsw.Connection) -> None:
        """Copy the write-ahead log into the database, as far as readers allow. One thread at a time."""
        with self._checkpointing:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def scrub(self, db: apsw.Connection) -> bool:
        """Empty the write-ahead log. False if a reader or a writer is in the way. Only the last frames are copied while
        writers wait, because the first checkpoint does not block them."""
        with self._checkpointing:
            db.set_busy_timeout(SCRUB_WAIT_MS)
            try:
                frames, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if copied < frames:
                    return False
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
            finally:
                db.set_busy_timeout(BUSY_MS)
        return True


def _trim(floor: int, db: apsw.Connection) -> int:
    """Delete up to TRIM_ROWS rows below `floor` from the hot table. Returns how many."""
    db.execute(SQL["trim"], (floor,))
    return db.changes()

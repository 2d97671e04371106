"""The journal on one machine: SQLite through apsw. Owns: the database file, its three threads (writer, reader,
upkeep), the tails of runs in memory and the sealing of runs into segments. Refuses to know: what an event means.

Theory of operation. All writes go over one desk (desk.py), whose batches are transactions. The hot table `entries`
is append-only and has no index on (run, seq): a reader finds the newest records of a run in its Tail in memory and
older ones in segments; only a start reads the hot table, once, in the order of writing. When a run ends, is parked or
its tail grows long, its records are packed into segments by the upkeep thread and written by the writer; then the
tail forgets them. Rows below the lowest id that any tail needs are deleted in slices. The order "segment committed,
then tail forgets" means a reader that misses the tail finds the segment. Checkpoints run on the upkeep connection
(wal_autocheckpoint is 0 on the writer), and on the writer itself, between two batches, once the WAL is past its
bound. No read transaction lives across an await: each is one job on the reader's desk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core.spec import Resolved
from holdfast.journal import sqlite_rows, sqlite_segments
from holdfast.journal.base import (
    Attached,
    Claim,
    Opened,
    Opening,
    Query,
    Record,
    Row,
    Signal,
    Slice,
    StoreUnavailable,
    Verdict,
)
from holdfast.journal.base_peers import Alone
from holdfast.journal.desk import Desk, told
from holdfast.journal.segments import origin
from holdfast.journal.space import Space, mind
from holdfast.journal.sqlite_conversations import SqliteConversations
from holdfast.journal.sqlite_deliveries import SqliteDeliveries
from holdfast.journal.sqlite_load import Loaded, compare, connect_other, connect_writer, verify
from holdfast.journal.sqlite_rows import SQL, Fences, Written
from holdfast.journal.sqlite_sessions import SqliteSessions
from holdfast.journal.sqlite_upkeep import SqliteUpkeep
from holdfast.journal.tails import SPILL_BYTES, Patience, Tail, needed_from, oldest, some_of
from holdfast.journal.watermark import Watermark

T = TypeVar("T")
Durability = Literal["normal", "full"]
WAL_PAGES = 4000
SOME_PAGES = 1000
"""Under load a shorter WAL is left alone: a checkpoint is two fsyncs, which the next write may wait for."""
HOT_ROWS = 200_000
UPKEEP_S = 0.25
CHECK_BYTES = 64 * 1024 * 1024
"""A bigger database is not looked through after an unclean stop: `holdfast store check` does it."""


class SqliteStore:
    """Journal, Catalog and Pending in one database file. Make one with `await SqliteStore.open_at(...)`."""

    peers = Alone()

    def __init__(self, path: Path, durability: Durability, clock: Callable[[], float], lease_s: float) -> None:
        self._path = path
        self._durability = durability
        self._clock = clock
        self._lease_s = lease_s
        self._fences = Fences()
        self._mark = Watermark(path.with_suffix(".mark"))
        self.lost = 0
        """Entries of the last process that the machine lost with its power."""
        self._tails: dict[str, Tail] = {}
        self._end_id = 1
        self._trimmed = 0
        self._wal_pages = 0
        self._checkpointing = threading.Lock()
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._to_seal: list[str] = []
        self._patience = Patience()
        self._writer: Desk[Any] = Desk(
            "holdfast-writer", self._connect_writer, "BEGIN IMMEDIATE", self._after_commit, self._fences.rollback
        )
        self._reader: Desk[Any]
        self._keeping: Desk[Any]
        self._upkeep: asyncio.Task[None]
        self._watch: asyncio.Task[None] | None = None
        self.sessions = SqliteSessions(self._write, self._query)
        self.deliveries = SqliteDeliveries(self._write)
        self.conversations = SqliteConversations(self._write, self._query, self._fences, self._tails)
        self.upkeep = SqliteUpkeep(self._write, self._query, self._fences, self._tails, self._writer)

    @classmethod
    async def open_at(
        cls,
        path: Path,
        durability: Durability,
        clock: Callable[[], float],
        lease_s: float = 15.0,
        space: Space | None = None,
    ) -> SqliteStore:
        """Open or create the database, migrate it, verify and load what is hot, start the threads. `space` is the
        room that it minds."""
        store = cls(path, durability, clock, lease_s)
        try:
            await store._writer.ready()
            await store._writer.ask(store._load)
        except BaseException:
            await store._writer.close()
            store._mark.close()
            raise
        store._reader = Desk("holdfast-reader", store._connect_other, "BEGIN")
        store._keeping = Desk("holdfast-upkeep", store._connect_other, "")
        await store._reader.ready()
        await store._keeping.ready()
        store._dirty.set()
        store._upkeep = asyncio.create_task(store._keep_up(), name="journal upkeep")
        if space is not None:
            store._watch = asyncio.create_task(mind(space, store.upkeep.told_room, store._written), name="space")
        return store

    async def close(self) -> None:
        """Commit what waits, stop the threads. What was not sealed is sealed at the next start."""
        tasks = [task for task in (self._upkeep, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreUnavailable):  # then the next start looks through the file
            await self._writer.ask(lambda db: db.execute(SQL["set_clean"], ("1",)) and None)
        for desk in (self._writer, self._reader, self._keeping):
            await desk.close()
        self._mark.close()

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        until = self._clock() + self._lease_s

        def opened(done: tuple[Opened, int, int] | Attached) -> Opened | Attached:
            if isinstance(done, Attached):
                return done
            new, n, first_id = done
            tail = Tail(opening.asked.owner, n, [], origin(new.run), first_id, ended=opening.ended is not None)
            self._tails[new.run] = tail
            tail.add(new.records, first_id)
            if tail.ended:
                self._to_seal.append(new.run)
            self._end_id = max(self._end_id, first_id + len(new.records))
            return new

        return await self._write(lambda db: sqlite_rows.open_run(db, self._fences, opening, until), opened)

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        return await self._write(
            lambda db: sqlite_rows.append(db, self._fences, slices), lambda written: self._appended(slices, written)
        )

    def _appended(self, slices: Sequence[Slice], written: Written) -> list[Verdict]:
        place, fenced = written.first_id, Verdict.FENCED
        for part, verdict in zip(slices, written.verdicts, strict=True):
            if verdict is fenced:
                continue
            tail = self._tails[part.run]
            tail.add(part.records, place)
            place += len(part.records)
            if part.mark or tail.size > SPILL_BYTES:
                tail.ended = bool(part.mark and part.mark.ended)
                self._to_seal.append(part.run)
        self._end_id = max(self._end_id, place)
        return written.verdicts

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        now = self._clock()
        lease = (now, now + self._lease_s)

        def claimed(done: tuple[Claim, Written] | None) -> Claim | None:
            if done is None:
                return None
            claim, written = done
            self._tails[run].add([claim.record], written.first_id)
            self._end_id = max(self._end_id, written.first_id + 1)
            return claim

        return await self._write(
            lambda db: sqlite_rows.claim(db, self._fences, (run, holder, at), lease, first), claimed
        )

    async def beat(self, holder: str) -> None:
        """See Journal.beat. Leases live in memory: with the process, all of them are over."""
        if not self._fences.settled:  # nothing is held: the writer, and with it the upkeep, may sleep on
            return
        now = self._clock()
        await self._write(lambda db: self._renew(holder, now))

    def _renew(self, holder: str, now: float) -> None:
        for run in self._fences.settled:
            fence = self._fences.get(run)  # as this transaction has it: a run that ends in it has none any more
            if fence is not None and fence.holder == holder and fence.lease_until > now:
                self._fences.put(run, replace(fence, lease_until=now + self._lease_s))

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """See Journal.read."""
        tail = self._tails.get(run)
        if tail is not None:
            if tail.owner != owner:
                return []
            page = tail.page(after)
            if page is not None:
                return page
        return await self._query(lambda db: sqlite_segments.read_segment(db, owner, run, after))

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        return await self._write(lambda db: sqlite_rows.signal(db, self._fences, owner, signal))

    async def delete(self, owner: str, run: str, at: int = 0) -> bool:
        """See Journal.delete."""
        how = ((owner, run), at, sqlite_rows.DELETED)

        def deleted(gone: bool) -> bool:
            if gone:
                self._tails.pop(run, None)
            return gone

        return await self._write(lambda db: sqlite_rows.hide(db, self._fences, *how), deleted)

    # Catalog and Pending

    async def find(self, owner: str, run: str) -> Row | None:
        """See Catalog.find."""
        return await self._query(lambda db: next(sqlite_rows.rows_of(db, "find", (owner, run)), None))

    async def rows(self, query: Query) -> list[Row]:
        """See Catalog.rows."""
        statuses = f",{','.join(query.statuses)}," if query.statuses else ""
        values = (query.owner, query.dialect, statuses, query.key, query.after, query.limit, query.but)
        name = "rows_up" if query.ascending else "rows_down"
        return await self._query(lambda db: list(sqlite_rows.rows_of(db, name, values)))

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        decision = await self._query(lambda db: admission.decide(asked, sqlite_rows.found(db, asked)))
        if not isinstance(decision, admission.Accept):
            raise ValueError("a request that is not stored has no idempotency key")
        return decision.resolved

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.previous is None and resolved.session_turns is None:
            return []
        return await self._query(lambda db: sqlite_rows.turns(db, owner, resolved))

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        """See Catalog.remember."""
        await self._write(lambda db: db.execute(SQL["add_turn"], (owner, session, at, None, turn)) and None)

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """See Catalog.claimable."""
        now = self._clock()
        return await self._write(lambda db: self._free(limit, now))

    def _free(self, limit: int, now: float) -> list[tuple[str, str]]:
        free = [
            (fence.n, fence.owner, run)
            for run, fence in self._fences.settled.items()
            if fence.holder is None or fence.lease_until <= now
        ]
        return [(owner, run) for _, owner, run in sorted(free)[:limit]]

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return bool(await self._write(lambda db: db.execute(SQL["annotate"], (owner, run, metadata)).fetchall()))

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        rows: list[Any] = await self._query(lambda db: db.execute(SQL["signals"], (run,)).fetchall())
        return [Signal(*row) for row in rows]

    async def grant(self, owner: str, session: str, tool: str) -> None:
        """See Pending.grant."""
        await self._write(lambda db: db.execute(SQL["grant"], (owner, session, tool)) and None)

    async def granted(self, owner: str, session: str, tool: str) -> bool:
        """See Pending.granted."""
        return bool(await self._query(lambda db: db.execute(SQL["granted"], (owner, session, tool)).fetchall()))

    # Threads and connections

    async def _write(self, job: Callable[[apsw.Connection], Any], then: Callable[[Any], T] = told) -> T:
        def committed(result: Any) -> T:
            self._dirty.set()
            self._written.set()
            return then(result)

        return await self._writer.ask(job, committed)  # type: ignore[no-any-return]

    async def _query(self, job: Callable[[apsw.Connection], T]) -> T:
        return await self._reader.ask(job)  # type: ignore[no-any-return]

    def _connect_writer(self) -> apsw.Connection:
        db = connect_writer(self._path, self._durability, self._mark)
        db.set_wal_hook(self._note_pages)
        return db

    def _connect_other(self) -> apsw.Connection:
        return connect_other(self._path)

    def _note_pages(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

    def _after_commit(self, db: apsw.Connection) -> None:
        """Must not raise: the batch is committed, whatever happens here."""
        self._fences.commit()
        if self._fences.last_id > self._mark.last:
            self._mark.note(self._fences.last_id)
        if self._wal_pages > WAL_PAGES:
            try:
                self._checkpoint(db)
            except apsw.Error as error:  # a full disk: the next batch tries again
                self.upkeep.problem = self._writer.condemn(error)

    def _load(self, db: apsw.Connection) -> None:
        verify(db, CHECK_BYTES)
        loaded = Loaded(db)
        self.lost = compare(self._mark, loaded.end_id, self._durability)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # until here, closing must leave every file as it is
        self._mark.note(loaded.end_id - 1)
        self._fences.settled, self._end_id = loaded.fences, loaded.end_id
        self._tails.update(loaded.tails)
        self._to_seal = [run for run, tail in self._tails.items() if tail.ended or tail.size > SPILL_BYTES]

    # Upkeep

    async def _keep_up(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                if not self._patience.over(self._end_id, len(self._to_seal)):
                    self._dirty.set()
                else:
                    await self._seal_all()
                if self._wal_pages > SOME_PAGES or (self._wal_pages and not self._dirty.is_set()):
                    await self._keeping.ask(self._checkpoint)
                self.upkeep.problem = None
            except StoreUnavailable as error:
                self.upkeep.problem = self._writer.condemn(error)
                if not error.passing:  # what the disk did is unknown: nothing is moved or deleted until a restart
                    return
                self._dirty.set()
            await asyncio.sleep(UPKEEP_S)

    async def _seal_all(self) -> None:
        todo, self._to_seal = list(dict.fromkeys(self._to_seal)), []
        try:
            while todo:
                some = some_of(todo, self._tails)
                await self._seal(some)
                del todo[-len(some) :]
        finally:
            self._to_seal += todo
        while self._end_id - needed_from(self._tails, self._end_id) > HOT_ROWS:
            await self._seal([oldest(self._tails)])
        await self._trim()

    async def _seal(self, runs: list[str]) -> None:
        """Pack what tails hold, in one hop each way; they forget it once the segments are committed."""
        end_id, known = self._end_id, [(run, self._tails[run]) for run in runs if run in self._tails]
        full = [(tail.n, list(tail.records), tail.crc) for _, tail in known]
        ended = [tail.ended for _, tail in known]
        packed = await self._keeping.ask(lambda db: [sqlite_segments.pack_all(held, crc) for _, held, crc in full])
        await self._writer.ask(lambda db: sqlite_segments.store_all(db, full, packed))
        for (run, tail), (_, records, _), segments, over in zip(known, full, packed, ended, strict=True):
            if segments:
                tail.forget(len(records), segments[-1][3], end_id)
            if over and not tail.records and self._tails.get(run) is tail:
                del self._tails[run]

    async def _trim(self) -> None:
        floor = needed_from(self._tails, self._end_id)
        while floor > self._trimmed:
            gone = await self._writer.ask(lambda db: sqlite_segments.trim_slice(db, floor))
            if gone < 2000:
                self._trimmed = floor

    def _checkpoint(self, db: apsw.Connection) -> None:
        with self._checkpointing:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

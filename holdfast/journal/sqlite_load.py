"""Opening a SQLite store. Owns: connections and their pragmas, migrations, and the one scan of the hot table at start
that verifies checksums and rebuilds fences and tails. Refuses to know: threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast.core.errors import Damaged
from holdfast.journal import queries
from holdfast.journal.base import NewerStore as NewerStore
from holdfast.journal.base import Record
from holdfast.journal.segments import link
from holdfast.journal.sqlite_rows import SQL, Fence
from holdfast.journal.tails import Tail
from holdfast.journal.watermark import Watermark


def connect(path: Path) -> apsw.Connection:
    """A connection that waits for others and never checkpoints by itself."""
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.set_busy_timeout(5000)
    pragma(db, "wal_autocheckpoint", 0)
    return db


def connect_writer(path: Path, durability: str, mark: Watermark) -> apsw.Connection:
    """The writer's connection, to a database that is there and whose schema is this release's."""
    if not path.exists():  # before SQLite makes it: the WAL beside it gets the mode that it has then
        path.touch(0o600)
    refuse_emptied(path, mark)
    db = connect(path)
    try:
        refuse_newer(db)
        path.chmod(0o600)
        pragma(db, "journal_mode", "wal")
        pragma(db, "synchronous", {"normal": 1, "full": 2}[durability])
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def connect_other(path: Path) -> apsw.Connection:
    """A further connection. One that has read nothing does not know of the log: it would checkpoint nothing, without a
    word."""
    db = connect(path)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    db.execute(SQL["clean"]).fetchall()
    return db


def pragma(db: apsw.Connection, name: str, value: str | int) -> None:
    """Set one pragma, read it back, and make sure that it took."""
    db.pragma(name, value)
    seen = db.pragma(name)
    if seen != value:
        raise RuntimeError(f"SQLite refused {name} = {value}: it says {seen}")


def refuse_newer(db: apsw.Connection) -> None:
    """Raise NewerStore, with every file as it was, where this release does not know the schema."""
    version: Any = db.pragma("user_version")
    known = queries.migrations()[-1][0]
    if version > known:
        raise NewerStore(
            f"the store has schema {version}, this release knows {known}: upgrade holdfast (nothing was touched)"
        )


def refuse_emptied(path: Path, mark: Watermark) -> None:
    """Raise Damaged before SQLite looks at a file that was emptied: it would throw away the log beside it."""
    if mark.last and mark.same_boot and path.stat().st_size == 0:
        raise Damaged(f"the database is empty, though {mark.last} entries were written to it")


def migrate(db: apsw.Connection) -> None:
    """Bring the schema up, one numbered step at a time, each in its own transaction."""
    version: Any = db.pragma("user_version")
    for number, script in queries.migrations():
        if number > version:
            db.execute("BEGIN IMMEDIATE")
            db.execute(script)
            db.pragma("user_version", number)
            db.execute("COMMIT")


def verify(db: apsw.Connection, bound: int) -> None:
    """After an unclean stop, look through the whole file, where it is not bigger than `bound`; then call it unclean
    until it is closed again."""
    was_clean = rows(db, "clean")[0][0] == "1"
    size: Any = db.pragma("page_count")
    if not was_clean and size * int(db.pragma("page_size")) <= bound:
        said: Any = db.execute("PRAGMA quick_check(1)").fetchall()[0][0]
        if said != "ok":
            raise Damaged(f"SQLite's own check says: {said}")
    db.execute(SQL["set_clean"], ("0",))


def compare(mark: Watermark, end_id: int, durability: str) -> int:
    """How many entries the last process committed that are not there: 0, or what a machine that lost its power may
    lose. Damaged where nothing may be lost."""
    lost = max(0, mark.last - end_id + 1)
    if lost and (mark.same_boot or durability == "full"):
        raise Damaged(
            f"the last {lost} entries that were committed are gone: the write-ahead log (holdfast.db-wal) is damaged "
            "or missing (where you put an older copy of the database there yourself, remove holdfast.mark)"
        )
    return lost


def rows(db: apsw.Connection, query: str) -> list[tuple[Any, ...]]:
    """All rows of a named query without parameters."""
    return db.execute(SQL[query]).fetchall()


class Loaded:
    """What a start finds in the store."""

    def __init__(self, db: apsw.Connection) -> None:
        self.fences: dict[str, Fence] = {}
        self.tails: dict[str, Tail] = {}
        self.end_id = 1
        places: dict[int, tuple[str, int]] = {}
        least: dict[str, int] = {}
        for owner, run, n, attempt, parked, sealed, crc, conversation, last in rows(db, "open_runs"):
            self.fences[run] = Fence(owner, n, attempt, sealed, crc, bool(parked), conversation=conversation)
            self.tails[run] = Tail(owner, n, [], crc, 1)
            places[n], least[run] = (run, sealed), last
        for owner, run, n, sealed, crc, last in rows(db, "hot_runs"):
            self.tails[run] = Tail(owner, n, [], crc, 1, ended=True)
            places[n], least[run] = (run, sealed), last
        self._scan(db, places)
        self._check_ends(least, {run: sealed for run, sealed in places.values()})

    def _check_ends(self, least: dict[str, int], sealed: dict[str, int]) -> None:
        """The row of a run knows how far its log went at the last claim, park or end: it cannot be shorter."""
        for run, last in least.items():
            records = self.tails[run].records
            if (records[-1].seq if records else sealed[run]) < last:
                raise Damaged(f"run {run}: its last entries are gone, up to {last} were written")

    def _scan(self, db: apsw.Connection, places: dict[int, tuple[str, int]]) -> None:
        crcs = {run: tail.crc for run, tail in self.tails.items()}
        hot: Any = db.execute(SQL["hot_rows"])
        for row_id, n, seq, attempt, at, told, data in hot:
            self.end_id = row_id + 1
            run, sealed = places.get(n, ("", 0))
            if not run or seq <= sealed:
                continue
            tail = self.tails[run]
            record = Record(seq, attempt, at, data)
            crcs[run] = link(crcs[run], record)
            expected = tail.records[-1].seq + 1 if tail.records else sealed + 1
            if crcs[run] != told or seq != expected:
                raise Damaged(f"run {run}: the checksum of entry {seq} does not hold")
            tail.add([record], row_id)
        for run, fence in self.fences.items():
            if records := self.tails[run].records:
                last = records[-1]
                attempt = max(fence.attempt, last.attempt)
                self.fences[run] = replace(fence, attempt=attempt, seq=last.seq, crc=crcs[run])

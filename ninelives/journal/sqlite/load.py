"""Opening a SQLite store. Owns: file names, connections and their pragmas, migrations, and the scan of the hot table at
start, which verifies checksums and rebuilds fences and tails. Refuses to know: threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from ninelives.core.errors import Damaged
from ninelives.journal import queries
from ninelives.journal.format import WRITTEN, refuse_newer_format
from ninelives.journal.segments import link
from ninelives.journal.sqlite.fences import Fence
from ninelives.journal.sqlite.rows import SQL
from ninelives.journal.sqlite.tails import Tail
from ninelives.journal.sqlite.tip import TipFile
from ninelives.journal.values import Gone, Record
from ninelives.journal.values import NewerStore as NewerStore

NAME = "ninelives.db"
BUSY_MS = 5000
"""How long a connection waits for a lock."""
CARRIED_AT_ONCE = 64
"""How many segments of an older schema one transaction carries over: at most about 16 MB."""
_NAME_0_1 = "holdfast.db"
"""Version 0.1.0 used this name. Its data directories are used in place and keep their names."""


def _count_no_memory() -> None:
    """SQLite counts the memory that it uses, under a mutex, which was a tenth of the instructions of a write. Nobody
    reads that count. It can be switched off only while no connection is open."""
    if not apsw.connections():
        apsw.shutdown()
        apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)
        apsw.initialize()


_count_no_memory()


def database_in(folder: Path) -> Path:
    """The database file of a data directory or a backup, whether or not it exists. A tip file alone also decides: it
    proves that a database is missing (P14)."""
    old, new = folder / _NAME_0_1, folder / NAME
    return old if (old.exists() or tip_of(old).exists()) and not new.exists() else new


def tip_of(database: Path) -> Path:
    """The tip file beside a database (tip.py); version 0.1.0 called it `.mark`."""
    return database.with_suffix(".mark" if database.name == _NAME_0_1 else ".tip")


def connect(path: Path) -> apsw.Connection:
    """A connection that waits for locks and never checkpoints by itself."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
    db = apsw.Connection(str(path), flags)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Plans do not depend on bound values. Otherwise a query beside a partial index is planned anew on each call.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    db.set_busy_timeout(BUSY_MS)
    pragma(db, "wal_autocheckpoint", 0)
    pragma(db, "temp_store", 2)  # in memory: no content in temporary files
    pragma(db, "secure_delete", 1)  # what is deleted is overwritten (B6)
    return db


def connect_writer(path: Path, durability: str, tip: TipFile) -> apsw.Connection:
    """The writer's connection. Creates or migrates the database."""
    if not path.exists():  # before SQLite creates it: the write-ahead log gets the same mode
        path.touch(0o600)
    refuse_emptied(path, tip)
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
    """A further connection. It reads once, because a connection that has read nothing does not see the write-ahead log:
    its checkpoints would silently do nothing."""
    db = connect(path)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    db.execute(SQL["clean"]).fetchall()
    return db


def pragma(db: apsw.Connection, name: str, value: str | int) -> None:
    """Set a pragma, and read it back to make sure."""
    db.pragma(name, value)
    seen = db.pragma(name)
    if seen != value:
        raise RuntimeError(f"SQLite refused {name} = {value}; the value is {seen}")


def refuse_newer(db: apsw.Connection) -> None:
    """Raise NewerStore if this release does not know the schema. No file is changed."""
    version: Any = db.pragma("user_version")
    known = queries.migrations("sqlite")[-1][0]
    if 0 < version <= known:
        refuse_newer_format(_format(db))
    if version > known:
        raise NewerStore(
            f"the store has schema {version}, this release supports {known}: upgrade ninelives (nothing was changed)"
        )


def refuse_emptied(path: Path, tip: TipFile) -> None:
    """Raise Damaged if the file was emptied, before SQLite opens it and discards the write-ahead log."""
    if tip.last and tip.same_boot and path.stat().st_size == 0:
        raise Damaged(f"the database is empty, though {tip.last} entries were written to it")


def migrate(db: apsw.Connection) -> None:
    """Apply the missing migrations, each in its own transaction."""
    version: Any = db.pragma("user_version")
    for number, script in queries.migrations("sqlite"):
        if number > version:
            db.execute("BEGIN IMMEDIATE")
            db.execute(script)
            db.pragma("user_version", number)
            db.execute("COMMIT")
    _carry_segments(db)
    if _format(db) != WRITTEN:
        db.execute(SQL["set_format"], (WRITTEN,))


def _carry_segments(db: apsw.Connection) -> None:
    """Give segments of older releases their owner (migration 10), some at a time: the write-ahead log and the file stay
    small. A start that dies in between is continued by the next one."""
    if not rows(db, "uncarried"):
        return
    left = True
    while left:
        with db:
            db.execute(SQL["carry_segments"], (CARRIED_AT_ONCE,))
            db.execute(SQL["carried_segments"], (CARRIED_AT_ONCE,))
            left = db.changes() > 0
        if left:
            db.wal_checkpoint()
    db.execute(SQL["end_carrying"])


def _format(db: apsw.Connection) -> str | None:
    found = rows(db, "format")
    return str(found[0][0]) if found else None


def verify(db: apsw.Connection, bound: int) -> None:
    """After an unclean stop, check the whole file if it is not bigger than `bound`. Then mark the store as unclean,
    until it is closed."""
    was_clean = rows(db, "clean")[0][0] == "1"
    size: Any = db.pragma("page_count")
    if not was_clean and size * int(db.pragma("page_size")) <= bound:
        result: Any = db.execute("PRAGMA quick_check(1)").fetchall()[0][0]
        if result != "ok":
            raise Damaged(f"SQLite's own check says: {result}")
    db.execute(SQL["set_clean"], ("0",))


def lost_entries(tip: TipFile, end_id: int, durability: str) -> int:
    """How many committed entries are missing: none, or what a power loss may take. Raises Damaged if there was no power
    loss, or if durability is "full"."""
    lost = max(0, tip.last - end_id + 1)
    if lost and (tip.same_boot or durability == "full"):
        raise Damaged(
            f"the last {lost} entries that were committed are gone: the write-ahead log (the -wal file) is damaged "
            "or missing (if you put an older copy of the database there yourself, remove the tip file beside it)"
        )
    return lost


def rows(db: apsw.Connection, query: str) -> list[tuple[Any, ...]]:
    """All rows of a named query without parameters."""
    return db.execute(SQL[query]).fetchall()


def _waiting(fence: Fence, conversation: str | None, columns: list[Any], now: int) -> Fence:
    """The fence with what the run waits for. A caller who waited at the last process is gone since the start: the row
    says so as soon as Deliveries.strand is called."""
    kept, resend_ms, waits, lost_at, wake_at, asks = columns
    return replace(
        fence,
        conversation=conversation if kept == "stored" else None,
        kept=kept,
        resend_ms=resend_ms,
        lost_at=now if waits else lost_at,
        wake_at=wake_at,
        asks=asks,
    )


class LoadedStore:
    """Fences and tails as a start finds them in the store."""

    def __init__(self, db: apsw.Connection, now: int) -> None:
        """`now` is the time of the start, in milliseconds."""
        self.fences: dict[str, Fence] = {}
        self.tails: dict[str, Tail] = {}
        self.end_id = 1
        self.last_n = int(rows(db, "last_number")[0][0])
        self.stranded: list[Gone] = rows(db, "waited_for")
        self.joinable: list[Any] = db.execute(SQL["joinable"], (now,)).fetchall()
        places: dict[int, tuple[str, int]] = {}
        least: dict[str, int] = {}
        for owner, run, n, attempt, parked, sealed, crc, conversation, last, *waiting in rows(db, "open_runs"):
            fence = Fence(owner=owner, n=n, attempt=attempt, seq=sealed, crc=crc, parked=bool(parked))
            self.fences[run] = _waiting(fence, conversation, waiting, now)
            self.tails[run] = Tail(owner, n, [], crc, 1, brief=self.fences[run].kept == "delivery")
            places[n], least[run] = (run, sealed), last
        for run, kind, key in rows(db, "all_signals"):
            if run in self.fences:
                fence = self.fences[run]
                self.fences[run] = replace(fence, signals=fence.signals | {(kind, key)})
        for owner, run, n, sealed, crc, last, kept in rows(db, "hot_runs"):
            self.tails[run] = Tail(owner, n, [], crc, 1, ended=True, brief=kept == "delivery")
            places[n], least[run] = (run, sealed), last
        self._scan(db, places)
        self._check_ends(least, {run: sealed for run, sealed in places.values()})

    def _check_ends(self, least: dict[str, int], sealed: dict[str, int]) -> None:
        """A log cannot be shorter than its run's row says, which is written at each claim, park and end."""
        for run, last in least.items():
            records = self.tails[run].records
            if (records[-1].seq if records else sealed[run]) < last:
                raise Damaged(f"run {run}: its last entries are gone, up to {last} were written")

    def _scan(self, db: apsw.Connection, places: dict[int, tuple[str, int]]) -> None:
        crcs = {run: tail.crc for run, tail in self.tails.items()}
        hot: Any = db.execute(SQL["hot_rows"])
        for row_id, owner, n, seq, attempt, at, crc, data in hot:
            self.end_id = row_id + 1
            run, sealed = places.get(n, ("", 0))
            if not run or seq <= sealed:
                continue
            tail = self.tails[run]
            if owner != tail.owner:
                raise Damaged(f"run {run}: entry {seq} belongs to another owner")
            record = Record(seq, attempt, at, data)
            crcs[run] = link(crcs[run], record)
            expected = tail.records[-1].seq + 1 if tail.records else sealed + 1
            if crcs[run] != crc or seq != expected:
                raise Damaged(f"run {run}: the checksum of entry {seq} does not hold")
            tail.add([record], row_id)
        for run, fence in self.fences.items():
            if records := self.tails[run].records:
                last = records[-1]
                attempt = max(fence.attempt, last.attempt)
                self.fences[run] = replace(fence, attempt=attempt, seq=last.seq, crc=crcs[run])

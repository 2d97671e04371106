"""A SQLite store as one side of a move. Owns: a data directory as a Carrier, which reads all rows of a database or
builds a new one from rows. Refuses to know: where the rows come from or go to.

Theory of operation. As the source, the directory is locked and opened once as a server would open it: an old schema is
migrated and a damaged store is refused. Then all rows are read in one snapshot. As the target, a database is built in a
`.part` file. It gets its name only after all of it was read back and compared. A move that was cut off leaves the
`.part` file, which the next move deletes, and never half a store."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import astuple, replace

from ninelives.core.errors import Damaged
from ninelives.journal import move as c
from ninelives.journal import queries
from ninelives.journal.move import Carried, InUse
from ninelives.journal.segments import origin
from ninelives.journal.sqlite.load import NAME, connect, database_in, migrate, tip_of
from ninelives.journal.sqlite.lock import DirectoryHeld, DirectoryLock
from ninelives.journal.sqlite.maintenance import MOVED, hot_of, records_of, set_aside
from ninelives.journal.sqlite.rows import SQL as ROWS
from ninelives.journal.sqlite.segments import pack_all, store_segments
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Record

SQL = queries.load("sqlite", "move")
PAGE = 1000
KINDS: dict[type[Carried], tuple[str, str]] = {
    c.CarriedKey: ("keys", "put_key"),
    c.CarriedConversation: ("conversations", "put_conversation"),
    c.CarriedEdit: ("edits", "put_edit"),
    c.CarriedTurn: ("turns", "put_turn"),
    c.CarriedSession: ("sessions", "put_session"),
    c.CarriedText: ("texts", "put_text"),
    c.CarriedSignal: ("signals", "put_signal"),
    c.CarriedGrant: ("grants", "put_grant"),
    c.CarriedUsage: ("usage", "put_usage"),
    c.CarriedApiKey: ("api_keys", "put_api_key"),
    c.CarriedAudit: ("audit", "put_audit"),
}
"""Kinds that are carried unchanged, in order, each with the queries that read and write it."""
_BOOLS = ("parked", "ended", "chains", "waits", "pinned", "delivered")


class SqliteCarrier:
    """See journal.move.Carrier."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._part = data / f"{NAME}.part"
        self._lock: DirectoryLock | None = None
        self._db: apsw.Connection | None = None
        self._secret = b""
        self._run: tuple[c.CarriedRun, list[Record]] | None = None
        """The run that was put last, with the part of its log that arrived so far."""

    async def lend(self) -> None:
        """See Carrier.lend."""
        path = database_in(self._data)
        if not path.exists():
            raise InUse(f"there is no store in {self._data}.")
        self._lock_directory()
        store = await SqliteStore.open_at(path, "normal", lambda: time.time_ns() // 1_000_000)
        await store.close()
        self._secret = (self._data / "secret").read_bytes() if (self._data / "secret").exists() else b""
        self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._db.execute("BEGIN")

    async def receive(self) -> None:
        """See Carrier.receive."""
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_directory()
        database = database_in(self._data)
        if database.exists() or tip_of(database).exists():
            raise InUse(f"{self._data} has a store: `ninelives store set-aside` moves it out of the way.")
        self._clear()
        os.close(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._db = connect(self._part)
        migrate(self._db)
        self._db.execute("BEGIN IMMEDIATE")

    def _lock_directory(self) -> None:
        try:
            self._lock = DirectoryLock(self._data)
        except DirectoryHeld as error:
            raise InUse(str(error)) from error

    def _open(self) -> apsw.Connection:
        if self._db is None:
            raise RuntimeError("call lend() or receive() first")
        return self._db

    async def rows(self) -> AsyncIterator[Carried]:
        """See Carrier.rows."""
        db = self._open()
        self._finish_run(db)
        yield c.CarriedSecret(self._secret)
        for row in _runs(db):
            yield row
        for kind, (query, _) in KINDS.items():
            found: Any = db.execute(SQL[query])
            for values in found:
                yield _carried(kind, values)

    async def put(self, row: Carried) -> None:
        """See Carrier.put."""
        db = self._open()
        match row:
            case c.CarriedLog():
                if self._run is None or self._run[0].id != row.run:
                    raise ValueError("a log must follow its run")
                self._run[1].extend(row.records)
                return
            case c.CarriedSecret():
                self._accept_secret(row.value)
                return
        self._finish_run(db)
        if isinstance(row, c.CarriedRun):
            self._run = (row, [])
        else:
            db.execute(SQL[KINDS[type(row)][1]], astuple(row))

    def _finish_run(self, db: apsw.Connection) -> None:
        """Write the last run and its log, packed into segments like that of a parked run."""
        if self._run is None:
            return
        (run, records), self._run = self._run, None
        values = [int(v) if isinstance(v, bool) else v for v in astuple(run)]
        sealed = run.last_seq if run.hidden else -1
        found: Any = db.execute(SQL["put_run"], (*values, sealed, origin(run.id), len(run.turn or b""))).fetchone()
        if records:
            store_segments(db, [(int(found[0]), pack_all(records, origin(run.id)))])

    def _accept_secret(self, value: bytes) -> None:
        path = self._data / "secret"
        if path.exists() and path.read_bytes() != value:
            raise InUse(
                f"{path} differs from the secret of the store that moves: move it away, or choose a new directory."
            )
        self._secret = value

    async def keep(self) -> None:
        """See Carrier.keep."""
        db = self._open()
        db.execute(ROWS["set_clean"], ("1",))
        db.execute("COMMIT")
        db.close()
        self._db = None
        if self._secret:
            self._write_secret()
        _sync(self._part)
        self._part.rename(self._data / NAME)
        (self._data / MOVED).unlink(missing_ok=True)
        _sync(self._data)

    def _write_secret(self) -> None:
        draft = self._data / f"secret.{secrets.token_hex(4)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self._secret)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._data / "secret")

    async def retire(self) -> str:
        """See Carrier.retire."""
        if self._db is not None:
            self._db.close()
            self._db = None
        (self._data / MOVED).write_text(time.strftime("%Y-%m-%d %H:%M:%S\n"))
        aside = set_aside(self._data, f"moved-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        return f"the old database is now in {aside}; workspaces and key stay in place"

    async def close(self) -> None:
        """See Carrier.close."""
        if self._db is not None:
            self._db.close()
            self._db = None
            self._clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _clear(self) -> None:
        for end in ("", "-journal", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                self._part.with_name(self._part.name + end).unlink()


def _carried(kind: type[Carried], values: tuple[Any, ...]) -> Carried:
    if kind is c.CarriedSession:
        owner, name, session, made, *rest = values
        return c.CarriedSession(owner, name, session, bool(made), *rest)
    return kind(*values)


def _runs(db: apsw.Connection) -> Iterator[Carried]:
    """Each run, then its log. A tombstone has no log, even if rows of it are still in the hot table."""
    hot = hot_of(db)
    found: Any = db.execute(SQL["runs"])
    for *values, n, sealed, sealed_crc in found:
        fields = dict(zip(c.CarriedRun.__struct_fields__, values, strict=True))
        run = c.CarriedRun(**(fields | {name: bool(fields[name]) for name in _BOOLS}))
        if run.hidden:
            yield run
            continue
        records = records_of(db, run.id, n, sealed, sealed_crc, hot.get(n, []))
        if not records or records[-1].seq < run.last_seq:
            raise Damaged(f"run {run.id}: its last entries are gone, up to {run.last_seq} were written")
        yield replace(run, last_seq=records[-1].seq, attempt=max(run.attempt, records[-1].attempt))
        for start in range(0, len(records), PAGE):
            yield c.CarriedLog(run.id, records[start : start + PAGE])


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

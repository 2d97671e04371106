"""Maintenance of a SQLite store from outside, with or without a server on it. Owns: check, backup, restore, compact,
set aside. Refuses to know: what an event means (the caller passes a judge), and who calls. Nothing here deletes a
database."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from ninelives.core.errors import Damaged
from ninelives.journal import queries
from ninelives.journal.segments import link, origin, unpack
from ninelives.journal.sqlite.load import NAME, NewerStore, database_in, refuse_newer, tip_of
from ninelives.journal.values import Judge, Record, Report

SQL = queries.load("sqlite", "maintenance")
STORE = queries.load("sqlite", "store")
MOVED = "moved"
"""A file in a data directory whose store was moved elsewhere. It keeps a server from starting with an empty store."""
BESIDE = ("", "-wal", "-shm")
EDITS_SCHEMA = 3
"""The first schema with conversation_edits. A check must also work before a start has migrated the store."""


OWNER_SCHEMA = 10
"""The first schema whose log has the owner in its key."""


def _schema(db: apsw.Connection) -> int:
    version: Any = db.pragma("user_version")
    return int(version)


def _segments_of(db: apsw.Connection) -> str:
    """The query that finds the segments of a run."""
    return "segments" if _schema(db) >= OWNER_SCHEMA else "old_segments"


def _interruption(db: apsw.Connection) -> list[str]:
    """A sentence where a start died while it upgraded the store."""
    found = db.execute(STORE["uncarried"]).fetchall()
    return ["an upgrade of the store was interrupted: start the server once, then check again"] if found else []


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(5000)
    return db


def check(path: Path, judge: Judge, progress: Callable[[int, int], None] = lambda done, of: None) -> Report:
    """Check a whole store in one snapshot: the file, the checksums, each run by `judge`, the references. `progress` is
    called with the runs checked so far and the number of runs."""
    report = Report()
    try:
        db = _open(path)
        db.execute("BEGIN")
        try:
            refuse_newer(db)
            report.schema = _schema(db)
            report.problems += _interruption(db)
            report.bytes = int(db.pragma("page_count")) * int(db.pragma("page_size"))
            report.problems += [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            _check_runs(db, judge, report, progress)
            report.problems += [str(row[0]) for row in _rows(db, "loose_ends")]
            if report.schema >= EDITS_SCHEMA:
                report.problems += [str(row[0]) for row in _rows(db, "loose_edits")]
        finally:
            db.close()
    except NewerStore as error:
        report.problems.append(str(error))
    except (apsw.Error, UnicodeDecodeError, TypeError, ValueError) as error:  # the last three: a value of a wrong type
        report.problems.append(f"SQLite cannot read it: {error}")
    return report


def _check_runs(db: apsw.Connection, judge: Judge, report: Report, progress: Callable[[int, int], None]) -> None:
    hot = hot_of(db)
    runs = list(_rows(db, "runs"))
    for place, (run, n, last, sealed, sealed_crc, ended) in enumerate(runs):
        progress(place, len(runs))
        try:
            records = records_of(db, run, n, sealed, sealed_crc, hot.get(n, []))
            if not records or (records[-1].seq != last if ended else records[-1].seq < last):
                raise Damaged(f"run {run}: its last entries are gone, up to {last} were written")
            judge(run, records)
            report.entries += len(records)
        except Damaged as error:
            report.problems.append(str(error))
        report.runs += 1


def hot_of(db: apsw.Connection) -> dict[int, list[tuple[Record, int]]]:
    """The records of the hot table by run number, each with its stored checksum."""
    hot: dict[int, list[tuple[Record, int]]] = {}
    for n, seq, attempt, at, crc, data in _rows(db, "hot"):
        hot.setdefault(n, []).append((Record(seq, attempt, at, data), crc))
    return hot


def records_of(
    db: apsw.Connection, run: str, n: int, sealed: int, sealed_crc: int, hot: list[tuple[Record, int]]
) -> list[Record]:
    """All records of run number `n`, from segments and from the hot table, with their checksums verified."""
    records: list[Record] = []
    crc = origin(run)
    for before, blob in _rows(db, _segments_of(db), n):
        if before != crc:
            raise Damaged(f"run {run}: a segment does not follow the one before it")
        packed = unpack(blob, before, run)
        for record in packed:
            crc = link(crc, record)
        records += packed
    if sealed >= 0 and (not records or records[-1].seq != sealed or crc != sealed_crc):
        raise Damaged(f"run {run}: its segments do not reach entry {sealed}")
    for record, written in hot:
        if record.seq > sealed:
            crc = link(crc, record)
            if crc != written:
                raise Damaged(f"run {run}: the checksum of entry {record.seq} does not hold")
            records.append(record)
    if [record.seq for record in records] != list(range(len(records))):
        raise Damaged(f"run {run}: its entries are not numbered without a gap")
    return records


def _rows(db: apsw.Connection, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
    found: Any = db.execute(SQL[query], values)
    yield from found


def backup(source: Path, target: Path) -> None:
    """Copy a store that may be in use, without free pages. `target` is a directory to create."""
    target.mkdir(parents=True, mode=0o700)
    db = _open(database_in(source))
    try:
        mask = os.umask(0o077)
        try:
            db.execute("VACUUM INTO ?", (str(target / NAME),))
        finally:
            os.umask(mask)
    finally:
        db.close()
    _copy_secrets(source, target)


def _copy_secrets(source: Path, target: Path) -> None:
    for name in ("secret", "key"):
        if (source / name).exists() and not (target / name).exists():
            shutil.copy2(source / name, target / name)
            (target / name).chmod(0o600)


def restore(source: Path, target: Path) -> None:
    """Put a backup into a directory without a database. Set the old database aside first, with its tip file: that tip
    would report the backup as damaged."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target / f"{NAME}.part"
    shutil.copy2(database_in(source), part)
    part.chmod(0o600)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(target / NAME)
    (target / MOVED).unlink(missing_ok=True)
    _copy_secrets(source, target)


def set_aside(data: Path, into: str) -> Path:
    """Move the database, its log and its tip file to the new directory `data / into`."""
    aside = data / into
    aside.mkdir(mode=0o700)
    database = database_in(data)
    for path in [*(database.with_name(database.name + end) for end in BESIDE), tip_of(database)]:
        if path.exists():
            path.rename(aside / path.name)
    return aside


def compact(path: Path) -> tuple[int, int]:
    """Return free pages to the disk. Returns the bytes before and after. Nobody else may use the store meanwhile."""
    before = sum(each.stat().st_size for end in BESIDE if (each := path.with_name(path.name + end)).exists())
    db = apsw.Connection(str(path))
    try:
        refuse_newer(db)
        db.execute("VACUUM")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.close()
    return before, path.stat().st_size

"""The owner is part of the key of the log: every statement names it, and stores of older schemas get it."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import asyncpg
import pytest

from ninelives.journal import queries
from ninelives.journal.segments import origin
from ninelives.journal.sqlite import load
from ninelives.journal.sqlite.maintenance import check
from ninelives.journal.sqlite.segments import pack_all
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Record
from ninelives.testing import Author, Backend, VirtualClock
from tests import pg

FILES = [
    ("sqlite", name) for name in ("store", "sessions", "conversations", "maintenance", "move", "accounts", "ledger")
] + [("postgres", name) for name in ("log", "store", "upkeep", "sessions", "conversations", "peers", "move")]
WHOLE_LOG = {
    ("sqlite", "store", "trim"): "drops the oldest rows of all runs",
    ("sqlite", "store", "hot_rows"): "a start reads the hot table once, and compares the owner of each row",
    ("sqlite", "store", "uncarried"): "asks for a table",
    ("sqlite", "store", "carried_segments"): "deletes what was just copied",
    ("sqlite", "store", "end_carrying"): "drops an empty table",
    ("sqlite", "maintenance", "hot"): "a check reads all runs, also before schema 10",
    ("sqlite", "maintenance", "old_segments"): "before schema 10",
    ("sqlite", "maintenance", "loose_ends"): "a check reads all runs, also before schema 10",
    ("postgres", "move", "lock_source"): "locks tables",
    ("postgres", "move", "lock_target"): "locks tables",
    ("postgres", "move", "analyze"): "statistics of tables",
    ("postgres", "move", "size"): "sizes of tables",
}


def statements() -> list[tuple[str, str, str, str]]:
    return [
        (backend, name, query, sql) for backend, name in FILES for query, sql in queries.load(backend, name).items()
    ]


def test_every_statement_about_the_log_names_the_owner() -> None:
    logs = re.compile(r"\b(run_log|segments|segments_9|entries)\b")
    found = [(backend, name, query) for backend, name, query, sql in statements() if logs.search(sql)]
    bare = {
        (backend, name, query)
        for backend, name, query, sql in statements()
        if logs.search(sql) and not re.search(r"\bowner\b", sql)
    }
    assert len(found) > 20
    assert bare <= WHOLE_LOG.keys(), "add the owner to the statement"


@pytest.fixture
def schema_9(tmp_path: Path) -> Path:
    """A store as the release before left it: two ended runs of different owners, five segments each."""
    path = tmp_path / "journal.db"
    db = load.connect(path)
    load.pragma(db, "journal_mode", "wal")
    for number, script in queries.migrations("sqlite"):
        if number <= 9:
            db.execute(script)
            db.pragma("user_version", number)
    for n, (owner, run) in enumerate((("ann", "r1"), ("bob", "r2")), 1):
        records = [Record(seq, 1, 5, f"{run} {seq}".encode()) for seq in range(5)]
        parts = []
        crc = origin(run)
        for record in records:
            parts += pack_all([record], crc)
            crc = parts[-1].crc_after
        db.execute(
            "INSERT INTO runs (owner, id, n, dialect, model, status, attempt, parked, ended, last_seq, sealed_seq, "
            "sealed_crc, created_at, updated_at, session, metadata) "
            "VALUES (?, ?, ?, 'responses', 'm', 'completed', 1, 0, 1, 4, 4, ?, 5, 5, '', x'7b7d')",
            (owner, run, n, crc),
        )
        db.executemany(
            "INSERT INTO segments VALUES (?, ?, ?, ?, ?)",
            [(n, each.first, each.last, each.crc_before, each.blob) for each in parts],
        )
    db.close()
    return path


async def opened(path: Path, clock: VirtualClock) -> None:
    store = await SqliteStore.open_at(path, "normal", clock.now_ms)
    try:
        mine = await Author(Backend(store, clock, leases=False)).data("r1")
        assert mine == [f"r1 {seq}".encode() for seq in range(5)]
        assert [record.data for record in await store.read("bob", "r2", 2)] == [b"r2 3"]
        assert await store.read("bob", "r1", -1) == [], "not his"
    finally:
        await store.close()
    db = apsw.Connection(str(path))
    assert db.execute("SELECT owner, count(*) FROM segments GROUP BY owner").fetchall() == [("ann", 5), ("bob", 5)]
    assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'segments_9'").fetchall()
    db.close()


async def test_segments_of_an_older_schema_get_their_owner(
    schema_9: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "CARRIED_AT_ONCE", 3)
    assert not check(schema_9, lambda run, records: None).problems
    await opened(schema_9, clock)
    assert not check(schema_9, lambda run, records: None).problems


async def test_an_upgrade_that_was_interrupted_is_continued(schema_9: Path, clock: VirtualClock) -> None:
    db = load.connect(schema_9)
    db.execute(dict(queries.migrations("sqlite"))[10])
    db.pragma("user_version", 10)
    db.execute(load.SQL["carry_segments"], (4,))
    db.execute(load.SQL["carried_segments"], (4,))
    db.close()
    assert "interrupted" in check(schema_9, lambda run, records: None).problems[0]
    await opened(schema_9, clock)


async def test_postgres_refuses_a_row_of_the_log_without_an_owner() -> None:
    async with pg.server().borrowed() as (url, clock):
        store = await pg.opened(url, "h1")
        try:
            await Author(Backend(store, clock)).open("r1")
            with pytest.raises(asyncpg.NotNullViolationError):
                await store._connections.once(
                    lambda connection: connection.execute(
                        "INSERT INTO run_log (run, first_seq, last_seq, attempt, at, crc_before, crc_after, data) "
                        "VALUES ('r1', 7, 7, 1, 5, 0, 0, 'x')"
                    )
                )
        finally:
            await store.close()

"""R18: a store knows the format of its events, and a release that is too old for it refuses it at the start."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from ninelives.core.codec import FORMAT
from ninelives.journal import format as gate
from ninelives.journal.sqlite.maintenance import check
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import NewerStore
from ninelives.testing import VirtualClock
from tests import pg

WORDS = rf"format 9.*up to {FORMAT}.*newer ninelives.*backup.*Nothing was changed"
GIVE = "UPDATE meta SET value = '9' WHERE name = 'format'"
LOSE = "DELETE FROM meta WHERE name = 'format'"
LOOK = "SELECT value FROM meta WHERE name = 'format'"


async def open_and_close(path: Path) -> None:
    await (await SqliteStore.open_at(path, "normal", VirtualClock().now_ms)).close()


def execute(path: Path, sql: str) -> list[Any]:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return db.execute(sql).fetchall()


async def test_R18_sqlite_a_new_store_writes_its_format_down(tmp_path: Path) -> None:
    await open_and_close(tmp_path / "journal.db")
    assert execute(tmp_path / "journal.db", LOOK) == [(str(FORMAT),)]


async def test_R18_sqlite_a_store_of_a_newer_format_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await open_and_close(path)
    execute(path, GIVE)
    before = path.read_bytes()
    with pytest.raises(NewerStore, match=WORDS):
        await open_and_close(path)
    assert path.read_bytes() == before and execute(path, LOOK) == [("9",)]
    (problem,) = check(path, lambda run, records: None).problems
    assert "format 9" in problem


async def test_R18_sqlite_a_store_without_a_format_has_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await open_and_close(path)
    execute(path, LOSE)
    await open_and_close(path)
    assert execute(path, LOOK) == [(str(FORMAT),)]


async def test_R18_sqlite_a_newer_release_writes_its_format_down_when_it_opens_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    await open_and_close(path)
    monkeypatch.setattr(gate, "FORMAT", FORMAT + 1)
    monkeypatch.setattr("ninelives.journal.sqlite.load.WRITTEN", str(FORMAT + 1))
    await open_and_close(path)
    monkeypatch.undo()
    with pytest.raises(NewerStore, match=f"format {FORMAT + 1}"):
        await open_and_close(path)


async def test_R18_postgres_a_new_store_writes_its_format_down() -> None:
    server = pg.server()
    await server.run("postgres", "CREATE DATABASE formatted TEMPLATE template0 STRATEGY file_copy")
    await (await pg.opened(server.url("formatted"))).close()
    assert [tuple(row) for row in await server.run("formatted", LOOK)] == [(str(FORMAT),)]


async def test_R18_postgres_a_store_of_a_newer_format_is_refused_and_not_changed() -> None:
    server = pg.server()
    url = await server.database()
    await server.run(url, GIVE)
    with pytest.raises(NewerStore, match=WORDS):
        await pg.opened(url)
    assert [tuple(row) for row in await server.run(url, LOOK)] == [("9",)]


async def test_R18_postgres_a_store_without_a_format_has_the_first_one() -> None:
    server = pg.server()
    url = await server.database()
    await server.run(url, LOSE)
    await (await pg.opened(url)).close()
    assert [tuple(row) for row in await server.run(url, LOOK)] == [(str(FORMAT),)]

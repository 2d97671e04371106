"""A data directory of version 0.1.0 (holdfast.db, holdfast.mark) is used in place and keeps its names (P21). The store
commands work on it."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from ninelives.core.errors import Damaged
from ninelives.journal.sqlite.load import database_in
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Verdict
from ninelives.testing import Author, Backend, VirtualClock
from tests.golden.test_golden import GOLDEN
from tests.story.test_store import ninelives

RUNS = 8
"""In each golden directory, without the deleted one."""


@pytest.fixture(params=[path for path in GOLDEN if int(path.name[7:11]) <= 4], ids=lambda path: path.name[:11])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of a killed server: a database and its write-ahead log."""
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


async def opened(data: Path) -> SqliteStore:
    return await SqliteStore.open_at(database_in(data), "normal", VirtualClock().now_ms)


async def runs_in(data: Path) -> int:
    """Open the store and close it again."""
    store = await opened(data)
    ((runs,),) = await store.database.select("SELECT COUNT(*) FROM runs WHERE hidden = 0")
    await store.close()
    return int(runs)


@pytest.fixture
async def old(killed: Path) -> Path:
    """The same after a start and a clean stop: a database and its tip file."""
    assert await runs_in(killed) == RUNS
    return killed


def only(data: Path, pattern: str) -> Path:
    (found,) = data.glob(pattern)
    return found


def names(data: Path) -> set[str]:
    return {path.name for path in data.iterdir() if path.is_file() and path.name not in ("lock", "secret")}


def checked(data: Path) -> int:
    """How many runs `store check` finds; it must find no problem."""
    report = json.loads(ninelives("store", "check", "--data-dir", str(data), "--json"))
    assert report["ok"] and report["problems"] == []
    return int(report["runs"])


async def test_p21_it_opens_in_place_and_keeps_its_names(old: Path) -> None:
    assert names(old) == {"holdfast.db", "holdfast.mark"}
    store = await opened(old)
    ann = Author(Backend(store, VirtualClock()))
    await ann.open("r1")
    assert await ann.write("r1", b"more") is Verdict.WRITTEN
    await store.close()
    assert await runs_in(old) == RUNS + 1
    assert names(old) == {"holdfast.db", "holdfast.mark"}


async def test_p14_its_tip_file_reports_a_missing_database(old: Path) -> None:
    """A new and empty ninelives.db would hide the loss."""
    (old / "holdfast.db").unlink()
    with pytest.raises(Damaged, match="entries were written to it"):
        await opened(old)
    assert not (old / "ninelives.db").exists()


def test_store_check_finds_a_killed_directory_whole(killed: Path) -> None:
    """Before any start has migrated the store."""
    before = {path.name: path.read_bytes() for path in killed.glob("holdfast.db*") if path.suffix != ".db-shm"}
    assert checked(killed) == RUNS
    assert {name: (killed / name).read_bytes() for name in before} == before
    assert names(killed) == {"holdfast.db", "holdfast.db-wal", "holdfast.db-shm"}


def test_store_backup_of_a_killed_directory_has_the_new_name(killed: Path, tmp_path: Path) -> None:
    ninelives("store", "backup", str(tmp_path / "copy"), "--data-dir", str(killed))
    assert names(tmp_path / "copy") == {"ninelives.db"}
    assert checked(tmp_path / "copy") == RUNS


async def test_store_restore_puts_a_backup_in_its_place(old: Path, tmp_path: Path) -> None:
    ninelives("store", "backup", str(tmp_path / "copy"), "--data-dir", str(old))
    assert "--replace" in ninelives("store", "restore", str(tmp_path / "copy"), "--data-dir", str(old), status=1)
    ninelives("store", "restore", str(tmp_path / "copy"), "--replace", "--data-dir", str(old))
    assert names(only(old, "replaced-*")) >= {"holdfast.db", "holdfast.mark"}
    assert names(old) == {"ninelives.db"}
    assert await runs_in(old) == RUNS
    assert names(old) == {"ninelives.db", "ninelives.tip"}


def test_store_restore_takes_a_copy_of_such_a_directory(old: Path, tmp_path: Path) -> None:
    """A copy of the files of a stopped server is a backup too."""
    shutil.copytree(old, tmp_path / "copy")
    ninelives("store", "restore", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "new"))
    assert names(tmp_path / "new") == {"ninelives.db"}
    assert checked(tmp_path / "new") == RUNS


async def test_store_set_aside_moves_all_its_files(old: Path) -> None:
    ninelives("store", "set-aside", "--data-dir", str(old))
    aside = only(old, "aside-*")
    assert names(aside) == {"holdfast.db", "holdfast.mark"} and names(old) == set()
    assert checked(aside) == RUNS
    assert await runs_in(old) == 0
    assert names(old) == {"ninelives.db", "ninelives.tip"}

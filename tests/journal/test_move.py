"""A store moves as a whole: every row unchanged, verified by a checksum, all or nothing (P21)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import apsw
import pytest

from ninelives.core.errors import Damaged
from ninelives.journal.move import Carried, CarriedKey, CarriedLog, CarriedRun, Digest, InUse, move
from ninelives.journal.sqlite.load import database_in
from ninelives.journal.sqlite.lock import DirectoryLock
from ninelives.journal.sqlite.maintenance import check
from ninelives.journal.sqlite.move import SqliteCarrier

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("schema_*.tar.gz"))


def golden(archive: Path, folder: Path) -> Path:
    """Unpack the data directory of a release."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name[:11])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden(request.param, tmp_path / "old")


async def canonical_rows(data: Path) -> tuple[str, list[Carried]]:
    """The checksum and the rows of a directory."""
    carrier = SqliteCarrier(data)
    try:
        await carrier.lend()
        digest, rows = Digest(), []
        async for row in carrier.rows():
            digest.add(row)
            rows.append(row)
        return digest.checksum, rows
    finally:
        await carrier.close()


async def moved(source: SqliteCarrier, target: SqliteCarrier) -> str:
    try:
        return (await move(source, target)).checksum
    finally:
        await source.close()
        await target.close()


async def test_a_directory_that_moves_is_the_same_afterwards(old: Path, tmp_path: Path) -> None:
    before, rows = await canonical_rows(old)
    kinds = {type(row).__name__ for row in rows}
    assert {"CarriedSecret", "CarriedRun", "CarriedLog", "CarriedKey", "CarriedConversation", "CarriedTurn"} <= kinds
    assert any(isinstance(row, CarriedRun) and row.hidden for row in rows), "a tombstone moves too"
    assert any(isinstance(row, CarriedRun) and not row.ended for row in rows), "an unfinished run moves too"
    checksum = await moved(SqliteCarrier(old), SqliteCarrier(tmp_path / "new"))
    again, copies = await canonical_rows(tmp_path / "new")
    assert checksum == before == again
    assert [row for row in copies if not isinstance(row, CarriedLog)] == [
        row for row in rows if not isinstance(row, CarriedLog)
    ]
    assert not check(tmp_path / "new" / "ninelives.db", lambda run, records: list(records)).problems
    assert (tmp_path / "new" / "secret").read_bytes() == (old / "secret").read_bytes()


async def test_the_store_that_moved_is_put_out_of_use_and_nothing_of_it_is_deleted(old: Path, tmp_path: Path) -> None:
    await moved(SqliteCarrier(old), SqliteCarrier(tmp_path / "new"))
    assert not database_in(old).exists()
    (aside,) = [path for path in old.iterdir() if path.name.startswith("moved-")]  # noqa: ASYNC240
    assert not check(database_in(aside), lambda run, records: None).problems
    with pytest.raises(InUse, match="there is no store"):
        await SqliteCarrier(old).lend()


async def test_a_target_that_has_something_is_refused(old: Path, tmp_path: Path) -> None:
    other = golden(GOLDEN[0], tmp_path / "other")
    before = database_in(other).read_bytes()
    with pytest.raises(InUse, match="has a store"):
        await moved(SqliteCarrier(old), SqliteCarrier(other))
    assert database_in(other).read_bytes() == before and database_in(old).exists()


async def test_a_store_in_use_is_refused(old: Path, tmp_path: Path) -> None:
    lock = DirectoryLock(old)
    try:
        with pytest.raises(InUse, match="in use by another ninelives"):
            await moved(SqliteCarrier(old), SqliteCarrier(tmp_path / "new"))
    finally:
        lock.release()


async def test_a_move_that_is_cut_off_leaves_nothing_and_can_be_made_again(old: Path, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(row: Carried) -> None:
        if isinstance(row, CarriedKey):
            raise Cut

    source, target = SqliteCarrier(old), SqliteCarrier(tmp_path / "new")
    with pytest.raises(Cut):
        await move(source, target, cut)
    await source.close()
    await target.close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]
    (tmp_path / "new" / "ninelives.db.part").write_bytes(b"left by a killed process")
    before, _ = await canonical_rows(old)
    assert await moved(SqliteCarrier(old), SqliteCarrier(tmp_path / "new")) == before


async def test_a_target_that_lost_something_is_not_kept(old: Path, tmp_path: Path) -> None:
    class Forgetful(SqliteCarrier):
        async def put(self, row: Carried) -> None:
            if not isinstance(row, CarriedKey):
                await super().put(row)

    with pytest.raises(Damaged, match="not what was read"):
        await moved(SqliteCarrier(old), Forgetful(tmp_path / "new"))
    assert not (tmp_path / "new" / "ninelives.db").exists() and database_in(old).exists()


async def test_a_damaged_log_does_not_move(old: Path, tmp_path: Path) -> None:
    carrier = SqliteCarrier(old)
    await carrier.lend()
    await carrier.close()  # everything is packed and checkpointed now
    db = apsw.Connection(str(database_in(old)))
    db.execute("UPDATE segments SET crc = crc + 1 WHERE run = (SELECT MIN(run) FROM segments)")
    db.execute("UPDATE entries SET crc = crc + 1")
    db.close()
    with pytest.raises(Damaged):
        await moved(SqliteCarrier(old), SqliteCarrier(tmp_path / "new"))
    assert not (tmp_path / "new" / "ninelives.db").exists()


async def test_the_checksum_does_not_depend_on_how_records_come_together(old: Path) -> None:
    _, rows = await canonical_rows(old)
    whole, single = Digest(), Digest()
    for row in rows:
        whole.add(row)
        parts = [CarriedLog(row.run, [record]) for record in row.records] if isinstance(row, CarriedLog) else [row]
        for part in parts:
            single.add(part)
    assert whole.checksum == single.checksum


async def test_one_changed_byte_changes_the_checksum(old: Path) -> None:
    before = (await canonical_rows(old))[0]
    db = apsw.Connection(str(database_in(old)))
    db.execute("UPDATE runs SET metadata = x'7b20' || x'7d' WHERE n = 1")
    db.close()
    assert (await canonical_rows(old))[0] != before

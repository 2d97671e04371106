"""A store that lost its newest entries reports it (P14): the tip file says how far the log was written."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from ninelives.core.errors import Damaged
from ninelives.journal.sqlite import database, tip
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import StoreUnavailable, Verdict
from ninelives.testing import VirtualClock
from tests.journal.opened_store import OpenedStore, edit, until

Open = Callable[..., Awaitable[OpenedStore]]


@pytest.fixture
async def killed(open_store: Open, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The files of a killed process. The newest entries, or all if it was never checkpointed, are only in the
    write-ahead log."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", b"first")
    if "power_loss" in request.node.name:
        await one.database.upkeep_thread.ask(one.database.checkpoint)
    await one.ann.write("r1", b"second", b"third")
    await one.ann.finished("done")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.db", "journal.db-wal", "journal.tip"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    await one.close()
    return copy / "journal.db"


def wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))


async def test_a_killed_store_opens(killed: Path, clock: VirtualClock) -> None:
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    assert len(await store.read("ann", "r1", -1)) == 5 and store.lost == 0
    await store.close()


BLOWS: dict[str, Callable[[Path], object]] = {
    "garbage in the log": lambda path: wal(path).write_bytes(os.urandom(4096) * 20),
    "an empty log": lambda path: wal(path).write_bytes(b""),
    "the log is gone": lambda path: wal(path).unlink(),
    "half of the log": lambda path: os.truncate(wal(path), wal(path).stat().st_size // 2),
    "a flipped bit in the log's header": lambda path: flip(wal(path), 5),
    "a flipped bit in its first frame": lambda path: flip(wal(path), 100),
    "a flipped bit in its last frame": lambda path: flip(wal(path), wal(path).stat().st_size - 2000),
}


@pytest.mark.parametrize("blow", BLOWS)
async def test_p14_a_log_that_lost_entries_is_damage(killed: Path, clock: VirtualClock, blow: str) -> None:
    BLOWS[blow](killed)
    with pytest.raises(Damaged, match=r"committed are gone|damaged|malformed|check says"):
        await SqliteStore.open_at(killed, "normal", clock.now_ms)


async def test_after_a_power_loss_the_store_opens_and_counts_what_was_lost(
    killed: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    BLOWS["an empty log"](killed)
    monkeypatch.setattr(tip, "boot_id", lambda: b"another-boot")
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    assert store.lost == 5
    assert [record.data for record in await store.read("ann", "r1", 1)] == [b"first"]
    await store.close()


async def test_after_a_power_loss_full_durability_has_lost_nothing_or_is_damaged(
    killed: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    BLOWS["an empty log"](killed)
    monkeypatch.setattr(tip, "boot_id", lambda: b"another-boot")
    with pytest.raises(Damaged, match="5 entries"):
        await SqliteStore.open_at(killed, "full", clock.now_ms)


@pytest.mark.parametrize("content", [b"", b"x" * 64, bytes(range(64))], ids=["empty", "text", "bytes"])
async def test_an_unreadable_tip_file_is_no_damage(killed: Path, clock: VirtualClock, content: bytes) -> None:
    killed.with_suffix(".tip").write_bytes(content)
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    assert store.lost == 0
    await store.close()


async def test_the_file_is_checked_after_an_unclean_stop_only(
    killed: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    await store.close()
    # A row that violates a constraint of its table: only a check of the whole file finds it.
    edit(
        killed,
        "PRAGMA ignore_check_constraints = 1; PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = "
        "replace(sql, 'model TEXT NOT NULL', 'model TEXT NOT NULL CHECK (model = ''x'')') WHERE name = 'runs'",
    )
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    await store.close()
    edit(killed, "UPDATE meta SET value = '0' WHERE name = 'clean'")
    with pytest.raises(Damaged, match="check says: CHECK constraint failed in runs"):
        await SqliteStore.open_at(killed, "normal", clock.now_ms)
    monkeypatch.setattr(database, "CHECK_BYTES", 4096)
    store = await SqliteStore.open_at(killed, "normal", clock.now_ms)
    await store.close()


async def test_P13_after_an_error_whose_effect_is_unknown_nothing_is_written_any_more(open_store: Open) -> None:
    """fsync may report an error once, and then success although the pages are gone. After the error, no commit may be
    acknowledged until a restart has verified the store."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")

    def fails(db: object) -> None:
        raise apsw.IOError("disk I/O error")

    with pytest.raises(StoreUnavailable):
        await one.database.writer.ask(fails)
    with pytest.raises(StoreUnavailable, match="disk I/O error") as refused:
        await one.ann.write("r1", b"as if nothing had happened")
    assert not refused.value.passing
    assert len(await one.ann.read("r1")) == 2, "reads go on"


async def test_P13_an_error_that_upkeep_meets_stops_the_writer_too(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await open_store()

    def fails(db: object) -> None:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(one.database, "checkpoint", fails)
    await one.ann.open("r1")
    await until(lambda: one.store.upkeep.trouble() is not None)
    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        await one.ann.write("r1", b"more")


async def test_a_full_disk_is_no_such_error(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")

    def fails(db: object) -> None:
        raise apsw.FullError("database or disk is full")

    with pytest.raises(StoreUnavailable):
        await one.database.writer.ask(fails)
    assert await one.ann.write("r1", b"more") is Verdict.WRITTEN

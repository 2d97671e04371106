"""A short run is packed in the transaction of its end (R11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from ninelives.core.errors import Damaged
from ninelives.journal.segments import SHORT_BYTES
from ninelives.journal.sqlite import maintenance
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Mark, Record, Slice, StoreUnavailable, Verdict
from ninelives.testing import VirtualClock
from tests.journal.opened_store import OpenedStore

Open = Callable[..., Awaitable[OpenedStore]]
ENDED = Mark(status="completed", at=1, ended=True)


async def test_a_short_run_is_sealed_by_its_end(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", b"a", b"b")
    assert one.tail("r1") == [0, 1, 2, 3] and await one.hot("r1") == 4
    await one.ann.end("r1")
    assert one.tail("r1") is None and await one.segments("r1") == [(0, 4)]
    assert (await one.ann.data("r1"))[2:] == [b"a", b"b", b"ended"]
    assert await one.ann.data("r1", after=2) == [b"b", b"ended"]
    assert not one.database.tails.to_seal
    ((size, bytes_),) = await one.query("SELECT LENGTH(data), bytes FROM segments JOIN runs ON run = n")
    assert size < bytes_, "what it takes counts for retention, with its turn"
    await one.database.seal_all()
    assert await one.hot() == 1, "the newest row stays to keep the numbers rising"


async def test_a_long_run_is_sealed_later(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", b"x" * SHORT_BYTES)
    await one.ann.end("r1")
    assert one.tail("r1") == [0, 1, 2, 3] and await one.segments("r1") == []
    await one.database.seal_all()
    assert one.tail("r1") is None and await one.segments("r1") == [(0, 3)]


async def test_a_run_that_is_kept_until_its_delivery_is_not_packed(open_store: Open) -> None:
    """It is forgotten soon, and its rows are overwritten one by one then."""
    one = await open_store(upkeep=False)
    await one.ann.finished("r1", kept="delivery")
    assert await one.segments("r1") == [] and one.tail("r1") == [0, 1, 2]


async def test_the_next_start_finds_a_short_run_as_it_was(open_store: Open, tmp_path: Path) -> None:
    """Its first rows may still be in the hot table, which a start must not take for a part of its log."""
    one = await open_store(upkeep=False)
    await one.ann.open("live")
    await one.ann.finished("r1")
    whole = await one.ann.read("r1")
    assert await one.hot("r1") == 2
    await one.close()
    assert maintenance.check(tmp_path / "journal.db", lambda run, records: None).problems == []
    two = await open_store(upkeep=False)
    assert two.tail("r1") is None and await two.ann.read("r1") == whole
    assert set(two.database.fences.committed) == {"live"}


async def test_a_parked_run_that_is_being_sealed_ends_in_rows(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.park("r1")
    sealing = asyncio.create_task(one.database.seal(["r1"]))
    await asyncio.sleep(0)
    await one.ann.claim("r1")
    await one.ann.end("r1")
    await sealing
    await one.database.seal_all()
    segments = await one.segments("r1")
    assert len(segments) == 2 and segments[0][0] == 0 and segments[1][0] == segments[0][1] + 1
    assert (await one.ann.data("r1"))[-1] == b"ended"


async def test_a_run_that_ended_before_its_sealing_was_stored_is_packed_once(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    ending = asyncio.ensure_future(one.store.append([Slice("r1", 1, [Record(2, 1, 5, b"ended")], ENDED)]))
    await asyncio.sleep(0)
    sealing = asyncio.create_task(one.database.seal(["r1"]))
    assert await ending == [Verdict.WRITTEN]
    await sealing
    assert await one.segments("r1") == [(0, 2)] and one.tail("r1") is None
    assert (await one.ann.data("r1"))[2:] == [b"ended"]


async def test_two_slices_of_one_run_in_an_append_are_all_there(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    first, last = Slice("r1", 1, [Record(2, 1, 5, b"a")]), Slice("r1", 1, [Record(3, 1, 5, b"b")], ENDED)
    assert await one.store.append([first, last]) == [Verdict.WRITTEN, Verdict.WRITTEN]
    assert (await one.ann.data("r1"))[2:] == [b"a", b"b"]
    await one.database.seal_all()
    assert (await one.ann.data("r1"))[2:] == [b"a", b"b"]


async def test_a_fenced_end_packs_nothing(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    assert await one.store.append([Slice("r1", 2, [Record(2, 2, 5, b"late")], ENDED)]) == [Verdict.FENCED]
    assert await one.segments("r1") == [] and one.tail("r1") == [0, 1]


async def test_P14_a_log_that_was_cut_before_the_end_of_a_short_run_is_damaged(
    open_store: Open, tmp_path: Path, clock: VirtualClock
) -> None:
    """The end writes no entry, and yet the tip must tell that it is gone."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    before = (tmp_path / "journal.db-wal").read_bytes()
    await one.ann.end("r1")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.db", "journal.tip"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    (copy / "journal.db-wal").write_bytes(before)
    with pytest.raises(Damaged, match="are gone"):
        await SqliteStore.open_at(copy / "journal.db", "normal", clock.now_ms)


async def test_an_end_that_the_disk_did_not_take_is_packed_when_it_is_written_again(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    end = [Slice("r1", 1, [Record(2, 1, 5, b"ended")], ENDED)]

    def full(db: apsw.Connection) -> None:
        raise apsw.FullError("database or disk is full")

    async with one.one_batch():
        failed = [asyncio.ensure_future(one.store.append(end)), asyncio.ensure_future(one.database.write(full))]
        await asyncio.sleep(0)
    results = await asyncio.gather(*failed, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert one.tail("r1") == [0, 1] and await one.segments("r1") == []
    assert await one.store.append(end) == [Verdict.WRITTEN]
    assert await one.segments("r1") == [(0, 2)]

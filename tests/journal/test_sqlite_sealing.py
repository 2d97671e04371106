"""Readers see the same records, whether these are hot, sealed or being sealed (R15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ninelives.journal.segments import SEGMENT_BYTES, link, origin
from ninelives.journal.sqlite import database
from ninelives.journal.sqlite.load import LoadedStore
from ninelives.journal.sqlite.tails import SPILL_BYTES
from ninelives.journal.values import Mark, Query, Record, Verdict
from tests.journal.opened_store import OpenedStore, until

Open = Callable[..., Awaitable[OpenedStore]]
pytestmark = pytest.mark.usefixtures("all_are_long")


async def reads_right_everywhere(opened: OpenedStore, run: str, whole: list[Record], step: int = 1) -> None:
    """From every position, a read gives exactly the rest."""
    for after in range(-1, len(whole) + 1, step):
        assert await opened.ann.read(run, after) == whole[after + 1 :]


async def test_a_finished_run_is_sealed_and_reads_the_same(open_store: Open, eager: None) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", *(b"%d" % n for n in range(50)))
    await one.ann.end("r1")
    before = await one.ann.read("r1")
    assert one.tail("r1") == list(range(53))
    await reads_right_everywhere(one, "r1", before)
    await one.database.seal_all()
    assert one.tail("r1") is None, "the tail is forgotten"
    assert await one.segments("r1") == [(0, 52)]
    await reads_right_everywhere(one, "r1", before)
    await one.database.trim()
    assert await one.hot() == 1, "the newest row stays to keep the numbers rising"
    await reads_right_everywhere(one, "r1", before)


async def test_finished_runs_are_sealed_by_the_dozen_long_ones_alone(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    whole = {}
    for run, data in [*((f"s{n}", b"short") for n in range(70)), ("l1", b"l" * SEGMENT_BYTES), ("l2", b"l" * 9)]:
        await one.ann.open(run)
        await one.ann.write(run, data)
        await one.ann.end(run)
        whole[run] = await one.ann.read(run)
    last = one.database.tails.last_to_pack
    assert last([f"s{n}" for n in range(70)]) == [f"s{n}" for n in range(6, 70)]
    assert last(["s1", "l1", "l2"]) == ["l2"]
    assert last(["s1", "l1"]) == ["l1"]
    await one.database.seal_all()
    for run, records in whole.items():
        assert one.tail(run) is None and await one.ann.read(run) == records


async def test_reads_are_right_at_every_moment_of_sealing(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", *(b"%d" % n for n in range(20)))
    await one.ann.end("r1")
    whole = await one.ann.read("r1")
    sealing = asyncio.create_task(one.database.seal(["r1"]))
    reads = 0
    while not sealing.done():
        after = reads % len(whole) - 1
        assert await one.store.read("ann", "r1", after) == whole[after + 1 :]
        await asyncio.sleep(0)
        reads += 1
    assert await one.ann.read("r1") == whole
    assert reads > 1


async def test_upkeep_seals_trims_and_goes_on(open_store: Open, eager: None) -> None:
    one = await open_store()
    for n in range(20):
        await one.ann.open(f"r{n}")
        await one.ann.write(f"r{n}", *(b"%d" % k for k in range(30)))
        await one.ann.end(f"r{n}")
    await until(lambda: not one.database.tails.by_run)
    assert one.database.fences.committed == {}

    async def trimmed() -> bool:
        return await one.hot() == 1

    await until(trimmed)
    for n in range(20):
        assert (await one.ann.data(f"r{n}"))[2:] == [b"%d" % k for k in range(30)] + [b"ended"]
    assert not one.database.upkeep.done()


async def test_the_hot_table_is_trimmed_again_after_it_was_empty(open_store: Open, eager: None) -> None:
    """Row ids that restarted at 1 would lie below the trimmed ones, and would never be deleted."""
    one = await open_store()

    async def trimmed() -> bool:
        return not one.database.tails.by_run and await one.hot() <= 1

    for n in range(3):
        await one.ann.open(f"r{n}")
        await one.ann.write(f"r{n}", *[b"x"] * 500)
        await one.ann.end(f"r{n}")
        await until(trimmed)


async def test_a_live_run_pins_only_what_it_needs(open_store: Open, eager: None) -> None:
    one = await open_store()
    await one.ann.finished("before")
    await one.ann.open("live")
    await one.ann.finished("after")
    await until(lambda: one.tail("before") is None and one.tail("after") is None)

    async def kept() -> bool:
        return [await one.hot(run) for run in ("before", "live", "after")] == [0, 2, 3]

    await until(kept)
    assert await one.ann.write("live", b"a") is Verdict.WRITTEN
    assert len(await one.ann.data("live")) == 3


async def test_a_long_live_run_is_spilled_and_goes_on(open_store: Open, eager: None) -> None:
    one = await open_store()
    await one.ann.open("r1")
    expected: list[bytes] = []
    for n in range(60):
        data = [b"%d %d " % (n, k) + b"x" * 5_000 for k in range(10)]
        assert await one.ann.write("r1", *data) is Verdict.WRITTEN
        expected += data
    assert sum(map(len, expected)) > 2 * SPILL_BYTES
    await until(lambda: one.database.tails.by_run["r1"].size <= SPILL_BYTES)
    segments = await one.segments("r1")
    assert len(segments) > 3
    assert all(a[1] + 1 == b[0] for a, b in pairwise(segments))
    whole = await one.ann.read("r1")
    assert [record.data for record in whole[2:]] == expected
    await reads_right_everywhere(one, "r1", whole, step=7)
    edges = {edge + off for first, last in segments for edge in (first, last) for off in (-2, -1, 0, 1)}
    for after in sorted(edges):
        if -1 <= after < len(whole):
            page = await one.store.read("ann", "r1", after)
            assert page == whole[after + 1 : after + 1 + len(page)]
    assert await one.ann.write("r1", b"more") is Verdict.WRITTEN
    await one.ann.end("r1")
    await one.sealed("r1", 603)
    assert [record.data for record in await one.ann.read("r1")][2:] == [*expected, b"more", b"ended"]


async def test_a_spilled_run_goes_on_after_a_kill(open_store: Open, eager: None, tmp_path: Path) -> None:
    one = await open_store()
    await one.ann.open("r1")
    await one.ann.write("r1", *[b"x" * 10_000] * 150)
    await one.sealed("r1", 151)
    await one.ann.write("r1", b"hot")
    await one.copy(tmp_path / "copy.db")
    whole = await one.ann.read("r1")
    two = await open_store("copy.db")
    assert await two.ann.read("r1") == whole
    claim = await two.ann.claim("r1")
    assert claim is not None and (claim.attempt, claim.record.seq) == (2, len(whole))
    assert await two.ann.write("r1", b"b") is Verdict.WRITTEN


async def test_the_chain_of_checksums_runs_through_all_segments(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    for n in range(5):
        await one.ann.write("r1", b"%d" % n)
        await one.database.seal(["r1"])
    await one.ann.write("r1", b"hot")
    whole = await one.ann.read("r1")
    crc = origin("r1")
    crcs = [crc := link(crc, record) for record in whole]
    starts = await one.query("SELECT crc FROM segments ORDER BY first_seq")
    assert [start for (start,) in starts] == [origin("r1"), *crcs[2:6]]
    assert await one.query("SELECT sealed_seq, sealed_crc FROM runs") == [(6, crcs[6])]
    assert await one.query("SELECT crc FROM entries WHERE seq = 7") == [(crcs[7],)]
    await one.close()
    assert await (await open_store()).ann.read("r1") == whole


async def test_a_parked_run_pins_nothing(open_store: Open, eager: None) -> None:
    one = await open_store()
    await one.ann.open("parked")
    await one.ann.write("parked", b"a")
    await one.ann.park("parked")
    await one.sealed("parked", 2)
    await one.ann.finished("later")

    async def trimmed() -> bool:
        return await one.hot("parked") == 0

    await until(trimmed)
    await one.close()
    two = await open_store()
    assert await two.ann.data("parked", after=1) == [b"a"]
    claim = await two.ann.claim("parked")
    assert claim is not None and claim.record.seq == 3
    assert await two.ann.write("parked", b"b") is Verdict.WRITTEN
    assert (await two.ann.data("parked"))[-1] == b"b"


async def test_a_run_that_pins_too_many_rows_is_sealed(
    open_store: Open, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "HOT_ROWS", 100)
    one = await open_store()
    await one.ann.open("parked", held=False)
    await one.ann.claim("parked")
    await one.ann.park("parked")
    await one.ann.open("idle")
    await one.ann.open("busy")
    for _ in range(30):
        await one.ann.write("busy", *[b"x"] * 10)

    async def trimmed() -> bool:
        return await one.hot("idle") == 0 and await one.hot() <= 101

    await until(trimmed)
    assert len(await one.ann.data("idle")) == 2
    assert await one.ann.write("idle", b"a") is Verdict.WRITTEN
    assert (await one.ann.data("idle"))[-1] == b"a"


async def test_what_was_not_sealed_is_sealed_at_the_next_start(open_store: Open, eager: None) -> None:
    one = await open_store(upkeep=False)
    await one.ann.finished("r1")
    whole = await one.ann.read("r1")
    await one.close()
    two = await open_store()
    await two.sealed("r1", 2)
    assert await two.ann.read("r1") == whole


async def test_a_kill_between_sealing_and_trimming_changes_nothing(open_store: Open, tmp_path: Path) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("live")
    await one.ann.write("live", *[b"x"] * 10)
    await one.ann.finished("done")
    pictures = {run: await one.ann.read(run) for run in ("live", "done")}
    await one.database.seal(["live"])
    await one.database.seal(["done"])
    assert await one.hot() == 15
    await one.copy(tmp_path / "copy.db")
    two = await open_store("copy.db", upkeep=False)
    for run, whole in pictures.items():
        await reads_right_everywhere(two, run, whole)
    claim = await two.ann.claim("live")
    assert claim is not None and claim.record.seq == 12


async def test_what_is_written_during_sealing_outlives_trimming_and_a_kill(open_store: Open, tmp_path: Path) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("live")
    await one.ann.write("live", *[b"x"] * 10)
    async with one.one_batch():
        sealing = asyncio.create_task(one.database.seal(["live"]))
        await asyncio.sleep(0)
        writing = asyncio.create_task(one.ann.write("live", b"meanwhile"))
        await asyncio.sleep(0)
    await asyncio.gather(sealing, writing)
    await one.ann.open("other")
    await one.ann.write("other", *[b"y"] * 100)
    await one.database.trim()
    assert await one.hot("live") == 1, "what is sealed has left"
    whole = await one.ann.read("live")
    assert whole[-1].data == b"meanwhile"
    await one.copy(tmp_path / "copy.db")
    two = await open_store("copy.db")
    assert await two.ann.read("live") == whole
    assert len(await two.ann.read("other")) == 102


async def test_sealing_and_deleting_at_once_leaves_nothing(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    for n in range(10):
        run = f"r{n}"
        await one.ann.finished(run)
        sealing = asyncio.create_task(one.database.seal([run]))
        for _ in range(n):
            await asyncio.sleep(0)
        assert await one.store.delete("ann", run)
        await sealing
        assert await one.ann.read(run) == []
        assert await one.segments(run) == []
        assert one.tail(run) is None
    assert await one.store.rows(Query(owner="ann")) == []


async def test_an_end_without_a_record_leaves_no_tail(open_store: Open, eager: None) -> None:
    one = await open_store()
    await one.ann.open("r1")
    await one.ann.write("r1", b"a", mark=Mark(status="waiting", at=0))
    await one.sealed("r1", 2)
    assert await one.ann.write("r1", mark=Mark(status="failed", at=0, ended=True)) is Verdict.WRITTEN
    await until(lambda: one.tail("r1") is None)
    assert len(await one.ann.data("r1")) == 3


async def test_upkeep_goes_on_when_there_is_space_again(open_store: Open, eager: None) -> None:
    one = await open_store(upkeep=False)
    for n in range(5):
        await one.ann.open(f"r{n}")
        await one.ann.write(f"r{n}", *(bytes([k]) * 5_000 for k in range(50)))
        await one.ann.end(f"r{n}")
    await one.allow_pages(0)
    one.database.upkeep = asyncio.create_task(one.database.keep_up())
    await until(lambda: one.database.problem is not None)
    assert "full" in str(one.database.problem)
    assert len(await one.ann.data("r0")) == 53
    await one.allow_pages(100_000)
    await until(lambda: one.database.problem is None and not one.database.tails.by_run)
    for n in range(5):
        assert len(await one.ann.data(f"r{n}")) == 53


async def test_a_start_reads_the_hot_table_only(open_store: Open, eager: None) -> None:
    one = await open_store()
    for n in range(5):
        await one.ann.finished(f"r{n}")
    await until(lambda: not one.database.tails.by_run)
    await one.ann.open("live")
    await one.close()
    two = await open_store(upkeep=False)
    loaded: LoadedStore = await two.database.writer.ask(lambda db: LoadedStore(db, 0))
    assert list(loaded.tails) == list(loaded.fences) == ["live"]

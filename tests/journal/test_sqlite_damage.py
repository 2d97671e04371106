"""A damaged store is reported, never shown as a shorter history (P14)."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal.segments import link, pack, unpack
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Record
from ninelives.testing import VirtualClock
from tests.journal.opened_store import OpenedStore, contents, edit, overwrite, rows_in, size

Open = Callable[..., Awaitable[OpenedStore]]
pytestmark = pytest.mark.usefixtures("all_are_long")
HOT = "entries WHERE run = (SELECT n FROM runs WHERE id = 'r1')"

STORE_THREADS = {"ninelives-writer", "ninelives-reader", "ninelives-upkeep"}


@pytest.fixture
async def hot(open_store: Open, tmp_path: Path) -> Path:
    """A closed store with records in the hot table: two live runs and an ended one."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.open("r2")
    await one.ann.write("r1", b"first", b"second", b"third")
    await one.ann.finished("done")
    await one.close()
    return tmp_path / "journal.db"


HOT_BLOWS = {
    "a byte of an entry": f"UPDATE {HOT.replace('entries', 'entries SET data = ?', 1)} AND seq = 3",
    "the number of an entry": "UPDATE entries SET seq = 9 WHERE data = x'7365636f6e64'",
    "two numbers swapped": "UPDATE entries SET seq = 5 - seq + 2 WHERE data IN (x'6669727374', x'7468697264')",
    "the attempt of an entry": "UPDATE entries SET attempt = 7 WHERE data = x'7365636f6e64'",
    "the time of an entry": "UPDATE entries SET at = at + 1 WHERE data = x'7365636f6e64'",
    "the checksum of an entry": "UPDATE entries SET crc = crc + 1 WHERE data = x'7365636f6e64'",
    "an entry in the middle is gone": "DELETE FROM entries WHERE data = x'7365636f6e64'",
    "the first entry is gone": "DELETE FROM entries WHERE data = x'6163636570746564207231'",
    "the entries of the claim are gone": f"DELETE FROM {HOT}",
    "an entry belongs to another run": "UPDATE entries SET run = 2 WHERE data = x'7365636f6e64'",
    "an entry belongs to another owner": "UPDATE entries SET owner = 'bob' WHERE data = x'7365636f6e64'",
    "an entry is there twice": "INSERT INTO entries SELECT 99, run, seq, attempt, at, crc, data, owner FROM entries "
    "WHERE data = x'7468697264'",
    "the end of an ended run is gone": "DELETE FROM entries WHERE data = x'656e646564'",
    "all of an ended run is gone": "DELETE FROM entries WHERE run = (SELECT n FROM runs WHERE id = 'done')",
    "the sealed checksum": "UPDATE runs SET sealed_crc = 1 WHERE id = 'r1'",
    "the sealed number": "UPDATE runs SET sealed_seq = 2 WHERE id = 'r1'",
}


@pytest.mark.parametrize("blow", HOT_BLOWS)
async def test_damage_in_the_hot_table_is_found_at_the_start(hot: Path, clock: VirtualClock, blow: str) -> None:
    sql = HOT_BLOWS[blow]
    assert edit(hot, sql, *([b"secomd"] if "?" in sql else [])) >= 1
    before = size(hot)
    with pytest.raises(Damaged, match=r"run (r1|r2|done)"):
        await SqliteStore.open_at(hot, "normal", clock.now_ms)
    assert size(hot) == before, "nothing was repaired behind anybody's back"
    assert not STORE_THREADS & {thread.name for thread in threading.enumerate()}


async def test_a_start_without_damage_finds_none(hot: Path, open_store: Open) -> None:
    one = await open_store()
    assert await one.ann.data("r1", after=1) == [b"first", b"second", b"third"]


@pytest.fixture
async def sealed(open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed store with two ended runs of five segments each, and a live one."""
    monkeypatch.setattr("ninelives.journal.sqlite.segments.SEGMENT_BYTES", 30)
    one = await open_store(upkeep=False)
    for run in ("r1", "r2"):
        await one.ann.open(run)
        for n in range(12):
            await one.ann.write(run, b"%s entry %d" % (run.encode(), n))
        await one.ann.end(run)
    await one.ann.open("live")
    await one.database.seal_all()
    await one.database.trim()
    assert len(await one.segments("r1")) >= 5
    await one.close()
    return tmp_path / "journal.db"


async def never_shorter(opened: OpenedStore, run: str, length: int) -> None:
    """From every position, a reader gets Damaged or all records up to the end."""
    met = 0
    for after in range(-1, length):
        try:
            read = await opened.ann.read(run, after)
        except Damaged:
            met += 1
        else:
            assert [record.seq for record in read] == list(range(after + 1, length)), "a shorter history"
    assert met > 0


async def test_a_segment_with_one_byte_changed_is_damaged(open_store: Open, sealed: Path) -> None:
    ((first, blob),) = rows_in(sealed, "SELECT first_seq, data FROM segments WHERE run = 1 ORDER BY 1 LIMIT 1 OFFSET 2")
    for place in range(len(blob)):
        bad = blob[:place] + bytes([blob[place] ^ 0x10]) + blob[place + 1 :]
        with pytest.raises(Damaged):
            unpack(bad, 0, "r1")
    edit(sealed, "UPDATE segments SET data = ? WHERE run = 1 AND first_seq = ?", bad, first)
    one = await open_store()
    await never_shorter(one, "r1", 15)
    assert len(await one.ann.data("r2")) == 15


async def test_a_segment_that_was_packed_anew_with_other_data_is_damaged(open_store: Open, sealed: Path) -> None:
    ((first, crc, blob),) = rows_in(sealed, "SELECT first_seq, crc, data FROM segments WHERE run = 1 LIMIT 1 OFFSET 1")
    forged = zlib.compress(zlib.decompress(blob).replace(b"entry", b"entri"), 1)
    edit(sealed, "UPDATE segments SET data = ? WHERE run = 1 AND first_seq = ?", forged, first)
    await never_shorter(await open_store(), "r1", 15)
    assert crc > 0


SEGMENT_BLOWS = {
    "the first is gone": "DELETE FROM segments WHERE run = 1 AND first_seq = 0",
    "one in the middle is gone": "DELETE FROM segments WHERE run = 1 AND first_seq = "
    "(SELECT first_seq FROM segments WHERE run = 1 ORDER BY 1 LIMIT 1 OFFSET 2)",
    "the last is gone": "DELETE FROM segments WHERE run = 1 AND last_seq = 14",
    "all are gone": "DELETE FROM segments WHERE run = 1",
    "the last ends too early": "UPDATE segments SET last_seq = 13 WHERE run = 1 AND last_seq = 14",
    "one ends too late": "UPDATE segments SET last_seq = last_seq + 2 WHERE run = 1 AND first_seq = 0",
    "one begins with another checksum": "UPDATE segments SET crc = crc + 1 WHERE run = 1 AND first_seq = 0",
    "one is that of another run": "UPDATE segments SET data = (SELECT data FROM segments s WHERE s.run = 2 AND "
    "s.first_seq = 0) WHERE run = 1 AND first_seq = 0",
    "one is no segment": "UPDATE segments SET data = x'00' WHERE run = 1 AND first_seq = 0",
}


@pytest.mark.parametrize("blow", SEGMENT_BLOWS)
async def test_damage_among_the_segments_is_met_by_the_reader(open_store: Open, sealed: Path, blow: str) -> None:
    assert edit(sealed, SEGMENT_BLOWS[blow]) >= 1
    one = await open_store()
    await never_shorter(one, "r1", 15)
    assert len(await one.ann.data("r2")) == 15
    assert await one.ann.read("live", after=1) == []


async def test_the_damage_of_one_run_is_not_that_of_another_reader(open_store: Open, sealed: Path) -> None:
    edit(sealed, "UPDATE segments SET data = x'00' WHERE run = 1")
    one = await open_store()
    reads = [one.store.read("ann", run, -1) for run in ("r1", "r2") * 10]
    answers = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(answer, Damaged) for answer in answers[::2])
    assert all(isinstance(answer, list) and answer for answer in answers[1::2])


async def test_damage_in_the_file_itself_is_told(sealed: Path, clock: VirtualClock) -> None:
    (whole,) = contents(sealed)
    overwrite(sealed, b"\0" * 100 + whole[100:])
    with pytest.raises(Damaged):
        await SqliteStore.open_at(sealed, "normal", clock.now_ms)
    overwrite(sealed, whole[: len(whole) // 2])
    with pytest.raises(Damaged):
        await SqliteStore.open_at(sealed, "normal", clock.now_ms)


def test_the_chain_ties_every_field_to_all_before() -> None:
    records = [Record(n, 1, 1000 + n, b"data %d" % n) for n in range(5)]

    def chain(items: list[Record]) -> int:
        crc = 0
        for item in items:
            crc = link(crc, item)
        return crc

    good = chain(records)
    for n, record in enumerate(records):
        for bad in (
            Record(record.seq + 1, record.attempt, record.at, record.data),
            Record(record.seq, record.attempt + 1, record.at, record.data),
            Record(record.seq, record.attempt, record.at + 1, record.data),
            Record(record.seq, record.attempt, record.at, record.data + b"x"),
        ):
            assert chain([*records[:n], bad, *records[n + 1 :]]) != good
        assert chain(records[:n] + records[n + 1 :]) != good
    assert chain([records[1], records[0], *records[2:]]) != good


def test_a_segment_holds_any_bytes() -> None:
    data = [b"", b"\n", b"1 2 3 4 5\n", b"\0\xff", bytes(range(256)), b"x" * 300_000]
    records = [Record(n, 1, n, item) for n, item in enumerate(data)]
    blob, crc = pack(records, 77)
    assert unpack(blob, 77, "r1") == records
    assert crc != 77
    with pytest.raises(Damaged):
        unpack(blob, 78, "r1")


@pytest.mark.parametrize("lost", ["1", "2", "1, 2"])
async def test_p14_a_session_with_a_gap_is_damaged_and_a_deleted_one_is_empty(
    open_store: Open, tmp_path: Path, lost: str
) -> None:
    one = await open_store(upkeep=False)
    for run in ("a", "b", "c"):
        await one.ann.finished(run, session="s")
    await one.close()
    edit(tmp_path / "journal.db", f"DELETE FROM session_turns WHERE n IN ({lost})")
    one = await open_store(upkeep=False)
    for counted in (2, 3):
        with pytest.raises(Damaged, match=r"missing from the store\. Restore a backup"):
            await one.store.turns("ann", Resolved(session="s", session_turns=counted))
    await one.store.sessions.forget("ann", "s")
    assert await one.store.turns("ann", Resolved(session="s", session_turns=3)) == []

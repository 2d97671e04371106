"""Group commit: many callers share few transactions, and a failure stays with its caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from ninelives.core.errors import ClientError
from ninelives.journal.sqlite import database, database_thread
from ninelives.journal.values import Mark, Signal, StoreUnavailable, Verdict
from ninelives.testing import Author
from tests.journal.opened_store import DEADLINE_S, OpenedStore, size

Open = Callable[..., Awaitable[OpenedStore]]


async def test_many_calls_at_once_are_few_commits(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    commits = await one.commits()
    before = commits()
    async with one.one_batch():
        opens = [asyncio.create_task(one.ann.open(f"r{n}")) for n in range(200)]
        await asyncio.sleep(0)
    await asyncio.gather(*opens)
    assert commits() - before <= 2
    before = commits()
    async with one.one_batch():
        writes = [asyncio.create_task(one.ann.write(f"r{n}", b"x")) for n in range(200)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*writes) == [Verdict.WRITTEN] * 200
    assert commits() - before <= 2


async def test_calls_that_are_made_freely_share_commits_too(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    commits = await one.commits()
    await asyncio.gather(*(one.ann.open(f"r{n}") for n in range(300)))
    assert commits() < 150


async def test_a_refused_job_does_not_harm_the_others_of_its_batch(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("busy", conversation="talk")
    async with one.one_batch():
        work = [
            asyncio.create_task(one.ann.open("r1")),
            asyncio.create_task(one.ann.open("r2", conversation="talk")),
            asyncio.create_task(one.ann.write("busy", b"x")),
        ]
        await asyncio.sleep(0)
    first, refused, verdict = await asyncio.gather(*work, return_exceptions=True)
    assert isinstance(refused, ClientError) and refused.status == 409
    assert not isinstance(first, BaseException) and verdict is Verdict.WRITTEN
    assert await one.ann.status("r1") == "running"
    assert await one.ann.status("r2") is None


async def test_a_job_that_is_wrong_in_itself_fails_alone(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    ann = one.ann
    await ann.open("r1", conversation="talk")
    await ann.open("r2", held=False)
    before = dict(one.database.fences.committed)
    async with one.one_batch():
        good = [
            asyncio.create_task(ann.write("r1", b"a")),
            asyncio.create_task(ann.open("r3", key="k")),
        ]
        await asyncio.sleep(0)
        bad = [
            asyncio.create_task(one.store.open(ann.opening("r1", key="k2"))),
            one.database.writer.ask(lambda db: db.execute("INSERT INTO nowhere VALUES (1)")),
            one.database.writer.ask(lambda db: 1 // 0),
            one.database.writer.ask(lambda db: db.execute("SELECT ?", (object(),))),
        ]
        await asyncio.sleep(0)
        good += [
            asyncio.create_task(ann.claim("r2")),
            asyncio.create_task(ann.cancel("r1")),
        ]
        await asyncio.sleep(0)
    verdict, _, claim, kept = await asyncio.gather(*good)
    assert verdict is Verdict.WRITTEN and claim is not None and kept
    errors = await asyncio.gather(*bad, return_exceptions=True)
    assert [type(error) for error in errors] == [StoreUnavailable, StoreUnavailable, ZeroDivisionError, TypeError]
    assert [await ann.data(run) for run in ("r1", "r2", "r3")] == [
        [b"accepted r1", b"started 1 clean", b"a"],
        [b"accepted r2", b"started 1 clean"],
        [b"accepted r3", b"started 1 clean"],
    ]
    assert one.database.fences.committed.keys() == before.keys() | {"r3"}
    assert one.database.fences.committed["r1"].seq == 2
    await ann.open("r4", key="k2")


def full(db: apsw.Connection) -> None:
    """A job that fails with a full disk."""
    raise apsw.FullError("database or disk is full")


async def test_a_batch_that_is_rolled_back_never_happened(open_store: Open) -> None:
    """Rows, fences, tails and seqs are unchanged, and a retry of the same calls succeeds."""
    one = await open_store(upkeep=False)
    ann = one.ann
    await ann.open("r1", conversation="talk")
    await ann.open("r2")
    await ann.open("r3", held=False)
    settled = dict(one.database.fences.committed)
    ended = ann.slice("r1", b"end", mark=Mark(status="completed", at=0, ended=True, chains=True, turn=b"[1]"))
    parked = ann.slice("r2", b"park", mark=Mark(status="queued", at=0, parked=True))

    def work() -> list[Awaitable[object]]:
        return [
            one.store.append([ended, parked]),
            one.store.open(ann.opening("r4", key="k")),
            one.store.claim("r3", "h1", lambda attempt, clean, lost: b"claimed", 0),
            one.store.delete("ann", "r2"),
            one.store.deliveries.lost("ann", "r1", 5),
            one.store.signal("ann", Signal("r3", "cancel", "c")),
        ]

    async with one.one_batch():
        tasks = [asyncio.ensure_future(item) for item in work()]
        await asyncio.sleep(0)
        poison = one.database.writer.ask(full)
    answers = await asyncio.gather(*tasks, poison, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 7
    assert one.database.fences.committed == settled
    assert one.database.fences.staged == {}
    assert [await ann.data(run) for run in ("r1", "r2", "r3")] == [
        [b"accepted r1", b"started 1 clean"],
        [b"accepted r2", b"started 1 clean"],
        [b"accepted r3"],
    ]
    assert await ann.status("r4") is None
    async with one.one_batch():
        tasks = [asyncio.ensure_future(item) for item in work()]
        await asyncio.sleep(0)
    verdicts, _, claim, gone, *_ = await asyncio.gather(*tasks)
    assert verdicts == [Verdict.WRITTEN, Verdict.WRITTEN]
    assert claim and gone
    assert len(await ann.data("r1")) == 3


async def test_a_caller_that_gives_up_does_not_undo_what_is_committed(open_store: Open) -> None:
    """Memory follows the commit, not the caller. Otherwise the next reader would find a gap."""
    one = await open_store(upkeep=False)
    ann = one.ann
    await ann.open("r1")
    await ann.open("r2", held=False)
    await ann.open("r3")
    async with one.one_batch():
        tasks = [
            asyncio.create_task(one.store.append([ann.slice("r1", b"a")])),
            asyncio.create_task(ann.claim("r2")),
            asyncio.create_task(ann.open("r4")),
            asyncio.create_task(one.store.delete("ann", "r3")),
        ]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
    ann.seqs.update(r1=2, r2=1, r4=1)
    ann.attempts.update(r2=1, r4=1)
    for run in ("r1", "r2", "r4"):
        assert await ann.write(run, b"b") is Verdict.WRITTEN
    assert await ann.data("r1", after=1) == [b"a", b"b"]
    assert await ann.data("r2") == [b"accepted r2", b"started 1 clean", b"b"]
    assert await ann.data("r4", after=1) == [b"b"]
    assert await ann.read("r3") == []
    assert one.tail("r3") is None
    for run in ("r1", "r2", "r4"):
        await ann.end(run)
    await one.database.seal_all()
    assert await ann.data("r1", after=1) == [b"a", b"b", b"ended"]


async def test_a_checkpoint_that_fails_does_not_fail_the_batch_before_it(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the checkpoint lock (a backup), so the checkpoint after the commit fails."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    monkeypatch.setattr(database, "WAL_PAGES", 0)
    other = apsw.Connection(str(one.path))
    waits, leave = threading.Event(), threading.Event()

    def busy(times: int) -> bool:
        waits.set()
        assert leave.wait(DEADLINE_S)
        return False

    other.set_busy_handler(busy)
    other.execute("SELECT COUNT(*) FROM runs").fetchall()
    async with one.one_batch():
        writing = asyncio.create_task(one.ann.write("r1", b"a"))
        backup = asyncio.create_task(
            asyncio.to_thread(other.wal_checkpoint, mode=apsw.SQLITE_CHECKPOINT_FULL)  # holds the checkpoint lock
        )
        await asyncio.to_thread(waits.wait, DEADLINE_S)
    try:
        assert await writing is Verdict.WRITTEN
    finally:
        leave.set()
        await asyncio.gather(backup, return_exceptions=True)
        other.close()
    assert await one.ann.write("r1", b"b") is Verdict.WRITTEN
    assert await one.ann.data("r1", after=1) == [b"a", b"b"]


async def test_any_number_of_rows_is_inserted_in_order(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.open("r2")
    total = 4
    for count in (*range(1, 35), 63, 64, 65, 4095, 4096, 4097, 5000):
        parts = [one.ann.slice(run, *(b"%d" % n for n in range(count))) for run in ("r1", "r2")]
        assert await one.store.append(parts) == [Verdict.WRITTEN] * 2
        for part in parts:
            one.ann.seqs[part.run] += count
        total += 2 * count
    assert await one.query("SELECT COUNT(*), MIN(id), MAX(id) FROM entries") == [(total, 1, total)]
    assert one.database.tails.end_id == total + 1
    for run in ("r1", "r2"):
        records = await one.ann.read(run)
        rows = await one.query(
            "SELECT seq, data FROM entries WHERE run = (SELECT n FROM runs WHERE id = ?) ORDER BY id", run
        )
        assert [(record.seq, record.data) for record in records] == [tuple(row) for row in rows]
    await one.close()
    assert len(await (await open_store()).ann.read("r1")) == total // 2


async def test_the_wal_stays_bounded_under_load(open_store: Open, eager: None) -> None:
    """About 30,000 pages, written as fast as possible, with a reader that never stops (R10)."""
    one = await open_store()
    ann = one.ann
    wal = Path(f"{one.path}-wal")
    runs = [f"r{n}" for n in range(4)]
    for run in runs:
        await ann.open(run)
    done = asyncio.Event()

    async def replay() -> int:
        pages = 0
        while not done.is_set():
            for run in runs:
                pages += len(await one.store.read("ann", run, -1))
                await asyncio.sleep(0)
        return pages

    reading = asyncio.create_task(replay())
    highest = 0
    record = b"0123456789abcdef" * 2_048
    for _ in range(240):
        slices = [ann.slice(run, *[record] * 4) for run in runs]
        assert await one.store.append(slices) == [Verdict.WRITTEN] * 4
        for run in runs:
            ann.seqs[run] += 4
        highest = max(highest, size(wal))
    done.set()
    assert await reading > 0
    assert 240 * 16 * len(record) >= 30_000 * 4_096
    assert highest < 48 * 1024 * 1024
    assert one.database.problem is None


async def test_a_batch_has_a_bound(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    commits = await one.commits()
    before = commits()
    async with one.one_batch():
        opens = [asyncio.create_task(one.ann.open(f"r{n}")) for n in range(600)]
        await asyncio.sleep(0)
    await asyncio.gather(*opens)
    assert 3 <= commits() - before <= 4


async def test_readers_are_not_in_the_way_of_the_writer(open_store: Open) -> None:
    """A long read holds its own snapshot."""
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    entered, leave = threading.Event(), threading.Event()

    def slow(db: apsw.Connection) -> int:
        db.execute("SELECT COUNT(*) FROM runs").fetchall()
        entered.set()
        assert leave.wait(DEADLINE_S)
        return len(db.execute("SELECT id FROM runs").fetchall())

    reading = one.database.reader.ask(slow)
    await asyncio.to_thread(entered.wait, DEADLINE_S)
    other = Author(one.backend, "bob")
    await other.open("r2")
    assert await one.ann.write("r1", b"a") is Verdict.WRITTEN
    assert len(await one.ann.data("r1")) == 3, "the newest records need no database"
    leave.set()
    assert await reading == 1


WAITS = {"credential": "key", "kept": "delivery"}


async def delivered(one: OpenedStore) -> list[str]:
    """The runs whose delivery is noted."""
    return [run for (run,) in await one.query("SELECT id FROM runs WHERE delivered > 0 ORDER BY n")]


async def test_a_delivery_is_noted_with_the_next_write(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_thread, "LATE_S", DEADLINE_S)
    one = await open_store(upkeep=False)
    await one.ann.finished("r1", **WAITS)
    await one.ann.open("r2")
    commits = await one.commits()
    before = commits()
    noted = asyncio.ensure_future(one.ann.answer("r1"))
    await asyncio.sleep(0.05)
    assert commits() == before and await delivered(one) == []
    assert await one.ann.write("r2", b"x") is Verdict.WRITTEN
    await noted
    assert await delivered(one) == ["r1"]


async def test_a_delivery_is_noted_in_a_moment_where_nothing_else_is_written(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.finished("r1", **WAITS)
    async with asyncio.timeout(DEADLINE_S):
        await one.ann.answer("r1")
    assert await delivered(one) == ["r1"]


async def test_a_job_that_waits_for_another_one_is_done_when_the_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_thread, "LATE_S", DEADLINE_S)
    thread = database_thread.DatabaseThread("late", lambda: apsw.Connection(":memory:"), "BEGIN")
    await thread.ready()
    done = thread.ask(lambda db: "written", str, late=True)
    await thread.close()
    assert await asyncio.wait_for(done, DEADLINE_S / 10) == "written"


async def test_what_is_said_after_a_delivery_is_written_after_it(open_store: Open) -> None:
    """A loss that is reported late is ignored, also where the delivery waits for a write."""
    one = await open_store(upkeep=False)
    await one.ann.finished("r1", **WAITS, match="m")
    noted = asyncio.ensure_future(one.ann.answer("r1"))
    await asyncio.sleep(0)
    await one.ann.lose("r1")
    await noted
    assert await delivered(one) == ["r1"]
    assert await one.query("SELECT lost_at FROM runs") == [(0,)]

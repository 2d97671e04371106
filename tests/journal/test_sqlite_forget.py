"""A forgotten run leaves no bytes in the data directory (B6): not in the database, its log or its free pages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from ninelives.core.sessions import SessionTurn
from ninelives.journal.sqlite import database
from ninelives.journal.sqlite.maintenance import check
from ninelives.journal.values import SessionQuery, Signal, Verdict
from tests.journal.opened_store import OpenedStore, rows_in, size, until

Open = Callable[..., Awaitable[OpenedStore]]
WORD = b"Rumpelstiltskin"


def files_with(folder: Path, word: bytes) -> list[str]:
    """The files in which these bytes are found."""
    return sorted(path.name for path in folder.iterdir() if word in path.read_bytes())


async def upkeep_round(one: OpenedStore) -> None:
    """What upkeep does once the time has come."""
    await one.database.seal_all()
    assert await one.database.upkeep_thread.ask(one.database.scrub)


async def told(one: OpenedStore, run: str, kept: str = "delivery") -> None:
    """A finished run that says the word everywhere."""
    ann = one.ann
    await ann.open(run, kept=kept, key=f"key {WORD.decode()}")
    await ann.write(run, WORD, b"small " + WORD, WORD * 1_000, b"x" * 5_000 + WORD)
    await one.store.annotate("ann", run, b'{"of":"%s"}' % WORD)
    await one.store.signal("ann", Signal(run, "approval", "q", WORD))
    assert await ann.end(run, turn=WORD) is Verdict.WRITTEN


@pytest.mark.parametrize("place", ["in the middle", "newest"])
@pytest.mark.parametrize("sealed", [False, True], ids=["hot", "sealed"])
async def test_a_forgotten_run_is_in_no_file_after_one_round_of_upkeep(
    open_store: Open, tmp_path: Path, sealed: bool, place: str
) -> None:
    one = await open_store(upkeep=False)
    ann = one.ann
    await ann.open("before")
    await ann.finished("done before")
    await told(one, "gone", "hours")
    blob = b"\0" * 64
    if sealed:
        await one.database.seal(["gone"])
        ((blob,),) = await one.query("SELECT data FROM segments WHERE run = (SELECT n FROM runs WHERE id = 'gone')")
    if place == "in the middle":
        await ann.finished("done after")
        await ann.open("after")
    assert files_with(tmp_path, WORD) == ["journal.db-wal"]
    await one.store.forget([("ann", "gone")])
    await upkeep_round(one)
    assert files_with(tmp_path, WORD) == []
    assert not sealed or (files_with(tmp_path, blob[:40]), files_with(tmp_path, blob[-40:])) == ([], [])
    assert await one.query("SELECT COUNT(*) FROM segments WHERE run NOT IN (SELECT n FROM runs)") == [(0,)]
    assert one.tail("gone") is None and len(await ann.data("done before")) == 3
    assert await ann.write("before", b"more") is Verdict.WRITTEN
    assert size(tmp_path / "journal.db-wal") > 0, "the log goes on"


async def test_a_run_whose_rows_were_trimmed_before_it_was_forgotten_is_in_no_file(
    open_store: Open, tmp_path: Path
) -> None:
    """Rows that leave the hot table must leave no copy on free pages."""
    one = await open_store(upkeep=False)
    await told(one, "gone", "hours")
    await one.ann.open("after")
    await upkeep_round(one)
    assert await one.hot("gone") == 0 and await one.segments("gone")
    await one.store.forget([("ann", "gone")])
    await upkeep_round(one)
    assert files_with(tmp_path, WORD) == []


async def test_what_a_search_found_of_a_forgotten_run_is_in_no_file(open_store: Open, tmp_path: Path) -> None:
    """The text, its words in the index, and the preview go. Words of other runs lie around them."""
    one = await open_store(upkeep=False)
    sessions, word = one.store.sessions, WORD.decode().lower()
    for n in range(200):
        run = f"r{n}"
        await one.ann.finished(run, derived_session=f"auto-{n}", kept="hours")
        words = f"{word}{n} says r{n} and rumor{n} to all" if n == 100 else f"rum{n} ruler{n} runs on{n}"
        at = one.backend.clock.now_ms()
        turn = SessionTurn(owner="ann", run=run, at=at, created_at=at, session=f"auto-{n}", text=words, preview=words)
        await sessions.list_turns([turn])
    await upkeep_round(one)
    assert files_with(tmp_path, word.encode()) == ["journal.db"]
    assert len(await sessions.page(SessionQuery(owner="ann", words=(word,)))) == 1
    await one.store.forget([("ann", "r100")])
    await upkeep_round(one)
    assert files_with(tmp_path, word[3:].encode()) == [], "not even its end, which is what an index stores of a word"
    assert files_with(tmp_path, b"rumor100") == [] and files_with(tmp_path, b"mor100") == []
    assert await sessions.page(SessionQuery(owner="ann", words=(word,))) == []
    assert len(await sessions.page(SessionQuery(owner="ann", words=("rum",), limit=500))) == 199
    assert await one.query("INSERT INTO session_words (session_words) VALUES ('integrity-check')") == []


async def test_what_is_deleted_is_overwritten_too(open_store: Open, tmp_path: Path) -> None:
    one = await open_store(upkeep=False)
    await one.ann.open("r1")
    await one.ann.write("r1", WORD)
    await one.ann.end("r1", chains=False)
    await one.ann.finished("r2")
    await one.store.delete("ann", "r1")
    await upkeep_round(one)
    assert files_with(tmp_path, WORD) == []


async def test_of_many_runs_that_are_written_at_once_only_the_forgotten_are_gone(
    open_store: Open, eager: None, tmp_path: Path
) -> None:
    """Rows of all runs share pages. SQLite moves rows between pages, and no copy may stay behind."""
    one = await open_store()
    ann, chance = one.ann, random.Random(7)
    open_runs: list[str] = []
    gone: list[str] = []
    for step in range(400):
        act = chance.random()
        if act < 0.3 or not open_runs:
            open_runs.append(f"r{step}")
            await ann.open(open_runs[-1], kept=chance.choice(["delivery", "hours"]))
        elif act < 0.8:
            run = chance.choice(open_runs)
            sizes = chance.choices([10, 300, 900, 3_000, 9_000], k=3)
            await ann.write(run, *(b"<%s>" % run.encode() + chance.randbytes(size) for size in sizes))
        else:
            gone.append(open_runs.pop(chance.randrange(len(open_runs))))
            await ann.end(gone[-1])
            await one.store.forget([("ann", gone[-1])])
    await one.close()
    assert len(gone) > 50
    assert [run for run in gone if files_with(tmp_path, b"<%s>" % run.encode())] == []
    two = await open_store()
    for run in open_runs:
        assert len(await two.ann.data(run)) == ann.seqs[run] + 1
    await two.close()
    assert check(tmp_path / "journal.db", lambda run, records: list(records)).problems == []


async def test_upkeep_empties_the_log_by_itself_some_time_after_a_run_was_forgotten(
    open_store: Open, eager: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(database, "SCRUB_S", 0.05)
    one = await open_store()
    wal = tmp_path / "journal.db-wal"
    await until(lambda: one.database._scrub_at is None and not size(wal))
    await told(one, "gone")
    await until(lambda: WORD in wal.read_bytes())
    await one.store.forget([("ann", "gone")])
    await until(lambda: not size(wal))
    assert files_with(tmp_path, WORD) == []
    assert one.database._scrub_at is None, "an idle store has nothing to wake up for (R19)"


async def test_the_log_is_emptied_after_a_start_because_the_last_process_may_have_died_before_it_did(
    open_store: Open, eager: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = await open_store(upkeep=False)
    await told(one, "gone")
    await one.store.forget([("ann", "gone")])
    (tmp_path / "after").mkdir()
    await one.copy(tmp_path / "after" / "copy.db")
    assert files_with(tmp_path / "after", WORD) == ["copy.db-wal"]
    monkeypatch.setattr(database, "SCRUB_S", 0.0)
    await open_store("after/copy.db")
    await until(lambda: not files_with(tmp_path / "after", WORD))


async def test_a_reader_in_the_way_delays_the_emptying_and_stops_nobody(
    open_store: Open, eager: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A backup or an inspection holds an old snapshot."""
    monkeypatch.setattr(database, "SCRUB_S", 0.0)
    monkeypatch.setattr(database, "SCRUB_AGAIN_S", 0.2)
    one = await open_store()
    await told(one, "gone")
    other = apsw.Connection(str(one.path), flags=apsw.SQLITE_OPEN_READONLY)
    other.execute("BEGIN")
    other.execute("SELECT COUNT(*) FROM runs").fetchall()
    await one.store.forget([("ann", "gone")])
    for n in range(20):
        await one.ann.open(f"r{n}")
        await asyncio.sleep(0.005)
    assert files_with(tmp_path, WORD) and one.database.problem is None
    other.close()
    await until(lambda: not files_with(tmp_path, WORD))


async def test_the_number_of_a_forgotten_run_is_not_given_to_another(open_store: Open) -> None:
    """Records of the old run may be on their way into a segment."""
    one = await open_store(upkeep=False)
    await one.ann.finished("old", kept="hours")
    async with one.one_batch():
        sealing = asyncio.create_task(one.database.seal(["old"]))
        forgetting = asyncio.create_task(one.store.forget([("ann", "old")]))
        await asyncio.sleep(0)
        opening = asyncio.create_task(one.ann.open("new"))
        await asyncio.sleep(0)
    await asyncio.gather(sealing, forgetting, opening)
    assert await one.segments("new") == []
    await one.ann.end("new")
    await one.database.seal_all()
    assert len(await one.ann.data("new")) == 3


async def test_the_newest_row_stays_so_that_no_entry_seems_to_be_lost(open_store: Open, tmp_path: Path) -> None:
    one = await open_store(upkeep=False)
    await one.ann.finished("gone", kept="delivery")
    await one.store.forget([("ann", "gone")])
    await upkeep_round(one)
    assert await one.query("SELECT id, run, data FROM entries") == [(3, 0, b"")]
    await one.close()
    two = await open_store()
    await two.ann.finished("next")
    assert await two.query("SELECT MIN(id) FROM entries WHERE run > 0") == [(4,)]
    assert len(await two.ann.data("next")) == 3


async def test_a_run_kept_until_delivery_is_not_sealed_at_its_end_and_pins_the_hot_table_for_a_bounded_time(
    open_store: Open, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "HOT_ROWS", 100)
    one = await open_store()
    await one.ann.finished("brief", kept="delivery")
    await one.ann.finished("kept")
    await until(lambda: one.tail("kept") is None)
    assert await one.segments("brief") == [] and one.tail("brief") == [0, 1, 2]
    await one.close()
    two = await open_store()
    assert len(await two.ann.data("brief")) == 3
    await two.ann.open("busy")
    await two.ann.write("busy", *[b"x"] * 200)
    await two.sealed("brief", 2)
    assert two.tail("brief") is None and len(await two.ann.data("brief")) == 3
    await two.store.forget([("ann", "brief")])
    assert await two.query("SELECT COUNT(*) FROM segments WHERE run NOT IN (SELECT n FROM runs)") == [(0,)]


async def test_only_runs_that_are_not_stored_keep_no_turn(open_store: Open) -> None:
    """Nothing follows them, so the row holds no second copy of the answer."""
    one = await open_store(upkeep=False)
    for kept in ("stored", "hours", "delivery"):
        await one.ann.finished(kept, kept=kept)
    assert await one.query("SELECT id FROM runs WHERE turn IS NOT NULL") == [("stored",)]


async def test_the_question_who_can_be_claimed_does_not_wake_a_thread_while_no_run_is_open(open_store: Open) -> None:
    one = await open_store(upkeep=False)
    await one.ann.finished("r1")
    commits = await one.commits()
    before = commits()
    for _ in range(3):
        assert await one.ann.claimable() == [] and await one.store.peers.queued() == 0
        assert await one.store.peers.held("h1") == []
        await one.store.deliveries.strand(5)
    assert commits() == before


async def test_callers_of_an_older_release_may_ask_again_for_15_minutes(open_store: Open, tmp_path: Path) -> None:
    from ninelives.journal import queries

    db = apsw.Connection(str(tmp_path / "journal.db"))
    for number, script in queries.migrations("sqlite")[:4]:
        db.execute(script)
        db.pragma("user_version", number)
    for n, (waits, lost_at) in enumerate([(1, 0), (0, 5), (0, 0)]):
        db.execute(
            "INSERT INTO runs (owner, id, dialect, model, status, attempt, parked, last_seq, created_at, updated_at, "
            "session, metadata, ended, sealed_seq, waits, lost_at) "
            "VALUES ('ann', ?, 'chat', 'm', 'completed', 1, 0, 0, 1, 1, '', x'7b7d', 1, 0, ?, ?)",
            (f"r{n}", waits, lost_at),
        )
    db.close()
    await (await open_store()).close()
    found = rows_in(tmp_path / "journal.db", "SELECT kept, resend_ms, wake_at, asks, delivered FROM runs ORDER BY n")
    assert found == [("stored", resend_ms, 0, "", 0) for resend_ms in (900_000, 900_000, 0)]

"""What SQLite adds to the contract: acknowledged writes survive a close, a kill and a restart (P1)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import apsw
import pytest

from ninelives.core.spec import Resolved
from ninelives.journal import queries
from ninelives.journal.base import Store
from ninelives.journal.sqlite.load import NewerStore
from ninelives.journal.sqlite.lock import DirectoryHeld, DirectoryLock
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import ConversationRow, Grant, Query, Slice, StoreUnavailable, Verdict
from ninelives.testing import Author, Backend, Crash, CrashingStore, VirtualClock, refusal
from ninelives.testing.author import started
from ninelives.testing.contract.conversations import ITEMS, added, removed
from tests.journal.opened_store import OpenedStore, contents, edit, modes, overwrite, rows_in

Open = Callable[..., Awaitable[OpenedStore]]


async def fill(ann: Author) -> None:
    """One run of each kind."""
    await ann.finished("done", key="k1", conversation="talk")
    await ann.open("active", key="k2", conversation="talk")
    await ann.write("active", b"a", b"b")
    await ann.cancel("active")
    await ann.finished("turn", session="s")
    await ann.finished("turn2", session="s", kept="hours")
    await ann.open("failed")
    await ann.end("failed", chains=False)
    await ann.open("parked")
    await ann.park("parked", b"p")
    await ann.open("queued", held=False)
    await ann.finished("gone", key="k3")
    await ann.store.delete("ann", "gone")
    await ann.store.annotate("ann", "done", b'{"a":"b"}')
    await ann.store.grant(Grant("ann", "g1", "s", "terminal", "{}", 1, "key 1"))
    await added(ann, "items", b'{"a":"b"}', conversation_use="make", key="k4")
    await added(ann, "more", conversation="conv_items", conversation_use="extend")
    await removed(ann, "conv_items", "items", "x")
    await added(ann, "forgotten", conversation_use="make", key="k5")
    await ann.store.conversations.forget("ann", "conv_forgotten", ITEMS, 5)


async def pages(ann: Author) -> list[ConversationRow]:
    return list(await ann.store.conversations.page("ann", 10, None, True))


async def picture(ann: Author) -> dict[str, object]:
    """Everything that can be read from the store."""
    rows = await ann.store.rows(Query(owner="ann", limit=100))
    return {
        "rows": rows,
        "records": {row.run: await ann.read(row.run) for row in rows},
        "signals": {row.run: await ann.store.signals(row.run) for row in rows},
        "session": await ann.store.turns("ann", Resolved(session="s", session_turns=2)),
        "chain": await ann.store.turns("ann", Resolved(previous="done")),
        "talk": await ann.store.resolve(ann.asked(conversation="talk", kept="memory")),
        "conversations": [(one, await ann.store.conversations.line("ann", one.id)) for one in await pages(ann)],
        "edited": await ann.store.turns("ann", Resolved(previous="more", conversation="conv_items")),
        "granted": await ann.store.grants("ann"),
    }


async def keeps_its_word(before: dict[str, object], ann: Author, again: Author) -> None:
    """After a restart the store shows the same picture, has the same fences, and every claim is free."""
    assert await picture(again) == before
    assert await again.claimable() == ["active", "parked", "queued"]
    assert await again.attach("x", key="k1") == "done"
    assert await again.attach("x", key="k4") == "items"
    assert (await refusal(again.open("x", key="k2", fingerprint="other"))).status == 409
    assert (await refusal(again.open("x", conversation="talk"))).status == 409
    assert await again.read("gone") == []
    again.seqs, again.attempts = dict(ann.seqs), dict(ann.attempts)
    assert [await again.write(run, b"x") for run in ann.seqs] == [Verdict.FENCED] * len(ann.seqs)
    claims = [await again.claim(run) for run in ("active", "parked", "queued")]
    assert [claim.record.data for claim in claims if claim] == [started(2, False), started(2, True), started(1, True)]
    assert [claim.record.seq for claim in claims if claim] == [4, 3, 1]
    assert await again.write("active", b"c") is Verdict.WRITTEN
    assert await again.data("active", after=1) == [b"a", b"b", started(2, False), b"c"]


@pytest.mark.parametrize("upkeep", [True, False], ids=["with upkeep", "without upkeep"])
async def test_everything_is_there_after_close_and_reopen(open_store: Open, upkeep: bool) -> None:
    first = await open_store(upkeep=upkeep)
    await fill(first.ann)
    before = await picture(first.ann)
    await first.close()
    second = await open_store()
    await keeps_its_word(before, first.ann, second.ann)


@pytest.mark.parametrize("upkeep", [True, False], ids=["with upkeep", "without upkeep"])
async def test_everything_is_there_after_a_kill(open_store: Open, tmp_path: Path, upkeep: bool) -> None:
    first = await open_store(upkeep=upkeep)
    await fill(first.ann)
    before = await picture(first.ann)
    await first.copy(tmp_path / "copy.db")
    second = await open_store("copy.db")
    await keeps_its_word(before, first.ann, second.ann)


async def test_a_kill_before_the_commit_leaves_nothing_of_the_batch(open_store: Open, tmp_path: Path) -> None:
    first = await open_store()
    ann = first.ann
    await ann.open("r1")
    async with first.one_batch():
        work = [
            asyncio.create_task(first.store.append([ann.slice("r1", b"x" * 3_000_000)])),
            asyncio.create_task(ann.open("r2", key="k")),
        ]
        await asyncio.sleep(0)
        copying = first.database.writer.ask(lambda db: first.copy_now(tmp_path / "copy.db"))
    await asyncio.gather(*work, copying)
    assert len(await ann.data("r1")) == 3
    second = await open_store("copy.db")
    assert len(await second.ann.data("r1")) == 2
    assert await second.ann.status("r2") is None
    await second.ann.open("r2", key="k")


async def a_life(store: Store, clock: VirtualClock, answered: list[bytes]) -> None:
    """A run from open to end. `answered` collects what a client has seen."""
    ann = Author(Backend(store, clock))
    answered += [record.data for record in (await ann.open("r1", key="k")).records]
    for n in range(3):
        assert await ann.write("r1", b"%d" % n) is Verdict.WRITTEN
        answered.append(b"%d" % n)
    assert await ann.park("r1") is Verdict.WRITTEN
    claim = await ann.claim("r1")
    assert claim is not None
    answered.append(claim.record.data)
    assert await ann.end("r1") is Verdict.WRITTEN
    answered.append(b"ended")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_any_call_loses_nothing_that_was_answered(
    open_store: Open, tmp_path: Path, clock: VirtualClock, when: Literal["before", "after"]
) -> None:
    whole: list[bytes] = []
    first = CrashingStore((await open_store("whole.db")).store)
    await a_life(first, clock, whole)
    for n in range(1, first.calls + 1):
        one = await open_store(f"{n}.db")
        answered: list[bytes] = []
        with pytest.raises(Crash):
            await a_life(CrashingStore(one.store, die_at=n, when=when), clock, answered)
        await one.copy(tmp_path / f"copy{n}.db")
        two = await open_store(f"copy{n}.db")
        kept = await two.ann.data("r1")
        assert answered == kept[: len(answered)]
        assert kept == whole[: len(kept)], "and what nobody was told of is at most the one call that died"
        assert (kept == answered) is (when == "before" or n == 5), "parking writes no record"


async def test_the_attempt_of_a_claim_outlives_a_restart(open_store: Open) -> None:
    for attempt in range(1, 5):
        one = await open_store()
        if attempt == 1:
            await one.ann.open("r1", held=False)
        claim = await one.ann.claim("r1")
        assert claim is not None and (claim.attempt, claim.record.seq) == (attempt, attempt)
        await one.close()


async def test_a_death_after_a_park_and_a_claim_is_unclean(open_store: Open) -> None:
    first = await open_store()
    await first.ann.open("r1")
    await first.ann.park("r1")
    await first.ann.claim("r1")
    await first.close()
    claim = await (await open_store()).ann.claim("r1")
    assert claim is not None and claim.record.data == started(3, False)


async def test_a_restart_costs_every_lease(open_store: Open, clock: VirtualClock) -> None:
    first = await open_store()
    await first.ann.open("r1")
    assert await first.ann.claimable() == []
    await first.close()
    assert await (await open_store()).ann.claimable() == ["r1"]


async def test_the_files_are_the_owners_alone(open_store: Open, tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        one = await open_store()
        await one.ann.open("r1")
    finally:
        os.umask(mask)
    names = ("journal.db", "journal.db-wal", "journal.db-shm", "journal.tip")
    assert modes(tmp_path) == dict.fromkeys(names, 0o600)


async def test_a_file_that_others_could_read_is_closed_to_them(open_store: Open, tmp_path: Path) -> None:
    await (await open_store()).close()
    (tmp_path / "journal.db").chmod(0o644)
    await open_store()
    assert modes(tmp_path)["journal.db"] == 0o600


async def test_a_newer_schema_is_refused_and_the_files_are_not_touched(
    open_store: Open, tmp_path: Path, clock: VirtualClock
) -> None:
    first = await open_store()
    await first.ann.open("r1")
    await first.database.upkeep_thread.ask(lambda db: db.pragma("user_version", 99))
    await first.copy(tmp_path / "newer.db")
    files = [tmp_path / "newer.db", tmp_path / "newer.db-wal"]
    before = contents(*files)
    assert len(before[1]) > 0
    with pytest.raises(NewerStore, match="schema 99"):
        await SqliteStore.open_at(files[0], "normal", clock.now_ms)
    assert contents(*files) == before


async def test_a_store_is_made_by_its_migrations(open_store: Open, tmp_path: Path) -> None:
    await (await open_store()).close()
    assert rows_in(tmp_path / "journal.db", "PRAGMA user_version") == [(queries.migrations("sqlite")[-1][0],)]
    assert rows_in(tmp_path / "journal.db", "PRAGMA journal_mode") == [("wal",)]


async def test_a_store_of_the_first_schema_is_migrated_with_its_conversations(open_store: Open, tmp_path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(tmp_path / "journal.db"))) as db:
        db.execute(queries.migrations("sqlite")[0][1])
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO conversations VALUES ('ann', 'conv_old', 'talk', NULL, NULL, 7)")
    opened = await open_store()
    (row,) = await opened.store.conversations.page("ann", 10, None, True)
    assert (row.id, row.name, row.metadata, row.created_at) == ("conv_old", "talk", b"{}", 7)
    await opened.ann.finished("r1", conversation="talk")
    assert [link.run for link in await opened.store.conversations.line("ann", "conv_old")] == ["r1"]
    assert rows_in(tmp_path / "journal.db", "PRAGMA user_version") == [(queries.migrations("sqlite")[-1][0],)]


async def test_the_writer_has_the_durability_that_was_asked_for(tmp_path: Path, clock: VirtualClock) -> None:
    for durability, level in (("normal", 1), ("full", 2)):
        store = await SqliteStore.open_at(tmp_path / f"{durability}.db", durability, clock.now_ms)  # type: ignore[arg-type]
        assert await store.database.writer.ask(lambda db: db.pragma("synchronous")) == level
        await store.close()


def test_a_directory_has_one_holder_and_the_second_is_told_who(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryHeld, match=rf"pid {os.getpid()}\b"):
        DirectoryLock(tmp_path)
    assert modes(tmp_path) == {"lock": 0o600}
    lock.release()
    DirectoryLock(tmp_path).release()


def test_a_lock_is_let_go_when_its_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from ninelives.journal.sqlite.lock import DirectoryLock;"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryHeld, match=rf"pid {holder.pid}\b"):
            DirectoryLock(tmp_path)
        holder.kill()
    DirectoryLock(tmp_path).release()


async def test_a_closed_store_says_so_at_once(open_store: Open) -> None:
    one = await open_store()
    await one.ann.open("r1")
    await one.close()
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match="closed"):
            await one.store.append([Slice("r1", 1, [])])
        with pytest.raises(StoreUnavailable, match="closed"):
            await one.store.find("ann", "r1")


async def test_what_was_asked_before_the_close_is_committed(open_store: Open) -> None:
    one = await open_store()
    await one.ann.open("r1")
    writing = asyncio.create_task(one.ann.write("r1", b"last"))
    await asyncio.sleep(0)
    await one.close()
    assert await writing is Verdict.WRITTEN
    assert (await (await open_store()).ann.data("r1"))[-1] == b"last"


async def test_a_disk_that_is_full_fails_the_call_and_nothing_else(open_store: Open, eager: None) -> None:
    one = await open_store()
    ann = one.ann
    await ann.open("r1")
    await ann.open("r2")
    await one.allow_pages(2)
    big = ann.slice("r1", b"x" * 100_000)
    for _ in range(3):
        with pytest.raises(StoreUnavailable) as caught:
            await one.store.append([big, ann.slice("r2", b"y")])
        assert caught.value.passing
    assert [len(await ann.data(run)) for run in ("r1", "r2")] == [2, 2]
    await one.allow_pages(100_000)
    assert await one.store.append([big, ann.slice("r2", b"y")]) == [Verdict.WRITTEN, Verdict.WRITTEN]
    assert [len(await ann.data(run)) for run in ("r1", "r2")] == [3, 3]


async def test_a_database_that_is_no_database_is_refused(tmp_path: Path, clock: VirtualClock) -> None:
    overwrite(tmp_path / "journal.db", b"garbage" * 1_000)
    with pytest.raises(Exception, match="damaged"):
        await SqliteStore.open_at(tmp_path / "journal.db", "normal", clock.now_ms)
    assert contents(tmp_path / "journal.db") == [b"garbage" * 1_000]


async def test_two_runs_never_share_an_id(open_store: Open) -> None:
    one = await open_store()
    await one.ann.open("r1")
    with pytest.raises(StoreUnavailable, match="UNIQUE"):
        await one.ann.open("r1")
    assert len(await one.ann.data("r1")) == 2


def test_edit_and_rows_in_do_what_they_say(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "x.db"))
    db.execute("CREATE TABLE t (a)")
    db.close()
    assert edit(tmp_path / "x.db", "INSERT INTO t VALUES (?), (?)", 1, 2) == 2
    assert rows_in(tmp_path / "x.db", "SELECT a FROM t") == [(1,), (2,)]

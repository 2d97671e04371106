"""Runs that are not stored on a shared database: they wait for their caller, and leave nothing behind (B6, B8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncpg
import pytest

from ninelives.core.errors import Damaged
from ninelives.core.sessions import SessionTurn
from ninelives.core.spec import Resolved
from ninelives.journal import queries
from ninelives.journal.postgres.store import PostgresStore
from ninelives.journal.values import (
    SETTLE_MS,
    HeldRun,
    Mark,
    Query,
    Retention,
    Signal,
    Verdict,
)
from ninelives.testing import Author, Backend
from ninelives.testing.author import refusal
from tests import pg

WAITS: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 30_000}
DELIVERY: dict[str, Any] = {**WAITS, "kept": "delivery"}
HOURS: dict[str, Any] = {**WAITS, "kept": "hours"}


class Pair(NamedTuple):
    """Two processes on one database."""

    url: str
    clock: pg.FileClock
    a: Author
    b: Author

    async def sql(self, statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await pg.server().run(self.url, statement)]

    async def lose(self, run: str) -> None:
        await self.a.store.deliveries.lost("ann", run, 0)

    async def kill_a(self) -> None:
        """The process of a is gone, and this is known. Nobody has marked its callers as lost yet."""
        await pg.server().run(self.url, "UPDATE replicas SET dead = true WHERE holder = 'a'")

    async def strand(self) -> None:
        await self.b.store.deliveries.strand(0)


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr("ninelives.journal.postgres.listener.WATCH_S", 3600)  # only the tests notice a death
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 3600)
        stores: list[PostgresStore] = [await pg.opened(url, name) for name in ("a", "b")]
        a, b = (Author(Backend(store, clock), holder=name) for store, name in zip(stores, "ab", strict=True))
        try:
            yield Pair(url, clock, a, b)
        finally:
            for store in stores:
                await store.close()


# conversations and chains


@pytest.mark.parametrize("kept", ["hours", "delivery"])
async def test_a_run_that_is_not_stored_takes_no_slot_in_a_conversation(pair: Pair, kept: str) -> None:
    await pair.a.finished("r1", conversation="talk")
    opened = await pair.a.open("r2", conversation="talk", kept=kept)
    assert opened.resolved.previous == "r1" and opened.resolved.conversation == "conv_r1"
    await pair.b.open("r3", conversation="talk")
    beside = await pair.a.open("r4", conversation="talk", kept=kept)
    assert beside.resolved.previous == "r1", "not even a busy conversation refuses it"
    for run in ("r2", "r4"):
        await pair.a.end(run)
    found = await pair.a.store.conversations.find("ann", "talk")
    assert found is not None and (found.latest, found.active) == ("r1", "r3")
    assert await pair.a.store.turns("ann", opened.resolved) == [b'["r1"]']


@pytest.mark.parametrize("kept", ["hours", "delivery"])
async def test_a_run_that_is_not_stored_is_never_the_one_before(pair: Pair, kept: str) -> None:
    await pair.a.finished("r1", kept=kept)
    for following in ("stored", kept):
        assert (await refusal(pair.b.open("r2", previous="r1", kept=following))).status == 404


async def test_the_list_of_runs_says_what_is_kept(pair: Pair) -> None:
    for kept in ("stored", "hours", "delivery"):
        await pair.a.open(kept, kept=kept)
    rows = await pair.b.store.rows(Query(owner="ann"))
    assert [(row.run, row.kept) for row in rows] == [(kept, kept) for kept in ("delivery", "hours", "stored")]
    for ascending in (True, False):
        stored = await pair.b.store.rows(Query(owner="ann", stored=True, ascending=ascending))
        assert [row.run for row in stored] == ["stored"]


# waiting for the caller


async def test_a_delivery_run_of_a_dead_process_cannot_be_claimed_until_it_is_joined(pair: Pair) -> None:
    await pair.a.open("r1", **DELIVERY)
    await pair.a.open("hours", **{**HOURS, "match": "m2"})
    await pair.kill_a()
    for _ in range(2):  # before and after its caller is marked as lost
        assert await pair.b.claimable() == ["hours"] and await pair.b.store.peers.queued() == 1
        assert await pair.b.claim("r1") is None
        await pair.strand()
    assert await pair.b.attach("r2", **DELIVERY) == "r1"
    assert await pair.b.claimable() == ["r1", "hours"]
    claim = await pair.b.claim("r1")
    assert claim is not None and not claim.overdue


async def test_a_delivery_run_of_a_dead_process_is_overdue_when_its_time_is_over(pair: Pair) -> None:
    await pair.a.open("r1", **DELIVERY)
    await pair.kill_a()
    await pair.strand()
    pair.clock.advance(29.999)
    assert await pair.b.claimable() == [] and await pair.b.claim("r1") is None
    pair.clock.advance(0.001)
    assert await pair.b.claimable() == ["r1"] and await pair.b.store.peers.queued() == 1
    claim = await pair.b.claim("r1")
    assert claim is not None and claim.overdue


async def test_a_queued_delivery_run_can_be_claimed_while_its_caller_waits(pair: Pair) -> None:
    await pair.a.open("r1", held=False, **DELIVERY)
    assert await pair.b.claimable() == ["r1"]
    pair.clock.advance(16)  # the lease of a is over
    await pair.b.store.beat("b")
    assert await pair.b.claimable() == [] and await pair.b.claim("r1") is None
    assert await pair.a.claimable() == ["r1"], "a itself knows that its caller waits"
    assert await pair.a.claim("r1") is not None


async def test_a_signal_or_an_open_question_lets_a_delivery_run_be_claimed(pair: Pair) -> None:
    for run in ("cancelled", "approved", "other", "asks"):
        await pair.a.open(run, **{**DELIVERY, "match": run})
    await pair.a.write("asks", b"?", mark=Mark(status="waiting_for_approval", at=0, asks="q1"))
    await pair.kill_a()
    await pair.strand()
    assert await pair.b.claimable() == ["asks"], "whoever claims it waits for the person"
    assert await pair.b.cancel("cancelled")
    for run in ("approved", "other"):
        assert await pair.b.store.signal("ann", Signal(run, "approval", "of an earlier question"))
    assert await pair.b.claimable() == ["cancelled", "asks"]
    assert await pair.b.claim("other") is None
    assert await pair.b.claim("cancelled") is not None


@pytest.mark.parametrize("first", ["lost", "parked"])
async def test_a_run_that_was_left_waits_until_its_request_cannot_join_it_any_more(pair: Pair, first: str) -> None:
    left = Mark(status="queued", at=0, parked=True, left=True)
    await pair.a.open("r1", **HOURS)
    if first == "lost":
        await pair.lose("r1")
        pair.clock.advance(10)
        await pair.a.write("r1", mark=left)
        pair.clock.advance(19.999)
    else:  # the notice of the loss comes after the run was parked, and counts
        await pair.a.write("r1", mark=Mark(status="queued", at=0, parked=True))
        pair.clock.advance(10)
        await pair.lose("r1")
        pair.clock.advance(29.999)
    assert await pair.b.claimable() == []
    pair.clock.advance(0.001)
    assert await pair.b.claimable() == ["r1"]
    claim = await pair.b.claim("r1")
    assert claim is not None and claim.overdue
    assert await pair.sql("SELECT wake_at, asks FROM runs") == [(0, "")]


async def test_a_run_that_was_joined_before_it_parked_does_not_wait_for_its_caller(pair: Pair) -> None:
    await pair.a.open("r1", **HOURS)
    await pair.lose("r1")
    assert await pair.b.attach("r2", **HOURS) == "r1"
    await pair.a.write("r1", mark=Mark(status="queued", at=0, parked=True, left=True))
    assert await pair.b.claimable() == ["r1"]
    claim = await pair.b.claim("r1")
    assert claim is not None and not claim.overdue


async def test_a_run_without_a_caller_that_is_parked_as_left_waits_from_then_on(pair: Pair) -> None:
    await pair.a.open("r1", kept="hours", resend_ms=30_000)
    await pair.a.write("r1", mark=Mark(status="queued", at=0, parked=True, left=True))
    assert await pair.sql("SELECT wake_at FROM runs") == [(pair.clock.now_ms() + 30_000,)]


async def test_a_lost_caller_does_not_end_the_wait_for_a_person(pair: Pair) -> None:
    wake_at = pair.clock.now_ms() + 600_000
    for run in ("asks", "stored"):
        fields = {**WAITS, "match": run, "kept": "delivery" if run == "asks" else "stored"}
        await pair.a.open(run, **fields)
    asks = Mark(status="waiting_for_approval", at=0, parked=True, wake_at=wake_at, asks="q1")
    await pair.a.write("asks", mark=asks)
    await pair.a.park("stored")
    for run in ("asks", "stored"):
        await pair.lose(run)
    assert await pair.sql("SELECT wake_at FROM runs ORDER BY n") == [(wake_at,), (0,)]
    assert await pair.b.attach("r2", **{**DELIVERY, "match": "asks"}) == "asks"
    assert await pair.b.claimable() == ["stored"], "the person is still asked"


async def test_a_question_is_found_by_its_code_while_the_run_is_held_and_parked(pair: Pair) -> None:
    asking = pair.b.store.asking
    await pair.a.open("r1")
    asks = Mark(status="waiting_for_approval", at=0, wake_at=pair.clock.now_ms() + 1000, asks="q1")
    assert await pair.a.write("r1", b"?", mark=asks) is Verdict.WRITTEN
    assert await asking("ann", "q1") == "r1"
    assert await asking("bob", "q1") is None and await asking("ann", "q2") is None and await asking("ann", "") is None
    assert await pair.b.claim("r1") is None, "it is still held"
    await pair.a.write("r1", b"!", mark=Mark(status="running", at=0))
    assert await asking("ann", "q1") is None and await pair.sql("SELECT wake_at, asks FROM runs") == [(0, "")]


async def test_a_holder_learns_how_long_ago_the_caller_left(pair: Pair) -> None:
    for run, kept in (("r1", "delivery"), ("r2", "hours"), ("r3", "stored"), ("r4", "hours")):
        await pair.a.open(run, **{**WAITS, "match": run, "kept": kept})
        if run != "r4":
            await pair.lose(run)
    pair.clock.advance(2)
    held = [("r1", 2000), ("r2", 2000), ("r3", 0), ("r4", 0)]
    assert await pair.a.store.peers.held("a") == [HeldRun("ann", run, 1, False, left_ms) for run, left_ms in held]


# forgetting


async def forgettable(pair: Pair, unstored_ms: int = 3_600_000, limit: int = 10) -> list[str]:
    return [run for _, run in await pair.b.store.upkeep.forgettable(0, unstored_ms, limit)]


async def test_a_delivered_run_can_be_forgotten_after_a_moment_for_its_other_readers(pair: Pair) -> None:
    for run, fields in (("r1", DELIVERY), ("r2", HOURS), ("r3", WAITS)):
        await pair.a.finished(run, **{**fields, "match": run})
    pair.clock.advance(60)
    await pair.a.store.deliveries.answered([("ann", run) for run in ("r1", "r2", "r3")])
    assert await forgettable(pair) == []
    pair.clock.advance(SETTLE_MS / 1000)
    assert await forgettable(pair) == ["r1"] and await forgettable(pair, 0) == ["r1", "r2"]
    assert await forgettable(pair, 0, limit=1) == ["r1"]


async def test_an_undelivered_run_can_be_forgotten_when_nobody_can_join_it_any_more(pair: Pair) -> None:
    for run in ("lost", "waits", "void", "alone"):
        await pair.a.open(run, **{**DELIVERY, "match": run, "credential": "" if run == "alone" else "k1"})
        await pair.a.end(run, chains=run != "void")
    pair.clock.advance(20)
    await pair.lose("lost")
    assert await forgettable(pair) == ["void"]
    pair.clock.advance(10.001)
    assert await forgettable(pair) == ["void", "alone"]
    pair.clock.advance(19.999)
    assert await pair.b.attach("again", **{**DELIVERY, "match": "lost"}) == "lost", "at the last moment"
    pair.clock.advance(60)
    assert await forgettable(pair) == ["void", "alone"]


async def test_what_is_kept_for_hours_goes_by_the_end_of_the_run_and_the_clock_of_the_database(pair: Pair) -> None:
    await pair.a.open("r1", **HOURS)
    day = 86_400_000
    end = Mark(status="completed", at=pair.clock.now_ms() - day, ended=True)
    assert await pair.a.write("r1", b"end", mark=end) is Verdict.WRITTEN
    pair.clock.advance(3599.999)
    await pair.a.store.upkeep.touch([("ann", "r1", pair.clock.now_ms())])
    assert await forgettable(pair) == []
    pair.clock.advance(0.001)
    assert await forgettable(pair) == ["r1"], "its use does not matter"


async def test_a_forgotten_run_leaves_no_row_in_any_table(pair: Pair) -> None:
    await pair.a.finished("stored")
    for run, kept in (("r1", "delivery"), ("r2", "hours")):
        await pair.a.open(run, **{**WAITS, "kept": kept, "key": f"key of {run}", "previous": "stored"})
        await pair.a.write(run, b"text of " + run.encode())
        assert await pair.a.cancel(run)
        await pair.a.end(run)
        await pair.sql(f"INSERT INTO signals VALUES ('ann', '{run}', 'cancel', 'late', '') RETURNING 1")
    turn = SessionTurn(owner="ann", run="r2", at=1, created_at=1, session="auto-r2", text="text of r2", preview="r2")
    await pair.a.store.sessions.list_turns([turn])
    await pair.a.open("active", **DELIVERY)
    everything = [("ann", run) for run in ("r1", "r2", "active", "stored", "nobody")]
    await pair.b.store.forget([("bob", "r1"), *everything])
    await pair.b.store.forget([])
    for table in pg.TABLES.split():
        assert await pair.sql(f"SELECT t::text FROM {table} AS t WHERE t::text ~ '\\mr[12]\\M'") == [], table
    for run in ("stored", "active"):
        assert await pair.b.data(run) != [], "only runs that have ended and are not stored"
    assert await pair.b.store.find("ann", "r1") is None and await pair.b.read("r1") == []
    assert not await pair.b.store.upkeep.expired("ann", "r1")
    assert await pair.b.store.turns("ann", Resolved(previous="stored")) == [b'["stored"]']
    await pair.b.open("r9", key="key of r1", fingerprint="another request")


async def test_the_number_of_runs_is_bounded_for_stored_runs_and_others_alone(pair: Pair) -> None:
    for n in range(3):
        for kept in ("stored", "hours", "delivery"):
            pair.clock.advance(1)
            await pair.a.finished(f"{kept}{n}", kept=kept)
    gone = await pair.b.store.upkeep.evict(Retention(at=pair.clock.now_ms(), runs=2), frozenset())
    assert sorted(run for _, run in gone.runs) == ["delivery0", "delivery1", "hours0", "hours1", "stored0"]


async def test_runs_to_forget_and_questions_are_found_by_an_index(pair: Pair) -> None:
    await pair.sql(
        "INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, ended, last_seq, created_at, "
        "updated_at, ended_at, session, metadata, kept, asks) SELECT 'r' || g, 'ann', 'chat', 'm', 'completed', 1, "
        "false, g % 100 > 0, 1, g, g, g, '', '{}', CASE WHEN g % 50 = 1 THEN 'hours' ELSE 'stored' END, "
        "CASE WHEN g % 100 = 0 THEN 'q' || g ELSE '' END FROM generate_series(1, 5000) g RETURNING 1"
    )
    await pg.server().run(pair.url, "ANALYZE runs")
    forgettable = queries.load("postgres", "upkeep")["forgettable"]
    for sql, index in (
        (forgettable.replace("$1", "1000").replace("$2", "5000").replace("$3", "64"), "runs_to_forget"),
        ("SELECT id FROM runs WHERE owner = 'ann' AND asks = 'q100' AND asks != ''", "runs_asking"),
    ):
        connection = await asyncpg.connect(pair.url)
        try:
            plan = "\n".join(str(row[0]) for row in await connection.fetch("EXPLAIN " + sql))
        finally:
            await connection.close()
        assert index in plan and "Seq Scan" not in plan, plan


@pytest.mark.parametrize("lost", ["1", "2", "1, 2"])
async def test_p14_a_session_with_a_gap_is_damaged_and_a_deleted_one_is_empty(pair: Pair, lost: str) -> None:
    for run in ("a", "b", "c"):
        await pair.a.finished(run, session="s")
    await pair.sql(f"DELETE FROM session_turns WHERE n IN ({lost})")
    for counted in (2, 3):
        with pytest.raises(Damaged, match=r"missing from the store\. Restore a backup"):
            await pair.b.store.turns("ann", Resolved(session="s", session_turns=counted))
    await pair.a.store.sessions.forget("ann", "s")
    assert await pair.b.store.turns("ann", Resolved(session="s", session_turns=3)) == []

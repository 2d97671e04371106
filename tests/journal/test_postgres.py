"""What the PostgreSQL store promises beyond the contract: one schema, one secret, fair claims, reported damage."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from ninelives.core.errors import ClientError, Damaged, WentBack
from ninelives.journal import queries
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres import connections
from ninelives.journal.postgres.connections import Connections, Wiring, translate
from ninelives.journal.postgres.log import packed
from ninelives.journal.postgres.move import refuse_moved
from ninelives.journal.postgres.rows import SQL as ROWS
from ninelives.journal.postgres.schema import upgrade
from ninelives.journal.postgres.store import Identity, PostgresStore
from ninelives.journal.segments import origin
from ninelives.journal.values import (
    HeldRun,
    Mark,
    NewerStore,
    Query,
    Record,
    Replica,
    Retention,
    Signal,
    Slice,
    StoreUnavailable,
    Verdict,
)
from ninelives.testing import Author, Backend, VirtualClock
from ninelives.testing.author import started
from tests import pg


class Place(NamedTuple):
    """A store, and direct access to its database."""

    store: PostgresStore
    ann: Author
    url: str
    clock: pg.FileClock

    async def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        rows = await self.store._connections.once(lambda connection: connection.fetch(statement, *values))
        return [tuple(row) for row in rows]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with pg.server().borrowed() as (url, clock):
        store = await pg.opened(url, "h1")
        try:
            yield Place(store, Author(Backend(store, clock)), url, clock)
        finally:
            await store.close()


# schema


async def test_many_processes_that_start_at_once_migrate_an_empty_database_once() -> None:
    server = pg.server()
    await server.run("postgres", "CREATE DATABASE unborn TEMPLATE template0 STRATEGY file_copy")
    stores = await asyncio.gather(*(pg.opened(server.url("unborn"), f"h{n}") for n in range(5)))
    versions = await stores[0]._connections.once(
        lambda connection: connection.fetch("SELECT version FROM schema_versions")
    )
    known = [number for number, _ in queries.migrations("postgres")]
    assert sorted(row["version"] for row in versions) == known
    assert len({await store.secret() for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_a_migration_may_take_longer_than_any_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration with a time limit would start again at every start of a server."""
    monkeypatch.setattr(connections, "WORK_S", 0.5)
    server, known = pg.server(), queries.migrations("postgres")
    await server.run("postgres", "CREATE DATABASE slow TEMPLATE template0 STRATEGY file_copy")
    monkeypatch.setattr(queries, "migrations", lambda folder: [*known, (9999, "SELECT pg_sleep(1)")])
    await server.run("slow", "ALTER DATABASE slow SET statement_timeout = '500ms'")
    store = await pg.opened(server.url("slow"))
    await store.close()
    rows = await server.run("slow", "SELECT max(version) FROM schema_versions")
    assert rows[0][0] == 9999


async def test_a_database_with_a_newer_schema_is_refused_and_not_changed() -> None:
    server = pg.server()
    url = await server.database()
    await server.run(url, "INSERT INTO schema_versions (version) VALUES (9999)")
    with pytest.raises(NewerStore, match=r"schema 9999.*Use the newer ninelives"):
        await pg.opened(url)


async def database_of_0_1_0() -> str:
    """The URL of a database as release 0.1.0 left it: migrations 1 to 3, and one run that waits to be claimed."""
    server, schema = pg.server(), queries.load("postgres", "schema")
    await server.run("postgres", "CREATE DATABASE release_0_1_0 TEMPLATE template0 STRATEGY file_copy")
    url = server.url("release_0_1_0")
    await server.run(url, schema["create_versions"])
    for number, script in queries.migrations("postgres")[:3]:
        await server.run(url, script)
        await server.run(url, schema["applied"], number)
    await server.run(
        url,
        "INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, last_seq, created_at, updated_at, "
        "session, metadata) VALUES ('old', 'ann', 'responses', 'm', 'queued', 0, true, 0, 5, 5, '', '{}')",
    )
    await server.run(
        url,
        "INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, ended, last_seq, created_at, "
        "updated_at, session, metadata, lost_at) VALUES ('lost', 'ann', 'responses', 'm', 'completed', 1, false, true, "
        "0, 5, 5, '', '{}', 5)",
    )
    row = packed([Record(0, 0, 5, b"accepted old")], origin("old"))
    log = (row.first, row.last, row.at, row.before, row.after, row.data)
    await server.run(url, "INSERT INTO run_log VALUES ('old', $1, $2, 0, $3, $4, $5, $6)", *log)
    return url


async def test_a_database_that_release_0_1_0_left_opens_and_works() -> None:
    url = await database_of_0_1_0()
    clocks = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname LIKE '%\\_now'"
    assert [row[0] for row in await pg.server().run(url, clocks)] == ["holdfast_now"]
    store, other = await asyncio.gather(pg.opened(url, "h1"), pg.opened(url, "h2"))
    try:
        assert [row[0] for row in await pg.server().run(url, clocks)] == ["ninelives_now"]
        assert abs(await store.now_ms() - time.time() * 1000) < 60_000
        windows = await pg.server().run(url, "SELECT id, kept, resend_ms FROM runs ORDER BY id")
        assert [tuple(row) for row in windows] == [("lost", "stored", 900_000), ("old", "stored", 0)]
        ann = Author(Backend(store, VirtualClock()))
        assert await ann.claimable() == ["old"]
        assert await ann.claim("old") is not None and await ann.claimable() == []
        assert await ann.end("old") is Verdict.WRITTEN
        assert await ann.data("old") == [b"accepted old", started(1, True), b"ended"]
        await ann.finished("new", key="k", previous="old")
        assert [record.seq for record in await other.read("ann", "new", -1)] == [0, 1, 2]
        assert {replica.holder for replica in await other.peers.replicas()} == {"h1", "h2"}
    finally:
        await store.close()
        await other.close()


async def test_a_database_that_cannot_be_reached_may_be_tried_again() -> None:
    for url in (pg.server().url("nobody"), "postgresql://x@127.0.0.1:1/x"):
        with pytest.raises(StoreUnavailable) as caught:
            await pg.opened(url)
        assert caught.value.passing and caught.value.away


def test_a_database_that_answers_is_not_away() -> None:
    """Where nobody answered, it is not known whether something was written."""
    answers = asyncpg.exceptions
    for error, away in (
        (TimeoutError(), True),
        (ConnectionRefusedError("refused"), True),
        (answers.ConnectionDoesNotExistError("closed in the middle of operation"), True),
        (answers.AdminShutdownError("terminating connection"), True),
        (answers.TooManyConnectionsError("too many clients"), True),
        (answers.DiskFullError("disk full"), False),
        (answers.QueryCanceledError("statement timeout"), False),
        (answers.ReadOnlySQLTransactionError("read-only"), False),
    ):
        known = translate(error)
        assert isinstance(known, StoreUnavailable) and known.passing and known.away is away, error


async def test_the_secret_is_created_once_and_outlives_processes(place: Place) -> None:
    other = await pg.opened(place.url, "h2")
    secrets = await asyncio.gather(*(store.secret() for store in (place.store, other) * 5))
    assert len(set(secrets)) == 1 and len(secrets[0]) == 32
    await other.close()
    assert await place.store.secret() == secrets[0]


async def test_the_store_works_without_prepared_statements(place: Place) -> None:
    wiring = Wiring(prepared=False, direct_url=place.url)
    store = await PostgresStore.open_at(place.url, Identity("h2", "pooled", True), LocalNotifier(), 15.0, wiring)
    try:
        author = Author(Backend(store, place.clock), holder="h2")
        await author.finished("r1", key="k", conversation="talk", session="s")
        assert await author.attach("r2", key="k") == "r1"
        assert len(await author.data("r1")) == 3
    finally:
        await store.close()


# work


async def test_claimable_work_is_fair_between_owners(place: Place) -> None:
    backend = Backend(place.store, place.clock)
    for n in range(4):
        await Author(backend, "greedy").open(f"g{n}", held=False)
    for n in range(2):
        await Author(backend, "modest").open(f"m{n}", held=False)
    free = [run for _, run in await place.store.claimable(5, 0)]
    assert free == ["g0", "m0", "g1", "m1", "g2"]


async def test_a_parked_run_waits_for_its_time_or_for_a_signal(place: Place) -> None:
    ann, at = place.ann, place.clock.now_ms()
    for run in ("timed", "wished"):
        await ann.open(run)
        await ann.write(run, mark=Mark(status="waiting", at=at, parked=True, wake_at=at + 60_000))
    assert await ann.claimable() == [] and await place.store.peers.queued() == 0
    assert await place.store.signal("ann", Signal("wished", "cancel", "k"))
    assert await ann.claimable() == ["wished"] and await place.store.peers.queued() == 1
    place.clock.advance(61)
    assert sorted(await ann.claimable()) == ["timed", "wished"]
    assert await ann.claim("timed") is not None


async def test_the_runs_of_a_holder_are_listed_with_their_pending_signals(place: Place) -> None:
    ann = place.ann
    for run in ("r1", "r2", "r3", "r4"):
        await ann.open(run)
    for run in ("r1", "r3"):
        await ann.cancel(run)
    await ann.end("r3")
    await ann.park("r4")
    assert await ann.claim("r4") is not None
    expected = [HeldRun("ann", "r1", 1, True, 0), HeldRun("ann", "r2", 1, False, 0), HeldRun("ann", "r4", 2, False, 0)]
    assert await place.store.peers.held("h1") == expected
    assert await place.store.peers.held("h2") == []


async def test_a_workspace_has_one_home(place: Place) -> None:
    settle = place.store.peers.settle
    homes = await asyncio.gather(*(settle("ann", "owner", f"home{n}") for n in range(6)))
    assert len(set(homes)) == 1
    assert await settle("bob", "owner", "elsewhere") == "elsewhere"
    assert await settle("ann", "owner", "elsewhere") == homes[0]


async def test_replicas_are_listed_with_the_number_of_their_runs(place: Place) -> None:
    await place.ann.open("r1")
    await place.ann.open("r2")
    place.clock.advance(1)
    other = await PostgresStore.open_at(place.url, Identity("h2", "api", False), LocalNotifier())
    expected = [Replica("h2", "api", False, 0, 0), Replica("h1", "name of h1", True, 1000, 2)]
    assert list(await place.store.peers.replicas()) == expected
    assert place.store.peers.shared
    await other.close()


async def test_a_lease_is_one_row_however_many_runs_are_held(place: Place) -> None:
    for n in range(10):
        await place.ann.open(f"r{n}")
    place.clock.advance(14)
    await place.store.beat("h1")
    place.clock.advance(14)
    assert await place.ann.claimable() == []
    assert await place.sql("SELECT count(*) FROM replicas") == [(1,)]


async def test_callers_of_a_living_process_are_not_marked_as_lost_by_another(place: Place) -> None:
    await place.ann.open("r1", credential="k1")
    other = await pg.opened(place.url, "h2")
    await other.deliveries.strand(place.clock.now_ms())
    assert await place.sql("SELECT waits FROM runs") == [(True,)]
    place.clock.advance(16)
    await other.beat("h2")
    await other.deliveries.strand(place.clock.now_ms())
    assert await place.sql("SELECT waits, lost_at FROM runs") == [(False, place.clock.now_ms())]
    await other.close()


# the log


async def test_one_append_of_many_runs_is_one_row_each(place: Place) -> None:
    ann = place.ann
    for n in range(6):
        await ann.open(f"r{n}")
    slices = [ann.slice(f"r{n}", b"a", b"b", b"c") for n in range(6)]
    assert await place.store.append(slices) == [Verdict.WRITTEN] * 6
    assert await place.sql("SELECT count(*) FROM run_log WHERE first_seq = 2 AND last_seq = 4") == [(6,)]


async def test_concurrent_readers_share_few_statements(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("r1", "r2"):
        await place.ann.open(run)
    batches: list[int] = []
    pages = place.store._log._pages

    async def counted(batch: list[tuple[str, str, int]]) -> object:
        batches.append(len(batch))
        return await pages(batch)

    monkeypatch.setattr(place.store._log, "_pages", counted)
    reads = [place.store.read(owner, run, -1) for owner in ("ann", "bob") for run in ("r1", "r2") for _ in range(25)]
    answers = await asyncio.gather(*reads)
    assert [len(answer) for answer in answers] == [2] * 50 + [0] * 50
    assert sum(batches) <= 5 and len(batches) <= 2, "readers of the same place share one answer"


async def damaged(author: Author, run: str) -> str:
    with pytest.raises(Damaged) as caught:
        await author.read(run)
    return str(caught.value)


async def test_a_changed_byte_is_damage(place: Place) -> None:
    await place.ann.open("r1")
    await place.ann.write("r1", b"hello", b"world")
    await place.sql("UPDATE run_log SET data = set_byte(data, 5, get_byte(data, 5) # 1) WHERE first_seq = 2")
    assert "2 to 3" in await damaged(place.ann, "r1")


async def test_a_missing_row_is_damage_and_never_a_shorter_run(place: Place) -> None:
    for run, gone in (("first", 0), ("middle", 3), ("last", 4)):
        await place.ann.open(run)
        for n in range(3):
            await place.ann.write(run, b"%d" % n)
        await place.ann.write(run, mark=Mark(status="running", at=1))
        await place.sql("DELETE FROM run_log WHERE run = $1 AND first_seq = $2", run, gone)
        assert run in await damaged(place.ann, run)


async def test_rows_swapped_between_runs_are_damage(place: Place) -> None:
    for run in ("r1", "r2"):
        await place.ann.open(run)
    await place.sql(
        "UPDATE run_log a SET data = b.data, crc_before = b.crc_before, crc_after = b.crc_after "
        "FROM run_log b WHERE b.run != a.run"
    )
    assert "r1" in await damaged(place.ann, "r1")


async def test_a_damaged_run_does_not_affect_the_pages_of_others(place: Place) -> None:
    for run in ("r1", "r2", "r3"):
        await place.ann.open(run)
    await place.sql("UPDATE run_log SET crc_after = 0 WHERE run = 'r2'")
    reads = await asyncio.gather(*(place.store.read("ann", f"r{n}", -1) for n in (1, 2, 3)), return_exceptions=True)
    assert [isinstance(one, Damaged) for one in reads] == [False, True, False]


async def test_what_an_old_holder_left_of_a_deleted_run_goes_with_its_tombstone(place: Place) -> None:
    await place.ann.finished("r1")
    await place.store.delete("ann", "r1", at=1)
    await place.sql("INSERT INTO run_log VALUES ('r1', 3, 3, 1, 0, 0, 0, '', 'ann')")
    assert await place.ann.read("r1") == []
    for _ in range(2):
        await place.store.upkeep.evict(Retention(at=10**9, tombstone_ms=1), frozenset())
    assert await place.sql("SELECT count(*) FROM run_log") == [(0,)]
    assert await place.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_one_process_at_a_time_evicts_runs(place: Place) -> None:
    for n in range(3):
        await place.ann.finished(f"r{n}")
    other = await pg.opened(place.url, "h2")
    rule = Retention(at=place.clock.now_ms(), before=10**12)
    both = await asyncio.gather(*(store.upkeep.evict(rule, frozenset()) for store in (place.store, other)))
    gone = [run for one in both for _, run in one.runs]
    gone += [run for _, run in (await other.upkeep.evict(rule, frozenset())).runs]
    assert sorted(gone) == ["r0", "r1", "r2"]
    await other.close()


async def test_the_bytes_of_a_run_that_was_taken_over_are_all_counted(place: Place) -> None:
    await place.ann.open("r1")
    await place.ann.write("r1", b"x" * 10_000)
    place.clock.advance(16)
    heir = await pg.opened(place.url, "h2")
    author = Author(Backend(heir, place.clock), holder="h2")
    assert (await author.claim("r1")) is not None
    await author.write("r1", b"y" * 10_000)
    await author.end("r1")
    (kept,) = await heir.upkeep.usage()
    (stored,) = await place.sql("SELECT sum(octet_length(data))::bigint + octet_length('[\"r1\"]') FROM run_log")
    assert (kept.bytes,) == stored
    assert started(2, False) in await author.data("r1")
    await heir.close()


async def test_a_character_that_postgresql_cannot_store_is_the_clients_error(place: Place) -> None:
    with pytest.raises(ClientError) as caught:
        await place.ann.open("r1", conversation="a\0b")
    assert caught.value.status == 400
    assert await place.store.conversations.page("ann", 10, None, True) == []


async def test_retention_leaves_a_run_that_is_read_page_by_page_at_another_process(place: Place) -> None:
    """A run that is being read is not evicted, whoever reads it (R15)."""
    await place.ann.open("long")
    for _ in range(4):
        await place.ann.write("long", b"x" * 200_000)
    await place.ann.end("long")
    await place.ann.finished("short")
    other = await pg.opened(place.url, "h2")
    try:
        rule = Retention(at=place.clock.now_ms(), before=place.clock.now_ms() + 1)
        page = await place.store.read("ann", "long", -1)
        assert page[-1].seq < 6 and await place.ann.read("short")
        assert (await other.upkeep.evict(rule, frozenset())).runs == [("ann", "short")]
        rest = await place.store.read("ann", "long", page[-1].seq)
        assert rest and rest[0].seq == page[-1].seq + 1
        place.clock.advance(301)
        assert (await other.upkeep.evict(rule, frozenset())).runs == [("ann", "long")]
    finally:
        await other.close()


async def test_runs_to_evict_are_found_at_the_old_end_of_an_index(place: Place) -> None:
    """Not by sorting all runs: a store of a million runs must not be scanned every half minute."""
    await place.sql(
        "INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, ended, last_seq, bytes, created_at, "
        "updated_at, used_at, session, metadata) SELECT 'r' || g, 'o' || g % 50, 'responses', 'm', 'completed', 1, "
        "false, true, 1, 100, g, g, g, '', '{}' FROM generate_series(1, 5000) g"
    )
    await place.sql("ANALYZE runs")
    sql = queries.load("postgres", "upkeep")["stale"]
    nothing: list[list[object]] = [[], [], [], [], []]

    async def stale(*bounds: int) -> list[str]:
        return [row[2] for row in await place.sql(sql, *bounds, 1024, *nothing)]

    assert len(await stale(99, 0, 0, 0)) == 50
    assert len(await stale(0, 9_900, 0, 0)) == 50
    assert await stale(0, 0, 499_701, 0) == ["r1", "r2", "r3"]
    assert await stale(0, 0, 0, 3) == ["r1", "r2"]
    assert await stale(0, 0, 0, 0) == [] == await stale(100, 10_000, 500_000, 1)
    plan = "\n".join(str(row[0]) for row in await place.sql(_explained(sql, 99, 0, 0, 0, 1024, *["'{}'"] * 5)))
    assert "Index Scan using runs_by_owner_and_use" in plan, plan


def _explained(sql: str, *values: int | str) -> str:
    for n, value in reversed(list(enumerate(values, 1))):
        sql = sql.replace(f"${n}", str(value))
    return "EXPLAIN " + sql


async def test_runs_age_by_the_clock_of_the_database(place: Place) -> None:
    """Else the runs of a replica whose clock is a day slow would expire a day early (P12)."""
    await place.ann.open("r1")
    day = 86_400_000
    end = Mark(status="completed", at=place.clock.now_ms() - day, ended=True)
    assert await place.ann.write("r1", b"end", mark=end) is Verdict.WRITTEN
    assert await place.store.now_ms() == place.clock.now_ms()
    rule = Retention(at=place.clock.now_ms(), before=place.clock.now_ms() - day // 2)
    assert (await place.store.upkeep.evict(rule, frozenset())).runs == []


# failover to a standby that was behind: rows that were confirmed are gone


async def failover(place: Place, run: str, last: int, *, attempt: int = 1) -> None:
    """The database goes back to a state in which the run's log ended with `last`."""
    await place.sql("DELETE FROM run_log WHERE run = $1 AND first_seq > $2", run, last)
    await place.sql(
        "UPDATE runs SET ended = false, holder = 'h1', attempt = $2, status = 'running', last_seq = $3 WHERE id = $1",
        run,
        attempt,
        last,
    )


async def started_with(place: Place) -> list[int]:
    """Claim r1 after the loss; the numbers of lost events that the stores gave to the first record."""
    lost = []

    def first(attempt: int, clean: bool, gone: int) -> bytes:
        lost.append(gone)
        return started(attempt, clean)

    assert await place.store.claimable(10, 0) == [("ann", "r1")]
    claim = await place.store.claim("r1", "h1", first, 0)
    assert claim is not None and not claim.overdue
    return lost


@pytest.mark.parametrize("marked", [False, True])
async def test_a_holder_never_writes_behind_rows_that_the_database_has_lost(place: Place, marked: bool) -> None:
    """It wrote at the next number over the hole, and the run could not be read any more."""
    await place.ann.open("r1")
    for data in (b"two", b"three", b"four"):
        await place.ann.write("r1", data)
    await failover(place, "r1", 2)
    verdict = await (place.ann.end("r1") if marked else place.ann.write("r1", b"five"))
    assert verdict is Verdict.BEHIND
    assert await started_with(place) == [2]
    assert [record.seq for record in await place.ann.read("r1")] == [0, 1, 2, 3]


async def test_a_lane_plans_each_append_once_however_few_rows_it_has(place: Place) -> None:
    """PostgreSQL would plan it anew each time, because it expects more rows. That costs as much as the append."""
    await place.ann.open("r1")
    for _ in range(20):
        assert await place.ann.write("r1", b"more") is Verdict.WRITTEN
    await place.ann.end("r1")
    plans = [
        await place.store._connections.on_lane(
            lane,
            lambda connection: connection.fetchrow(
                "SELECT sum(generic_plans)::int, sum(custom_plans)::int FROM pg_prepared_statements"
                " WHERE statement LIKE '%INSERT INTO run_log%' AND statement NOT LIKE '%pg_prepared_statements%'"
            ),
        )
        for lane in (0, 1)
    ]
    assert [tuple(row) for row in plans] == [(20, 0), (1, 0)]


async def test_statements_are_planned_once_but_pages_with_filters_each_time(place: Place) -> None:
    """A filter that is left out is NULL, and a plan for any values would not use the index for it."""
    await place.ann.open("r1")
    for _ in range(8):
        await place.store.claimable(4, 0)
        assert len(await place.store.rows(Query(owner="ann"))) == 1
    plans: Counter[tuple[bool, bool]] = Counter()
    async with AsyncExitStack() as stack:
        pool = place.store._connections._asking
        for connection in [await stack.enter_async_context(pool.acquire()) for _ in range(pool.get_max_size())]:
            for statement, generic, custom in await connection.fetch(
                "SELECT statement, generic_plans::int, custom_plans::int FROM pg_prepared_statements"
            ):
                filtered = "ORDER BY n DESC LIMIT $6" in statement
                plans[filtered, False] += generic
                plans[filtered, True] += custom
    assert plans[True, True] == 8
    assert plans[True, False] == plans[False, True] == 0
    assert plans[False, False] >= 8


async def test_a_run_whose_end_was_lost_is_claimed_again_and_told_so(place: Place) -> None:
    """Its process has forgotten it: the beat gives the claim back (Notices.beaten)."""
    await place.ann.open("r1")
    await place.ann.write("r1", b"two")
    await place.ann.end("r1")
    await failover(place, "r1", 1)
    assert [held.run for held in await place.store.peers.held("h1")] == ["r1"]
    assert await place.store.append([Slice("r1", 1, [], Mark(status="queued", at=0, parked=True))]) == [Verdict.WRITTEN]
    assert await started_with(place) == [2]


async def test_a_claim_that_was_lost_belongs_to_whoever_had_the_run_before(place: Place) -> None:
    await place.ann.open("r1", held=False)
    assert await place.ann.claim("r1") is not None
    await place.ann.write("r1", b"two")
    await place.sql("DELETE FROM run_log WHERE run = 'r1' AND first_seq > 0")
    await place.sql("UPDATE runs SET holder = NULL, attempt = 0, parked = true, last_seq = 0 WHERE id = 'r1'")
    assert await place.ann.write("r1", b"three") is Verdict.BEHIND
    assert await started_with(place) == [2]


async def test_a_reader_that_was_shown_more_than_is_left_gets_one_clear_error(place: Place) -> None:
    await place.ann.open("r1")
    for data in (b"two", b"three"):
        await place.ann.write("r1", data)
    assert await place.store.read("ann", "r1", 3, 1) == []
    await failover(place, "r1", 1)
    with pytest.raises(WentBack, match="from its beginning"):
        await place.store.read("ann", "r1", 3, 1)
    await place.ann.write("r1", b"four")
    await started_with(place)
    place.ann.seqs["r1"], place.ann.attempts["r1"] = 2, 2
    await place.ann.write("r1", b"other three")
    with pytest.raises(WentBack):  # the number is there again, and means something else
        await place.store.read("ann", "r1", 3, 1)
    assert [r.data for r in await place.store.read("ann", "r1", 2, 2)] == [b"other three"]
    assert len(await place.store.read("ann", "r1", 1, 1)) == 2


# connections


async def role(place: Place, name: str, options: str) -> str:
    """The URL of a role of its own, which owns the schema."""
    await place.sql(f"DROP ROLE IF EXISTS {name}")
    await place.sql(f"CREATE ROLE {name} LOGIN {options}")
    await place.sql(f"GRANT ALL ON SCHEMA public TO {name}")
    await place.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
    await place.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}")
    await place.sql(f"GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {name}")  # the clock of these tests
    await place.sql(f"GRANT pg_read_server_files TO {name}")
    return place.url.replace("postgres@", f"{name}@", 1).replace("user=postgres", f"user={name}", 1)


async def drop(place: Place, name: str) -> None:
    await place.sql(f"DROP OWNED BY {name}")
    await place.sql(f"DROP ROLE {name}")


async def test_a_process_that_lacks_a_connection_does_not_start_and_says_the_sum(place: Place) -> None:
    """Three such replicas started and answered nothing for minutes."""
    url = await role(place, "few", "CONNECTION LIMIT 3")
    with pytest.raises(StoreUnavailable, match=r"7 needed: store.lanes 2 \+ store.pool 4 \+ 1 .* 3 are free") as caught:
        await pg.opened(url, "h2")
    assert caught.value.passing, "others may end: the start waits for that"
    with pytest.raises(StoreUnavailable, match=r"too many connections.*7 needed"):
        await connections.Connections.create(url, Wiring(), "late")  # others took them after the look
    await drop(place, "few")


async def test_a_lane_without_a_connection_borrows_one(place: Place) -> None:
    url = await role(place, "seven", "CONNECTION LIMIT 7")
    store = await pg.opened(url, "h2")
    author = Author(Backend(store, place.clock), holder="h2")
    await author.open("r1")
    lanes = [await store._connections._writing.acquire() for _ in range(2)]
    for lane in lanes:
        lane.terminate()
        await store._connections._writing.release(lane)
    while await connected(place, "seven") > 5:  # noqa: ASYNC110 -- their backends end a moment later
        await asyncio.sleep(0.01)
    hogs = [await asyncpg.connect(url) for _ in range(2)]
    assert store._connections._writing.get_size() == 0, "both lanes must connect, and cannot"
    for n in range(8):
        await author.open(f"b{n}")
        assert await author.write(f"b{n}", b"two") is Verdict.WRITTEN
    for hog in hogs:
        await hog.close()
    await store.close()
    await drop(place, "seven")


async def connected(place: Place, name: str) -> int:
    ((count,),) = await place.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = $1", name)
    assert isinstance(count, int)
    return count


async def test_a_role_without_the_right_to_change_tables_serves_a_schema_that_is_current(place: Place) -> None:
    """`ninelives store upgrade` is for the owner; the servers need no more than rows."""
    await place.sql("CREATE ROLE rows_only LOGIN")
    await place.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO rows_only")
    await place.sql("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO rows_only")
    await place.sql("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO rows_only")
    await place.sql("GRANT pg_read_server_files TO rows_only")
    current = queries.migrations("postgres")[-1][0]
    assert await upgrade(place.url, Wiring()) == (current, current)
    store = await pg.opened(place.url.replace("postgres@", "rows_only@", 1), "h2")
    author = Author(Backend(store, place.clock), holder="h2")
    await author.finished("r1", session="s1")
    assert await store.delete("ann", "r1", at=1)
    await store.close()
    await drop(place, "rows_only")


async def test_a_role_that_does_not_wait_for_its_commits_is_refused(place: Place) -> None:
    url = await role(place, "fast", "")
    await place.sql("ALTER ROLE fast SET synchronous_commit = off")
    with pytest.raises(NewerStore, match="synchronous_commit = on"):
        await pg.opened(url, "h2")
    await drop(place, "fast")


SIGNED = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=one -addext"


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """The port of a database as far as its TLS goes, and its certificate, which is for another host."""
    key, file = folder / "key", folder / "certificate"
    made = ["openssl", *SIGNED.split(), "subjectAltName=DNS:one.example", "-keyout", str(key), "-out", str(file)]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(8)  # "do you speak TLS?"
            writer.write(b"S")
            await writer.start_tls(context)
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], file


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT TESTED: openssl is not installed")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("&sslrootcert={file}", "Hostname mismatch.*Check the host name in the URL, sslmode and sslrootcert"),
        ("&sslrootcert={file}.gone", "sslrootcert in the URL: there is no file .*certificate.gone"),
        ("", "root certificate file .* does not exist"),
    ],
)
async def test_a_certificate_that_does_not_fit_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, words: str
) -> None:
    """It was told as a URL that is none, because the error is also a ValueError."""
    monkeypatch.setenv("HOME", str(tmp_path))
    async with secured(tmp_path) as (port, file):
        url = f"postgresql://me@localhost:{port}/db?sslmode=verify-full{query.format(file=file)}"
        for work in (lambda: refuse_moved(url), lambda: upgrade(url, Wiring()), lambda: pg.opened(url)):
            with pytest.raises(StoreUnavailable, match=words) as found:
                await work()
            assert not found.value.passing, "waiting would not help"


async def test_ten_thousand_waiting_runs_are_not_read_to_find_the_next_ones(place: Place) -> None:
    ann = Author(Backend(place.store, place.clock), "flood")
    await ann.open("first", held=False)
    await place.sql(
        "INSERT INTO runs (owner, id, dialect, model, status, attempt, parked, ended, last_seq, bytes, created_at, "
        "updated_at, session, metadata, kept) SELECT 'flood', 'f' || g, 'chat', 'm', 'queued', 0, true, false, 0, 10, "
        "1, 1, '', '{}', 'stored' FROM generate_series(1, 10000) g"
    )
    await Author(Backend(place.store, place.clock), "other").open("others", held=False)
    await place.sql("ANALYZE runs")
    assert set(await place.store.claimable(2, 0)) == {("flood", "first"), ("other", "others")}
    sql = _explained(ROWS["claimable"], "'me'", 16, *["'{}'"] * 4).replace("EXPLAIN", "EXPLAIN (ANALYZE, TIMING OFF)")
    plan = "\n".join(str(row[0]) for row in await place.sql(sql))
    assert "runs_open_by_owner" in plan, plan
    seen = [int(n) for n in re.findall(r"runs.*actual rows=(\d+)", plan)]
    assert max(seen) < 200, plan


TIMEOUTS = (
    "statement_timeout = '200ms'",
    "lock_timeout = '50ms'",
    "idle_in_transaction_session_timeout = '200ms'",
    "default_transaction_isolation = 'serializable'",
    "idle_session_timeout = '1s'",
)


@pytest.mark.parametrize("prepared", [True, False])
async def test_statements_are_read_committed_whatever_the_default_of_the_database_is(prepared: bool) -> None:
    """In serializable, appends of two runs could refuse each other, and the server took that for a broken store."""
    here = pg.server()
    url = await here.database()
    name = url.partition("@/")[2].partition("?")[0]
    await here.run(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    pools = await Connections.create(url, Wiring(prepared=prepared), "test")
    try:
        assert await pools.fetchval("SHOW transaction_isolation") == "read committed"
        for lane in range(pools.lanes):
            asked = await pools.on_lane(lane, lambda connection: connection.fetchval("SHOW transaction_isolation"))
            assert asked == "read committed"
    finally:
        await pools.close()


@pytest.mark.parametrize("setting", TIMEOUTS)
async def test_a_run_goes_through_whatever_time_outs_a_managed_service_sets(setting: str) -> None:
    here = pg.server()
    url = await here.database()
    await here.run(url, f"ALTER DATABASE {url.partition('@/')[2].partition('?')[0]} SET {setting}")
    store = await pg.opened(url)
    try:
        ann = Author(Backend(store, VirtualClock()))
        done = Mark(status="completed", at=0, ended=True)

        async def one(n: int) -> None:
            await ann.open(f"r{n}", key=f"k{n % 4}{n}")
            assert await ann.write(f"r{n}", b"x") is Verdict.WRITTEN
            assert await ann.write(f"r{n}", b"y", mark=done) is Verdict.WRITTEN
            assert (await ann.data(f"r{n}"))[-2:] == [b"x", b"y"]

        await asyncio.gather(*(one(n) for n in range(12)))
    finally:
        await store.close()

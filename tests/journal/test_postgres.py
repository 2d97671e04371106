"""What the PostgreSQL store promises beyond the contract: one schema, one secret, fair work, damage that is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.assemble import steady_clock
from holdfast.assemble_store import Role, open_shelf
from holdfast.config import Server, Settings, Store
from holdfast.core.errors import ClientError, Damaged
from holdfast.journal import postgres_lines, queries
from holdfast.journal.base import Mark, NewerStore, Signal, StoreUnavailable, Verdict
from holdfast.journal.base_peers import Replica
from holdfast.journal.base_upkeep import Retention
from holdfast.journal.bell import LocalBell
from holdfast.journal.postgres import Identity, PostgresStore
from holdfast.journal.postgres_lines import Wiring
from holdfast.observe.log import Log
from holdfast.testing import Author, Backend
from holdfast.testing.author import started
from tests import pg


class Place(NamedTuple):
    """A store, and its database behind its back."""

    store: PostgresStore
    ann: Author
    url: str
    clock: pg.FileClock

    async def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        rows = await self.store._lines.once(lambda line: line.fetch(statement, *values))
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
    versions = await stores[0]._lines.once(lambda line: line.fetch("SELECT version FROM schema_versions"))
    known = [number for number, _ in queries.migrations("postgres_migrations")]
    assert sorted(row["version"] for row in versions) == known
    assert len({await store.secret() for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_a_migration_may_take_longer_than_any_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut off would begin anew at every start."""
    monkeypatch.setattr(postgres_lines, "WORK_S", 0.5)
    server, known = pg.server(), queries.migrations("postgres_migrations")
    await server.run("postgres", "CREATE DATABASE slow TEMPLATE template0 STRATEGY file_copy")
    monkeypatch.setattr(queries, "migrations", lambda folder: [*known, (9999, "SELECT pg_sleep(1)")])
    await server.run("slow", "ALTER DATABASE slow SET statement_timeout = '500ms'")
    store = await pg.opened(server.url("slow"))
    await store.close()
    rows = await server.run("slow", "SELECT max(version) FROM schema_versions")
    assert rows[0][0] == 9999


async def test_a_database_of_a_newer_program_is_refused_and_left_as_it_is() -> None:
    server = pg.server()
    url = await server.database()
    await server.run(url, "INSERT INTO schema_versions (version) VALUES (9999)")
    with pytest.raises(NewerStore, match=r"schema 9999.*Use the newer holdfast"):
        await pg.opened(url)


async def test_a_database_that_is_not_there_is_told_as_passing() -> None:
    for url in (pg.server().url("nobody"), "postgresql://x@127.0.0.1:1/x"):
        with pytest.raises(StoreUnavailable) as told:
            await pg.opened(url)
        assert told.value.passing


async def test_the_secret_is_made_once_and_outlives_processes(place: Place) -> None:
    other = await pg.opened(place.url, "h2")
    secrets = await asyncio.gather(*(store.secret() for store in (place.store, other) * 5))
    assert len(set(secrets)) == 1 and len(secrets[0]) == 32
    await other.close()
    assert await place.store.secret() == secrets[0]


async def test_without_prepared_statements_all_is_the_same(place: Place) -> None:
    wiring = Wiring(prepared=False, direct_url=place.url)
    store = await PostgresStore.open_at(place.url, Identity("h2", "pooled", True), LocalBell(), 15.0, wiring)
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
    free = [run for _, run in await place.store.claimable(5)]
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


async def test_the_signals_that_wait_for_a_holder_are_known(place: Place) -> None:
    ann = place.ann
    for run in ("r1", "r2", "r3"):
        await ann.open(run)
    for run in ("r1", "r3"):
        await ann.cancel(run)
    await ann.end("r3")
    assert await place.store.peers.wished("h1") == [("ann", "r1")]
    assert await place.store.peers.wished("h2") == []


async def test_a_workspace_has_one_home(place: Place) -> None:
    settle = place.store.peers.settle
    homes = await asyncio.gather(*(settle("ann", "owner", f"home{n}") for n in range(6)))
    assert len(set(homes)) == 1
    assert await settle("bob", "owner", "elsewhere") == "elsewhere"
    assert await settle("ann", "owner", "elsewhere") == homes[0]


async def test_who_is_there_is_known_with_what_they_hold(place: Place) -> None:
    await place.ann.open("r1")
    await place.ann.open("r2")
    place.clock.advance(1)
    other = await PostgresStore.open_at(place.url, Identity("h2", "api", False), LocalBell())
    expected = [Replica("h2", "api", False, 0, 0), Replica("h1", "name of h1", True, 1000, 2)]
    assert list(await place.store.peers.replicas()) == expected
    assert place.store.peers.shared
    await other.close()


async def test_a_beat_is_one_row_however_many_runs_are_held(place: Place) -> None:
    for n in range(10):
        await place.ann.open(f"r{n}")
    place.clock.advance(14)
    await place.store.beat("h1")
    place.clock.advance(14)
    assert await place.ann.claimable() == []
    assert await place.sql("SELECT count(*) FROM replicas") == [(1,)]


async def test_connections_of_a_living_process_are_not_stranded_by_another(place: Place) -> None:
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


async def test_many_readers_at_once_are_few_statements(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(Damaged) as told:
        await author.read(run)
    return str(told.value)


async def test_a_changed_byte_is_damage(place: Place) -> None:
    await place.ann.open("r1")
    await place.ann.write("r1", b"hello", b"world")
    await place.sql("UPDATE run_log SET data = set_byte(data, 5, get_byte(data, 5) # 1) WHERE first_seq = 2")
    assert "2 to 3" in await damaged(place.ann, "r1")


async def test_a_row_that_is_gone_is_damage_and_never_a_shorter_run(place: Place) -> None:
    for run, gone in (("first", 0), ("middle", 3), ("last", 4)):
        await place.ann.open(run)
        for n in range(3):
            await place.ann.write(run, b"%d" % n)
        await place.ann.write(run, mark=Mark(status="running", at=1))
        await place.sql("DELETE FROM run_log WHERE run = $1 AND first_seq = $2", run, gone)
        assert run in await damaged(place.ann, run)


async def test_rows_that_were_swapped_between_runs_are_damage(place: Place) -> None:
    for run in ("r1", "r2"):
        await place.ann.open(run)
    await place.sql(
        "UPDATE run_log a SET data = b.data, crc_before = b.crc_before, crc_after = b.crc_after "
        "FROM run_log b WHERE b.run != a.run"
    )
    assert "r1" in await damaged(place.ann, "r1")


async def test_one_damaged_run_does_not_spoil_the_pages_of_others(place: Place) -> None:
    for run in ("r1", "r2", "r3"):
        await place.ann.open(run)
    await place.sql("UPDATE run_log SET crc_after = 0 WHERE run = 'r2'")
    reads = await asyncio.gather(*(place.store.read("ann", f"r{n}", -1) for n in (1, 2, 3)), return_exceptions=True)
    assert [isinstance(one, Damaged) for one in reads] == [False, True, False]


async def test_what_a_zombie_left_of_a_deleted_run_goes_with_its_tombstone(place: Place) -> None:
    await place.ann.finished("r1")
    await place.store.delete("ann", "r1", at=1)
    await place.sql("INSERT INTO run_log VALUES ('r1', 3, 3, 1, 0, 0, 0, '')")
    assert await place.ann.read("r1") == []
    for _ in range(2):
        await place.store.upkeep.evict(Retention(at=10**9, tombstone_ms=1), frozenset())
    assert await place.sql("SELECT count(*) FROM run_log") == [(0,)]
    assert await place.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_one_process_at_a_time_lets_runs_go(place: Place) -> None:
    for n in range(3):
        await place.ann.finished(f"r{n}")
    other = await pg.opened(place.url, "h2")
    rule = Retention(at=place.clock.now_ms(), before=10**12)
    both = await asyncio.gather(*(store.upkeep.evict(rule, frozenset()) for store in (place.store, other)))
    gone = [run for one in both for _, run in one]
    gone += [run for _, run in await other.upkeep.evict(rule, frozenset())]
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


async def test_a_character_that_postgresql_cannot_keep_is_the_askers_error(place: Place) -> None:
    with pytest.raises(ClientError) as told:
        await place.ann.open("r1", conversation="a\0b")
    assert told.value.status == 400
    assert await place.store.conversations.page("ann", 10, None, True) == []


async def test_retention_leaves_a_run_that_is_read_page_by_page_at_another_process(place: Place) -> None:
    """House rule 6.15: what is being read is not taken, whoever reads it."""
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
        assert await other.upkeep.evict(rule, frozenset()) == [("ann", "short")]
        rest = await place.store.read("ann", "long", page[-1].seq)
        assert rest and rest[0].seq == page[-1].seq + 1
        place.clock.advance(301)
        assert await other.upkeep.evict(rule, frozenset()) == [("ann", "long")]
    finally:
        await other.close()


async def test_what_has_to_go_is_found_at_the_end_of_an_index(place: Place) -> None:
    """Not by sorting all runs: a store of a million must not be read as a whole every half minute."""
    await place.sql(
        "INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, ended, last_seq, bytes, created_at, "
        "updated_at, used_at, session, metadata) SELECT 'r' || g, 'o' || g % 50, 'responses', 'm', 'completed', 1, "
        "false, true, 1, 100, g, g, g, '', '{}' FROM generate_series(1, 5000) g"
    )
    await place.sql("ANALYZE runs")
    sql = queries.load("postgres_upkeep.sql")["stale"]
    assert len(await place.sql(sql, 99, 0, 0, 0, 1024)) == 50
    assert len(await place.sql(sql, 0, 9_900, 0, 0, 1024)) == 50
    assert [row[1] for row in await place.sql(sql, 0, 0, 499_701, 0, 1024)] == ["r1", "r2", "r3"]
    assert [row[1] for row in await place.sql(sql, 0, 0, 0, 3, 1024)] == ["r1", "r2"]
    assert await place.sql(sql, 0, 0, 0, 0, 1024) == [] == await place.sql(sql, 100, 10_000, 500_000, 1, 1024)
    plan = "\n".join(str(row[0]) for row in await place.sql(_explained(sql, 99, 0, 0, 0, 1024)))
    assert "runs_by_owner_and_use" in plan and "Sort Key: runs.owner" not in plan, plan


def _explained(sql: str, *values: int) -> str:
    for n, value in reversed(list(enumerate(values, 1))):
        sql = sql.replace(f"${n}", str(value))
    return "EXPLAIN " + sql


async def test_runs_age_by_the_clock_of_the_database(place: Place) -> None:
    """P12: a replica whose clock is a day slow would see its runs expire a day early."""
    await place.ann.open("r1")
    day = 86_400_000
    end = Mark(status="completed", at=place.clock.now_ms() - day, ended=True)
    assert await place.ann.write("r1", b"end", mark=end) is Verdict.WRITTEN
    assert await place.store.now_ms() == place.clock.now_ms()
    rule = Retention(at=place.clock.now_ms(), before=place.clock.now_ms() - day // 2)
    assert await place.store.upkeep.evict(rule, frozenset()) == []


async def test_what_expires_goes_by_a_clock_that_all_replicas_have_in_common(tmp_path: Path) -> None:
    """P12: a question that is asked on a machine whose clock is a day slow does not expire at once elsewhere."""
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 86_400)
        settings = Settings(server=Server(data_dir=str(tmp_path)), store=Store(url=url))
        shelf = await open_shelf(settings, Role(name="one"), Log(lambda: "", None))
        try:
            assert abs(steady_clock(shelf.ahead_ms)() - clock.now_ms()) < 60_000, "give or take a slow machine"
        finally:
            await shelf.close()

"""A retry right after the process of the first try was killed, before anybody has noticed (B8, G13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from ninelives.journal.postgres import claims, listener
from ninelives.journal.postgres.store import PostgresStore
from ninelives.journal.values import Attached, Mark, Opened, Query
from ninelives.testing import Author, Backend
from tests import pg
from tests.journal.opened_store import until

FIRST: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 30_000}
RETRY: dict[str, Any] = FIRST
COUNTED: dict[str, Any] = {**FIRST, "counted": True}
DEADLINE_S = 60.0


class Cluster:
    """Processes on one database. Its clock is an hour ahead, so that its start was long ago."""

    def __init__(self, url: str, clock: pg.FileClock) -> None:
        self.url, self.clock = url, clock
        self.stores: dict[str, PostgresStore] = {}

    async def enter(self, holder: str, lease_s: float = 15.0) -> Author:
        self.stores[holder] = await pg.opened(self.url, holder, lease_s=lease_s)
        return Author(Backend(self.stores[holder], self.clock), holder=holder)

    async def kill(self, author: Author) -> None:
        """Kill a process, and wait until the database has released its lock."""
        await pg.killed(self.stores.pop(author.holder))

        async def free() -> bool:
            return bool(len(await self.run(pg.LOCKS)) == len(self.stores))

        await until(free, DEADLINE_S)

    async def run(self, sql: str) -> Any:
        return await pg.server().run(self.url, sql)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(listener, "WATCH_S", 3600)  # nobody notices a death
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 3600)
        made = Cluster(url, clock)
        yield made
        for store in made.stores.values():
            await store.close()


async def runs(author: Author) -> list[str]:
    return [row.run for row in await author.store.rows(Query(owner="ann"))]


async def test_g13_a_retry_right_after_a_kill_takes_the_place_of_the_first_try(cluster: Cluster) -> None:
    a, b, c = await cluster.enter("a"), await cluster.enter("b"), await cluster.enter("c")
    await a.open("older", **FIRST)
    await a.open("r1", **FIRST)
    await cluster.kill(a)
    assert await b.attach("r2", **RETRY) == "r1", "the newest"
    assert await c.attach("r3", **RETRY) == "older"
    for again in (b, c):
        await again.open(f"new at {again.holder}", **RETRY)
    await cluster.kill(b)
    assert await c.attach("r4", **RETRY) == "new at b"
    assert await c.attach("r5", **RETRY) == "r1"
    assert await runs(c) == ["new at c", "new at b", "r1", "older"]


async def test_g13_a_retry_while_the_first_connection_is_held_by_a_live_process_is_a_new_run(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await b.open("r2", **RETRY)
    await a.open("r3", **RETRY)
    assert await runs(a) == ["r3", "r2", "r1"]


async def test_g13_a_counted_retry_joins_a_run_that_waits_at_another_living_process(cluster: Cluster) -> None:
    """The first process may be frozen: its lock and its lease say nothing."""
    a, b, c = await cluster.enter("a"), await cluster.enter("b"), await cluster.enter("c")
    await a.open("older", **FIRST)
    await a.finished("r1", **FIRST)
    assert await b.attach("r2", **COUNTED) == "r1", "the newest, also if it ended and was not delivered"
    assert await c.attach("r3", **COUNTED) == "r1", "again, from b"
    assert await b.attach("r4", **COUNTED) == "r1", "again, from c"
    assert await b.attach("r5", **COUNTED) == "older", "the newest at another process"
    await b.open("r6", **COUNTED)
    assert await runs(a) == ["r6", "r1", "older"]


async def test_g13_a_counted_retry_with_another_api_key_joins_no_run_that_still_waits(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await b.open("r2", **{**COUNTED, "credential": "k2"})
    await a.store.deliveries.lost("ann", "r1", 0)
    assert await b.attach("r3", **{**COUNTED, "credential": "k3"}) == "r1", "its loss is known"
    assert await a.attach("r4", **{**COUNTED, "credential": "k3"}) == "r1", "whoever joined it is its caller now"


async def test_a_late_word_of_the_process_whose_caller_was_replaced_changes_nothing(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.finished("r1", **FIRST)
    assert await b.attach("r2", **COUNTED) == "r1"
    row = "SELECT waits, waiter, lost_at, delivered_at FROM runs"
    await a.store.deliveries.answered([("ann", "r1")])
    await a.store.deliveries.lost("ann", "r1", 0)
    assert [tuple(found) for found in await cluster.run(row)] == [(True, "b", 0, 0)]
    await b.store.deliveries.answered([("ann", "r1"), ("ann", "nobody")])
    now = cluster.clock.now_ms()
    assert [tuple(found) for found in await cluster.run(row)] == [(False, "b", 0, now)]
    await b.store.deliveries.lost("ann", "r1", 0)
    assert [tuple(found) for found in await cluster.run(row)] == [(False, "b", 0, now)]


async def test_a_delivery_that_is_reported_after_the_loss_changes_nothing(cluster: Cluster) -> None:
    a = await cluster.enter("a")
    await a.finished("r1", **FIRST)
    await a.store.deliveries.lost("ann", "r1", 0)
    await a.store.deliveries.answered([("ann", "r1")])
    assert await a.attach("r2", **RETRY) == "r1"


@pytest.mark.parametrize("same_process", [True, False])
async def test_of_two_requests_at_once_one_joins_the_lost_run_and_one_begins(
    cluster: Cluster, same_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_contended", lambda opening: [])  # also those of one process race in the database
    a, b = await cluster.enter("a"), await cluster.enter("b")
    for n in range(20):
        fields = {**FIRST, "match": f"m{n}"}
        await a.open(f"lost{n}", **fields)
        await a.store.deliveries.lost("ann", f"lost{n}", 0)
        who = enumerate((b, b if same_process else a))
        both = await asyncio.gather(*(one.store.open(one.opening(f"r{n}x{k}", **fields)) for k, one in who))
        joined, begun = sorted(both, key=lambda done: isinstance(done, Opened))
        assert joined == Attached(f"lost{n}", again=True) and isinstance(begun, Opened)


async def test_a_request_that_joins_nothing_is_opened_by_one_statement(cluster: Cluster) -> None:
    a = await cluster.enter("a")
    await a.open("r0", **{**FIRST, "match": "m0"})
    statements: list[str] = []
    for holder in cluster.stores["a"]._connections._asking._holders:
        if holder._con is not None:
            holder._con.add_query_logger(lambda asked: statements.append(asked.query))
    for n, kept in enumerate(("stored", "hours", "delivery")):
        await a.open(f"r{n + 1}", **{**COUNTED, "match": f"m{n + 1}", "kept": kept})
    assert len(statements) == 3


async def test_a_run_that_is_joined_and_that_nobody_holds_can_be_claimed_at_once(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST, kept="hours")
    await a.store.deliveries.lost("ann", "r1", 0)
    await a.write("r1", mark=Mark(status="queued", at=0, parked=True, left=True))
    assert await b.claimable() == []
    heard: list[None] = []
    cluster.stores["a"]._notifier.listen("work", lambda: heard.append(None))
    assert await b.attach("r2", **RETRY) == "r1"
    assert await a.claimable() == ["r1"]
    await until(lambda: heard)


@pytest.mark.parametrize("lost", [1, 2])
async def test_g13_of_two_retries_at_once_each_gets_a_run_of_its_own(cluster: Cluster, lost: int) -> None:
    a, b, c = await cluster.enter("a"), await cluster.enter("b"), await cluster.enter("c")
    tries = [f"f{n}" for n in range(10)]
    for name in tries:
        for n in range(lost):
            await a.open(f"{name} {n}", **{**FIRST, "match": name})
    await cluster.kill(a)
    for name in tries:
        both = [who.store.open(who.opening(f"{name} {who.holder}", **{**RETRY, "match": name})) for who in (b, c)]
        got = await asyncio.gather(*both)
        taken = sorted(one.run for one in got if isinstance(one, Attached))
        assert taken == [f"{name} {n}" for n in range(lost)]
        assert sum(isinstance(one, Opened) for one in got) == 2 - lost


async def test_g13_only_what_fits_is_taken_from_a_process_that_is_gone(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await a.finished("delivered", **{**FIRST, "match": "m2"})
    await a.store.deliveries.answered([("ann", "delivered")])
    await a.open("without a match", **{**FIRST, "match": ""})
    await cluster.kill(a)
    bob = Author(Backend(b.store, cluster.clock), owner="bob", holder="b")
    await bob.open("of bob", **RETRY)
    await b.open("another request", **{**RETRY, "match": "m3"})
    await b.open("no retry", **{**COUNTED, "match": ""})
    await b.open("asked anew", **{**RETRY, "match": "m2"})
    assert await b.attach("another key", **{**RETRY, "credential": "k2"}) == "r1"


Change = Callable[[Cluster], Awaitable[Any]]
GONE: dict[str, Change] = {
    "forgotten": lambda cluster: cluster.run("DELETE FROM replicas WHERE holder = 'a'"),
    "dead": lambda cluster: cluster.run("UPDATE replicas SET dead = true WHERE holder = 'a'"),
    "lapsed": lambda cluster: cluster.run("UPDATE replicas SET lease_until = ninelives_now() WHERE holder = 'a'"),
}


@pytest.mark.parametrize("how", GONE)
async def test_g13_the_lock_of_a_process_that_is_known_to_be_gone_does_not_matter(cluster: Cluster, how: str) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await GONE[how](cluster)
    assert await b.attach("r2", **RETRY) == "r1"


async def test_g13_a_process_does_not_take_the_place_of_its_own_callers(cluster: Cluster) -> None:
    a = await cluster.enter("a")
    await a.open("r1", **FIRST)
    await GONE["dead"](cluster)
    await a.open("r2", **RETRY)


async def test_g13_after_a_start_of_the_database_only_the_lease_counts(cluster: Cluster) -> None:
    lease_s = 100_000.0  # the server started less than that ago
    a, b = await cluster.enter("a", lease_s), await cluster.enter("b", lease_s)
    await a.open("r1", **FIRST)
    await cluster.kill(a)
    await b.open("r2", **RETRY)
    await GONE["lapsed"](cluster)
    assert await b.attach("r3", **RETRY) == "r1"


async def test_g13_only_the_lease_counts_for_a_process_without_a_lock(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await cluster.run("UPDATE replicas SET lock_key = NULL WHERE holder = 'a'")
    await cluster.kill(a)
    await b.open("r2", **RETRY)


async def test_g13_a_process_that_lost_its_own_connection_ignores_free_locks(cluster: Cluster) -> None:
    a, b = await cluster.enter("a"), await cluster.enter("b")
    await a.open("r1", **FIRST)
    await cluster.kill(a)
    listener = cluster.stores["b"]._listener
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ninelives listens'"
    await cluster.run(f"{ends} AND datname = current_database()")
    await until(lambda: listener._distrust_until > 0 and listener.connected.is_set(), DEADLINE_S)
    await b.open("r2", **RETRY)


@pytest.mark.parametrize("skew_s", [86_400, -86_400])
async def test_the_age_of_a_lost_connection_does_not_depend_on_the_clocks_of_two_machines(
    cluster: Cluster, skew_s: int
) -> None:
    """The clocks of the machine that lost it and of the one that gets the retry may be a day apart (P12)."""
    ann, bob = await cluster.enter("a"), await cluster.enter("b")
    await ann.open("r1", **FIRST)
    now = cluster.clock.now_ms()
    await ann.store.deliveries.lost("ann", "r1", now + skew_s * 1000)
    opening = replace(bob.opening("r2", **RETRY), at=now - skew_s * 1000)
    assert await bob.store.open(opening) == Attached("r1", again=True)
    await bob.store.deliveries.lost("ann", "r1", now)
    cluster.clock.advance(31)
    assert isinstance(await bob.store.open(opening), Opened), "it was too long ago"


async def test_a_locked_run_does_not_keep_others_from_being_marked_as_lost(cluster: Cluster) -> None:
    """There is no deadlock: the next round takes the locked run."""
    ann, bob = await cluster.enter("a"), await cluster.enter("b")
    await ann.open("r1", **FIRST)
    await ann.open("r2", **FIRST)
    await cluster.kill(ann)
    cluster.clock.advance(60)
    await bob.store.beat("b")
    connection = await asyncpg.connect(cluster.url)
    try:
        async with connection.transaction():
            await connection.execute("UPDATE runs SET used_at = 1 WHERE id = 'r2'")
            await bob.store.deliveries.strand(0)
            assert [row["id"] for row in await cluster.run("SELECT id FROM runs WHERE lost_at > 0")] == ["r1"]
    finally:
        await connection.close()
    await bob.store.deliveries.strand(0)
    assert len(await cluster.run("SELECT id FROM runs WHERE lost_at > 0")) == 2


async def test_a_statement_that_met_a_deadlock_is_retried(cluster: Cluster) -> None:
    ann = await cluster.enter("a")
    await ann.open("r1", **FIRST)
    met: list[int] = []

    async def work(connection: Any) -> int:
        met.append(1)
        if len(met) < 3:
            raise asyncpg.exceptions.DeadlockDetectedError("deadlock detected")
        return 7

    assert await cluster.stores["a"]._connections.ask(work) == 7

"""A request is sent again right after the process of its first try was killed, before anybody has noticed (B8, G13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.core.admission import Again
from holdfast.journal import postgres_bell
from holdfast.journal.base import Attached, Opened, Query
from holdfast.journal.postgres import PostgresStore
from holdfast.testing import Author, Backend
from tests import pg
from tests.journal.shelf import until

FIRST: dict[str, Any] = {"credential": "k1"}
RETRY: dict[str, Any] = {"credential": "k1", "again": Again(30_000)}
DEADLINE_S = 20.0


class House:
    """Processes on one database; its clock stands an hour after the real one, so its start was long ago."""

    def __init__(self, url: str, clock: pg.FileClock) -> None:
        self.url, self.clock = url, clock
        self.stores: dict[str, PostgresStore] = {}

    async def enter(self, holder: str, lease_s: float = 15.0) -> Author:
        self.stores[holder] = await pg.opened(self.url, holder, lease_s=lease_s)
        return Author(Backend(self.stores[holder], self.clock), holder=holder)

    async def kill(self, author: Author) -> None:
        """Its connections end without a word; wait until the database has let go of its lock."""
        await pg.killed(self.stores.pop(author.holder))

        async def free() -> bool:
            return bool(len(await self.run(pg.LOCKS)) == len(self.stores))

        await until(free, DEADLINE_S)

    async def run(self, sql: str) -> Any:
        return await pg.server().run(self.url, sql)


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 3600)  # nobody notices a death
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 3600)
        made = House(url, clock)
        yield made
        for store in made.stores.values():
            await store.close()


async def runs(author: Author) -> list[str]:
    return [row.run for row in await author.store.rows(Query(owner="ann"))]


async def test_g13_a_retry_right_after_a_kill_takes_the_place_of_the_first_try(house: House) -> None:
    a, b, c = await house.enter("a"), await house.enter("b"), await house.enter("c")
    await a.open("older", **FIRST)
    await a.open("r1", **FIRST)
    await house.kill(a)
    assert await b.attach("r2", **RETRY) == "r1", "the newest"
    assert await c.attach("r3", **RETRY) == "older"
    for again in (b, c):
        await again.open(f"new at {again.holder}", **RETRY)
    await house.kill(b)
    assert await c.attach("r4", **RETRY) == "new at b"
    assert await c.attach("r5", **RETRY) == "r1"
    assert await runs(c) == ["new at c", "new at b", "r1", "older"]


async def test_g13_a_retry_while_the_first_connection_is_held_by_a_live_process_is_a_new_run(house: House) -> None:
    a, b = await house.enter("a"), await house.enter("b")
    await a.open("r1", **FIRST)
    await b.open("r2", **RETRY)
    await a.open("r3", **RETRY)
    assert await runs(a) == ["r3", "r2", "r1"]


@pytest.mark.parametrize("lost", [1, 2])
async def test_g13_of_two_retries_at_once_each_gets_a_run_of_its_own(house: House, lost: int) -> None:
    a, b, c = await house.enter("a"), await house.enter("b"), await house.enter("c")
    tries = [f"f{n}" for n in range(10)]
    for name in tries:
        for n in range(lost):
            await a.open(f"{name} {n}", fingerprint=name, **FIRST)
    await house.kill(a)
    for name in tries:
        both = [who.store.open(who.opening(f"{name} {who.holder}", fingerprint=name, **RETRY)) for who in (b, c)]
        got = await asyncio.gather(*both)
        taken = sorted(one.run for one in got if isinstance(one, Attached))
        assert taken == [f"{name} {n}" for n in range(lost)]
        assert sum(isinstance(one, Opened) for one in got) == 2 - lost


async def test_g13_only_what_fits_is_taken_from_a_process_that_is_gone(house: House) -> None:
    a, b = await house.enter("a"), await house.enter("b")
    await a.open("r1", derived_session="chat1", **FIRST)
    await a.open("delivered", fingerprint="f2", **FIRST)
    await a.store.deliveries.answered("ann", "delivered")
    await house.kill(a)
    bob = Author(Backend(b.store, house.clock), owner="bob", holder="b")
    await bob.open("of bob", **RETRY)
    await b.open("another key", **{**RETRY, "credential": "k2"})
    await b.open("another request", **{**RETRY, "fingerprint": "f3"})
    await b.open("another session", derived_session="chat2", credential="k1", again=Again(30_000, session="chat2"))
    await b.open("no retry", **FIRST)
    await b.open("asked anew", fingerprint="f2", **RETRY)
    again = Again(30_000, same_credential=False, session="chat1")
    assert await b.attach("r2", derived_session="chat1", credential="k2", again=again) == "r1"


Deed = Callable[[House], Awaitable[Any]]
GONE: dict[str, Deed] = {
    "forgotten": lambda house: house.run("DELETE FROM replicas WHERE holder = 'a'"),
    "dead": lambda house: house.run("UPDATE replicas SET dead = true WHERE holder = 'a'"),
    "lapsed": lambda house: house.run("UPDATE replicas SET lease_until = holdfast_now() WHERE holder = 'a'"),
}


@pytest.mark.parametrize("how", GONE)
async def test_g13_a_process_that_is_known_to_be_gone_needs_no_look_at_its_lock(house: House, how: str) -> None:
    a, b = await house.enter("a"), await house.enter("b")
    await a.open("r1", **FIRST)
    await GONE[how](house)
    assert await b.attach("r2", **RETRY) == "r1"


async def test_g13_nobody_takes_the_place_of_its_own_callers(house: House) -> None:
    a = await house.enter("a")
    await a.open("r1", **FIRST)
    await GONE["dead"](house)
    await a.open("r2", **RETRY)


async def test_g13_after_a_start_of_the_database_a_free_lock_says_nothing_and_the_lease_tells(house: House) -> None:
    lease_s = 100_000.0  # the server started less than that ago
    a, b = await house.enter("a", lease_s), await house.enter("b", lease_s)
    await a.open("r1", **FIRST)
    await house.kill(a)
    await b.open("r2", **RETRY)
    await GONE["lapsed"](house)
    assert await b.attach("r3", **RETRY) == "r1"


async def test_g13_a_process_without_a_lock_is_not_judged_by_it(house: House) -> None:
    a, b = await house.enter("a"), await house.enter("b")
    await a.open("r1", **FIRST)
    await house.run("UPDATE replicas SET lock_key = NULL WHERE holder = 'a'")
    await house.kill(a)
    await b.open("r2", **RETRY)


async def test_g13_a_process_that_lost_its_own_connection_takes_no_free_lock_for_a_death(house: House) -> None:
    a, b = await house.enter("a"), await house.enter("b")
    await a.open("r1", **FIRST)
    await house.kill(a)
    listener = house.stores["b"]._listener
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast listens'"
    await house.run(f"{ends} AND datname = current_database()")
    await until(lambda: listener._just_after > 0 and listener.connected.is_set(), DEADLINE_S)
    await b.open("r2", **RETRY)


@pytest.mark.parametrize("skew_s", [86_400, -86_400])
async def test_how_long_ago_a_place_was_lost_does_not_go_by_the_clocks_of_two_machines(
    house: House, skew_s: int
) -> None:
    """P12: the one that lost it, and the one that is asked again, may be a day apart."""
    ann, bob = await house.enter("a"), await house.enter("b")
    await ann.open("r1", **FIRST)
    now = house.clock.now_ms()
    await ann.store.deliveries.lost("ann", "r1", now + skew_s * 1000)
    opening = replace(bob.opening("r2", **RETRY), at=now - skew_s * 1000)
    assert await bob.store.open(opening) == Attached("r1", again=True)
    await bob.store.deliveries.lost("ann", "r1", now)
    house.clock.advance(31)
    assert isinstance(await bob.store.open(opening), Opened), "it was too long ago"


async def test_a_run_that_somebody_has_in_hand_does_not_keep_others_from_being_noted_as_lost(house: House) -> None:
    """Nor is there a deadlock: what is locked is left for the next time."""
    ann, bob = await house.enter("a"), await house.enter("b")
    await ann.open("r1", **FIRST)
    await ann.open("r2", **FIRST)
    await house.kill(ann)
    house.clock.advance(60)
    await bob.store.beat("b")
    line = await asyncpg.connect(house.url)
    try:
        async with line.transaction():
            await line.execute("UPDATE runs SET used_at = 1 WHERE id = 'r2'")
            await bob.store.deliveries.strand(0)
            assert [row["id"] for row in await house.run("SELECT id FROM runs WHERE lost_at > 0")] == ["r1"]
    finally:
        await line.close()
    await bob.store.deliveries.strand(0)
    assert len(await house.run("SELECT id FROM runs WHERE lost_at > 0")) == 2


async def test_a_word_that_met_a_deadlock_is_said_again(house: House) -> None:
    ann = await house.enter("a")
    await ann.open("r1", **FIRST)
    met: list[int] = []

    async def work(line: Any) -> int:
        met.append(1)
        if len(met) < 3:
            raise asyncpg.exceptions.DeadlockDetectedError("deadlock detected")
        return 7

    assert await house.stores["a"]._lines.ask(work) == 7

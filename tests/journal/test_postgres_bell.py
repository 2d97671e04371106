"""News, deaths and leases between processes on one database: told in milliseconds, and a lost word costs only time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.journal import postgres_bell
from holdfast.journal.base import Signal, StoreUnavailable, Verdict
from holdfast.journal.bell import LocalBell
from holdfast.journal.postgres import PostgresStore
from holdfast.journal.postgres_log import NOTE_BYTES, notes
from holdfast.testing import Author, Backend
from tests import pg
from tests.journal.shelf import until

DEADLINE_S = 20.0


class Ear:
    """A process: its store, its bell and what was heard."""

    def __init__(self, store: PostgresStore, bell: LocalBell, clock: pg.FileClock, holder: str) -> None:
        self.store = store
        self.bell = bell
        self.author = Author(Backend(store, clock), holder=holder)
        self.heard: list[str] = []

    def listen(self, *topics: str) -> None:
        for topic in topics:
            self.bell.listen(topic, lambda topic=topic: self.heard.append(topic))

    async def hears(self, topic: str) -> None:
        await until(lambda: topic in self.heard, DEADLINE_S)


Enter = Callable[..., Awaitable[Ear]]


@pytest.fixture
async def enter() -> AsyncIterator[Enter]:
    """Processes on one database; its clock stands an hour after the real one, so its start was long ago."""
    ears: list[Ear] = []
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 3600)

        async def one(holder: str, lease_s: float = 15.0) -> Ear:
            bell = LocalBell()
            ears.append(Ear(await pg.opened(url, holder, bell, lease_s), bell, clock, holder))
            return ears[-1]

        yield one
        for ear in ears:
            await ear.store.close()


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard but what is told."""
    monkeypatch.setattr(postgres_bell, "SWEEP_S", 3600)


async def terminate(ear: Ear) -> None:
    """The database ends the connection on which a process listens."""
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast listens'"
    await ear.store._lines.once(lambda line: line.fetch(sql + " AND datname = current_database()"))


def rounds_of(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows each time a process looks at the locks of others."""
    rounds: list[object] = []
    judge = ear.store._listener._judge
    monkeypatch.setattr(ear.store._listener, "_judge", lambda line: (rounds.append(line), judge(line))[1])
    return rounds


@pytest.mark.usefixtures("no_sweep")
async def test_what_one_process_writes_rings_in_the_others_and_not_in_its_own(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    for ear in (a, b):
        ear.listen("r1", "r2")
    assert await a.author.write("r1", b"x") is Verdict.WRITTEN
    await b.hears("r1")
    assert a.heard == [] and b.heard == ["r1"]


@pytest.mark.usefixtures("no_sweep")
async def test_a_signal_and_work_ring_everywhere(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    for ear in (a, b):
        ear.listen("signal:r1", "work")
    assert await b.store.signal("ann", Signal("r1", "cancel", "k"))
    for ear in (a, b):
        await ear.hears("signal:r1")
        ear.heard.clear()
    await a.author.open("r2", held=False)
    for ear in (a, b):
        await ear.hears("work")
        ear.heard.clear()
    await a.author.park("r1")
    await b.hears("work")


@pytest.mark.usefixtures("no_sweep")
async def test_after_a_lost_connection_all_ears_are_rung(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    b.listen("r1", "other")
    await terminate(b)
    await b.hears("other")
    await b.store._listener.connected.wait()
    b.heard.clear()
    await a.author.write("r1", b"x")
    await b.hears("r1")


async def test_a_ring_that_was_lost_comes_with_the_next_sweep(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_bell, "SWEEP_S", 0.2)
    monkeypatch.setattr(postgres_bell, "WATCH_S", 0.1)
    b = await enter("b")
    b.heard.clear()
    b.listen("r1")
    await b.hears("r1")


async def test_a_process_whose_connection_is_gone_is_dead_before_its_lease_is_over(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 0.1)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1", credential="k1")
    b.listen("work")
    assert await b.author.claimable() == []
    await pg.killed(a.store)
    await b.hears("work")
    assert await b.author.claimable() == ["r1"]
    claim = await b.author.claim("r1")
    assert claim is not None and claim.attempt == 2

    async def lost() -> bool:
        rows = await b.store._lines.once(lambda line: line.fetch("SELECT 1 FROM runs WHERE lost_at > 0 AND NOT waits"))
        return bool(rows)

    await until(lost, DEADLINE_S)

    async def forgotten() -> bool:
        return [one.holder for one in await b.store.peers.replicas()] == ["b"]

    await until(forgotten, DEADLINE_S)


async def test_after_a_start_of_the_database_nobody_is_judged_by_its_lock(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 0.05)
    lease_s = 100_000.0  # the server started less than that ago
    a, b = await enter("a", lease_s), await enter("b", lease_s)
    await a.author.open("r1")
    await pg.killed(a.store)
    judged = rounds_of(b, monkeypatch)
    await until(lambda: len(judged) >= 6, DEADLINE_S)
    assert await b.author.claimable() == []
    b.author.clock.advance(lease_s + 1)
    assert await b.author.claimable() == ["r1"], "the lease still tells"


async def test_a_process_that_lost_its_own_connection_judges_nobody_for_a_lease(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 0.05)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await terminate(b)
    await until(lambda: not b.store._listener.connected.is_set() or b.store._listener._just_after > 0, DEADLINE_S)
    await until(b.store._listener.connected.is_set, DEADLINE_S)
    await pg.killed(a.store)
    for _ in range(6):
        await asyncio.sleep(0.05)
    assert await b.author.claimable() == []


async def test_a_process_that_only_cannot_listen_keeps_its_runs(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beats come through: a lock that it cannot take again says nothing of it (issue 6, a broken direct_url)."""
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    listens, way = a.store._listener, a.store._listener._url
    listens._url = way.replace("host=", "host=/nowhere")
    sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
    key = postgres_bell.lock_key("a")
    await pg.server().run("postgres", sql + "(classid::bigint << 32) | objid::bigint = $1", key)
    judged = rounds_of(b, monkeypatch)
    await until(lambda: not listens.locked, DEADLINE_S)
    for least in (4, 8):
        await until(lambda least=least: len(judged) >= least, DEADLINE_S)
        assert await b.author.claimable() == []
        await a.store.beat("a")
    assert await a.author.write("r1", b"x") is Verdict.WRITTEN

    listens._url = way
    await until(lambda: listens.locked, DEADLINE_S)
    await until(listens.connected.is_set, DEADLINE_S)
    await pg.killed(a.store)

    async def free() -> bool:
        return await b.author.claimable() == ["r1"]

    await until(free, DEADLINE_S)  # by its lock again: the clock stands still


async def test_a_process_that_has_its_lock_does_not_stay_dead(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 0.05)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await b.store._lines.once(lambda line: line.execute(postgres_bell.SQL["leave"], "a"))

    async def held() -> bool:
        return await b.author.claimable() == []

    await until(held, DEADLINE_S)


async def test_a_process_that_was_taken_for_dead_goes_on_with_its_next_beat(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "WATCH_S", 3600)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await b.store._lines.once(lambda line: line.execute(postgres_bell.SQL["leave"], "a"))
    assert await b.author.claimable() == ["r1"]
    await a.store.beat("a")
    assert await b.author.claimable() == []
    assert await a.author.write("r1", b"x") is Verdict.WRITTEN


async def test_a_process_that_ends_in_order_leaves_its_runs_at_once(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await a.store.close()
    assert await b.author.claimable() == ["r1"]
    assert [one.holder for one in await b.store.peers.replicas()] == ["b"]


def test_a_note_is_split_before_it_is_too_long() -> None:
    runs = [f"run{n:030d}" for n in range(1000)]
    told = notes("holder", runs)
    assert all(len(note.encode()) <= NOTE_BYTES < 8000 for note in told)
    assert [topic for note in told for topic in note.split(" ")[1:]] == runs
    assert notes("holder", []) == []


async def test_when_the_database_ends_all_connections_everything_goes_on(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await a.author.write("r1", b"x")
    b.listen("r1")
    for n in range(3):
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid != pg_backend_pid()"
        name = await a.store._lines.once(lambda line: line.fetchval("SELECT current_database()"))
        await pg.server().run("postgres", sql, name)
        assert len(await b.author.data("r1")) == 3 + n
        opened = await b.author.open(f"o{n}", key=f"k{n}")
        assert opened.records
        part = a.author.slice("r1", b"%d" % n)
        while True:
            try:
                assert await a.store.append([part]) == [Verdict.WRITTEN]
                break
            except StoreUnavailable as error:
                assert error.passing
        a.author.seqs["r1"] += 1
        await until(b.store._listener.connected.is_set, DEADLINE_S)
    b.heard.clear()
    await a.author.write("r1", b"last")
    await b.hears("r1")
    await until(lambda: a.store.upkeep.trouble() is None and b.store.upkeep.trouble() is None, DEADLINE_S)

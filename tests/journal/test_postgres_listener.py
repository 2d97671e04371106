"""Notifications, deaths and leases between processes on one database. A lost notification costs only time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres import listener
from ninelives.journal.postgres.listener import PAYLOAD_BYTES, notify_payloads
from ninelives.journal.postgres.store import PostgresStore
from ninelives.journal.values import Mark, Signal, StoreUnavailable, Verdict
from ninelives.testing import Author, Backend
from tests import pg
from tests.journal.opened_store import until

DEADLINE_S = 60.0


class Process:
    """A process: its store, its notifier and the topics that it was notified of."""

    def __init__(self, store: PostgresStore, notifier: LocalNotifier, clock: pg.FileClock, holder: str) -> None:
        self.store = store
        self.notifier = notifier
        self.author = Author(Backend(store, clock), holder=holder)
        self.notified: list[str] = []

    def listen(self, *topics: str) -> None:
        for topic in topics:
            self.notifier.listen(topic, lambda topic=topic: self.notified.append(topic))

    async def is_notified(self, topic: str) -> None:
        await until(lambda: topic in self.notified, DEADLINE_S)


Enter = Callable[..., Awaitable[Process]]


@pytest.fixture
async def enter() -> AsyncIterator[Enter]:
    """Processes on one database. Its clock is an hour ahead, so that its start was long ago."""
    processes: list[Process] = []
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 3600)

        async def one(holder: str, lease_s: float = 15.0) -> Process:
            notifier = LocalNotifier()
            processes.append(Process(await pg.opened(url, holder, notifier, lease_s), notifier, clock, holder))
            return processes[-1]

        yield one
        for process in processes:
            await process.store.close()


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweeps: only real notifications arrive."""
    monkeypatch.setattr(listener, "SWEEP_S", 3600)


async def terminate(process: Process) -> None:
    """The database closes the listening connections."""
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ninelives listens'"
    await process.store._connections.once(
        lambda connection: connection.fetch(sql + " AND datname = current_database()")
    )


def rounds_of(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows each time a process looks at the locks of others."""
    rounds: list[object] = []
    judge = process.store._listener._bury_dead
    monkeypatch.setattr(
        process.store._listener, "_bury_dead", lambda connection: (rounds.append(connection), judge(connection))[1]
    )
    return rounds


@pytest.mark.usefixtures("no_sweep")
async def test_a_write_notifies_the_processes_that_follow_its_run_and_not_its_own(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    for run in ("r1", "r2"):
        await a.author.open(run)
    for process in (a, b):
        process.listen("r1", "r2")
    await b.author.data("r1")
    await until(lambda: "r1" in a.store._listener.followed, DEADLINE_S)
    for run in ("r2", "r1"):
        assert await a.author.write(run, b"x") is Verdict.WRITTEN
    await b.is_notified("r1")
    assert a.notified == [] and set(b.notified) == {"r1"}, "nobody reads r2 elsewhere"


@pytest.mark.usefixtures("no_sweep")
async def test_the_end_of_a_run_is_notified_though_nobody_has_read_it(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    b.listen("r1")
    part = a.author.slice("r1", b"x", mark=Mark(status="completed", at=0, ended=True))
    assert await a.store.append([part]) == [Verdict.WRITTEN]
    await b.is_notified("r1")


@pytest.mark.usefixtures("no_sweep")
async def test_what_was_written_before_a_follower_was_known_is_notified_once_more(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    b.listen("r1")
    await b.author.data("r1")
    await b.is_notified("r1")


async def test_a_run_that_nobody_follows_any_more_is_forgotten(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FOLLOWED_S", 0.2)
    monkeypatch.setattr(listener, "WATCH_S", 0.05)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    b.listen("r1")
    monkeypatch.setattr(listener, "SWEEP_S", 3600)
    await b.author.data("r1")
    await until(lambda: "r1" in a.store._listener.followed, DEADLINE_S)
    await until(lambda: "r1" not in a.store._listener.followed, DEADLINE_S)
    await a.author.open("r2")
    await b.author.data("r2")  # nobody listens for it
    assert "r2" not in a.store._listener.followed and "r2" not in b.store._listener.followed._told


@pytest.mark.usefixtures("no_sweep")
async def test_signals_and_work_notify_all_processes(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    for process in (a, b):
        process.listen("signal:r1", "work")
    assert await b.store.signal("ann", Signal("r1", "cancel", "k"))
    for process in (a, b):
        await process.is_notified("signal:r1")
        process.notified.clear()
    await a.author.open("r2", held=False)
    for process in (a, b):
        await process.is_notified("work")
        process.notified.clear()
    await a.author.park("r1")
    await b.is_notified("work")


@pytest.mark.usefixtures("no_sweep")
async def test_after_a_lost_connection_all_topics_are_notified(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    b.listen("r1", "other")
    await terminate(b)
    await b.is_notified("other")
    await b.store._listener.connected.wait()
    await b.author.data("r1")
    await until(lambda: "r1" in a.store._listener.followed, DEADLINE_S)
    b.notified.clear()
    await a.author.write("r1", b"x")
    await b.is_notified("r1")


async def test_a_lost_notification_comes_with_the_next_sweep(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SWEEP_S", 0.2)
    monkeypatch.setattr(listener, "WATCH_S", 0.1)
    b = await enter("b")
    b.notified.clear()
    b.listen("r1")
    await b.is_notified("r1")


async def test_a_process_without_its_connection_is_dead_before_its_lease_expires(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.1)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1", credential="k1")
    b.listen("work")
    assert await b.author.claimable() == []
    await pg.killed(a.store)
    await b.is_notified("work")
    assert await b.author.claimable() == ["r1"]
    claim = await b.author.claim("r1")
    assert claim is not None and claim.attempt == 2

    async def lost() -> bool:
        rows = await b.store._connections.once(
            lambda connection: connection.fetch("SELECT 1 FROM runs WHERE lost_at > 0 AND NOT waits")
        )
        return bool(rows)

    await until(lost, DEADLINE_S)

    async def forgotten() -> bool:
        return [one.holder for one in await b.store.peers.replicas()] == ["b"]

    await until(forgotten, DEADLINE_S)


async def test_after_a_start_of_the_database_locks_are_ignored(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.05)
    lease_s = 100_000.0  # the server started less than that ago
    a = await enter("a", lease_s)
    await a.author.open("r1")
    await pg.killed(a.store)
    b = await enter("b", lease_s)  # it has never seen the lock of a taken
    looks = rounds_of(b, monkeypatch)
    await until(lambda: len(looks) >= 6, DEADLINE_S)
    assert await b.author.claimable() == []
    b.author.clock.advance(lease_s + 1)
    assert await b.author.claimable() == ["r1"], "the lease still counts"


async def test_a_process_that_lost_its_own_connection_ignores_locks_that_were_not_taken_since(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.05)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await pg.killed(a.store)
    await terminate(b)
    await until(lambda: b.store._listener._distrust_until > 0, DEADLINE_S)
    await until(b.store._listener.connected.is_set, DEADLINE_S)
    judged = rounds_of(b, monkeypatch)
    await until(lambda: len(judged) >= 6, DEADLINE_S)
    assert await b.author.claimable() == []


async def test_a_process_that_came_back_after_a_broken_connection_is_judged_by_its_lock_at_once(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the database does not move: a lease never ends here."""
    monkeypatch.setattr(listener, "WATCH_S", 0.05)
    lease_s = 100_000.0  # the server started less than that ago
    a, b = await enter("a", lease_s), await enter("b", lease_s)
    await a.author.open("r1")
    await terminate(b)
    await until(lambda: b.store._listener._distrust_until > 0, DEADLINE_S)
    await until(lambda: "a" in b.store._listener._seen, DEADLINE_S)
    assert not b.store._listener.trusts_locks and await b.author.claimable() == []
    b.listen("work")
    await pg.killed(a.store)
    await b.is_notified("work")

    async def free() -> bool:
        return await b.author.claimable() == ["r1"]

    await until(free, DEADLINE_S)


async def test_a_process_that_only_cannot_listen_keeps_its_runs(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a broken direct_url it cannot take its lock, but it still renews its lease."""
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    listens, way = a.store._listener, a.store._listener._url
    listens._url = way.replace("host=", "host=/nowhere")
    sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
    key = listener.lock_key("a")
    await pg.server().run("postgres", sql + "(classid::bigint << 32) | objid::bigint = $1", key)
    looks = rounds_of(b, monkeypatch)
    await until(lambda: not listens.locked, DEADLINE_S)
    for least in (4, 8):
        await until(lambda least=least: len(looks) >= least, DEADLINE_S)
        assert await b.author.claimable() == []
        await a.store.beat("a")
    assert await a.author.write("r1", b"x") is Verdict.WRITTEN

    listens._url = way
    await until(lambda: listens.locked, DEADLINE_S)
    await until(listens.connected.is_set, DEADLINE_S)
    await pg.killed(a.store)

    async def free() -> bool:
        return await b.author.claimable() == ["r1"]

    await until(free, DEADLINE_S)  # by its lock again: the clock does not move


async def test_a_process_that_has_its_lock_does_not_stay_dead(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 0.05)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await b.store._connections.once(lambda connection: connection.execute(listener.SQL["leave"], "a"))

    async def held() -> bool:
        return await b.author.claimable() == []

    await until(held, DEADLINE_S)


async def test_a_process_that_was_marked_as_dead_goes_on_with_its_next_beat(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "WATCH_S", 3600)
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await b.store._connections.once(lambda connection: connection.execute(listener.SQL["leave"], "a"))
    assert await b.author.claimable() == ["r1"]
    await a.store.beat("a")
    assert await b.author.claimable() == []
    assert await a.author.write("r1", b"x") is Verdict.WRITTEN


async def test_a_process_that_stops_in_order_releases_its_runs_at_once(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await a.store.close()
    assert await b.author.claimable() == ["r1"]
    assert [one.holder for one in await b.store.peers.replicas()] == ["b"]


def test_a_payload_is_split_before_it_is_too_long() -> None:
    runs = [f"run{n:030d}" for n in range(1000)]
    payloads = notify_payloads("holder", runs)
    assert all(len(payload.encode()) <= PAYLOAD_BYTES < 8000 for payload in payloads)
    assert [topic for payload in payloads for topic in payload.split(" ")[1:]] == runs
    assert notify_payloads("holder", []) == []


async def test_all_work_goes_on_after_the_database_closed_all_connections(enter: Enter) -> None:
    a, b = await enter("a"), await enter("b")
    await a.author.open("r1")
    await a.author.write("r1", b"x")
    b.listen("r1")
    for n in range(3):
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid != pg_backend_pid()"
        name = await a.store._connections.once(lambda connection: connection.fetchval("SELECT current_database()"))
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
    b.notified.clear()
    await a.author.write("r1", b"last")
    await b.is_notified("r1")
    await until(lambda: a.store.upkeep.trouble() is None and b.store.upkeep.trouble() is None, DEADLINE_S)

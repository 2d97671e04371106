"""Races of several processes on one database: one wins, and the losers leave no trace (P6, P8, P11)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from ninelives.core.errors import ClientError
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres import claims, connections
from ninelives.journal.postgres import store as postgres_store
from ninelives.journal.postgres.connections import Wiring
from ninelives.journal.postgres.store import Identity, PostgresStore
from ninelives.journal.values import Attached, Mark, Opened, Query, StoreUnavailable, Verdict
from ninelives.testing import Author, Backend
from tests import pg
from tests.journal.opened_store import until

WRITTEN, FENCED = Verdict.WRITTEN, Verdict.FENCED


@asynccontextmanager
async def crowd(count: int, queries: int = 4) -> AsyncIterator[list[Backend]]:
    """The stores of several processes on one database."""
    async with AsyncExitStack() as stack:
        url, clock = await stack.enter_async_context(pg.server().borrowed())
        stores: list[Backend] = []
        for n in range(count):
            wiring = Wiring(queries=queries)
            store = await PostgresStore.open_at(url, Identity(f"h{n}", f"n{n}", True), LocalNotifier(), 15.0, wiring)
            stack.push_async_callback(store.close)
            stores.append(Backend(store, clock))
        yield stores


@pytest.fixture
def no_opening_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All openings race in the database, also those of one process. On a busy machine forty of them can take longer
    than a request may, or stand idle in a transaction for longer than the database allows: then a connection is closed,
    and that is not what is tried here."""
    monkeypatch.setattr(claims, "_contended", lambda opening: [])
    monkeypatch.setattr(postgres_store, "ASK_S", 60.0)
    monkeypatch.setattr(connections, "IDLE_TRANSACTION_MS", 60_000)


async def test_a_job_whose_deadline_passes_between_two_statements_is_unanswered() -> None:
    """Its connection is closed, and asyncpg says that it was released back to the pool. No other job has it."""
    async with crowd(1, queries=1) as (one,):
        pool = one.store._connections
        asked: list[int] = []

        async def job(connection: connections.Connection) -> None:
            asked.append(await connection.fetchval("SELECT pg_backend_pid()"))
            while not connection.is_closed():  # noqa: ASYNC110 -- asyncpg tells nobody
                await asyncio.sleep(0.01)
            await connection.fetchval("SELECT 2")

        with pytest.raises(StoreUnavailable, match="does not answer") as failed:
            await pool.once(job, connections.deadline_in(1.0))
        assert failed.value.away and "released back to the pool" in str(failed.value.__cause__)
        assert await pool.fetchval("SELECT pg_backend_pid()", limit_s=60.0) not in asked


@pytest.mark.usefixtures("no_opening_locks")
async def test_forty_connections_with_one_key_make_one_run_in_each_of_fifty_rounds() -> None:
    async with crowd(4, queries=10) as stores:
        for turn in range(50):
            openings = [
                one.store.open(Author(one).opening(f"r{turn}x{n}", key=f"k{turn}")) for n, one in enumerate(stores * 10)
            ]
            answers = await asyncio.gather(*openings)
            winners = [answer.run for answer in answers if isinstance(answer, Opened)]
            assert len(winners) == 1
            assert {answer.run for answer in answers if isinstance(answer, Attached)} == set(winners)
        rows = await stores[0].store.rows(Query(owner="ann", limit=1000))
        assert len(rows) == 50
        assert len(await Author(stores[1]).data(rows[0].run)) == 2


@pytest.mark.usefixtures("no_opening_locks")
async def test_of_many_processes_in_one_conversation_one_begins_and_the_others_leave_no_trace() -> None:
    async with crowd(3) as stores:
        for turn in range(5):
            work = [
                one.store.open(Author(one).opening(f"r{turn}x{n}", key=f"k{turn}x{n}", conversation="talk"))
                for n, one in enumerate(stores * 4)
            ]
            answers = await asyncio.gather(*work, return_exceptions=True)
            winners = [n for n, answer in enumerate(answers) if isinstance(answer, Opened)]
            assert len(winners) == 1
            losers = [answer for answer in answers if isinstance(answer, ClientError)]
            assert len(losers) == 11 and {error.status for error in losers} == {409}
            author = Author(stores[winners[0] % 3])
            run = f"r{turn}x{winners[0]}"
            author.seqs[run], author.attempts[run] = 1, 1
            assert await author.end(run) is WRITTEN
        assert len(await stores[0].store.rows(Query(owner="ann", limit=100))) == 5
        links = await stores[2].store.conversations.line("ann", "talk")
        assert len(links) == 5, "each follows the one before"


async def test_an_old_holder_that_races_a_claim_leaves_no_gap_and_writes_nothing_after_it() -> None:
    async with crowd(2) as (old, new):
        for n in range(40):
            run, began = f"r{n}", asyncio.Event()
            zombie, heir = Author(old, holder="h0"), Author(new, holder="h1")
            await zombie.open(run)
            old.clock.advance(16)
            await old.store.beat("h0")  # it lives, and does not know that its lease expired
            written: list[bytes] = []

            async def write(
                zombie: Author = zombie, run: str = run, written: list[bytes] = written, began: asyncio.Event = began
            ) -> None:
                for k in range(1000):
                    if await zombie.write(run, b"z%d" % k, b"zz%d" % k) is FENCED:
                        return
                    written += [b"z%d" % k, b"zz%d" % k]
                    began.set()
                raise AssertionError("never fenced")

            async def take_over(heir: Author = heir, run: str = run, n: int = n, began: asyncio.Event = began) -> None:
                if n % 2:  # in every other round the holder is first for sure
                    await began.wait()
                await asyncio.sleep(0.001 * (n % 5))
                claim = await heir.claim(run)
                assert claim is not None and claim.attempt == 2

            await asyncio.gather(write(), take_over())
            assert await heir.write(run, b"heir") is WRITTEN
            records = await heir.read(run)
            assert [record.seq for record in records] == list(range(len(records)))
            assert [record.attempt for record in records] == sorted(record.attempt for record in records)
            assert [record.data for record in records if record.data.startswith(b"z")] == written


async def test_of_many_concurrent_claims_one_succeeds() -> None:
    async with crowd(4) as stores:
        await Author(stores[0]).open("r1", held=False)
        claims = await asyncio.gather(*(Author(one, holder=f"h{n}").claim("r1") for n, one in enumerate(stores * 5)))
        assert len([claim for claim in claims if claim is not None]) == 1


async def test_turns_that_many_processes_add_to_one_session_are_all_kept() -> None:
    async with crowd(3) as stores:
        authors = [Author(one, holder=f"h{n}") for n, one in enumerate(stores)]
        for turn in range(4):
            await asyncio.gather(*(author.open(f"r{turn}x{n}", session="s") for n, author in enumerate(authors)))
            await asyncio.gather(*(author.end(f"r{turn}x{n}", session="s") for n, author in enumerate(authors)))
        assert len(await stores[0].store.sessions.turns("ann", "s")) == 12  # type: ignore[attr-defined]


async def test_a_run_deleted_by_another_process_fences_its_holder() -> None:
    async with crowd(2) as (one, two):
        ann = Author(one, holder="h0")
        await ann.open("r1")
        await ann.write("r1", b"a")
        assert await two.store.delete("ann", "r1")
        assert await ann.write("r1", b"b") is FENCED
        assert await ann.end("r1") is FENCED
        assert await ann.read("r1") == []


async def test_a_database_restarted_under_load_loses_nothing_that_was_acknowledged() -> None:
    server = await asyncio.to_thread(pg.Server)
    stop = asyncio.Event()
    failures = 0

    async def write(author: Author, run: str, acked: list[bytes]) -> None:
        nonlocal failures
        n = 0
        while not stop.is_set():
            part = author.slice(run, b"%d" % n, b"%d" % zlib.crc32(b"%d" % n))
            try:
                (verdict,) = await author.store.append([part])
            except StoreUnavailable as error:
                assert error.passing
                failures += 1
                await asyncio.sleep(0.05)
                continue
            assert verdict is WRITTEN
            author.seqs[run] += 2
            acked += [record.data for record in part.records]
            n += 1

    async def grown(acked: Sequence[list[bytes]]) -> None:
        before = [len(one) for one in acked]
        await until(lambda: all(len(one) >= was + 10 for one, was in zip(acked, before, strict=True)), 60)

    async def restarts(acked: Sequence[list[bytes]]) -> None:
        for _ in range(2):
            await grown(acked)
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.to_thread(server.start)
        await grown(acked)
        stop.set()

    try:
        clock = pg.FileClock(server.home)
        store = await pg.opened(await server.database(clock), "h1")
        author = Author(Backend(store, clock))
        runs = [f"r{n}" for n in range(8)]
        for run in runs:
            await author.open(run)
        acked: list[list[bytes]] = [[] for _ in runs]
        async with asyncio.timeout(120):
            await asyncio.gather(
                *(write(author, run, one) for run, one in zip(runs, acked, strict=True)), restarts(acked)
            )
        assert failures > 0
        for run, one in zip(runs, acked, strict=True):
            assert await author.data(run, after=1) == one
        await store.close()
    finally:
        await asyncio.to_thread(server.destroy)


async def test_a_process_that_stops_inside_a_transaction_blocks_others_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE_TRANSACTION_MS", 300)
    async with pg.server().borrowed() as (url, clock):
        store = await pg.opened(url, "h1")
        frozen = await asyncpg.connect(url, **connections.options_of(Wiring(), "frozen"))
        try:
            ann = Author(Backend(store, clock))
            await ann.open("r1", conversation="talk")
            await ann.open("r2")
            await frozen.execute("BEGIN")
            await frozen.execute("SELECT 1 FROM conversations FOR UPDATE")
            end = ann.slice("r1", b"end", mark=Mark(status="completed", at=5, ended=True))
            assert await store.append([end, ann.slice("r2", b"delta")]) == [WRITTEN, WRITTEN]
        finally:
            frozen.terminate()
            await store.close()

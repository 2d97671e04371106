"""The memory store and the durable stores behave alike: the same operations give the same answers and the same content,
with restarts and kills of the durable one in between."""

from __future__ import annotations

import asyncio
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.postgres.store import PostgresStore
from ninelives.journal.sqlite import database, segments, tails
from ninelives.journal.values import Attached, Claim, Mark, Opened, Query, Record, Verdict
from ninelives.testing import Author, Backend, VirtualClock
from ninelives.testing.contract.conversations import ITEMS, added, removed
from tests import pg
from tests.journal.opened_store import OpenedStore

OWNERS = ("ann", "bob")
Op = tuple[object, ...]

place = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
owner = st.sampled_from(["ann", "ann", "ann", "bob"])
join = st.sampled_from(
    [{}, {"session": "s"}, *({"conversation": name} for name in ("talk", "talk", "side", "conv_r0", "conv_r1"))]
    + [{"previous": f"r{n}"} for n in (0, 0, 1)]
)
keys = st.builds(
    lambda key, fingerprint: {"key": key, "fingerprint": fingerprint},
    st.sampled_from([None, None, "k0", "k1"]),
    st.sampled_from(["f1", "f1", "f2"]),
)
held = st.sampled_from([True, True, True, False])
sent = {"credential": "k1", "match": "m1", "resend_ms": 20_000}
kinds = st.sampled_from(
    [{}, {}, sent, {"kept": "hours"}, *({**sent, "kept": kept} for kept in ("hours", "delivery", "delivery"))]
)
opening = st.builds(lambda who, held, a, b, c: ("open", who, held, a | b | c), owner, held, join, keys, kinds)
code = st.sampled_from(["q1", "q2"])
first = st.builds(lambda held, a: ("open", "ann", held, a), held, st.sampled_from([{}, {"conversation": "talk"}]))
off = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])
writing = st.tuples(st.just("write"), place, st.integers(0, 4), st.sampled_from([1, 40, 900]), off, off)
operations = st.one_of(
    opening,
    opening,
    writing,
    writing,
    writing,
    st.tuples(st.just("end"), place, st.sampled_from([True, True, False])),
    st.tuples(st.just("park"), place),
    st.tuples(st.just("claim"), place, st.sampled_from(["h1", "h2"])),
    st.tuples(st.just("beat"), st.sampled_from(["h1", "h2"])),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 8.0, 16.0])),
    st.tuples(st.just("signal"), place, owner, st.sampled_from(["a", "b"])),
    st.tuples(st.just("lose"), place, owner),
    st.tuples(st.just("answer"), place, owner),
    st.tuples(st.just("ask"), place, code, st.booleans()),
    st.tuples(st.just("approve"), place, code),
    st.tuples(st.just("leave"), place),
    st.tuples(st.just("drop"), place, owner),
    st.tuples(st.just("delete"), place, owner),
    st.tuples(st.just("items"), owner, st.sampled_from([None, "talk", "talk", "conv_r0", "side"]), keys),
    st.tuples(st.just("remove"), owner, st.sampled_from(["talk", "talk", "conv_r0"]), place, st.sampled_from("ab")),
    st.tuples(st.just("forget"), owner, st.sampled_from(["talk", "side", "conv_r0", "conv_r2"])),
    st.tuples(st.just("annotate"), place, owner),
    st.tuples(st.just("read"), place, owner, st.integers(-1, 6)),
    st.tuples(st.just("restart"), st.booleans(), st.sampled_from([True, True, False])),
)


class Twin:
    """One of the two stores, with the seqs and attempts that a holder would know."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.author = Author(backend)
        self.tried = 0

    async def step(self, op: Op) -> object:
        """Run an operation. Returns its result."""
        try:
            return await getattr(self, f"_{op[0]}")(*op[1:])
        except ClientError as error:
            return error.status, error.code, error.message

    async def _open(self, who: str, held: bool, fields: dict[str, Any]) -> object:
        run = f"r{self.tried}"
        self.tried += 1
        author = Author(self.backend, who)
        opened = await self.backend.store.open(author.opening(run, held=held, **fields))
        if isinstance(opened, Attached):
            return opened
        assert isinstance(opened, Opened)
        self.author.seqs[run], self.author.attempts[run] = len(opened.records) - 1, int(held)
        return opened.resolved, list(opened.records)

    async def _write(self, n: int, count: int, size: int, attempt: int, seq: int, mark: Mark | None = None) -> Verdict:
        run, author = f"r{n}", self.author
        author.seqs.setdefault(run, 0)
        author.attempts.setdefault(run, 0)
        part = author.slice(run, *(b"%d" % k * size for k in range(count)), mark=mark)
        records = [Record(r.seq + seq, r.attempt + attempt, r.at, r.data) for r in part.records]
        (verdict,) = await author.store.append([replace(part, attempt=part.attempt + attempt, records=records)])
        if verdict is Verdict.WRITTEN:
            author.seqs[run] += count
        return verdict

    async def _end(self, n: int, chains: bool) -> Verdict:
        at, turn = self.backend.clock.now_ms(), b"[%d]" % n if chains else b""
        mark = Mark(status="done" if chains else "failed", at=at, ended=True, chains=chains, turn=turn)
        if chains and n % 2:
            mark = replace(mark, session="s")
        return await self._write(n, 1, 3, 0, 0, mark)

    async def _park(self, n: int) -> Verdict:
        return await self._write(n, n % 2, 1, 0, 0, Mark(status="queued", at=self.backend.clock.now_ms(), parked=True))

    async def _lose(self, n: int, who: str) -> None:
        await Author(self.backend, who).lose(f"r{n}")

    async def _answer(self, n: int, who: str) -> None:
        await Author(self.backend, who).answer(f"r{n}")

    async def _ask(self, n: int, code: str, parked: bool) -> Verdict:
        at = self.backend.clock.now_ms()
        return await self._write(
            n, 1, 5, 0, 0, Mark(status="waiting", at=at, parked=parked, asks=code, wake_at=at + 9_000)
        )

    async def _approve(self, n: int, code: str) -> bool:
        return await self.author.approve(f"r{n}", code)

    async def _leave(self, n: int) -> Verdict:
        mark = Mark(status="queued", at=self.backend.clock.now_ms(), parked=True, left=True)
        return await self._write(n, 0, 0, 0, 0, mark)

    async def _drop(self, n: int, who: str) -> None:
        await self.backend.store.forget([(who, f"r{n}")])

    async def _claim(self, n: int, holder: str) -> object:
        self.author.holder = holder
        return await self.author.claim(f"r{n}")

    async def claim_all(self, wanted: bool) -> list[Claim]:
        """Claim every free run, as recovery does at a start."""
        runs = sorted(await self.author.claimable()) if wanted else []  # each store has its own order
        return [claim for run in runs if (claim := await self.author.claim(run))]

    async def _beat(self, holder: str) -> None:
        await self.backend.store.beat(holder)

    async def _signal(self, n: int, who: str, key: str) -> bool:
        return await Author(self.backend, who).cancel(f"r{n}", key)

    async def _delete(self, n: int, who: str) -> bool:
        return await self.backend.store.delete(who, f"r{n}")

    async def _items(self, who: str, named: str | None, fields: dict[str, str]) -> object:
        run, use = f"r{self.tried}", "extend" if named else "make"
        self.tried += 1
        opened = await added(Author(self.backend, who), run, conversation=named, conversation_use=use, **fields)
        return opened if isinstance(opened, Attached) else (opened.resolved, list(opened.records))

    async def _remove(self, who: str, named: str, n: int, item: str) -> bool:
        return await removed(Author(self.backend, who), named, f"r{n}", item)

    async def _forget(self, who: str, named: str) -> str:
        return await self.backend.store.conversations.forget(who, named, ITEMS, self.backend.clock.now_ms())

    async def _annotate(self, n: int, who: str) -> bool:
        return await self.backend.store.annotate(who, f"r{n}", b'{"n":"%d"}' % n)

    async def _read(self, n: int, who: str, after: int) -> list[Record]:
        return await Author(self.backend, who).read(f"r{n}", after)

    async def picture(self) -> dict[str, object]:
        """Everything that can be read from the store."""
        store = self.backend.store
        now = self.backend.clock.now_ms()
        shown: dict[str, object] = {"claimable": sorted(await store.claimable(100, now))}  # each has its own order
        shown["queued"] = await store.peers.queued()
        shown["held"] = sorted(await store.peers.held("h1"), key=lambda one: one.run)
        for hours in (0, 1):
            shown[f"forgettable after {hours} h"] = await store.upkeep.forgettable(now, hours * 3_600_000, 100)
        for who in OWNERS:
            author = Author(self.backend, who)
            shown[f"questions of {who}"] = [await store.asking(who, code) for code in ("q1", "q2")]
            rows = await store.rows(Query(owner=who, limit=100))
            shown[f"rows of {who}"] = [row if row.ended else replace(row, last_seq=0) for row in rows]
            for row in rows:
                shown[f"records of {row.run}"] = await author.read(row.run)
                waiting = await store.signals(row.run)
                shown[f"signals of {row.run}"] = sorted((signal.kind, signal.key) for signal in waiting)
                shown[f"after {row.run}"] = await self._past(author, previous=row.run)
            shown[f"conversations of {who}"] = page = list(await store.conversations.page(who, 100, None, True))
            for found in page:
                shown[f"line of {found.id}"] = await store.conversations.line(who, found.id)
                shown[f"past of {found.id}"] = await self._past(author, conversation=found.id)
            for name in ("talk", "side"):
                shown[f"{name} of {who}"] = await self._past(author, conversation=name)
            shown[f"session of {who}"] = await self._past(author, session="s")
        return shown

    async def _past(self, author: Author, **fields: str) -> object:
        try:
            resolved = await author.store.resolve(author.asked(kept="memory", **fields))
        except ClientError as error:
            return error.status, error.code
        return resolved, await author.store.turns(author.owner, resolved)


class Durable(Protocol):
    """A store that can be restarted."""

    backend: Backend

    async def restart(self, *, kill: bool) -> None:
        """Start the next process."""
        ...


async def live(operations: list[Op], home: Durable) -> None:
    """Run the operations on both stores, and compare."""
    clock = home.backend.clock
    model = MemoryStore(clock, home.backend.lease_s if home.backend.leases else math.inf)
    memory, durable = Twin(Backend(model, clock)), Twin(home.backend)
    lost: set[str] = set()
    for op in operations:
        if op[0] == "advance":
            clock.advance(float(str(op[1])))
        elif op[0] == "restart":
            clock.advance(16)
            await home.restart(kill=bool(op[1]))
            durable.backend = home.backend
            durable.author.store = home.backend.store
            model.restart()
            for twin in (memory, durable):
                await twin.backend.store.deliveries.strand(clock.now_ms())
            assert await durable.picture() == await memory.picture()
            claims = [await twin.claim_all(bool(op[2])) for twin in (memory, durable)]
            assert claims[0] == claims[1]
            lost = set(durable.author.seqs) - {claim.run for claim in claims[0]}
        elif op[0] in ("write", "end", "park", "ask", "leave") and f"r{op[1]}" in lost:
            continue  # its holder died with the process: it must be claimed first
        else:
            answers = [await twin.step(op) for twin in (memory, durable)]
            assert answers[0] == answers[1], op
            if op[0] == "claim" and answers[0] is not None:
                lost.discard(f"r{op[1]}")
    assert await durable.picture() == await memory.picture()


class SqliteHome:
    """A SQLite file. After a close the next process opens the same file; after a kill, a copy of what was left."""

    def __init__(self, opened: OpenedStore) -> None:
        self.opened = opened
        self.backend = opened.backend
        self._names = itertools.count(1)

    async def restart(self, *, kill: bool) -> None:
        path = self.opened.path.with_name(f"{next(self._names)}.db") if kill else self.opened.path
        if kill:
            await self.opened.copy(path)
        await self.opened.close()
        self.opened = await OpenedStore.open_at(path, self.backend.clock)
        self.backend = self.opened.backend


async def live_on_sqlite(operations: list[Op], directory: Path) -> None:
    home = SqliteHome(await OpenedStore.open_at(directory / "0.db", VirtualClock()))
    try:
        await live(operations, home)
    finally:
        await home.opened.close()


class PostgresHome:
    """A PostgreSQL database. A killed process does not sign off, and the next one has another name."""

    def __init__(self, url: str, store: PostgresStore, clock: VirtualClock) -> None:
        self._url = url
        self._names = itertools.count(1)
        self.store = store
        self.backend = Backend(store, clock)

    async def restart(self, *, kill: bool) -> None:
        await (pg.killed(self.store) if kill else self.store.close())
        self.store = await pg.opened(self._url, f"p{next(self._names)}")
        self.backend = Backend(self.store, self.backend.clock)


async def live_on_postgres(operations: list[Op]) -> None:
    async with pg.server().borrowed() as (url, clock):
        home = PostgresHome(url, await pg.opened(url, "p0"), clock)
        try:
            await live(operations, home)
        finally:
            await home.store.close()


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(first, min_size=2, max_size=3),
    st.lists(operations, min_size=15, max_size=50),
    st.sampled_from([-1, 2_000, 1_000_000]),
)
def test_memory_and_sqlite_are_twins(opens: list[Op], others: list[Op], spill: int) -> None:
    with (
        patch.object(database, "UPKEEP_S", 0.001),
        patch.object(tails, "SPILL_BYTES", spill),
        patch.object(segments, "SEGMENT_BYTES", 500),
        tempfile.TemporaryDirectory() as directory,
    ):
        asyncio.run(live_on_sqlite(opens + others, Path(directory)))


@settings(max_examples=10, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(first, min_size=2, max_size=3), st.lists(operations, min_size=15, max_size=50))
def test_memory_and_postgres_are_twins(opens: list[Op], others: list[Op]) -> None:
    asyncio.run(live_on_postgres(opens + others))

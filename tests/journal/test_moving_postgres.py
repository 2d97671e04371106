"""A data directory moves to PostgreSQL and back, and is the same afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ninelives.cli.store import judge
from ninelives.core.errors import Damaged
from ninelives.core.sessions import SessionTurn
from ninelives.journal.move import (
    Carried,
    CarriedConversation,
    CarriedKey,
    CarriedText,
    Digest,
    HalfMoved,
    InUse,
    move,
)
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres import move as postgres_move
from ninelives.journal.postgres.move import PostgresCarrier, check, refuse_moved, settle_all
from ninelives.journal.postgres.store import Identity, PostgresStore
from ninelives.journal.sqlite.load import database_in
from ninelives.journal.sqlite.maintenance import check as check_sqlite
from ninelives.journal.sqlite.move import SqliteCarrier
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Grant, NewSession, Removal, Retention, Spending, StoreUnavailable
from ninelives.testing import VirtualClock
from ninelives.testing.author import Author, Backend
from ninelives.testing.contract.accounts import FULL, entry, key_row
from tests.journal.cut import Wire
from tests.journal.test_move import GOLDEN, golden
from tests.pg import server

Side = SqliteCarrier | PostgresCarrier


async def moved(source: Side, target: Side) -> tuple[str, dict[str, int]]:
    try:
        done = await move(source, target)
        return done.checksum, done.counts
    finally:
        await source.close()
        await target.close()


def wired(url: str, wire: Wire) -> str:
    """The URL of the same database, through a proxy."""
    return server().url(url.partition("@/")[2].partition("?")[0], wire.sockets)


def target_keeps(target: PostgresCarrier, wire: Wire) -> None:
    """Drop the answer to the commit of a move: the proxy recognises it because it ends the transaction."""
    real = target.rows

    async def rows() -> AsyncIterator[Carried]:
        wire.armed = 1
        async for row in real():
            yield row

    target.rows = rows  # type: ignore[method-assign]


async def checksum(side: Side) -> str:
    try:
        await side.lend()
        digest = Digest()
        async for row in side.rows():
            digest.add(row)
        return digest.checksum
    finally:
        await side.close()


async def store_at(url: str, holder: str = "h") -> PostgresStore:
    return await PostgresStore.open_at(url, Identity(holder, f"replica {holder}", True), LocalNotifier())


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name[:11])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden(request.param, tmp_path / "old")


async def test_a_round_trip_gives_the_same_checksum(old: Path, tmp_path: Path) -> None:
    before = await checksum(SqliteCarrier(old))
    secret = (old / "secret").read_bytes()
    url = await server().database()
    there, counts = await moved(SqliteCarrier(old), PostgresCarrier(url))
    assert counts["runs"] > 5 and counts["records"] > 40
    report = await check(url, judge, lambda done, of: None)
    assert (report.problems, report.entries) == ([], counts["records"])
    store = await store_at(url)
    assert await store.secret() == secret
    await store.close()
    back, _ = await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    assert before == there == back == await checksum(SqliteCarrier(tmp_path / "new"))
    assert (tmp_path / "new" / "secret").read_bytes() == secret
    assert not check_sqlite(tmp_path / "new" / "ninelives.db", judge).problems


async def story(data: Path) -> None:
    """A data directory with everything that a store can hold. Its server was killed."""
    data.mkdir()  # noqa: ASYNC240
    store = await SqliteStore.open_at(data / "ninelives.db", "normal", VirtualClock().now_ms)
    (data / "secret").write_bytes(bytes(range(32)))
    ann, bob = (Author(Backend(store, VirtualClock()), owner) for owner in ("ann", "bob"))
    await ann.finished("one", conversation="talk", key="k1")
    await ann.finished("two", conversation="talk", key="ключ")
    assert await store.conversations.remove("ann", "talk", Removal("one", "item", lambda gone: b'["less"]'))
    await ann.finished("three", previous="one")
    await bob.finished("four", session="desk")
    turn = SessionTurn(
        owner="bob", run="four", at=5, created_at=4, session="desk", named=True, text="Ä zebra", messages=2
    )
    await store.sessions.list_turns([turn])
    await store.sessions.change("bob", "desk", title="Ä title", end_reason="done")
    copied = tuple(await store.sessions.turns("bob", "desk"))
    assert await store.sessions.make(NewSession(owner="bob", session="copy", at=6, source="cli", turns=copied))
    for owner in ("ann", "bob"):
        await store.grant(Grant(owner, "g1", "desk" if owner == "bob" else "", "terminal", "{}", 1, "key 1"))
        await store.ledger.add([Spending(owner=owner, model="Ä", key="k", at=10**12, runs=1, input_tokens=7, cost=9)])
    await store.keys.add(replace(FULL, revoked_at=7))
    await store.keys.add(key_row("kurz"))
    await store.keys.used({"kurz": 60_000})
    await store.audit.add([entry(1), entry(2, detail="ä")])
    await ann.finished("deleted", previous="three")
    assert await store.delete("ann", "deleted")
    await bob.finished("expired")
    await store.upkeep.touch([("bob", "four", 10**14)])
    gone = await store.upkeep.evict(Retention(at=10**14, runs=1), frozenset({"one", "two", "three"}))
    assert gone.runs
    assert await store.upkeep.pin("ann", "one", True)
    await ann.finished("unstored", credential="key", kept="hours", match="m1", resend_ms=30_000)
    await store.deliveries.answered([("ann", "unstored")])
    await ann.finished("undelivered", credential="key", kept="delivery", match="m1", resend_ms=30_000)
    await ann.open("open", credential="key", conversation="talk")
    await ann.write("open", b"a" * 70_000, b"\0\xff", b"")
    await store.annotate("ann", "open", b'{"a":"b"}')
    assert await ann.cancel("open", "stop")
    await ann.open("parked")
    await ann.park("parked", b"rest")
    await store.close()


async def test_everything_that_a_store_can_hold_moves(tmp_path: Path) -> None:
    data = tmp_path / "full"
    await story(data)
    before = await checksum(SqliteCarrier(data))
    url = await server().database()
    there, counts = await moved(SqliteCarrier(data), PostgresCarrier(url))
    nouns = {
        "runs",
        "records",
        "keys",
        "conversations",
        "edits",
        "session turns",
        "sessions",
        "session texts",
        "signals",
        "grants",
        "days of usage",
        "API keys",
        "audit entries",
    }
    assert nouns <= set(counts), "the story has all of them"
    back, _ = await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    assert before == there == back


async def test_a_move_carries_what_is_kept_of_a_run() -> None:
    source, target = await server().database(), await server().database()
    store = await store_at(source)
    ann = Author(Backend(store, VirtualClock()))
    waits: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 30_000}
    await ann.finished("r1", **waits, kept="delivery")
    await store.deliveries.answered([("ann", "r1")])
    await ann.open("r2", **waits, kept="hours")
    await store.close()
    await moved(PostgresCarrier(source), PostgresCarrier(target))
    columns = "kept, resend_ms, delivered_at > 0, ended_at > 0, waits, fingerprint"
    rows = await server().run(target, f"SELECT {columns} FROM runs ORDER BY n")
    expected = [("delivery", 30_000, True, True, False, "m1"), ("hours", 30_000, False, False, True, "m1")]
    assert [tuple(row) for row in rows] == expected


async def test_unfinished_runs_go_on_in_the_database_with_their_next_attempt(tmp_path: Path) -> None:
    data = tmp_path / "full"
    await story(data)
    url = await server().database()
    await moved(SqliteCarrier(data), PostgresCarrier(url))
    store = await store_at(url)
    try:
        free = {run: owner for owner, run in await store.claimable(10, 0)}
        assert free == {"open": "ann", "parked": "ann"}
        seen: list[tuple[int, bool]] = []

        def first(attempt: int, clean: bool, lost: int) -> bytes:
            seen.append((attempt, clean))
            return b"attempt"

        claim = await store.claim("open", "h", first, 99)
        assert claim is not None and (claim.attempt, claim.record.seq) == (2, 5)
        parked = await store.claim("parked", "h", first, 99)
        assert parked is not None and seen == [(2, False), (2, True)], "a park is no strike, an unclean end is"
        assert [signal.key for signal in await store.signals("open")] == ["stop"]
        assert [record.data for record in await store.read("ann", "open", -1)][-1] == b"attempt"
        await store.deliveries.strand(100)
        row = await store.find("ann", "open")
        assert row is not None and row.metadata == b'{"a":"b"}'
    finally:
        await store.close()


async def test_a_database_that_is_not_empty_is_refused(old: Path) -> None:
    url = await server().database()
    store = await store_at(url)
    await store.grant(Grant("ann", "g1", "", "tool", "{}", 1, "key 1"))
    await store.close()
    with pytest.raises(InUse, match="not empty"):
        await moved(SqliteCarrier(old), PostgresCarrier(url))
    assert database_in(old).exists()


async def test_a_database_that_a_replica_uses_is_refused_on_both_sides(old: Path, tmp_path: Path) -> None:
    url = await server().database()
    store = await store_at(url)
    try:
        with pytest.raises(InUse, match="replica h"):
            await moved(SqliteCarrier(old), PostgresCarrier(url))
        with pytest.raises(InUse, match="replica h"):
            await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    finally:
        await store.close()
    await moved(SqliteCarrier(old), PostgresCarrier(url))


async def test_an_interrupted_move_leaves_the_database_empty(old: Path) -> None:
    class Cut(Exception):
        pass

    def cut(row: Carried) -> None:
        if isinstance(row, CarriedKey):
            raise Cut

    url = await server().database()
    source, target = SqliteCarrier(old), PostgresCarrier(url)
    with pytest.raises(Cut):
        await move(source, target, cut)
    await source.close()
    await target.close()
    assert (await server().run(url, "SELECT count(*) FROM runs"))[0][0] == 0
    before = await checksum(SqliteCarrier(old))
    assert (await moved(SqliteCarrier(old), PostgresCarrier(url)))[0] == before


async def test_a_move_whose_commit_had_no_answer_is_found_to_be_complete(tmp_path: Path) -> None:
    """Else both stores could be served, and unfinished runs would run twice."""
    data = tmp_path / "old"
    await story(data)
    url = await server().database()
    async with Wire(server().sockets) as wire:
        source, target = SqliteCarrier(data), PostgresCarrier(wired(url, wire))
        target_keeps(target, wire)
        there, counts = await moved(source, target)
        assert wire.cuts == 1
    assert not (data / "ninelives.db").exists(), "the source is retired"
    assert there == await checksum(PostgresCarrier(url)) and counts["runs"] > 5


async def test_a_move_with_an_unknown_outcome_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_move, "OUTCOME_S", 0.5)
    data = tmp_path / "old"
    await story(data)
    url = await server().database()
    async with Wire(server().sockets) as wire:
        source, target = SqliteCarrier(data), PostgresCarrier(wired(url, wire))
        target_keeps(target, wire)
        wire.stay_down = True
        with pytest.raises(HalfMoved, match="count"):
            await moved(source, target)


async def test_a_move_that_was_not_kept_leaves_the_source_in_use(tmp_path: Path) -> None:
    url = await server().database()
    target = PostgresCarrier(url)
    await target.receive()
    number = await target._connection.fetchval(postgres_move.SQL["transaction"])
    target._connection.terminate()
    with pytest.raises(StoreUnavailable, match="the answer"):
        await target._find_outcome(number, StoreUnavailable("the answer was lost", passing=True))
    await target.close()


async def test_a_source_whose_connection_breaks_after_the_move_is_retired_all_the_same(
    old: Path, tmp_path: Path
) -> None:
    url = await server().database()
    await moved(SqliteCarrier(old), PostgresCarrier(url))
    async with Wire(server().sockets) as wire:
        source = PostgresCarrier(wired(url, wire))

        class Kept(SqliteCarrier):
            async def keep(self) -> None:
                await super().keep()
                wire.cut_all()

        await moved(source, Kept(tmp_path / "new"))
    with pytest.raises(InUse, match="moved elsewhere"):
        await refuse_moved(url)


async def test_a_database_that_goes_away_during_a_move_is_reported_as_unavailable(old: Path) -> None:
    url = await server().database()
    async with Wire(server().sockets) as wire:
        source, target = SqliteCarrier(old), PostgresCarrier(wired(url, wire))
        try:
            with pytest.raises(StoreUnavailable):
                await move(source, target, lambda row: wire.cut_all())
        finally:
            await source.close()
            await target.close()
    assert database_in(old).exists()


async def test_a_target_that_lost_something_is_not_kept(old: Path) -> None:
    class Forgetful(PostgresCarrier):
        async def put(self, row: Carried) -> None:
            if not isinstance(row, CarriedConversation):
                await super().put(row)

    url = await server().database()
    with pytest.raises(Damaged, match="not what was read"):
        await moved(SqliteCarrier(old), Forgetful(url))
    assert (await server().run(url, "SELECT count(*) FROM runs"))[0][0] == 0 and database_in(old).exists()


async def test_a_database_whose_store_moved_is_not_served_again(old: Path, tmp_path: Path) -> None:
    url = await server().database()
    await refuse_moved(url)
    await moved(SqliteCarrier(old), PostgresCarrier(url))
    await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    with pytest.raises(InUse, match="moved elsewhere"):
        await refuse_moved(url)
    with pytest.raises(InUse, match="moved elsewhere"):
        await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "newer"))


async def test_the_check_finds_what_was_changed_in_the_database(old: Path) -> None:
    url = await server().database()
    await moved(SqliteCarrier(old), PostgresCarrier(url))
    victim = "(SELECT run FROM run_log ORDER BY run LIMIT 1)"
    await server().run(url, f"UPDATE run_log SET data = data || '\\x00'::bytea WHERE run = {victim}")
    await server().run(url, "UPDATE conversations SET latest = 'nobody'")
    problems = (await check(url, judge, lambda done, of: None)).problems
    assert len(problems) == 2 and "checksum" in problems[0] and "nobody does not exist" in problems[1]
    with pytest.raises(Damaged, match="checksum"):
        await checksum(PostgresCarrier(url))


async def test_the_check_reports_a_database_without_a_store() -> None:
    with pytest.raises(StoreUnavailable, match="no store"):
        await check(server().url("template1"), judge, lambda done, of: None)
    await refuse_moved(server().url("template1"))


async def test_a_name_that_postgresql_cannot_store_is_reported(tmp_path: Path) -> None:
    url = await server().database()
    target = PostgresCarrier(url)
    await target.receive()
    with pytest.raises(Damaged, match=r"U\+0000"):
        await target.put(CarriedText("ann", "s", "", "", "", "a\0b"))
    await target.close()


async def test_an_invalid_url_is_reported_without_its_password() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await refuse_moved("postgresql://me:hun/ter2@host/db")
    assert "ter2" not in str(caught.value) and "hun" not in str(caught.value) and not caught.value.passing


async def test_workspaces_that_moved_keep_their_home() -> None:
    url = await server().database()
    await settle_all(url, [("ann", "ann"), ("bob", "bob/s")], "machine-1")
    store = await store_at(url)
    try:
        assert await store.peers.settle("ann", "ann", "machine-2") == "machine-1"
        assert await store.peers.settle("eve", "eve", "machine-2") == "machine-2"
    finally:
        await store.close()


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_a_session_that_is_deleted_takes_its_permissions_along(tmp_path: Path, backend: str) -> None:
    store: SqliteStore | PostgresStore
    if backend == "sqlite":
        store = await SqliteStore.open_at(tmp_path / "ninelives.db", "normal", VirtualClock().now_ms)
    else:
        store = await store_at(await server().database())
    try:
        for name, session in (("g1", "desk"), ("g2", "other"), ("g3", "")):
            await store.grant(Grant("ann", name, session, "terminal", "{}", 1, "key 1"))
        await store.grant(Grant("bob", "g1", "desk", "terminal", "{}", 1, "key 1"))
        await store.sessions.forget("ann", "desk")
        assert [grant.id for grant in await store.grants("ann")] == ["g2", "g3"]
        assert await store.granted("bob", ["g1"])
    finally:
        await store.close()

"""A data directory moves to PostgreSQL and back, and is the same afterwards (issue 6)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.cli_store import judge
from holdfast.core.errors import Damaged
from holdfast.journal import postgres_carry
from holdfast.journal.base import StoreUnavailable
from holdfast.journal.base_carry import Carried, Conversation, HalfMoved, InUse, Key, SessionTitle
from holdfast.journal.base_conversations import Removal
from holdfast.journal.base_upkeep import Retention
from holdfast.journal.bell import LocalBell
from holdfast.journal.moving import move, summed
from holdfast.journal.postgres import Identity, PostgresStore
from holdfast.journal.postgres_care import check
from holdfast.journal.postgres_carry import PostgresCarrier, refuse_moved, settle_all
from holdfast.journal.sqlite import SqliteStore
from holdfast.journal.sqlite_care import check as check_sqlite
from holdfast.journal.sqlite_carry import SqliteCarrier
from holdfast.testing import VirtualClock
from holdfast.testing.author import Author, Backend
from tests.journal.cut import Wire
from tests.journal.test_moving import GOLDEN, golden
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
    """The same database, over a wire."""
    return server().url(url.partition("@/")[2].partition("?")[0], wire.sockets)


def target_keeps(target: PostgresCarrier, wire: Wire) -> None:
    """The answer to the last step of a move is swallowed: inside its transaction no other answer is like it."""
    real = target.rows

    async def rows() -> AsyncIterator[Carried]:
        wire.armed = 1
        async for row in real():
            yield row

    target.rows = rows  # type: ignore[method-assign]


async def checksum(side: Side) -> str:
    try:
        return (await summed(side)).checksum
    finally:
        await side.close()


async def store_at(url: str, holder: str = "h") -> PostgresStore:
    return await PostgresStore.open_at(url, Identity(holder, f"replica {holder}", True), LocalBell())


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name[:11])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden(request.param, tmp_path / "old")


async def test_a_round_trip_gives_the_same_checksum(old: Path, tmp_path: Path) -> None:
    before = await checksum(SqliteCarrier(old))
    secret = (old / "secret").read_bytes()
    url = await server().database()
    there, counts = await moved(SqliteCarrier(old), PostgresCarrier(url))
    assert counts["runs"] > 5 and counts["records"] > 50
    report = await check(url, judge, lambda done, of: None)
    assert (report.problems, report.entries) == ([], counts["records"])
    store = await store_at(url)
    assert await store.secret() == secret
    await store.close()
    back, _ = await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    assert before == there == back == await checksum(SqliteCarrier(tmp_path / "new"))
    assert (tmp_path / "new" / "secret").read_bytes() == secret
    assert not check_sqlite(tmp_path / "new" / "holdfast.db", judge).problems


async def story(data: Path) -> None:
    """A directory with everything that a store can hold, whose server was killed."""
    data.mkdir()  # noqa: ASYNC240
    store = await SqliteStore.open_at(data / "holdfast.db", "normal", time.monotonic)
    (data / "secret").write_bytes(bytes(range(32)))
    ann, bob = (Author(Backend(store, VirtualClock()), owner) for owner in ("ann", "bob"))
    await ann.finished("one", conversation="talk", key="k1")
    await ann.finished("two", conversation="talk", key="ключ")
    assert await store.conversations.remove("ann", "talk", Removal("one", "item", lambda gone: b'["less"]'))
    await ann.finished("three", previous="one")
    await bob.finished("four", session="desk")
    await store.sessions.rename("bob", "desk", "Ä title")
    await store.sessions.fork("bob", "desk", "copy")
    for owner in ("ann", "bob"):
        await store.grant(owner, "desk" if owner == "bob" else "", "terminal")
    await ann.finished("deleted", previous="three")
    assert await store.delete("ann", "deleted")
    await bob.finished("expired")
    await store.upkeep.touch([("bob", "four", 10**14)])
    assert await store.upkeep.evict(Retention(at=10**14, before=10**14), frozenset({"one", "two", "three"}))
    assert await store.upkeep.pin("ann", "one", True)
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
        "session titles",
        "signals",
        "grants",
    }
    assert nouns <= set(counts), "the story has all of them"
    back, _ = await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    assert before == there == back


async def test_what_was_unfinished_goes_on_over_there_with_its_next_attempt(tmp_path: Path) -> None:
    data = tmp_path / "full"
    await story(data)
    url = await server().database()
    await moved(SqliteCarrier(data), PostgresCarrier(url))
    store = await store_at(url)
    try:
        free = dict(reversed(pair) for pair in await store.claimable(10))
        assert free == {"open": "ann", "parked": "ann"}
        seen: list[tuple[int, bool]] = []

        def first(attempt: int, clean: bool) -> bytes:
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


async def test_a_database_with_something_in_it_is_refused(old: Path) -> None:
    url = await server().database()
    store = await store_at(url)
    await store.grant("ann", "", "tool")
    await store.close()
    with pytest.raises(InUse, match="not empty"):
        await moved(SqliteCarrier(old), PostgresCarrier(url))
    assert (old / "holdfast.db").exists()


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


async def test_a_move_that_is_cut_off_leaves_the_database_empty(old: Path) -> None:
    class Cut(Exception):
        pass

    def cut(row: Carried) -> None:
        if isinstance(row, Key):
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


async def test_a_move_whose_last_answer_was_lost_is_found_to_be_done(tmp_path: Path) -> None:
    """Else both sides could be served, and unfinished runs carried out twice."""
    data = tmp_path / "old"
    await story(data)
    url = await server().database()
    async with Wire(server().sockets) as wire:
        source, target = SqliteCarrier(data), PostgresCarrier(wired(url, wire))
        target_keeps(target, wire)
        there, counts = await moved(source, target)
        assert wire.cuts == 1
    assert not (data / "holdfast.db").exists(), "the source is out of use"
    assert there == await checksum(PostgresCarrier(url)) and counts["runs"] > 5


async def test_a_move_of_which_nobody_knows_whether_it_was_kept_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_carry, "LOOK_S", 0.5)
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
    number = await target._line.fetchval(postgres_carry.SQL["transaction"])
    target._line.terminate()
    with pytest.raises(StoreUnavailable, match="the answer"):
        await target._look_for(number, StoreUnavailable("the answer was lost", passing=True))
    await target.close()


async def test_a_source_that_breaks_off_after_the_move_is_put_out_of_use_all_the_same(
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


async def test_a_database_that_goes_away_during_a_move_is_told_in_our_words(old: Path) -> None:
    url = await server().database()
    async with Wire(server().sockets) as wire:
        source, target = SqliteCarrier(old), PostgresCarrier(wired(url, wire))
        try:
            with pytest.raises(StoreUnavailable):
                await move(source, target, lambda row: wire.cut_all())
        finally:
            await source.close()
            await target.close()
    assert (old / "holdfast.db").exists()


async def test_a_target_that_lost_something_is_not_kept(old: Path) -> None:
    class Forgetful(PostgresCarrier):
        async def put(self, row: Carried) -> None:
            if not isinstance(row, Conversation):
                await super().put(row)

    url = await server().database()
    with pytest.raises(Damaged, match="not what was read"):
        await moved(SqliteCarrier(old), Forgetful(url))
    assert (await server().run(url, "SELECT count(*) FROM runs"))[0][0] == 0 and (old / "holdfast.db").exists()


async def test_a_database_whose_store_moved_is_not_served_again(old: Path, tmp_path: Path) -> None:
    url = await server().database()
    await refuse_moved(url)
    await moved(SqliteCarrier(old), PostgresCarrier(url))
    await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "new"))
    with pytest.raises(InUse, match="moved elsewhere"):
        await refuse_moved(url)
    with pytest.raises(InUse, match="moved elsewhere"):
        await moved(PostgresCarrier(url), SqliteCarrier(tmp_path / "newer"))


async def test_the_check_finds_what_was_changed_behind_the_stores_back(old: Path) -> None:
    url = await server().database()
    await moved(SqliteCarrier(old), PostgresCarrier(url))
    victim = "(SELECT run FROM run_log ORDER BY run LIMIT 1)"
    await server().run(url, f"UPDATE run_log SET data = data || '\\x00'::bytea WHERE run = {victim}")
    await server().run(url, "UPDATE conversations SET latest = 'nobody'")
    problems = (await check(url, judge, lambda done, of: None)).problems
    assert len(problems) == 2 and "checksum" in problems[0] and "nobody is not there" in problems[1]
    with pytest.raises(Damaged, match="checksum"):
        await checksum(PostgresCarrier(url))


async def test_a_database_without_a_store_is_told_as_such() -> None:
    with pytest.raises(StoreUnavailable, match="no store"):
        await check(server().url("template1"), judge, lambda done, of: None)
    await refuse_moved(server().url("template1"))


async def test_a_name_that_postgresql_cannot_hold_is_told(tmp_path: Path) -> None:
    url = await server().database()
    target = PostgresCarrier(url)
    await target.receive()
    with pytest.raises(Damaged, match=r"U\+0000"):
        await target.put(SessionTitle("ann", "s", "a\0b"))
    await target.close()


async def test_a_url_that_is_none_says_so_without_its_password() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await refuse_moved("postgresql://me:hun/ter2@host/db")
    assert "ter2" not in str(caught.value) and "hun" not in str(caught.value) and not caught.value.passing


async def test_workspaces_that_were_there_before_keep_their_home() -> None:
    url = await server().database()
    await settle_all(url, [("ann", "ann"), ("bob", "bob/s")], "machine-1")
    store = await store_at(url)
    try:
        assert await store.peers.settle("ann", "ann", "machine-2") == "machine-1"
        assert await store.peers.settle("eve", "eve", "machine-2") == "machine-2"
    finally:
        await store.close()

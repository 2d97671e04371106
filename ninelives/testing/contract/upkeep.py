"""Contract: what is kept, and what goes. Owns: the rules of Upkeep (P20). See contract.py."""

from __future__ import annotations

from typing import Any

from ninelives.core.holding import Holding
from ninelives.core.spec import Resolved
from ninelives.journal.values import Grant, Query, Removal, Retention, Verdict
from ninelives.testing.author import Author, Backend, refusal

NOBODY: frozenset[str] = frozenset()


async def evicted(backend: Backend, spared: frozenset[str] = NOBODY, **bounds: Any) -> set[str]:
    """The runs that go by these bounds, in one round."""
    gone = await backend.store.upkeep.evict(Retention(at=backend.clock.now_ms(), **bounds), spared)
    return {run for _owner, run in gone.runs}


async def evicted_others(backend: Backend, **bounds: Any) -> list[str]:
    """The sessions, conversations and things outside of the store that go by these bounds, in one round."""
    gone = await backend.store.upkeep.evict(Retention(at=backend.clock.now_ms(), **bounds), NOBODY)
    names = [f"{kind} {name}" for kind, each in (("s", gone.sessions), ("c", gone.conversations)) for _, name in each]
    return sorted([*names, *(f"o {each.name}" for each in gone.outside)])


async def talked(backend: Backend, session: str, owner: str = "ann", size: int = 10_240) -> None:
    """A session with one turn. Its run is deleted."""
    author, run = Author(backend, owner), f"run-{owner}-{session}"
    backend.clock.advance(1)
    await author.open(run, session=session)
    await author.end(run, turn=b"x" * size, session=session)
    await backend.store.delete(owner, run)


async def turns_of(backend: Backend, session: str, owner: str = "ann") -> int:
    """How many turns a new run of a session would see."""
    resolved = await backend.store.resolve(Author(backend, owner).asked(session=session))
    return resolved.session_turns or 0


async def in_turn(backend: Backend, *runs: str, owner: str = "ann", **fields: Any) -> Author:
    """Runs that ended one after the other."""
    author = Author(backend, owner)
    for run in runs:
        backend.clock.advance(1)
        await author.finished(run, **fields)
    return author


class UpkeepContract:
    """Bounded by number, bytes and age; never an active or a pinned run."""

    async def test_the_runs_used_longest_ago_go_first_and_each_owner_has_its_own_bound(self, backend: Backend) -> None:
        await in_turn(backend, "r1", "r2", "r3", "r4")
        await in_turn(backend, "b1", "b2", owner="bob")
        assert await evicted(backend, runs=4) == set()
        backend.clock.advance(1)
        await backend.store.upkeep.touch([("ann", "r1", backend.clock.now_ms()), ("bob", "r2", 10**15)])
        assert await evicted(backend, runs=2) == {"r2", "r3"}
        kept = await backend.store.rows(Query(owner="ann"))
        assert [row.run for row in kept] == ["r4", "r1"]
        assert len(await backend.store.rows(Query(owner="bob"))) == 2

    async def test_runs_that_are_not_stored_never_push_out_stored_ones(self, backend: Backend) -> None:
        await in_turn(backend, "s1", "s2")
        await in_turn(backend, "h1", "h2", kept="hours")
        await in_turn(backend, "d1", kept="delivery")
        assert await evicted(backend, runs=2) == {"h1"}
        assert await evicted(backend, runs=1) == {"s1", "h2"}

    async def test_an_evicted_run_is_known_to_have_expired_to_its_owner_alone(self, backend: Backend) -> None:
        ann = await in_turn(backend, "r1", "r2")
        assert await evicted(backend, runs=1) == {"r1"}
        store = backend.store
        assert await store.upkeep.expired("ann", "r1")
        assert not await store.upkeep.expired("bob", "r1")
        assert not await store.upkeep.expired("ann", "r2") and not await store.upkeep.expired("ann", "r9")
        assert await store.find("ann", "r1") is None and await ann.read("r1") == []
        said = await refusal(ann.open("next", previous="r1"))
        assert said.status == 404 and "expired" in said.message
        assert "expired" not in (await refusal(Author(backend, "bob").open("next", previous="r1"))).message

    async def test_a_deleted_run_has_not_expired(self, backend: Backend) -> None:
        ann = await in_turn(backend, "r1")
        await backend.store.delete("ann", "r1")
        assert not await backend.store.upkeep.expired("ann", "r1")
        assert "expired" not in (await refusal(ann.open("next", previous="r1"))).message

    async def test_active_and_pinned_runs_and_those_being_read_stay(self, backend: Backend) -> None:
        ann = await in_turn(backend, "r1", "r2", "r3")
        await ann.open("active")
        await ann.open("parked")
        await ann.park("parked")
        assert await backend.store.upkeep.pin("ann", "r1", True)
        assert not await backend.store.upkeep.pin("bob", "r2", True)
        assert not await backend.store.upkeep.pin("ann", "r9", True)
        after = backend.clock.now_ms() + 1
        assert await evicted(backend, frozenset({"r2"}), before=after) == {"r3"}
        assert await evicted(backend, before=after) == {"r2"}
        await backend.store.upkeep.pin("ann", "r1", False)
        assert await evicted(backend, before=after) == {"r1"}
        assert await ann.write("active", b"more") is Verdict.WRITTEN

    async def test_eviction_frees_the_key_and_moves_the_conversation_back(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk", key="k1")
        backend.clock.advance(1)
        await ann.finished("r2", conversation="talk", key="k2")
        assert await evicted(backend, runs=1) == set(), "a chain ages by its youngest member"
        assert await backend.store.delete("ann", "r2")
        assert await evicted(backend, before=backend.clock.now_ms() + 1) == {"r1"}
        opened = await ann.open("r3", conversation="talk", key="k1")
        assert opened.resolved.previous is None

    async def test_a_chain_ages_by_its_youngest_member(self, backend: Backend) -> None:
        ann = await in_turn(backend, "r1")
        await in_turn(backend, "r2", previous="r1")
        await in_turn(backend, "other")
        await in_turn(backend, "r3", previous="r2")
        gone = {run for _ in range(3) for run in await evicted(backend, runs=3)}
        assert gone == {"other"}
        assert len(await ann.store.turns("ann", Resolved(previous="r3"))) == 3

    async def test_descendants_keep_the_turns_of_an_evicted_ancestor(self, backend: Backend) -> None:
        await in_turn(backend, "r1")
        await in_turn(backend, "r2", previous="r1")
        await backend.store.upkeep.pin("ann", "r2", True)
        await backend.store.upkeep.touch([("ann", "r1", backend.clock.now_ms())])
        assert await evicted(backend, before=backend.clock.now_ms() + 1) == {"r1"}
        await evicted(backend, before=1, tombstone_ms=-10)
        assert len(await backend.store.turns("ann", Resolved(previous="r2"))) == 2

    async def test_a_tombstone_goes_after_its_time(self, backend: Backend) -> None:
        await in_turn(backend, "r1", "r2")
        await evicted(backend, runs=1)
        backend.clock.advance(10)
        await evicted(backend, runs=1, tombstone_ms=20_000)
        assert await backend.store.upkeep.expired("ann", "r1")
        await evicted(backend, runs=1, tombstone_ms=5_000)
        assert not await backend.store.upkeep.expired("ann", "r1")

    async def test_bytes_are_bounded_for_each_owner_and_in_all(self, backend: Backend) -> None:
        for owner in ("ann", "bob"):
            author = Author(backend, owner)
            for n in range(3):
                backend.clock.advance(1)
                await author.open(f"{owner}{n}")
                await author.end(f"{owner}{n}", turn=bytes(range(256)) * 40)
        kept = {one.owner: one for one in await backend.store.upkeep.usage()}
        assert kept["ann"].runs == 3 and kept["ann"].bytes >= 3 * 10_240
        assert await evicted(backend, owner_bytes=25_000) == {"ann0", "bob0"}
        assert await evicted(backend, total_bytes=15_000) == {"ann1", "ann2", "bob1"}
        assert {one.owner for one in await backend.store.upkeep.usage()} == {"bob"}

    async def test_sessions_count_and_go_like_runs(self, backend: Backend) -> None:
        await talked(backend, "old")
        await talked(backend, "new")
        await talked(backend, "other", owner="bob")
        await Author(backend).open("at-work", session="busy")
        assert await evicted_others(backend, owner_bytes=25_000) == []
        assert await evicted_others(backend, owner_bytes=15_000) == ["s old"]
        assert (await turns_of(backend, "old"), await turns_of(backend, "new")) == (0, 1)
        assert await evicted_others(backend, total_bytes=15_000) == ["s new"]
        assert await turns_of(backend, "other", owner="bob") == 1
        assert await evicted_others(backend, before=backend.clock.now_ms() + 1) == ["s other"]

    async def test_a_session_that_a_run_works_in_stays(self, backend: Backend) -> None:
        await talked(backend, "s")
        ann = Author(backend)
        await ann.open("working", session="s")
        after = backend.clock.now_ms() + 1
        assert await evicted_others(backend, before=after, owner_bytes=1) == []
        assert len(await backend.store.turns("ann", (await ann.open("next", session="s")).resolved)) == 1
        await ann.end("working")
        await ann.end("next")
        assert await evicted_others(backend, before=after) == ["s s"]

    async def test_conversations_count_and_go_like_runs(self, backend: Backend) -> None:
        ann = Author(backend)
        for run in ("r1", "r2"):
            backend.clock.advance(1)
            await ann.open(run, conversation=f"{run}-talk")
            await ann.end(run, turn=b"x" * 100)
        store = backend.store
        found = await store.conversations.find("ann", "r1-talk")
        assert found is not None
        await store.conversations.remove("ann", found.id, Removal("r1", "item", lambda removed: b"y" * 10_000))
        assert await evicted_others(backend, owner_bytes=20_000) == []
        assert await evicted_others(backend, owner_bytes=5_000) == [f"c {found.id}"]
        assert await store.conversations.find("ann", "r1-talk") is None
        other = await store.conversations.find("ann", "r2-talk")
        assert other is not None
        await ann.open("r3", conversation="r2-talk")
        after = backend.clock.now_ms() + 1
        assert await evicted_others(backend, before=after) == [], "a run is active in it"
        await ann.end("r3")
        assert await evicted_others(backend, before=after) == [f"c {other.id}"]

    async def test_what_is_outside_counts_and_goes_in_the_same_order(self, backend: Backend) -> None:
        at = backend.clock.now_ms
        early = Holding("output", "ann", "early", 10_000, at())
        await talked(backend, "s", size=10_000)
        backend.clock.advance(1)
        late = Holding("log", "ann", "late", 10_000, at())
        other = Holding("log", "bob", "other", 10_000, at())
        outside = (late, early, other)
        assert await evicted_others(backend, owner_bytes=35_000, outside=outside) == []
        assert await evicted_others(backend, owner_bytes=25_000, outside=outside) == ["o early"]
        assert await evicted_others(backend, owner_bytes=15_000, outside=outside) == ["o early", "s s"]
        assert await evicted_others(backend, total_bytes=15_000, outside=(late, other)) == ["o late"]
        assert await evicted_others(backend, before=at(), outside=(late, early)) == ["o early"]

    async def test_an_owner_may_have_a_limit_of_its_own(self, backend: Backend) -> None:
        for owner in ("ann", "bob"):
            await talked(backend, f"of-{owner}", owner=owner)
        assert await evicted_others(backend, owner_bytes=20_000, owner_rooms={"ann": 5_000, "eve": 1}) == ["s of-ann"]

    async def test_standing_permissions_count_and_are_never_evicted(self, backend: Backend) -> None:
        store = backend.store
        await store.grant(Grant("ann", "g1", "", "t", "x" * 5_000, 1, "key 1"))
        await store.grant(Grant("ann", "g2", "s", "t", "ä" * 5_000, 2, "key 1"))
        await talked(backend, "s")
        fixed = await store.upkeep.fixed()
        assert set(fixed) == {"ann"} and 15_000 <= fixed["ann"] <= 16_000
        assert await evicted_others(backend, owner_bytes=1, total_bytes=1, before=10**15) == ["s s"]
        assert len(await store.grants("ann")) == 2

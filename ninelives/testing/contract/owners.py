"""Contract: whose is what. Owns: that no method of a store gives one owner anything of another, not even the knowledge
that it exists. Methods without an owner (append, claim, beat, claimable, signals) are the holder's. See contract.py."""

from __future__ import annotations

from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal.values import Grant, Query
from ninelives.testing.author import Author, Backend, refusal


class OwnerContract:
    """Bob and what is Ann's."""

    async def test_a_foreign_run_cannot_be_read(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("active")
        await ann.finished("ended")
        for run in ("active", "ended"):
            assert await bob.read(run) == []
            assert await backend.store.read("bob", run, 0) == []
            assert await backend.store.find("bob", run) is None

    async def test_a_foreign_run_is_in_no_list(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("a1", key="k")
        await bob.open("b1")
        await ann.open("a2")
        await bob.open("b2")
        assert [row.run for row in await backend.store.rows(Query(owner="bob"))] == ["b2", "b1"]
        assert await backend.store.rows(Query(owner="bob", key="k")) == []
        for ascending in (True, False):
            assert await backend.store.rows(Query(owner="bob", after="a1", ascending=ascending)) == []
        assert await backend.store.rows(Query(owner="nobody")) == []

    async def test_an_admin_lists_the_runs_of_all_and_finds_whose_one_is(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("a1")
        await bob.finished("b1")
        await ann.finished("a2")
        all_of = [(row.owner, row.run) for row in await backend.store.rows(Query(owner=None))]
        assert all_of == [("ann", "a2"), ("bob", "b1"), ("ann", "a1")]
        assert [row.run for row in await backend.store.rows(Query(owner=None, after="a2", limit=1))] == ["b1"]
        ended = await backend.store.rows(Query(owner=None, statuses=("completed",)))
        assert [row.run for row in ended] == ["a2", "b1"]
        assert await backend.store.owner_of("b1") == "bob"
        assert await backend.store.delete("bob", "b1")
        assert await backend.store.owner_of("b1") is None and await backend.store.owner_of("nobody") is None

    async def test_a_foreign_run_takes_no_signal(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("r1")
        assert not await bob.cancel("r1")
        assert await backend.store.signals("r1") == []

    async def test_a_foreign_run_cannot_be_deleted(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", key="k", conversation="talk")
        assert not await backend.store.delete("bob", "r1")
        assert len(await ann.data("r1")) == 3
        assert await ann.attach("r2", key="k") == "r1"
        assert (await ann.open("r3", conversation="talk")).resolved.previous == "r1"

    async def test_a_foreign_run_cannot_be_annotated(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert not await backend.store.annotate("bob", "r1", b'{"x":"y"}')
        row = await backend.store.find("ann", "r1")
        assert row is not None and row.metadata == b"{}"

    async def test_keys_are_per_owner(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("a", key="k")
        await bob.open("b", key="k", fingerprint="other")
        assert await ann.attach("x", key="k") == "a"
        assert await bob.attach("y", key="k", fingerprint="other") == "b"
        assert await backend.store.delete("ann", "a")
        assert await bob.attach("z", key="k", fingerprint="other") == "b"

    async def test_conversation_names_are_per_owner(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.finished("a", conversation="talk")
        await ann.open("a2", conversation="talk")
        opened = await bob.finished("b", conversation="talk")
        assert (opened.resolved.conversation, opened.resolved.previous) == ("conv_b", None)
        assert (await bob.open("b2", conversation="talk")).resolved.previous == "b"

    async def test_a_foreign_conversation_id_is_404(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.finished("a", conversation="talk")
        assert (await refusal(bob.open("b", conversation="conv_a"))).status == 404
        asked = bob.asked(conversation="conv_a", kept="memory")
        assert (await refusal(backend.store.resolve(asked))).status == 404

    async def test_a_foreign_previous_is_404_as_an_unknown_one_is(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.finished("done")
        await ann.open("active")
        for run in ("done", "active"):
            foreign = await refusal(bob.open("b", previous=run))
            unknown = await refusal(bob.open("b", previous="x" * len(run)))
            assert (foreign.status, foreign.code, foreign.param) == (404, unknown.code, unknown.param)
            assert foreign.message.replace(run, "") == unknown.message.replace("x" * len(run), "")
            resolving = backend.store.resolve(bob.asked(previous=run, kept="memory"))
            assert (await refusal(resolving)).status == 404

    async def test_sessions_are_per_owner(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.finished("a", session="s")
        await ann.finished("a2", session="s")
        opened = await bob.finished("b", session="s")
        assert opened.resolved.session_turns == 0
        assert await backend.store.turns("bob", Resolved(session="s", session_turns=1)) == [b'["b"]']
        assert await backend.store.turns("ann", Resolved(session="s", session_turns=2)) == [b'["a"]', b'["a2"]']

    async def test_a_session_with_fewer_turns_than_a_run_counted_was_deleted_and_gives_none(
        self, backend: Backend
    ) -> None:
        for kept in ([], ["a"]):
            for run in kept:
                await Author(backend).finished(run, session="s")
            assert await backend.store.turns("ann", Resolved(session="s", session_turns=2)) == []

    async def test_the_turns_of_a_foreign_chain_are_not_given(self, backend: Backend) -> None:
        await Author(backend).finished("a")
        try:
            turns = await backend.store.turns("bob", Resolved(previous="a"))
        except Damaged:
            return
        raise AssertionError(f"foreign turns: {turns}")

    async def test_grants_are_per_owner(self, backend: Backend) -> None:
        store = backend.store
        await store.grant(Grant("ann", "g1", "s", "terminal", "{}", 1, "key 1"))
        assert not await store.granted("bob", ["g1"]) and await store.grants("bob") == []
        assert not await store.revoke("bob", "g1")
        assert await store.granted("ann", ["g1"])

    async def test_a_foreign_question_is_not_found(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.ask("r1", "code", backend.clock.now_ms() + 60_000)
        assert await backend.store.asking("bob", "code") is None
        assert await backend.store.asking("ann", "code") == "r1"

    async def test_a_foreign_run_is_not_forgotten(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", kept="delivery")
        await backend.store.forget([("bob", "r1")])
        assert len(await ann.data("r1")) == 3

    async def test_a_claim_tells_whose_run_it_is(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("a", held=False)
        await bob.open("b", held=False)
        assert await backend.store.claimable(10, backend.clock.now_ms()) == [("ann", "a"), ("bob", "b")]
        claim = await bob.claim("a")
        assert claim is not None and claim.owner == "ann"

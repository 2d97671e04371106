"""Contract: the rows beside the journal. Owns: the rules of Catalog.find, rows, turns, asking and annotate. See
contract.py."""

from __future__ import annotations

from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal.values import Mark, Query, RunRow
from ninelives.testing.author import Author, Backend


def names(rows: list[RunRow]) -> list[str]:
    """The runs of a page."""
    return [row.run for row in rows]


class CatalogContract:
    """Lists, histories, notes."""

    async def test_a_row_tells_what_the_run_joined(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", key="k", conversation="talk")
        await ann.open("r2", key="l", conversation="talk")
        row = await backend.store.find("ann", "r2")
        assert row is not None
        assert (row.owner, row.dialect, row.model, row.metadata) == ("ann", "responses", "m", b"{}")
        assert (row.key, row.conversation, row.previous, row.session) == ("l", "conv_r1", "r1", "conv_r1")

    async def test_rows_come_newest_first_or_oldest_first(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(3):
            await ann.open(f"r{n}")
        assert names(await backend.store.rows(Query(owner="ann"))) == ["r2", "r1", "r0"]
        assert names(await backend.store.rows(Query(owner="ann", ascending=True))) == ["r0", "r1", "r2"]

    async def test_pages_meet_without_gap_or_overlap_in_both_orders(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(11):
            await ann.open(f"r{n}")
        for ascending in (True, False):
            seen: list[str] = []
            after = None
            while page := await backend.store.rows(Query(owner="ann", limit=3, after=after, ascending=ascending)):
                assert len(page) <= 3
                seen += names(page)
                after = seen[-1]
            expected = [f"r{n}" for n in range(11)]
            assert seen == (expected if ascending else expected[::-1])

    async def test_a_page_goes_on_after_a_run_that_was_deleted_meanwhile(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(5):
            await ann.finished(f"r{n}")
        await backend.store.delete("ann", "r2")
        assert names(await backend.store.rows(Query(owner="ann", after="r2"))) == ["r1", "r0"]
        assert names(await backend.store.rows(Query(owner="ann", after="r2", ascending=True))) == ["r3", "r4"]

    async def test_a_page_after_an_unknown_run_is_empty(self, backend: Backend) -> None:
        await Author(backend).open("r1")
        assert await backend.store.rows(Query(owner="ann", after="nobody")) == []
        assert await backend.store.rows(Query(owner="ann", after="nobody", ascending=True)) == []

    async def test_rows_are_filtered_by_dialect_status_and_key(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("a", dialect="runs", key="k")
        await ann.open("b", held=False)
        await ann.finished("c")
        await ann.open("d")
        await ann.end("d", chains=False)
        rows = backend.store.rows
        assert names(await rows(Query(owner="ann", dialect="runs"))) == ["a"]
        assert names(await rows(Query(owner="ann", dialect="responses"))) == ["d", "c", "b"]
        assert names(await rows(Query(owner="ann", but="responses"))) == ["a"]
        assert names(await rows(Query(owner="ann", but="runs", ascending=True))) == ["b", "c", "d"]
        assert names(await rows(Query(owner="ann", statuses=("completed",)))) == ["c"]
        assert names(await rows(Query(owner="ann", statuses=("failed", "queued")))) == ["d", "b"]
        assert names(await rows(Query(owner="ann", statuses=("comp",)))) == []
        assert names(await rows(Query(owner="ann", key="k"))) == ["a"]
        assert names(await rows(Query(owner="ann", key="k", dialect="responses"))) == []

    async def test_a_row_tells_what_is_kept_and_lists_can_be_of_stored_runs_only(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("stored", "hours", "delivery"):
            await ann.open(kept, kept=kept)
        rows = backend.store.rows
        assert [row.kept for row in await rows(Query(owner="ann"))] == ["delivery", "hours", "stored"]
        for ascending in (True, False):
            assert names(await rows(Query(owner="ann", stored=True, ascending=ascending))) == ["stored"]

    async def test_a_filtered_page_is_full_while_there_are_rows(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(12):
            await ann.open(f"r{n}")
            if n % 3 == 0:
                await ann.end(f"r{n}")
        query = Query(owner="ann", statuses=("completed",), limit=2)
        assert names(await backend.store.rows(query)) == ["r9", "r6"]
        after = Query(owner="ann", statuses=("completed",), limit=2, after="r6")
        assert names(await backend.store.rows(after)) == ["r3", "r0"]

    async def test_runs_that_have_not_ended_are_listed_for_one_owner_or_for_all(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        for n in range(4):
            await ann.open(f"a{n}", held=n % 2 == 0, dialect="runs" if n < 2 else "responses")
            await ann.finished(f"done{n}")
        await bob.open("b0")
        rows, active = backend.store.rows, ("queued", "running")
        assert names(await rows(Query(owner="ann", statuses=active))) == ["a3", "a2", "a1", "a0"]
        assert names(await rows(Query(owner="ann", statuses=active, ascending=True))) == ["a0", "a1", "a2", "a3"]
        assert names(await rows(Query(owner=None, statuses=active))) == ["b0", "a3", "a2", "a1", "a0"]
        assert names(await rows(Query(owner="ann", statuses=("queued",)))) == ["a3", "a1"]
        assert names(await rows(Query(owner="ann", statuses=active, but="runs"))) == ["a3", "a2"]
        for owner in ("ann", None):
            assert names(await rows(Query(owner=owner, statuses=active, after="done2", limit=2))) == ["a2", "a1"]
        assert names(await rows(Query(owner="bob", statuses=active, after="a3"))) == []

    # turns

    async def test_a_chain_gives_its_turns_oldest_first(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r0")
        for n in range(1, 30):
            await ann.finished(f"r{n}", previous=f"r{n - 1}")
        turns = await backend.store.turns("ann", Resolved(previous="r29"))
        assert turns == [b'["r%d"]' % n for n in range(30)]

    async def test_two_chains_may_share_a_beginning(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("a")
        await ann.finished("b", previous="a")
        await ann.finished("c", previous="a")
        assert await backend.store.turns("ann", Resolved(previous="b")) == [b'["a"]', b'["b"]']
        assert await backend.store.turns("ann", Resolved(previous="c")) == [b'["a"]', b'["c"]']

    async def test_a_conversation_is_a_chain(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("a", conversation="talk")
        await ann.finished("b", conversation="talk")
        opened = await ann.open("c", conversation="talk")
        assert await backend.store.turns("ann", opened.resolved) == [b'["a"]', b'["b"]']

    async def test_a_session_gives_as_many_turns_as_were_counted(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(4):
            await ann.finished(f"r{n}", session="s")
        opened = await ann.open("next", session="s")
        await ann.finished("later", session="s")
        assert opened.resolved.session_turns == 4
        assert await backend.store.turns("ann", opened.resolved) == [b'["r%d"]' % n for n in range(4)]
        two = Resolved(session="s", session_turns=2)
        assert await backend.store.turns("ann", two) == [b'["r0"]', b'["r1"]']

    async def test_a_run_without_a_past_has_no_turns(self, backend: Backend) -> None:
        assert await backend.store.turns("ann", Resolved(session="s")) == []
        assert await backend.store.turns("ann", Resolved(session="s", session_turns=0)) == []

    async def test_a_chain_with_a_missing_turn_is_damaged_and_never_shorter(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        for missing in ("nobody", "r1"):
            found_damage = False
            try:
                await backend.store.turns("ann", Resolved(previous=missing))
            except Damaged:
                found_damage = True
            assert found_damage, f"the chain that begins at {missing} is read as a shorter history"

    async def test_a_session_gets_the_turn_of_a_run_that_is_kept_for_hours(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", session="s", kept="hours")
        await ann.finished("r2", session="s")
        await ann.finished("r3", session="s", kept="delivery")
        resolved = await backend.store.resolve(ann.asked(session="s", kept="memory"))
        assert await backend.store.turns("ann", resolved) == [b'["r1"]', b'["r2"]'], "store: false changes nothing (D2)"

    # questions

    async def test_a_run_is_found_by_the_question_that_it_asks(self, backend: Backend) -> None:
        ann, asking = Author(backend), backend.store.asking
        for run in ("held", "parked", "quiet"):
            await ann.open(run)
        later = backend.clock.now_ms() + 60_000
        await ann.ask("held", "q1", later)
        await ann.park("parked", asks="q2", wake_at=later)
        assert [await asking("ann", code) for code in ("q1", "q2", "q3", "")] == ["held", "parked", None, None]
        await ann.write("held", b"a", mark=Mark(status="running", at=backend.clock.now_ms()))
        assert await asking("ann", "q1") is None, "every mark sets it anew"
        await ann.claim("parked")
        assert await asking("ann", "q2") is None, "a claim ends the wait"

    async def test_a_run_that_ended_or_was_deleted_asks_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        for run in ("ended", "deleted"):
            await ann.open(run)
            await ann.ask(run, f"of {run}", backend.clock.now_ms() + 60_000)
        await ann.end("ended")
        await backend.store.delete("ann", "deleted")
        assert await backend.store.asking("ann", "of ended") is None
        assert await backend.store.asking("ann", "of deleted") is None

    # notes

    async def test_annotating_replaces_the_metadata(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await backend.store.annotate("ann", "r1", b'{"a":"b"}')
        await ann.end("r1")
        row = await backend.store.find("ann", "r1")
        assert row is not None and row.metadata == b'{"a":"b"}'
        assert await backend.store.annotate("ann", "r1", b"{}")
        assert not await backend.store.annotate("ann", "nobody", b"{}")

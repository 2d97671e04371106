"""Contract: conversations as things of their own. Owns: the rules of Conversations and of openings that make, extend
and end at once. See contract.py."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from ninelives.core.spec import Resolved
from ninelives.journal.values import Attached, ConversationLink, ConversationRow, Mark, Opened, Removal, Verdict
from ninelives.testing.author import Author, Backend, refusal

ITEMS = "conversations"
"""The dialect of runs that hold a client's own items."""


async def added(author: Author, run: str, metadata: bytes = b"{}", **fields: Any) -> Opened | Attached:
    """Items of a client: a run that is over at once."""
    opening = author.opening(run, dialect=ITEMS, **fields)
    at, turn = author.clock.now_ms(), b'["%s"]' % run.encode()
    mark = Mark(status="completed", at=at, ended=True, chains=True, turn=turn)
    first = [b"accepted " + run.encode(), b"started", b"ended"]
    return await author.store.open(replace(opening, accept=lambda resolved: first, ended=mark, metadata=metadata))


async def made(author: Author, run: str, **fields: Any) -> str:
    """A conversation that such a run makes; its id."""
    opened = await added(author, run, conversation_use="make", **fields)
    assert isinstance(opened, Opened), opened
    return opened.resolved.conversation or ""


def without(removed: frozenset[str]) -> bytes:
    """A turn as these tests edit it."""
    return msgspec.json.encode(sorted(removed))


async def removed(author: Author, named: str, run: str, item: str) -> bool:
    """Take an item out."""
    return await author.store.conversations.remove(author.owner, named, Removal(run, item, without))


async def row_of(author: Author, named: str) -> ConversationRow:
    """A conversation that must be there."""
    row = await author.store.conversations.find(author.owner, named)
    assert row is not None
    return row


async def history(author: Author, named: str) -> list[bytes]:
    """What the next turn would be told."""
    resolved = await author.store.resolve(author.asked(conversation=named, kept="memory"))
    return await author.store.turns(author.owner, resolved)


class ConversationContract:
    """Make, find, list, note, extend, edit, forget."""

    # openings that end at once

    async def test_a_run_that_ends_in_its_opening_is_over_and_nobody_can_claim_or_write_it(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        await made(ann, "i1")
        row = await backend.store.find("ann", "i1")
        assert row is not None and (row.ended, row.status, row.dialect) == (True, "completed", ITEMS)
        assert await ann.data("i1") == [b"accepted i1", b"started", b"ended"]
        assert await ann.claimable() == [] and await ann.claim("i1") is None
        ann.seqs["i1"], ann.attempts["i1"] = 2, 1
        assert await ann.write("i1", b"more") is Verdict.FENCED
        assert not await ann.cancel("i1")

    async def test_making_gives_a_conversation_without_a_name_that_is_free(self, backend: Backend) -> None:
        ann = Author(backend)
        talk = await made(ann, "i1", metadata=b'{"a":"b"}')
        row = await row_of(ann, talk)
        assert (row.id, row.name, row.metadata, row.latest, row.active) == ("conv_i1", None, b'{"a":"b"}', "i1", None)
        assert row.created_at == backend.clock.now_ms()
        assert await history(ann, talk) == [b'["i1"]']

    async def test_a_key_names_the_conversation_that_it_made(self, backend: Backend) -> None:
        ann = Author(backend)
        await made(ann, "i1", key="k")
        assert await added(ann, "i2", conversation_use="make", key="k") == Attached("i1")
        other = added(ann, "i3", conversation_use="make", key="k", fingerprint="other")
        assert (await refusal(other)).code == "idempotency_key_conflict"
        assert len(await backend.store.conversations.page("ann", 10, None, True)) == 1

    async def test_extending_adds_a_turn_after_all_that_is_there(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await added(ann, "i1", conversation="talk", conversation_use="extend")
        await added(ann, "i2", conversation="conv_r1", conversation_use="extend")
        opened = await ann.open("r2", conversation="talk")
        assert opened.resolved.previous == "i2"
        assert await backend.store.turns("ann", opened.resolved) == [b'["r1"]', b'["i1"]', b'["i2"]']

    async def test_extending_makes_nothing_by_name(self, backend: Backend) -> None:
        ann = Author(backend)
        for named in ("talk", "conv_nobody"):
            error = await refusal(added(ann, "i1", conversation=named, conversation_use="extend"))
            assert (error.status, error.code) == (404, "conversation_not_found")
        assert await backend.store.find("ann", "i1") is None

    async def test_while_a_run_is_active_nothing_can_be_added_removed_or_forgotten(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("r2", conversation="talk")
        tries = [
            added(ann, "i1", conversation="talk", conversation_use="extend"),
            removed(ann, "talk", "r1", "x"),
            backend.store.conversations.forget("ann", "talk", ITEMS, 1),
        ]
        for work in tries:
            error = await refusal(work)
            assert (error.status, error.code) == (409, "conversation_response_not_completed")
        await ann.end("r2", chains=False)
        assert await removed(ann, "talk", "r1", "x")

    async def test_of_many_who_extend_and_open_at_once_each_is_a_link_or_refused(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r0", conversation="talk")
        work = [added(ann, f"i{n}", conversation="talk", conversation_use="extend") for n in range(8)]
        work += [backend.store.open(ann.opening(f"r{n}", conversation="talk")) for n in range(1, 3)]
        answers = await asyncio.gather(*work, return_exceptions=True)
        opened = [answer.run for answer in answers if isinstance(answer, Opened)]
        active = (await row_of(ann, "talk")).active
        assert active is not None and active in opened
        line = [link.run for link in await backend.store.conversations.line("ann", "talk")]
        assert sorted(line) == sorted({"r0", *opened} - {active}), "nothing is lost and nothing is there twice"

    # rows

    async def test_a_conversation_is_found_by_id_and_by_name(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        row = await row_of(ann, "talk")
        assert row == await row_of(ann, "conv_r1")
        assert (row.name, row.metadata, row.latest, row.active) == ("talk", b"{}", None, "r1")
        assert await backend.store.conversations.find("ann", "nobody") is None
        assert await backend.store.conversations.find("bob", "talk") is None

    async def test_conversations_are_listed_by_age_and_pages_meet(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(7):
            await made(ann, f"i{n}")
            backend.clock.advance(n % 2)
        expected = [f"conv_i{n}" for n in range(7)]
        page = backend.store.conversations.page
        for ascending in (True, False):
            seen: list[str] = []
            while rows := await page("ann", 3, seen[-1] if seen else None, ascending):
                seen += [row.id for row in rows]
            assert seen == (expected if ascending else expected[::-1])
        assert list(await page("ann", 3, "nobody", True)) == list(await page("bob", 3, None, True)) == []

    async def test_notes_on_a_conversation_are_replaced(self, backend: Backend) -> None:
        ann = Author(backend)
        talk = await made(ann, "i1", metadata=b'{"a":"b"}')
        annotate = backend.store.conversations.annotate
        assert await annotate("ann", talk, b'{"c":"d"}')
        assert (await row_of(ann, talk)).metadata == b'{"c":"d"}'
        assert not await annotate("bob", talk, b"{}") and not await annotate("ann", "nobody", b"{}")

    # items

    async def test_the_line_has_completed_runs_oldest_first_and_tells_deleted_ones(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("failed", conversation="talk")
        await ann.end("failed", chains=False)
        await added(ann, "i1", conversation="talk", conversation_use="extend")
        await ann.finished("r2", conversation="talk")
        await backend.store.delete("ann", "r1")
        await ann.open("active", conversation="talk")
        line = backend.store.conversations.line
        expected = [
            ConversationLink("r1", "responses", True),
            ConversationLink("i1", ITEMS, False),
            ConversationLink("r2", "responses", False),
        ]
        assert await line("ann", "talk") == await line("ann", "conv_r1") == expected
        assert await line("bob", "talk") == await line("ann", "nobody") == []

    async def test_a_removed_item_changes_the_turn_for_the_conversation_only(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.finished("r2", conversation="talk")
        assert await removed(ann, "talk", "r1", "b") and await removed(ann, "conv_r1", "r1", "a")
        links = await backend.store.conversations.line("ann", "talk")
        assert [link.removed for link in links] == [{"a", "b"}, frozenset()]
        assert await history(ann, "talk") == [b'["a","b"]', b'["r2"]']
        chain = await backend.store.turns("ann", Resolved(previous="r2"))
        assert chain == [b'["r1"]', b'["r2"]'], "who follows by previous_response_id sees what was"

    async def test_an_item_is_removed_once_and_only_from_a_run_of_its_own_conversation(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.finished("other", conversation="side")
        await ann.finished("gone", conversation="talk")
        await ann.finished("r2", conversation="talk")
        await backend.store.delete("ann", "gone")
        assert await removed(ann, "talk", "r1", "a")
        for run, item in (("r1", "a"), ("other", "a"), ("gone", "a"), ("nobody", "a")):
            assert not await removed(ann, "talk", run, item)
        for who, named in (("bob", "talk"), ("ann", "nobody")):
            error = await refusal(removed(Author(backend, who), named, "r1", "b"))
            assert (error.status, error.code) == (404, "conversation_not_found")

    async def test_of_many_removals_at_once_none_is_lost(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        done = await asyncio.gather(*(removed(ann, "talk", "r1", f"i{n % 8}") for n in range(16)))
        assert sum(done) == 8
        assert await history(ann, "talk") == [without(frozenset(f"i{n}" for n in range(8)))]

    async def test_a_removal_outlives_the_deletion_of_the_run(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.finished("r2", conversation="talk")
        await removed(ann, "talk", "r1", "a")
        await backend.store.delete("ann", "r1")
        assert await history(ann, "talk") == [b'["a"]', b'["r2"]']

    # forgetting

    async def test_a_forgotten_conversation_takes_its_own_runs_along_and_leaves_the_others(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        talk = await made(ann, "i1", key="k1")
        await ann.finished("r1", conversation=talk, key="k2")
        await added(ann, "i2", conversation=talk, conversation_use="extend", key="k3")
        await removed(ann, talk, "r1", "a")
        assert await backend.store.conversations.forget("ann", talk, ITEMS, 5) == talk
        assert await backend.store.conversations.find("ann", talk) is None
        assert (await refusal(ann.open("r2", conversation=talk))).code == "conversation_not_found"
        for run in ("i1", "i2"):
            assert await backend.store.find("ann", run) is None and await ann.read(run) == []
        assert await ann.attach("x", key="k2") == "r1", "a response stays, and its key"
        assert isinstance(await added(ann, "i4", conversation_use="make", key="k1"), Opened)
        assert await backend.store.turns("ann", Resolved(previous="r1")) == [b'["i1"]', b'["r1"]']

    async def test_the_name_of_a_forgotten_conversation_makes_a_new_one(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        assert await backend.store.conversations.forget("ann", "talk", ITEMS, 5) == "conv_r1"
        opened = await ann.open("r2", conversation="talk")
        assert (opened.resolved.conversation, opened.resolved.previous) == ("conv_r2", None)
        await backend.store.delete("ann", "r1")
        assert (await row_of(ann, "talk")).active == "r2", "the old run is nothing to the new conversation"

    async def test_only_its_owner_can_forget_a_conversation(self, backend: Backend) -> None:
        ann = Author(backend)
        talk = await made(ann, "i1")
        for who, named in (("bob", talk), ("ann", "nobody")):
            error = await refusal(backend.store.conversations.forget(who, named, ITEMS, 5))
            assert (error.status, error.code) == (404, "conversation_not_found")
        assert await history(ann, talk) == [b'["i1"]']

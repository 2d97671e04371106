"""Contract: how a run begins. Owns: the rules of Journal.open and Catalog.resolve. See contract.py."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.spec import Resolved
from ninelives.journal.values import Attached, Mark, Opened, Query, Slice, Verdict
from ninelives.testing.author import Author, Backend, refusal, started


async def leaves_no_trace(author: Author, run: str) -> None:
    """Fail where an opening that was refused left something behind."""
    assert await author.store.find(author.owner, run) is None
    assert await author.read(run) == []
    assert run not in await author.claimable()
    assert not await author.cancel(run)
    assert run not in [row.run for row in await author.store.rows(Query(owner=author.owner, limit=100))]


class OpenContract:
    """Accept, attach, refuse."""

    async def test_a_new_run_is_there_with_its_first_records(self, backend: Backend) -> None:
        ann = Author(backend)
        opened = await ann.open("r1")
        assert [(r.seq, r.attempt, r.at) for r in opened.records] == [(0, 0, 1_000_000), (1, 1, 1_000_000)]
        assert [r.data for r in opened.records] == [b"accepted r1", started(1, True)]
        assert await ann.read("r1") == opened.records
        row = await backend.store.find("ann", "r1")
        assert row is not None
        assert (row.run, row.status, row.ended, row.last_seq, row.created_at) == ("r1", "running", False, 1, 1_000_000)

    async def test_a_run_without_a_holder_waits_queued(self, backend: Backend) -> None:
        ann = Author(backend)
        opened = await ann.open("r1", held=False)
        assert [(r.seq, r.attempt) for r in opened.records] == [(0, 0)]
        assert await ann.status("r1") == "queued"
        assert await ann.claimable() == ["r1"]

    async def test_the_first_records_are_made_from_what_was_resolved(self, backend: Backend) -> None:
        ann = Author(backend)
        seen: list[Resolved] = []

        def accept(resolved: Resolved) -> list[bytes]:
            seen.append(resolved)
            return [b"accepted"]

        opened = await backend.store.open(replace(ann.opening("r1", conversation="talk"), accept=accept))
        assert isinstance(opened, Opened)
        assert seen == [opened.resolved]
        assert opened.resolved.conversation == "conv_r1"

    async def test_an_accept_that_raises_leaves_no_trace(self, backend: Backend) -> None:
        ann = Author(backend)

        def refuse(resolved: Resolved) -> list[bytes]:
            raise ClientError("nope", "No.")

        def fail(resolved: Resolved) -> list[bytes]:
            raise ZeroDivisionError

        opening = ann.opening("r1", key="k", conversation="talk")
        assert (await refusal(backend.store.open(replace(opening, accept=refuse)))).code == "nope"
        results = await asyncio.gather(
            backend.store.open(replace(opening, accept=fail)), ann.open("r2"), return_exceptions=True
        )
        assert isinstance(results[0], ZeroDivisionError)
        assert isinstance(results[1], Opened), "the failure of one caller is nobody else's"
        await leaves_no_trace(ann, "r1")
        await ann.open("r1", key="k", conversation="talk")

    async def test_a_known_key_with_the_same_fingerprint_attaches(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", key="k")
        assert await ann.attach("r2", key="k") == "r1"
        await leaves_no_trace(ann, "r2")
        await ann.end("r1")
        assert await ann.attach("r3", key="k") == "r1"

    async def test_a_known_key_with_another_fingerprint_is_409(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", key="k")
        error = await refusal(ann.open("r2", key="k", fingerprint="other"))
        assert (error.status, error.code) == (409, "idempotency_key_conflict")
        await leaves_no_trace(ann, "r2")

    async def test_the_key_is_looked_up_before_anything_else(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", key="k", conversation="talk")
        assert await ann.attach("r2", key="k", conversation="talk") == "r1"
        assert await ann.attach("r3", key="k", previous="unknown") == "r1"

    async def test_an_empty_key_is_a_key(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", key="")
        assert await ann.attach("r2", key="") == "r1"

    async def test_many_at_once_with_one_key_make_one_run(self, backend: Backend) -> None:
        ann = Author(backend)
        answers = await asyncio.gather(*(backend.store.open(ann.opening(f"r{n}", key="k")) for n in range(20)))
        winners = [answer.run for answer in answers if isinstance(answer, Opened)]
        assert len(winners) == 1
        assert {answer.run for answer in answers if isinstance(answer, Attached)} == set(winners)
        assert len(await backend.store.rows(Query(owner="ann", limit=100))) == 1

    async def test_many_at_once_in_one_conversation_make_one_run(self, backend: Backend) -> None:
        ann = Author(backend)
        answers = await asyncio.gather(
            *(backend.store.open(ann.opening(f"r{n}", key=f"k{n}", conversation="talk")) for n in range(20)),
            return_exceptions=True,
        )
        winners = [answer.run for answer in answers if isinstance(answer, Opened)]
        assert len(winners) == 1
        for n, answer in enumerate(answers):
            if f"r{n}" not in winners:
                assert isinstance(answer, ClientError) and answer.status == 409
                await leaves_no_trace(ann, f"r{n}")
        ann.seqs[winners[0]], ann.attempts[winners[0]] = 1, 1
        await ann.end(winners[0])
        loser = next(n for n in range(20) if f"r{n}" not in winners)
        await ann.open(f"r{loser}", key=f"k{loser}", conversation="talk")

    # conversations

    async def test_a_new_name_makes_a_conversation_with_the_id_that_was_offered(self, backend: Backend) -> None:
        opened = await Author(backend).open("r1", conversation="talk")
        assert opened.resolved == Resolved(conversation="conv_r1", session="conv_r1")

    async def test_a_conversation_is_the_same_by_name_and_by_id(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        by_id = await ann.finished("r2", conversation="conv_r1")
        by_name = await ann.finished("r3", conversation="talk")
        assert by_id.resolved == Resolved(conversation="conv_r1", session="conv_r1", previous="r1")
        assert by_name.resolved == Resolved(conversation="conv_r1", session="conv_r1", previous="r2")

    async def test_an_unknown_conversation_id_is_404(self, backend: Backend) -> None:
        ann = Author(backend)
        error = await refusal(ann.open("r1", key="k", conversation="conv_nobody"))
        assert (error.status, error.param) == (404, "conversation")
        await leaves_no_trace(ann, "r1")
        await ann.open("r1", key="k")

    async def test_an_active_conversation_is_409_by_name_and_by_id(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        for name in ("talk", "conv_r1"):
            error = await refusal(ann.open("r2", key="k", conversation=name))
            assert (error.status, error.param) == (409, "conversation")
            assert "resp_r1" in error.message
            await leaves_no_trace(ann, "r2")
        await ann.open("r3", key="k")

    async def test_resolving_for_a_run_that_is_not_stored_reads_latest_and_is_never_409(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("r2", conversation="talk")
        resolved = await backend.store.resolve(ann.asked(conversation="talk", kept="memory"))
        assert resolved == Resolved(conversation="conv_r1", session="conv_r1", previous="r1")

    async def test_resolving_writes_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        fresh = ann.asked(conversation="talk", fresh_conversation="conv_lost", kept="memory")
        assert (await backend.store.resolve(fresh)).conversation is None
        assert (await ann.open("r1", conversation="talk")).resolved.conversation == "conv_r1"

    async def test_resolving_refuses_as_open_does(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        for fields, status in ({"previous": "r1"}, 409), ({"previous": "x"}, 404), ({"conversation": "conv_x"}, 404):
            error = await refusal(backend.store.resolve(ann.asked(kept="memory", **fields)))
            assert error.status == status

    # chains

    async def test_a_completed_run_can_be_followed(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", session="s")
        opened = await ann.open("r2", previous="r1")
        assert opened.resolved == Resolved(previous="r1", session="s")

    async def test_an_unknown_previous_is_404(self, backend: Backend) -> None:
        ann = Author(backend)
        error = await refusal(ann.open("r2", key="k", previous="nobody"))
        assert (error.status, error.param) == (404, "previous_response_id")
        await leaves_no_trace(ann, "r2")

    async def test_a_previous_that_is_not_completed_is_409(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("active")
        await ann.open("failed")
        await ann.end("failed", chains=False)
        await ann.open("parked")
        await ann.park("parked")
        for previous in ("active", "failed", "parked"):
            error = await refusal(ann.open("r2", key="k", previous=previous))
            assert (error.status, error.param) == (409, "previous_response_id")
            await leaves_no_trace(ann, "r2")

    # sessions

    async def test_a_named_session_gives_the_turns_it_has_now_and_takes_the_next(self, backend: Backend) -> None:
        ann = Author(backend)
        first = await ann.finished("r1", session="s")
        second = await ann.open("r2", session="s")
        await ann.finished("r3", session="s")
        assert first.resolved == Resolved(session="s", session_turns=0, remember=True)
        assert second.resolved == Resolved(session="s", session_turns=1, remember=True)
        third = await backend.store.resolve(ann.asked(session="s", kept="memory"))
        assert third.session_turns == 2

    async def test_a_derived_session_gives_no_history_and_takes_none(self, backend: Backend) -> None:
        ann = Author(backend)
        opened = await ann.finished("r1", derived_session="d")
        assert opened.resolved == Resolved(session="d")
        assert (await backend.store.resolve(ann.asked(session="d", kept="memory"))).session_turns == 0

    async def test_an_opening_that_is_foregone_is_written_with_the_first_slice(self, backend: Backend) -> None:
        """A store that does not know at once never gets such a slice."""
        ann = Author(backend)
        opening = ann.opening("r1")
        resolved = backend.store.foregone(opening.asked)
        if resolved is None:
            return
        first = opening.first_records(opening.accept(resolved))
        ann.seqs["r1"], ann.attempts["r1"] = 1, 1
        more = ann.records("r1", b"more")
        opening = replace(opening, foregone=resolved)
        assert await backend.store.append([Slice("r1", 1, [*first, *more], None, opening)]) == [Verdict.WRITTEN]
        ann.seqs["r1"] = 2
        assert await ann.read("r1") == [*first, *more]
        assert await ann.status("r1") == "running"
        assert await ann.claimable() == []
        assert await ann.end("r1") is Verdict.WRITTEN
        assert await ann.status("r1") == "completed"

    async def test_one_slice_can_open_and_end_a_run(self, backend: Backend) -> None:
        ann = Author(backend)
        opening = ann.opening("r1", credential="k1", match="m1", resend_ms=1000, kept="hours")
        resolved = backend.store.foregone(opening.asked)
        if resolved is None:
            return
        first = opening.first_records(opening.accept(resolved))
        mark = Mark(status="completed", at=1_000_000, ended=True, chains=True)
        opening = replace(opening, foregone=resolved)
        assert await backend.store.append([Slice("r1", 1, first, mark, opening)]) == [Verdict.WRITTEN]
        assert await ann.status("r1") == "completed"
        assert await ann.data("r1") == [b"accepted r1", started(1, True)]
        ann.seqs["r1"], ann.attempts["r1"] = 1, 1
        assert await ann.write("r1", b"late") is Verdict.FENCED

    async def test_what_the_store_must_decide_is_not_foregone(self, backend: Backend) -> None:
        ann = Author(backend)
        sent: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 1000}
        await ann.open("r1", **sent)
        for fields in ({"key": "k"}, {"previous": "r1"}, {"conversation": "c"}, {"session": "s"}, {"counted": True}):
            assert backend.store.foregone(ann.asked(**{**sent, **fields})) is None, fields
        await ann.lose("r1")
        assert backend.store.foregone(ann.asked(**sent)) is None, "the same request joins the lost run"

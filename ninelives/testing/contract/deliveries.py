"""Contract: who waits for which answer. Owns: the rules of Deliveries, and of Journal.open for a request that is sent
again (B8, G13). See contract.py."""

from __future__ import annotations

import asyncio
from typing import Any

from ninelives.journal.values import Attached, Opened, Query
from ninelives.testing.author import Author, Backend, need_processes, refusal

SENT: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 30_000}
"""A request whose caller waits. The same request, sent again, joins its run for 30 seconds."""
OTHER: dict[str, Any] = {**SENT, "match": "m2"}


class DeliveriesContract:
    """Lost, answered, sent again."""

    async def test_a_request_sent_again_gets_the_run_whose_connection_was_lost(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("active", **SENT)
        await ann.lose("active")
        assert await ann.attach("r2", **SENT) == "active"
        await ann.open("ended", **OTHER)
        await ann.lose("ended")
        await ann.end("ended")
        assert await backend.store.open(ann.opening("r3", **OTHER)) == Attached("ended", again=True)
        assert [row.run for row in await backend.store.rows(Query(owner="ann"))] == ["ended", "active"]

    async def test_a_connection_that_is_not_lost_keeps_its_run(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.open("r2", **SENT)
        await ann.open("r3", **{**OTHER, "credential": ""})
        await ann.lose("r3")
        await ann.open("r4", **OTHER)

    async def test_an_answer_that_was_delivered_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **SENT)
        await ann.answer("r1")
        await ann.lose("r1")
        reborn = Author(await backend.reborn())
        await reborn.store.deliveries.strand(backend.clock.now_ms())
        await reborn.open("r2", **SENT)

    async def test_many_answers_are_reported_at_once_and_one_that_is_unknown_harms_no_other(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        for n in range(3):
            await ann.finished(f"r{n}", **{**SENT, "match": f"m{n}"})
        await ann.answer("r0", "nobody", "r2")
        await ann.answer()
        for n in range(3):
            await ann.lose(f"r{n}")
        assert await ann.attach("again", **SENT) == "r1"
        await ann.open("first", **{**SENT, "match": "m0"})
        await ann.open("third", **OTHER)

    async def test_a_delivery_is_ignored_where_no_caller_waits_any_more(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **SENT)
        await ann.lose("r1")
        await ann.answer("r1")
        assert await ann.attach("r2", **SENT) == "r1"

    async def test_a_loss_is_reported_once(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        backend.clock.advance(20.0)
        await ann.lose("r1")
        backend.clock.advance(20.0)
        await ann.open("r2", **SENT)

    async def test_a_run_that_ended_without_an_answer_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        await ann.end("r1", chains=False)
        await ann.open("r2", **SENT)
        await ann.end("r2", chains=False)
        await ann.lose("r2")
        await ann.open("r3", **SENT)

    async def test_a_loss_counts_as_long_as_the_first_request_said(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        backend.clock.advance(30.0)
        assert await ann.attach("r2", **SENT) == "r1"
        await ann.lose("r1")
        backend.clock.advance(30.001)
        await ann.open("r3", **{**SENT, "resend_ms": 900_000})
        await ann.lose("r3")
        backend.clock.advance(899.0)
        assert await ann.attach("r4", **SENT) == "r3"

    async def test_only_the_same_request_gets_it(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        await ann.open("r2", **OTHER)
        await bob.open("r3", **SENT)
        assert await ann.attach("r4", **{**SENT, "fingerprint": "f9"}) == "r1", "the match decides alone"

    async def test_a_request_without_a_match_joins_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **{**SENT, "match": ""})
        await ann.lose("r1")
        await ann.open("r2", **{**SENT, "match": ""})

    async def test_another_key_of_the_owner_gets_it(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        assert await ann.attach("r2", **{**SENT, "credential": "k2"}) == "r1"

    async def test_a_start_loses_all_connections_of_the_server_before(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("lost long ago", **OTHER)
        await ann.lose("lost long ago")
        await ann.finished("ended", **{**SENT, "match": "m3"})
        await ann.open("waited for", **SENT)
        backend.clock.advance(3_600.0)
        again = await backend.reborn()
        heir = Author(again)
        await again.store.deliveries.strand(backend.clock.now_ms())
        backend.clock.advance(20.0)
        assert await heir.attach("r1", **SENT) == "waited for"
        assert await heir.attach("r2", **{**SENT, "match": "m3"}) == "ended"
        await heir.open("r3", **OTHER)

    async def test_a_run_whose_process_is_gone_with_its_caller_is_shown_as_queued(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="delivery", **SENT)
        await ann.finished("ended", **OTHER)
        again = await backend.reborn()
        await again.store.deliveries.strand(backend.clock.now_ms())
        rows = [await again.store.find("ann", run) for run in ("r1", "ended")]
        assert [row and row.status for row in rows] == ["queued", "completed"]
        assert await Author(again).attach("r2", kept="delivery", **SENT) == "r1"

    async def test_a_caller_whose_connection_outlived_the_process_still_waits(self, backend: Backend) -> None:
        if backend.store.peers.shared:
            return  # no client is kept beside a shared store
        ann = Author(backend)
        await ann.open("kept", kept="delivery", **SENT)
        await ann.open("lost", kept="delivery", **OTHER)
        again = await backend.reborn()
        now = backend.clock.now_ms()
        await again.store.deliveries.strand(now, {("ann", "kept")})
        assert await again.store.claimable(9, now) == [("ann", "kept")], "the other one waits for its caller"
        assert await Author(again).attach("r2", kept="delivery", **OTHER) == "lost"
        await Author(again).open("r3", kept="delivery", **SENT)

    async def test_callers_of_a_living_process_are_not_lost(self, backend: Backend) -> None:
        again = await backend.reborn()
        ann = Author(again)
        await ann.open("r1", **SENT)
        for _ in range(2):
            await again.store.deliveries.strand(backend.clock.now_ms())
        await ann.open("r2", **SENT)

    async def test_of_many_at_once_each_takes_one_lost_place(self, backend: Backend) -> None:
        ann = Author(backend)
        for name in ("lost1", "lost2"):
            await ann.open(name, **SENT)
        for name in ("lost1", "lost2"):
            await ann.lose(name)
        answers = await asyncio.gather(*(backend.store.open(ann.opening(f"r{n}", **SENT)) for n in range(5)))
        assert sorted(answer.run for answer in answers if isinstance(answer, Attached)) == ["lost1", "lost2"]
        assert len([answer for answer in answers if isinstance(answer, Opened)]) == 3
        await ann.lose("lost1")
        assert await ann.attach("r9", **SENT) == "lost1"

    async def test_the_first_run_of_a_conversation_does_not_refuse_its_own_retry(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk", **SENT)
        assert (await refusal(ann.open("r2", conversation="talk", **SENT))).status == 409
        await ann.lose("r1")
        assert await ann.attach("r2", conversation="talk", **SENT) == "r1"

    async def test_an_idempotency_key_decides_alone(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        await ann.open("r2", key="fresh", **SENT)

    async def test_a_deleted_run_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **SENT)
        await ann.lose("r1")
        await backend.store.delete("ann", "r1")
        await ann.open("r2", **SENT)

    async def test_a_foreign_word_changes_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await Author(backend, "bob").lose("r1")
        await ann.open("r2", **SENT)
        await Author(backend, "bob").answer("r1")
        await ann.lose("r1")
        assert await ann.attach("r3", **SENT) == "r1"

    async def test_resolving_takes_nobodys_place(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.lose("r1")
        await backend.store.resolve(ann.asked(**{**SENT, "kept": "memory"}))
        assert await ann.attach("r2", **SENT) == "r1"

    # SDKs that say that they retry (G13)

    async def test_a_counted_retry_does_not_take_a_caller_of_its_own_process(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **SENT)
        await ann.open("r2", counted=True, **SENT)
        await ann.lose("r1")
        assert await ann.attach("r3", counted=True, **SENT) == "r1"

    async def test_a_counted_retry_takes_the_newest_run_that_waits_at_another_process(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        for run in ("r1", "r2"):
            await ann.open(run, **SENT)
        await there.open("r3", **{**SENT, "credential": "k2"}, counted=True)
        await there.open("r4", **OTHER, counted=True)
        await there.open("r5", **SENT)
        assert await there.attach("r6", counted=True, **SENT) == "r2"
        assert await there.attach("r7", counted=True, **SENT) == "r1"
        await ann.lose("r2")
        await ann.answer("r1")
        await there.lose("r1")
        assert await ann.attach("r8", **SENT) == "r1", "and only the process where the caller waits speaks of it"

    async def test_a_run_whose_answer_was_delivered_is_not_taken_by_a_counted_retry(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await ann.finished("r1", **SENT)
        await ann.answer("r1")
        await there.open("r2", counted=True, **SENT)

    async def test_only_callers_of_processes_that_are_gone_are_stranded(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await there.open("there", **SENT)
        backend.clock.advance(backend.lease_s - 1)
        await backend.store.beat("h1")
        backend.clock.advance(2)
        await ann.open("here", **OTHER)
        await backend.store.deliveries.strand(backend.clock.now_ms())
        assert await ann.attach("r1", **SENT) == "there"
        await ann.open("r2", **OTHER)

    # processes that were taken for gone

    async def test_the_callers_of_a_frozen_process_wait_there_again_at_its_next_beat(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await there.open("waits", kept="delivery", **SENT)
        await there.open("taken over", **OTHER)
        await _taken_for_gone(backend)
        assert await ann.attach("r1", **OTHER) == "taken over"
        assert await ann.claimable() == ["taken over"], "the other one waits for its caller"
        await there.store.beat("h2")
        assert await ann.claimable() == ["waits", "taken over"]
        await ann.open("r2", **SENT)
        await there.lose("taken over")
        await ann.open("r3", **OTHER)

    async def test_what_a_frozen_process_reports_before_its_next_beat_counts(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await there.open("left", **SENT)
        await there.finished("answered", **OTHER)
        await _taken_for_gone(backend)
        backend.clock.advance(20.0)
        await there.lose("left")
        await there.answer("answered")
        await there.store.beat("h2")
        backend.clock.advance(20.0)
        assert await ann.attach("r1", **SENT) == "left", "the time begins when the caller really left"
        await ann.open("r2", **OTHER)


async def _taken_for_gone(backend: Backend) -> None:
    """No beat of h2 comes for a lease."""
    backend.clock.advance(backend.lease_s - 1)
    await backend.store.beat("h1")
    backend.clock.advance(2)
    await backend.store.deliveries.strand(backend.clock.now_ms())

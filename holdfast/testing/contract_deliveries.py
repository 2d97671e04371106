"""Contract: who waits for which answer. Owns: the rules of Deliveries, and of Journal.open for a request that is sent
again (B8, G13). See contract.py."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.admission import Again
from holdfast.journal.base import Attached, Opened, Query
from holdfast.testing.author import Author, Backend, refusal

RETRY: dict[str, Any] = {"credential": "k1", "again": Again(30_000)}
FIRST: dict[str, Any] = {"credential": "k1"}


class DeliveriesContract:
    """Lost, answered, sent again."""

    async def lose(self, author: Author, run: str) -> None:
        """The connection of a run is lost now."""
        await author.store.deliveries.lost(author.owner, run, author.clock.now_ms())

    async def test_a_request_sent_again_gets_the_run_whose_connection_was_lost(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("active", **FIRST)
        await self.lose(ann, "active")
        assert await ann.attach("r2", **RETRY) == "active"
        await ann.open("ended", fingerprint="f2", **FIRST)
        await self.lose(ann, "ended")
        await ann.end("ended")
        opened = await backend.store.open(ann.opening("r3", fingerprint="f2", **RETRY))
        assert opened == Attached("ended", again=True)
        assert [row.run for row in await backend.store.rows(Query(owner="ann"))] == ["ended", "active"]

    async def test_a_connection_that_is_not_lost_keeps_its_run(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await ann.open("r2", **RETRY)
        await ann.open("r3", fingerprint="f2")
        await self.lose(ann, "r3")
        await ann.open("r4", fingerprint="f2", **RETRY)

    async def test_an_answer_that_was_delivered_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **FIRST)
        await backend.store.deliveries.answered("ann", "r1")
        await self.lose(ann, "r1")
        await backend.store.deliveries.strand(backend.clock.now_ms())
        await ann.open("r2", **RETRY)

    async def test_an_answer_that_came_over_another_way_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **FIRST)
        await self.lose(ann, "r1")
        await backend.store.deliveries.answered("ann", "r1")
        await ann.open("r2", **RETRY)

    async def test_a_run_that_ended_without_an_answer_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        await ann.end("r1", chains=False)
        await ann.open("r2", **RETRY)
        await ann.end("r2", chains=False)
        await self.lose(ann, "r2")
        await backend.store.deliveries.strand(backend.clock.now_ms())
        await ann.open("r3", **RETRY)

    async def test_a_loss_counts_as_long_as_the_request_says(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        backend.clock.advance(29.0)
        assert await ann.attach("r2", **RETRY) == "r1"
        await self.lose(ann, "r1")
        backend.clock.advance(31.0)
        await ann.open("r3", **RETRY)
        assert await ann.attach("r4", credential="k1", again=Again(900_000)) == "r1"

    async def test_only_the_same_request_gets_it(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        await ann.open("r2", **{**RETRY, "fingerprint": "other"})
        await ann.open("r3", **{**RETRY, "credential": "k2"})
        await ann.open("r4", **FIRST)
        await bob.open("r5", **RETRY)
        assert await ann.attach("r6", **RETRY) == "r1"

    async def test_another_key_of_the_owner_gets_it_where_that_is_allowed(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        assert await ann.attach("r2", credential="k2", again=Again(30_000, same_credential=False)) == "r1"

    async def test_another_session_does_not_get_it_where_one_is_named(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", derived_session="chat1", **FIRST)
        await self.lose(ann, "r1")
        await ann.open("r2", derived_session="chat2", credential="k1", again=Again(30_000, session="chat2"))
        again = Again(30_000, session="chat1")
        assert await ann.attach("r3", derived_session="chat1", credential="k1", again=again) == "r1"

    async def test_a_start_loses_all_connections_of_the_server_before(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("lost long ago", fingerprint="f0", **FIRST)
        await self.lose(ann, "lost long ago")
        await ann.open("waited for", **FIRST)
        backend.clock.advance(3_600.0)
        await backend.store.deliveries.strand(backend.clock.now_ms())
        backend.clock.advance(20.0)
        assert await ann.attach("r1", **RETRY) == "waited for"
        await ann.open("r2", **{**RETRY, "fingerprint": "f0"})

    async def test_of_many_at_once_each_takes_one_lost_place(self, backend: Backend) -> None:
        ann = Author(backend)
        for name in ("lost1", "lost2"):
            await ann.open(name, **FIRST)
        for name in ("lost1", "lost2"):
            await self.lose(ann, name)
        answers = await asyncio.gather(*(backend.store.open(ann.opening(f"r{n}", **RETRY)) for n in range(5)))
        assert [answer.run for answer in answers if isinstance(answer, Attached)] == ["lost2", "lost1"]
        assert len([answer for answer in answers if isinstance(answer, Opened)]) == 3
        await self.lose(ann, "lost1")
        assert await ann.attach("r9", **RETRY) == "lost1"

    async def test_the_first_run_of_a_conversation_does_not_refuse_its_own_retry(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk", **FIRST)
        assert (await refusal(ann.open("r2", conversation="talk", **RETRY))).status == 409
        await self.lose(ann, "r1")
        assert await ann.attach("r2", conversation="talk", **RETRY) == "r1"

    async def test_an_idempotency_key_decides_alone(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        await ann.open("r2", key="fresh", **RETRY)

    async def test_a_deleted_run_is_not_given_again(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **FIRST)
        await self.lose(ann, "r1")
        await backend.store.delete("ann", "r1")
        await ann.open("r2", **RETRY)

    async def test_a_foreign_word_changes_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await backend.store.deliveries.lost("bob", "r1", backend.clock.now_ms())
        await ann.open("r2", **RETRY)
        await self.lose(ann, "r1")
        await backend.store.deliveries.answered("bob", "r1")
        assert await ann.attach("r3", **RETRY) == "r1"

    async def test_resolving_takes_nobodys_place(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **FIRST)
        await self.lose(ann, "r1")
        await backend.store.resolve(ann.asked(store=False, **RETRY))
        assert await ann.attach("r2", **RETRY) == "r1"

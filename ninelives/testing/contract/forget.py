"""Contract: runs that are not stored. Owns: the rules of Asked.kept, Journal.forget and Upkeep.forgettable (B6). See
contract.py."""

from __future__ import annotations

from typing import Any

from ninelives.core.spec import Resolved
from ninelives.journal.values import SETTLE_MS, Query, Verdict
from ninelives.testing.author import Author, Backend, refusal
from ninelives.testing.contract.conversations import history, row_of
from ninelives.testing.contract.deliveries import SENT

UNSTORED = ("hours", "delivery")
HOUR = 3_600_000


async def forgettable(backend: Backend, unstored_ms: int = 24 * HOUR, limit: int = 100) -> list[str]:
    """The runs that must be forgotten now."""
    found = await backend.store.upkeep.forgettable(backend.clock.now_ms(), unstored_ms, limit)
    return [run for _, run in found]


def sent(run: str, **fields: Any) -> dict[str, Any]:
    """A request of its own, whose caller waits."""
    return {**SENT, "match": run, **fields}


class ForgetContract:
    """Nothing follows them, and nothing of them stays."""

    # kept

    async def test_a_run_that_is_not_stored_neither_takes_nor_changes_a_conversation(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        for kept in UNSTORED:
            opened = await ann.open(kept, conversation="talk", kept=kept)
            assert (opened.resolved.conversation, opened.resolved.previous) == ("conv_r1", "r1")
            assert (await row_of(ann, "talk")).active is None
            await ann.end(kept)
            assert (await row_of(ann, "talk")).latest == "r1"
        assert await history(ann, "talk") == [b'["r1"]']

    async def test_a_run_that_is_not_stored_may_run_beside_the_active_one(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("active", conversation="talk")
        await ann.open("beside", conversation="talk", kept="hours")
        await ann.end("beside")
        assert (await row_of(ann, "talk")).active == "active"
        await ann.end("active")
        assert (await row_of(ann, "talk")).latest == "active"

    async def test_a_run_that_is_not_stored_creates_no_conversation(self, backend: Backend) -> None:
        ann = Author(backend)
        opened = await ann.open("r1", conversation="talk", kept="delivery")
        assert opened.resolved.conversation is None
        assert await backend.store.conversations.find("ann", "talk") is None

    async def test_a_chain_through_a_run_that_is_not_stored_is_unknown(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in UNSTORED:
            await ann.finished(kept, kept=kept)
            await ann.open(f"active {kept}", kept=kept)
            for run in (kept, f"active {kept}"):
                error = await refusal(ann.open("next", previous=run))
                assert (error.status, error.param) == (404, "previous_response_id")

    async def test_a_run_that_is_not_stored_may_follow_a_stored_one(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        for kept in UNSTORED:
            opened = await ann.finished(kept, previous="r1", kept=kept)
            assert await backend.store.turns("ann", opened.resolved) == [b'["r1"]']

    # forgettable

    async def test_stored_and_open_runs_are_never_forgettable(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("stored", **sent("stored"))
        await ann.answer("stored")
        for kept in UNSTORED:
            await ann.open(kept, **sent(kept, kept=kept))
            await ann.answer(kept)
        backend.clock.advance(90_000)
        assert await forgettable(backend) == await forgettable(backend, 0) == []

    async def test_a_run_kept_until_delivery_is_forgettable_a_moment_after_its_delivery(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **sent("r1", kept="delivery"))
        backend.clock.advance(3_600)
        assert await forgettable(backend) == [], "its caller waits"
        await ann.answer("r1")
        backend.clock.advance(SETTLE_MS / 1000 - 0.001)
        assert await forgettable(backend) == [], "other readers come to its end"
        backend.clock.advance(0.001)
        assert await forgettable(backend) == ["r1"]

    async def test_a_run_that_ended_without_an_answer_counts_as_delivered(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", **sent("r1", kept="delivery", resend_ms=900_000))
        await ann.end("r1", chains=False)
        assert await forgettable(backend) == []
        backend.clock.advance(SETTLE_MS / 1000)
        assert await forgettable(backend) == ["r1"]

    async def test_a_run_whose_caller_left_is_forgettable_when_its_request_cannot_join_any_more(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        await ann.open("left before", **sent("left before", kept="delivery"))
        await ann.lose("left before")
        backend.clock.advance(10)
        await ann.end("left before")
        await ann.finished("left after", **sent("left after", kept="delivery"))
        backend.clock.advance(10)
        await ann.lose("left after")
        backend.clock.advance(10)
        assert await forgettable(backend) == []
        backend.clock.advance(0.001)
        assert await forgettable(backend) == ["left before"], "counted from the loss"
        assert await ann.attach("again", **sent("left after")) == "left after"
        backend.clock.advance(3_600)
        assert await forgettable(backend) == ["left before"], "somebody waits again"

    async def test_a_run_that_nobody_waited_for_is_forgettable_after_its_window(self, backend: Backend) -> None:
        """The question was delivered, and the run ended later."""
        ann = Author(backend)
        await ann.open("r1", **sent("r1", kept="delivery"))
        await ann.answer("r1")
        backend.clock.advance(60)
        await ann.end("r1")
        backend.clock.advance(30)
        assert await forgettable(backend) == []
        backend.clock.advance(0.001)
        assert await forgettable(backend) == ["r1"]

    async def test_the_rest_of_a_run_that_asked_is_delivered_to_whoever_answered_it(self, backend: Backend) -> None:
        ann, deliveries = Author(backend), backend.store.deliveries
        for run in ("asked", "waited for", "lost"):
            await ann.open(run, **sent(run, kept="delivery"))
        await ann.answer("asked")
        await ann.lose("lost")
        await deliveries.rest_given("ann", "asked")
        for run in ("asked", "waited for", "lost"):
            await ann.end(run)
        backend.clock.advance(SETTLE_MS / 1000)
        await deliveries.rest_given("bob", "asked")
        assert await forgettable(backend) == [], "not while it was active, and not by a stranger"
        for run in ("asked", "waited for", "lost", "nobody"):
            await deliveries.rest_given("ann", run)
        backend.clock.advance(SETTLE_MS / 1000)
        assert await forgettable(backend) == ["asked"], "others have callers of their own"
        assert await ann.attach("again", **sent("lost")) == "lost"

    async def test_a_run_kept_for_hours_is_forgettable_after_them(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", **sent("r1", kept="hours"))
        await ann.answer("r1")
        backend.clock.advance(2 * 3_600 - 1)
        assert await forgettable(backend, 2 * HOUR) == []
        backend.clock.advance(1)
        assert await forgettable(backend, 2 * HOUR) == ["r1"]
        assert await forgettable(backend, 3 * HOUR) == []

    async def test_with_no_hours_a_run_is_forgettable_like_one_kept_until_delivery(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("delivered", **sent("delivered", kept="hours"))
        await ann.finished("lost", **sent("lost", kept="hours"))
        await ann.answer("delivered")
        await ann.lose("lost")
        backend.clock.advance(SETTLE_MS / 1000)
        assert await forgettable(backend, 0) == ["delivered"]
        backend.clock.advance(30)
        assert await forgettable(backend, 0) == ["delivered", "lost"]
        assert await forgettable(backend) == []

    async def test_the_oldest_are_forgettable_first_up_to_a_limit(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(5):
            await ann.finished(f"r{n}", kept="delivery" if n % 2 else "hours")
            backend.clock.advance(1)
        backend.clock.advance(3_600)
        assert await forgettable(backend, HOUR) == ["r0", "r1", "r2", "r3", "r4"]
        assert await forgettable(backend, HOUR, 2) == ["r0", "r1"]

    async def test_a_deleted_run_is_not_forgettable(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", kept="delivery")
        await backend.store.delete("ann", "r1")
        backend.clock.advance(3_600)
        assert await forgettable(backend) == []

    # forget

    async def test_a_forgotten_run_is_gone_everywhere(self, backend: Backend) -> None:
        ann, store = Author(backend), backend.store
        for kept in UNSTORED:
            await ann.open(kept, key=f"key of {kept}", **sent(kept, kept=kept))
            await ann.write(kept, b"a" * 1_000)
            await ann.cancel(kept)
            await ann.end(kept)
            await ann.lose(kept)
        await store.forget([("ann", kept) for kept in UNSTORED])
        for kept in UNSTORED:
            assert await store.find("ann", kept) is None and await ann.read(kept) == []
            assert await store.signals(kept) == [] and not await ann.cancel(kept)
            assert await ann.write(kept, b"late") is Verdict.FENCED
            assert await ann.claim(kept) is None
            assert not await store.delete("ann", kept)
            assert not await store.upkeep.expired("ann", kept)
            await ann.open(f"new {kept}", key=f"key of {kept}", **sent(kept, fingerprint="other"))
        assert [row.run for row in await store.rows(Query(owner="ann"))] == ["new delivery", "new hours"]

    async def test_the_runs_before_and_after_a_forgotten_one_stay(self, backend: Backend) -> None:
        ann, store = Author(backend), backend.store
        await ann.finished("before")
        await ann.open("active")
        await ann.finished("gone", kept="delivery")
        await store.forget([("ann", "gone")])
        await ann.write("active", b"a")
        await ann.finished("after")
        assert [len(await ann.data(run)) for run in ("before", "active", "after")] == [3, 3, 3]
        await ann.finished("gone too", kept="delivery")
        await store.forget([("ann", "gone too"), ("ann", "gone")])
        assert await ann.write("active", b"b") is Verdict.WRITTEN
        heir = Author(await backend.reborn())
        assert [len(await heir.data(run)) for run in ("before", "active", "after")] == [3, 4, 3]
        await heir.finished("next", previous="after")
        assert len(await heir.data("next")) == 3

    async def test_a_turn_that_a_session_got_stays(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", session="s", kept="hours")
        await backend.store.forget([("ann", "r1")])
        assert await backend.store.turns("ann", Resolved(session="s", session_turns=1)) == [b'["r1"]']

    async def test_stored_and_open_runs_are_not_forgotten(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("stored")
        await ann.open("open", kept="delivery")
        await backend.store.forget([("ann", "stored"), ("ann", "open"), ("ann", "nobody")])
        await backend.store.forget([])
        assert len(await ann.data("stored")) == 3
        assert await ann.write("open", b"a") is Verdict.WRITTEN

"""Contract: runs that wait. Owns: the rules of Mark.wake_at, asks and left, of Catalog.claimable, Claim.overdue and
Peers. See contract.py."""

from __future__ import annotations

from ninelives.journal.values import HeldRun, Mark, Signal, Verdict
from ninelives.testing.author import Author, Backend, need_processes
from ninelives.testing.contract.deliveries import SENT


async def overdue(author: Author, run: str) -> bool:
    """Claim a run that must be free. Whether its time was over."""
    claim = await author.claim(run)
    assert claim is not None
    return claim.overdue


def later(backend: Backend, seconds: float = 60.0) -> int:
    """So many seconds from now, in milliseconds."""
    return backend.clock.now_ms() + int(seconds * 1000)


class WaitingContract:
    """For a time, for a person, for a caller."""

    # for a time or a person

    async def test_a_parked_run_waits_until_its_time_and_is_then_overdue(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1", wake_at=later(backend))
        backend.clock.advance(59.999)
        assert await ann.claimable() == []
        backend.clock.advance(0.001)
        assert await ann.claimable() == ["r1"]
        assert await overdue(ann, "r1")

    async def test_a_run_may_be_claimed_before_its_time_and_is_not_overdue_then(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1", wake_at=later(backend))
        assert not await overdue(ann, "r1")
        backend.clock.advance(61)
        await ann.park("r1")
        assert await ann.claimable() == ["r1"], "the claim has ended the wait"
        assert not await overdue(ann, "r1")

    async def test_the_answer_to_its_question_wakes_a_run_and_other_approvals_do_not(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1", asks="q2", wake_at=later(backend))
        await ann.approve("r1", "q1")
        assert await ann.claimable() == []
        await ann.approve("r1", "q2")
        assert await ann.claimable() == ["r1"]
        assert not await overdue(ann, "r1")
        await ann.park("r1", asks="q3", wake_at=later(backend))
        assert await ann.claimable() == [], "both have been used"

    async def test_a_cancel_wakes_any_run(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1", asks="q1", wake_at=later(backend))
        await ann.cancel("r1")
        assert await ann.claimable() == ["r1"]

    async def test_a_steer_wakes_no_run(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await backend.store.signal("ann", Signal("r1", "steer", "000000", b"x"))
        await ann.park("r1", asks="q1", wake_at=later(backend))
        assert await ann.claimable() == []

    async def test_runs_with_a_signal_come_first_then_the_oldest(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(5):
            await ann.open(f"r{n}", held=False)
        await ann.cancel("r3")
        await ann.approve("r4", "no question")
        await ann.cancel("r1")
        assert await ann.claimable() == ["r1", "r3", "r0", "r2", "r4"]
        assert await backend.store.claimable(1, backend.clock.now_ms()) == [("ann", "r1")]

    async def test_a_question_that_is_asked_while_the_run_is_held_outlives_the_holder(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await ann.ask("r1", "q1", later(backend, 3_600)) is Verdict.WRITTEN
        assert await ann.write("r1", b"more") is Verdict.WRITTEN, "the claim stays"
        heir = Author(await backend.reborn())
        assert await heir.store.asking("ann", "q1") == "r1"
        assert await heir.claimable() == []
        await heir.approve("r1", "q1")
        assert await heir.claimable() == ["r1"]

    async def test_every_mark_says_anew_what_the_run_waits_for(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.ask("r1", "q1", later(backend, 3_600))
        await ann.write("r1", b"answered", mark=Mark(status="running", at=backend.clock.now_ms()))
        heir = Author(await backend.reborn())
        assert await heir.claimable() == ["r1"]

    async def test_what_a_run_waits_for_outlives_the_process(self, backend: Backend) -> None:
        ann = Author(backend)
        for run in ("asks", "wished", "left", "joined"):
            await ann.open(run, kept="hours", **{**SENT, "resend_ms": 900_000, "match": run})
        await ann.park("asks", asks="q1", wake_at=later(backend, 3_600))
        await ann.park("wished", asks="q2", wake_at=later(backend, 3_600))
        await ann.approve("wished", "q2")
        await ann.lose("left")
        await ann.park("left", left=True)
        heir = Author(await backend.reborn())
        assert await heir.claimable() == ["wished", "joined"]
        backend.clock.advance(900)
        assert await heir.claimable() == ["wished", "left", "joined"]
        assert await overdue(heir, "left")

    # for the caller

    async def test_a_run_that_was_left_waits_until_its_request_cannot_join_any_more(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("hours", "delivery", "stored"):
            await ann.open(kept, kept=kept, **{**SENT, "match": kept})
            await ann.lose(kept)
        backend.clock.advance(10)
        for kept in ("hours", "delivery", "stored"):
            await ann.park(kept, left=True)
        backend.clock.advance(19.999)
        assert await ann.claimable() == []
        backend.clock.advance(0.001)
        assert await ann.claimable() == ["hours", "delivery", "stored"]
        assert [await overdue(ann, kept) for kept in ("hours", "delivery", "stored")] == [True, True, True]

    async def test_a_run_that_was_left_by_a_caller_who_never_waited_waits_from_its_mark_on(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="hours", **{**SENT, "credential": ""})
        backend.clock.advance(10)
        await ann.park("r1", left=True)
        backend.clock.advance(29)
        assert await ann.claimable() == []
        backend.clock.advance(1)
        assert await ann.claimable() == ["r1"]

    async def test_a_run_that_was_joined_before_it_could_be_parked_does_not_wait(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="hours", **SENT)
        await ann.lose("r1")
        assert await ann.attach("r2", **SENT) == "r1"
        await ann.park("r1", left=True)
        assert await ann.claimable() == ["r1"]
        assert not await overdue(ann, "r1")

    async def test_the_same_request_wakes_a_run_that_waits_for_its_caller(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="delivery", **SENT)
        await ann.lose("r1")
        await ann.park("r1", left=True)
        assert await ann.claimable() == []
        assert await ann.attach("r2", **SENT) == "r1"
        assert await ann.claimable() == ["r1"]
        backend.clock.advance(61)
        assert not await overdue(ann, "r1")

    async def test_the_same_request_does_not_end_the_wait_for_a_person(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="delivery", **SENT)
        await ann.lose("r1")
        await ann.park("r1", asks="q1", wake_at=later(backend))
        assert await ann.attach("r2", **SENT) == "r1"
        assert await ann.claimable() == []
        assert await backend.store.asking("ann", "q1") == "r1"
        backend.clock.advance(60)
        assert await ann.claimable() == ["r1"]

    async def test_an_unheld_run_waits_for_its_caller_from_the_loss_on_unless_it_is_stored(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        for kept in ("hours", "delivery", "stored"):
            await ann.open(kept, held=False, kept=kept, **{**SENT, "match": kept})
            await ann.lose(kept)
        assert await ann.claimable() == ["stored"]
        backend.clock.advance(30)
        assert await ann.claimable() == ["hours", "delivery", "stored"]
        assert [await overdue(ann, kept) for kept in ("hours", "delivery", "stored")] == [True, True, False]

    async def test_an_unheld_run_that_asks_a_person_does_not_wait_for_its_caller(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="delivery", **SENT)
        await ann.park("r1", asks="q1", wake_at=later(backend))
        await ann.lose("r1")
        backend.clock.advance(31)
        assert await ann.claimable() == [], "the person still has time"
        backend.clock.advance(29)
        assert await ann.claimable() == ["r1"]

    async def test_a_held_run_goes_on_when_its_caller_leaves(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="hours", **SENT)
        await ann.lose("r1")
        assert await ann.write("r1", b"more") is Verdict.WRITTEN
        await ann.park("r1")
        assert await ann.claimable() == ["r1"], "a park that is not for the caller does not wait for it"

    async def test_after_a_death_a_run_kept_until_delivery_waits_for_its_caller(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("delivery", "hours", "stored"):
            await ann.open(kept, kept=kept, **{**SENT, "match": kept})
        again = await backend.reborn()
        heir = Author(again)
        assert await heir.claimable() == ["hours", "stored"]
        await again.store.deliveries.strand(backend.clock.now_ms())
        assert await heir.claimable() == ["hours", "stored"]
        assert await again.store.peers.queued() == 2
        backend.clock.advance(29)
        assert await heir.claimable() == ["hours", "stored"]
        backend.clock.advance(1)
        assert await heir.claimable() == ["delivery", "hours", "stored"]
        assert [await overdue(heir, run) for run in ("delivery", "hours", "stored")] == [True, False, False]

    async def test_after_a_death_the_same_request_wakes_a_run_kept_until_delivery(self, backend: Backend) -> None:
        await Author(backend).open("r1", kept="delivery", **SENT)
        again = await backend.reborn()
        heir = Author(again)
        await again.store.deliveries.strand(backend.clock.now_ms())
        assert await heir.attach("r2", **SENT) == "r1"
        assert await heir.claimable() == ["r1"]
        assert not await overdue(heir, "r1")

    async def test_after_a_death_a_signal_wakes_a_run_kept_until_delivery(self, backend: Backend) -> None:
        await Author(backend).open("r1", kept="delivery", **SENT)
        heir = Author(await backend.reborn())
        await heir.store.deliveries.strand(backend.clock.now_ms())
        await heir.cancel("r1")
        assert await heir.claimable() == ["r1"]

    async def test_a_run_kept_until_delivery_whose_question_was_delivered_misses_no_caller(
        self, backend: Backend
    ) -> None:
        ann = Author(backend)
        await ann.open("r1", kept="delivery", **SENT)
        await ann.park("r1", asks="q1", wake_at=later(backend))
        await ann.answer("r1")
        await ann.approve("r1", "q1")
        assert not await overdue(ann, "r1")
        await ann.park("r1")
        assert await ann.claimable() == ["r1"]

    # peers

    async def test_queued_counts_what_can_be_claimed(self, backend: Backend) -> None:
        ann, queued = Author(backend), backend.store.peers.queued
        assert await queued() == 0
        await ann.open("r1", held=False)
        await ann.open("r2")
        await ann.open("r3")
        await ann.park("r3", wake_at=later(backend))
        assert await queued() == 1
        await ann.cancel("r3")
        assert await queued() == 2

    async def test_held_tells_what_a_holder_holds(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        held = backend.store.peers.held
        assert list(await held("h1")) == []
        await ann.open("r1")
        await ann.open("queued", held=False)
        await ann.open("parked")
        await ann.park("parked")
        await ann.finished("ended")
        await bob.open("r2", held=False)
        await bob.claim("r2")
        await bob.cancel("r2")
        assert sorted(await held("h1"), key=lambda one: one.run) == [
            HeldRun("ann", "r1", 1, False, 0),
            HeldRun("bob", "r2", 1, True, 0),
        ]
        assert list(await held("nobody")) == []

    async def test_held_tells_how_long_ago_the_caller_of_a_run_left_that_is_not_stored(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("hours", "delivery", "stored"):
            await ann.open(kept, kept=kept, **{**SENT, "match": kept})
            await ann.lose(kept)

        async def left() -> dict[str, int]:
            return {one.run: one.left_ms for one in await backend.store.peers.held("h1")}

        assert await left() == {"hours": 1, "delivery": 1, "stored": 0}, "1, because 0 means that nobody left"
        backend.clock.advance(2.5)
        assert await left() == {"hours": 2_500, "delivery": 2_500, "stored": 0}
        assert await ann.attach("again", **{**SENT, "match": "hours"}) == "hours"
        assert (await left())["hours"] == 0

    async def test_held_tells_of_no_leave_where_it_was_the_server_that_went(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("hours", "delivery", "stored"):
            await ann.open(kept, kept=kept, **{**SENT, "match": kept})
            await backend.store.deliveries.lost("ann", kept, backend.clock.now_ms(), left=False)
        left = {one.run: one.left_ms for one in await backend.store.peers.held("h1")}
        assert left == {"hours": 0, "delivery": 1, "stored": 0}, "what is kept until delivery needs a connection"

    async def test_held_tells_of_no_leave_where_the_process_of_the_caller_died(self, backend: Backend) -> None:
        ann = Author(backend)
        for kept in ("hours", "delivery", "stored"):
            await ann.open(kept, held=False, kept=kept, **{**SENT, "match": kept})
        again = await backend.reborn()
        heir = Author(again, holder="h9")
        await again.store.beat("h9")
        await again.store.deliveries.strand(backend.clock.now_ms())
        for kept in ("hours", "stored"):
            assert await heir.claim(kept) is not None
        assert [one.left_ms for one in await again.store.peers.held("h9")] == [0, 0]

    async def test_a_run_kept_until_delivery_is_free_once_its_callers_process_was_heard_after_its_holder_ended(
        self, backend: Backend
    ) -> None:
        """Two processes may die in one moment, and the death of the holder may be noticed first."""
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await there.open("r1", held=False, kept="delivery", **SENT)
        await backend.store.beat("h3")
        assert await Author(backend, holder="h3").claim("r1") is not None
        backend.clock.advance(backend.lease_s - 1)
        for holder in ("h1", "h2"):
            await backend.store.beat(holder)
        backend.clock.advance(2)
        assert await ann.claimable() == []
        assert await there.claimable() == ["r1"], "a process knows that its own caller waits"
        await there.store.beat("h2")
        assert await ann.claimable() == ["r1"]

    async def test_another_process_sees_who_holds_what_and_which_runs_wait(self, backend: Backend) -> None:
        ann, there = Author(backend), Author(need_processes(backend), holder="h2")
        await ann.open("r1")
        await ann.open("r2", held=False)
        assert [one.run for one in await there.store.peers.held("h1")] == ["r1"]
        assert await there.claimable() == ["r2"]
        await there.claim("r2")
        assert [one.run for one in await backend.store.peers.held("h2")] == ["r2"]

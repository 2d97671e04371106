"""Contract: who may write. Owns: the rules of Journal.claim and Journal.beat. See contract.py."""

from __future__ import annotations

import asyncio
from collections import Counter

from ninelives.journal.fair import Fairness
from ninelives.journal.values import Mark, Verdict
from ninelives.testing.author import Author, Backend, need_leases, started


class ClaimContract:
    """Claims, leases, fences."""

    async def test_a_claim_raises_the_attempt_and_is_committed_with_its_record(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", held=False)
        backend.clock.advance(5)
        claim = await ann.claim("r1")
        assert claim is not None
        assert (claim.owner, claim.run, claim.attempt) == ("ann", "r1", 1)
        assert (claim.record.seq, claim.record.attempt, claim.record.at) == (1, 1, 1_005_000)
        assert (await ann.read("r1"))[-1] == claim.record
        row = await backend.store.find("ann", "r1")
        assert row is not None
        assert (row.status, row.updated_at, row.last_seq) == ("running", 1_005_000, 1)
        assert await ann.claimable() == []
        assert await ann.write("r1", b"a") is Verdict.WRITTEN

    async def test_a_run_that_waited_queued_is_claimed_clean(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", held=False)
        claim = await ann.claim("r1")
        assert claim is not None and claim.record.data == started(1, True)

    async def test_a_run_that_was_parked_is_claimed_clean(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1")
        claim = await ann.claim("r1")
        assert claim is not None and claim.record.data == started(2, True)

    async def test_a_run_whose_lease_lapsed_is_claimed_unclean(self, backend: Backend) -> None:
        need_leases(backend)
        ann = Author(backend)
        await ann.open("r1")
        backend.clock.advance(backend.lease_s + 1)
        assert await ann.claimable() == ["r1"]
        claim = await ann.claim("r1")
        assert claim is not None and claim.record.data == started(2, False)

    async def test_a_claim_ends_the_cleanness_of_a_park(self, backend: Backend) -> None:
        need_leases(backend)
        ann = Author(backend)
        await ann.open("r1")
        await ann.park("r1")
        await ann.claim("r1")
        backend.clock.advance(backend.lease_s + 1)
        claim = await ann.claim("r1")
        assert claim is not None and claim.record.data == started(3, False)

    async def test_a_held_run_is_refused_while_the_lease_is_fresh(self, backend: Backend) -> None:
        ann, other = Author(backend), Author(backend, holder="h2")
        await ann.open("r1")
        backend.clock.advance(backend.lease_s - 1)
        assert await other.claim("r1") is None
        assert await ann.claim("r1") is None, "not even by its own holder"
        assert len(await ann.data("r1")) == 2

    async def test_a_claim_without_a_lease_lasts_until_the_process_ends(self, backend: Backend) -> None:
        if backend.leases:
            return
        ann = Author(backend)
        await ann.open("r1")
        await ann.write("r1", b"a")
        backend.clock.advance(1_000_000)
        await backend.store.beat("h2")
        assert await ann.claimable() == [] and await Author(backend, holder="h2").claim("r1") is None
        assert await ann.write("r1", b"b") is Verdict.WRITTEN
        heir = Author(await backend.reborn(), holder="h2")
        assert await heir.claimable() == ["r1"]
        heir.seqs, heir.attempts = dict(ann.seqs), dict(ann.attempts)
        assert await heir.write("r1", b"zombie") is Verdict.FENCED
        claim = await heir.claim("r1")
        assert claim is not None and claim.record.data == started(2, False)

    async def test_a_beat_renews_what_the_holder_holds(self, backend: Backend) -> None:
        need_leases(backend)
        ann, other = Author(backend), Author(backend, holder="h2")
        await ann.open("r1")
        await other.open("r2")
        backend.clock.advance(backend.lease_s - 1)
        await backend.store.beat("h1")
        backend.clock.advance(backend.lease_s - 1)
        assert await ann.claimable() == ["r2"]
        assert await other.claim("r1") is None
        assert await ann.claim("r2") is not None

    async def test_a_beat_does_not_bring_back_a_lease_that_lapsed(self, backend: Backend) -> None:
        need_leases(backend)
        ann, other = Author(backend), Author(backend, holder="h2")
        await ann.open("r1")
        backend.clock.advance(backend.lease_s + 1)
        await backend.store.beat("h1")
        assert await other.claim("r1") is not None

    async def test_a_beat_together_with_an_end_does_not_bring_the_run_back(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.open("r2")
        await ann.open("r3")
        beats = [backend.store.beat("h1") for _ in range(10)]
        changes = (ann.end("r1"), ann.park("r2"), backend.store.delete("ann", "r3"))
        await asyncio.gather(*beats[:5], *changes, *beats[5:])
        backend.clock.advance(backend.lease_s + 1)
        assert await ann.claimable() == ["r2"]
        assert await ann.claim("r1") is None
        assert await ann.claim("r3") is None
        assert await ann.write("r1", b"late") is Verdict.FENCED
        assert await ann.write("r3", b"late") is Verdict.FENCED
        assert (await ann.data("r1"))[-1] == b"ended"

    async def test_the_old_attempt_is_fenced_by_a_claim(self, backend: Backend) -> None:
        need_leases(backend)
        zombie, heir = Author(backend), Author(backend, holder="h2")
        await zombie.open("r1")
        await zombie.write("r1", b"a")
        backend.clock.advance(backend.lease_s + 1)
        await heir.claim("r1")
        assert await zombie.write("r1", b"zombie") is Verdict.FENCED
        zombie.seqs["r1"] = heir.seqs["r1"]
        assert await zombie.write("r1", b"zombie") is Verdict.FENCED
        assert await zombie.end("r1") is Verdict.FENCED
        assert await zombie.park("r1") is Verdict.FENCED
        assert await heir.write("r1", b"b") is Verdict.WRITTEN
        assert await heir.data("r1", after=1) == [b"a", started(2, False), b"b"]

    async def test_the_old_holder_does_not_renew_the_new_claim(self, backend: Backend) -> None:
        need_leases(backend)
        ann, heir = Author(backend), Author(backend, holder="h2")
        await ann.open("r1")
        backend.clock.advance(backend.lease_s + 1)
        await heir.claim("r1")
        backend.clock.advance(backend.lease_s - 1)
        await backend.store.beat("h1")
        backend.clock.advance(2)
        assert await ann.claimable() == ["r1"]

    async def test_many_claims_at_once_give_one(self, backend: Backend) -> None:
        await Author(backend).open("r1", held=False)
        claims = await asyncio.gather(*(Author(backend, holder=f"h{n}").claim("r1") for n in range(20)))
        assert len([claim for claim in claims if claim is not None]) == 1
        assert len(await Author(backend).data("r1")) == 2

    async def test_an_ended_or_unknown_run_is_not_claimed(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        assert await ann.claim("r1") is None
        assert await ann.claim("nobody") is None
        assert await backend.store.read("ann", "nobody", -1) == []

    async def test_a_first_that_raises_claims_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", held=False)

        def fail(attempt: int, clean: bool, lost: int) -> bytes:
            raise ZeroDivisionError

        work = (backend.store.claim("r1", "h1", fail, 0), ann.open("r2"))
        broken, opened = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(broken, ZeroDivisionError)
        assert not isinstance(opened, BaseException), "the failure of one caller is nobody else's"
        claim = await ann.claim("r1")
        assert claim is not None and claim.attempt == 1

    async def test_claimable_runs_come_oldest_first_up_to_a_limit(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(6):
            await ann.open(f"r{n}", held=n % 2 == 1)
        await ann.park("r3")
        assert await ann.claimable() == ["r0", "r2", "r3", "r4"]
        assert await backend.store.claimable(2, backend.clock.now_ms()) == [("ann", "r0"), ("ann", "r2")]

    async def test_owners_take_turns_and_whoever_floods_waits_behind_himself(self, backend: Backend) -> None:
        greedy, modest = Author(backend, "greedy"), Author(backend, "modest")
        for n in range(4):
            await greedy.open(f"g{n}", held=False)
        for n in range(2):
            await modest.open(f"m{n}", held=False)
        now, claimable = backend.clock.now_ms(), backend.store.claimable
        assert [run for _, run in await claimable(9, now)] == ["g0", "m0", "g1", "m1", "g2", "g3"]
        assert await claimable(1, now) == [("greedy", "g0")]
        assert await greedy.claim("g0") is not None
        assert await claimable(1, now) == [("modest", "m0")], "the other one has a run at work already"
        assert await modest.claim("m0") is not None
        assert [run for _, run in await claimable(9, now)] == ["g1", "m1", "g2", "g3"]

    async def test_an_owner_with_twice_the_weight_has_twice_the_turns(self, backend: Backend) -> None:
        for owner in ("ann", "bob"):
            for n in range(4):
                await Author(backend, owner).open(f"{owner}{n}", held=False)
        found = await backend.store.claimable(6, backend.clock.now_ms(), Fairness({"bob": 2, "eva": 9}))
        assert Counter(owner for owner, _ in found) == {"bob": 4, "ann": 2}
        owes = Fairness(debts={"ann": 0.5})
        assert await backend.store.claimable(1, backend.clock.now_ms(), owes) == [("bob", "bob0")]

    async def test_the_open_runs_of_an_owner_are_counted(self, backend: Backend) -> None:
        ann, bob = Author(backend), Author(backend, "bob")
        await ann.open("held")
        await ann.open("queued", held=False)
        await ann.finished("over")
        await bob.open("bobs")
        assert [await backend.store.peers.active(owner) for owner in ("ann", "bob", "eva")] == [2, 1, 0]
        at = backend.clock.now_ms()
        mark = Mark(status="waiting", at=at, parked=True, wake_at=at + 60_000, asks="code")
        await ann.write("held", mark=mark)
        assert await backend.store.peers.active("ann") == 1, "what waits for a person does not count"

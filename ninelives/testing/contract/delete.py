"""Contract: how a run goes. Owns: the rules of Journal.delete. See contract.py."""

from __future__ import annotations

import asyncio

from ninelives.core.spec import Resolved
from ninelives.journal.values import Query, Verdict
from ninelives.testing.author import Author, Backend, refusal


class DeleteContract:
    """Hidden for ever, and nothing of it in the way of others."""

    async def test_a_deleted_run_is_hidden_everywhere(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        await ann.open("r2")
        for run in ("r1", "r2"):
            assert await backend.store.delete("ann", run)
            assert await backend.store.find("ann", run) is None
            assert await ann.read(run) == []
            assert await backend.store.rows(Query(owner="ann", statuses=("deleted",))) == []
            assert not await ann.cancel(run)
            assert await backend.store.signals(run) == []
            assert not await backend.store.annotate("ann", run, b"{}")
            assert (await refusal(ann.open("next", previous=run))).status == 404
        assert await backend.store.rows(Query(owner="ann")) == []
        assert await ann.claimable() == []

    async def test_a_run_is_deleted_once(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        assert sorted(await asyncio.gather(*(backend.store.delete("ann", "r1") for _ in range(5)))) == [False] * 4 + [
            True
        ]
        assert not await backend.store.delete("ann", "nobody")

    async def test_a_zombie_cannot_bring_a_deleted_run_back(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        await ann.cancel("r1")
        assert await backend.store.delete("ann", "r1")
        assert await ann.write("r1", b"late") is Verdict.FENCED
        assert await ann.park("r1") is Verdict.FENCED
        assert await ann.end("r1") is Verdict.FENCED
        assert await ann.claim("r1") is None
        await backend.store.beat("h1")
        backend.clock.advance(backend.lease_s + 1)
        assert await ann.claimable() == []
        assert await ann.claim("r1") is None
        assert await ann.read("r1") == []
        assert await backend.store.signals("r1") == []
        assert (await ann.open("r2", conversation="talk")).resolved.previous is None

    async def test_a_deleted_run_frees_its_key(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", key="k")
        await ann.finished("r2", key="l")
        await backend.store.delete("ann", "r1")
        await ann.open("r3", key="k", fingerprint="other")
        assert await ann.attach("r4", key="l") == "r2"

    async def test_a_deleted_active_run_frees_its_conversation(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("r2", conversation="talk")
        await backend.store.delete("ann", "r2")
        opened = await ann.open("r3", conversation="talk")
        assert (opened.resolved.conversation, opened.resolved.previous) == ("conv_r1", "r1")

    async def test_a_deleted_old_run_does_not_free_the_active_one(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("r2", conversation="talk")
        await backend.store.delete("ann", "r1")
        assert (await refusal(ann.open("r3", conversation="talk"))).status == 409
        await ann.end("r2")
        assert (await ann.open("r3", conversation="talk")).resolved.previous == "r2"

    async def test_latest_moves_back_to_the_nearest_visible_ancestor(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(1, 6):
            await ann.finished(f"r{n}", conversation="talk")
        latest = []
        for gone in ("r3", "r5", "r4", "r1", "r2"):
            await backend.store.delete("ann", gone)
            resolved = await backend.store.resolve(ann.asked(conversation="talk", kept="memory"))
            latest.append(resolved.previous)
        assert latest == ["r5", "r4", "r2", "r2", None]

    async def test_descendants_keep_the_turns_of_deleted_ancestors(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        await ann.finished("r2", previous="r1")
        await ann.finished("r3", previous="r2")
        await backend.store.delete("ann", "r1")
        await backend.store.delete("ann", "r2")
        chain = Resolved(previous="r3")
        assert await backend.store.turns("ann", chain) == [b'["r1"]', b'["r2"]', b'["r3"]']
        opened = await ann.open("r4", previous="r3")
        assert await backend.store.turns("ann", opened.resolved) == [b'["r1"]', b'["r2"]', b'["r3"]']

    async def test_a_run_that_follows_a_run_deleted_meanwhile_keeps_its_history(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        opened = await ann.open("r2", previous="r1")
        await backend.store.delete("ann", "r1")
        assert await backend.store.turns("ann", opened.resolved) == [b'["r1"]']
        await ann.end("r2")
        assert await backend.store.turns("ann", Resolved(previous="r2")) == [b'["r1"]', b'["r2"]']

    async def test_deletes_and_writes_at_once_leave_the_run_gone(self, backend: Backend) -> None:
        ann = Author(backend)
        for n in range(10):
            run = f"r{n}"
            await ann.open(run)
            before, gone, after = await asyncio.gather(
                backend.store.append([ann.slice(run, b"a")]),
                backend.store.delete("ann", run),
                backend.store.append([ann.slice(run, b"a")]),
            )
            assert gone and after == [Verdict.FENCED] and before == [Verdict.WRITTEN]
            assert await ann.read(run) == []

"""What the memory store has beside the contract: its sessions may live elsewhere."""

from __future__ import annotations

import pytest

from holdfast.core.admission import Asked
from holdfast.journal.base import Mark, StoreUnavailable, Verdict
from holdfast.journal.memory import MemoryStore
from holdfast.testing import Author, Backend, VirtualClock


class Unsteady(MemoryStore):
    """A store for sessions that fails when it is told to."""

    failures: list[str]

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        if session in self.failures:
            self.failures.remove(session)
            raise StoreUnavailable("full", passing=True)
        await super().remember(owner, session, at, turn)


@pytest.fixture
def elsewhere(clock: VirtualClock) -> Unsteady:
    store = Unsteady(clock)
    store.failures = []
    return store


@pytest.fixture
def ann(clock: VirtualClock, elsewhere: Unsteady) -> Author:
    return Author(Backend(MemoryStore(clock, sessions=elsewhere), clock))


async def turns(store: MemoryStore, session: str) -> list[bytes]:
    known = await store.resolve(Asked(owner="ann", fingerprint="", session=session))
    return await store.turns("ann", known)


async def test_a_turn_goes_to_the_sessions_elsewhere(ann: Author, elsewhere: Unsteady) -> None:
    await ann.open("r1")
    assert await ann.end("r1", session="s") is Verdict.WRITTEN
    assert await turns(elsewhere, "s") == [b'["r1"]']


async def test_a_fenced_slice_gives_no_turn(ann: Author, elsewhere: Unsteady) -> None:
    await ann.open("r1")
    ann.attempts["r1"] = 2
    assert await ann.end("r1", session="s") is Verdict.FENCED
    ann.attempts["r1"] = 1
    assert await ann.end("r1", session="s") is Verdict.WRITTEN
    assert await ann.end("r1", session="s") is Verdict.FENCED
    assert await turns(elsewhere, "s") == [b'["r1"]']


async def test_a_batch_that_is_tried_again_gives_each_turn_once(ann: Author, elsewhere: Unsteady) -> None:
    """The second session fails: nothing is written, and the first must not have its turn twice after the retry."""
    elsewhere.failures = ["b", "b"]
    slices = []
    for run, session in (("r1", "a"), ("r2", "b"), ("r3", "c")):
        await ann.open(run)
        mark = Mark(status="completed", at=0, ended=True, turn=b"[1]", session=session)
        slices.append(ann.slice(run, b"end", mark=mark))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await ann.store.append(slices)
        assert [len(await ann.data(run)) for run in ("r1", "r2", "r3")] == [2, 2, 2]
    assert await ann.store.append(slices) == [Verdict.WRITTEN] * 3
    assert [await turns(elsewhere, session) for session in "abc"] == [[b"[1]"]] * 3

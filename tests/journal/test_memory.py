"""What the memory store adds to the contract."""

from __future__ import annotations

from ninelives.journal.memory.store import MemoryStore
from ninelives.testing import Author, Backend, VirtualClock


async def test_it_says_at_once_whether_it_has_a_run(clock: VirtualClock) -> None:
    store = MemoryStore(clock)
    ann = Author(Backend(store, clock))
    await ann.open("active", kept="memory")
    await ann.finished("done")
    await ann.finished("follows", previous="done")
    assert store.has("active") and store.has("done") and not store.has("nobody")
    await store.delete("ann", "active")
    await store.delete("ann", "done")
    assert not store.has("active") and not store.has("done")


async def test_a_run_in_memory_is_forgotten_when_it_has_ended(clock: VirtualClock) -> None:
    store = MemoryStore(clock)
    ann = Author(Backend(store, clock))
    await ann.finished("r1", kept="memory")
    await store.forget([("ann", "r1")])
    assert not store.has("r1")

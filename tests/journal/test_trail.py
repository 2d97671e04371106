"""The way into the audit log: who waits for an entry, and entries that are sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ninelives.journal.accounts import trail as trails
from ninelives.journal.accounts.base import AuditEntry, AuditQuery
from ninelives.journal.accounts.memory import MemoryAudit
from ninelives.journal.accounts.trail import AuditKeep, AuditTrail
from ninelives.journal.values import StoreUnavailable


class Lines:
    def __init__(self) -> None:
        self.names: list[str] = []

    def info(self, name: str, **fields: object) -> None:
        self.names.append(name)

    warning = error = info


class Store(MemoryAudit):
    """One that can be away, slow, or lose its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.answer_lost = 0
        self.calls = 0
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        self.calls += 1
        self.asked.set()
        await self.gate.wait()
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away", passing=True)
        await super().add(entries)
        if self.answer_lost:
            self.answer_lost -= 1
            raise StoreUnavailable("the answer was lost", passing=True)

    async def objects(self) -> list[str]:
        return [each.object for each in await self.page(AuditQuery(newest=False))]


def entry(name: str, **fields: Any) -> AuditEntry:
    return AuditEntry(owner="ann", key="k", action="run.cancel", object=name, result="ok", **fields)


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def trail(store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(trails, "FLUSH_S", 0.01)
    made = AuditTrail(store, lambda: 5, Lines(), AuditKeep())
    await made.start()
    yield made
    await made.stop()


async def test_whoever_keeps_an_entry_goes_on_when_it_and_all_before_it_are_stored(store: Store, trail: Any) -> None:
    store.gate.clear()
    trail.note(entry("a"))
    keeping = asyncio.create_task(trail.keep([entry("b"), entry("c")]))
    await store.asked.wait()
    assert not keeping.done() and await store.objects() == []
    store.gate.set()
    await keeping
    assert await store.objects() == ["a", "b", "c"]


async def test_an_entry_whose_answer_was_lost_is_there_once_and_in_its_place(store: Store, trail: Any) -> None:
    store.away, store.answer_lost = 1, 1
    await trail.keep([entry("a"), entry("b")])
    await trail.keep([entry("c")])
    assert await store.objects() == ["a", "b", "c"] and store.calls >= 3


async def test_the_same_deed_is_one_entry_whoever_tells_it(store: Store, trail: Any) -> None:
    await trail.keep([entry("a", id="run 1", remote="1.2.3.4")])
    await trail.keep([entry("a", id="run 1")])
    assert [(each.object, each.remote) for each in await store.page(AuditQuery())] == [("a", "1.2.3.4")]


async def test_a_stop_in_the_middle_of_a_write_loses_nothing(store: Store, trail: Any) -> None:
    store.gate.clear()
    trail.note(entry("a"))
    await store.asked.wait()
    asyncio.get_running_loop().call_later(0.02, store.gate.set)
    await trail.stop()
    assert await store.objects() == ["a"]


async def test_a_store_that_stays_away_holds_nobody_for_ever(
    store: Store, trail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trails, "KEEP_S", 0.05)
    store.away = 1_000
    await trail.keep([entry("a")])
    assert await store.objects() == []
    store.away = 0
    await trail.keep([])
    assert await store.objects() == ["a"]

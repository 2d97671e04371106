"""Fixtures of the journal tests: SQLite stores that are closed at the end of the test."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

if "ninelives.testing" not in sys.modules:  # show values in the suite's asserts, if it is not imported yet
    pytest.register_assert_rewrite("ninelives.testing")

from ninelives.journal.sqlite import database, tails
from ninelives.testing import VirtualClock
from tests.journal.opened_store import OpenedStore


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep runs without pauses."""
    monkeypatch.setattr(database, "UPKEEP_S", 0.001)


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is so short that it is packed with its end."""
    monkeypatch.setattr(tails, "SHORT_BYTES", -1)


@pytest.fixture
async def open_store(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Callable[..., Awaitable[OpenedStore]]]:
    """Opens the store of this test, or another one by name. All are closed at the end."""
    opened: list[OpenedStore] = []

    async def open_at(name: str = "journal.db", *, upkeep: bool = True) -> OpenedStore:
        one = await OpenedStore.open_at(tmp_path / name, clock, upkeep=upkeep)
        opened.append(one)
        return one

    yield open_at
    for one in opened:
        await one.close()

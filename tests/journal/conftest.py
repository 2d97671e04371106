"""What the journal tests share: SQLite stores that are closed at the end, and looks behind their doors."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

if "holdfast.testing" not in sys.modules:  # the suite's asserts tell what they saw, unless it is too late for that
    pytest.register_assert_rewrite("holdfast.testing")

from holdfast.journal import sqlite
from holdfast.testing import VirtualClock
from tests.journal.shelf import Shelf


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep does not rest."""
    monkeypatch.setattr(sqlite, "UPKEEP_S", 0.001)


@pytest.fixture
async def shelf(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Callable[..., Awaitable[Shelf]]]:
    """Open the store of this test (or another by name); all are closed at the end."""
    opened: list[Shelf] = []

    async def open_at(name: str = "journal.db", *, upkeep: bool = True) -> Shelf:
        one = await Shelf.open_at(tmp_path / name, clock, upkeep=upkeep)
        opened.append(one)
        return one

    yield open_at
    for one in opened:
        await one.close()

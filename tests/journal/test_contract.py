"""Every backend keeps the journal contract; SQLite also while everything is sealed at once, PostgreSQL on a real
server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from holdfast.journal import sqlite, sqlite_segments
from holdfast.journal.base import Store
from holdfast.journal.bell import LocalBell
from holdfast.journal.memory import MemoryStore
from holdfast.testing import Backend, JournalContract, VirtualClock
from holdfast.testing.shared import SharedMemory
from tests import pg
from tests.journal.shelf import Shelf


class TestMemoryStore(JournalContract):
    @pytest.fixture
    async def backend(self, clock: VirtualClock) -> Backend:
        return Backend(MemoryStore(clock), clock)


class TestSharedMemory(JournalContract):
    """The twin of a database that many processes use: tests and simulator lean on it."""

    @pytest.fixture
    async def backend(self, clock: VirtualClock) -> Backend:
        store = SharedMemory(clock, clock.now_ms)
        seats = [store.seat(f"h{n}", LocalBell()) for n in range(3)]
        return Backend(cast(Store, seats[1]), clock)


class TestSqliteStore(JournalContract):
    @pytest.fixture
    async def backend(self, shelf: Callable[..., Awaitable[Shelf]]) -> Backend:
        return (await shelf()).backend


class TestSqliteStoreThatSealsAtOnce(JournalContract):
    @pytest.fixture
    async def backend(
        self, shelf: Callable[..., Awaitable[Shelf]], monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Backend]:
        monkeypatch.setattr(sqlite, "UPKEEP_S", 0)
        monkeypatch.setattr(sqlite, "SPILL_BYTES", -1)
        monkeypatch.setattr(sqlite, "HOT_ROWS", 0)
        monkeypatch.setattr(sqlite_segments, "SEGMENT_BYTES", 2_000)
        one = await shelf()
        yield one.backend
        assert one.store.upkeep.problem is None
        assert not one.store._upkeep.done()


class TestPostgresStore(JournalContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with pg.backend() as one:
            yield one

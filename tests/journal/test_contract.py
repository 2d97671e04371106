"""Every backend passes the journal contract: SQLite also while everything is sealed at once, PostgreSQL on a real
server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from ninelives.journal.base import Store
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.sqlite import database, segments, tails
from ninelives.testing import Backend, JournalContract, VirtualClock
from ninelives.testing.shared import SharedMemory
from tests import pg
from tests.journal.opened_store import OpenedStore


def in_memory(store: MemoryStore, clock: VirtualClock) -> Backend:
    """A memory store, which the next process finds as the last one left it."""

    async def restart() -> Backend:
        store.restart()
        return in_memory(store, clock)

    return Backend(store, clock, restart=restart)


class TestMemoryStore(JournalContract):
    @pytest.fixture
    async def backend(self, clock: VirtualClock) -> Backend:
        return in_memory(MemoryStore(clock), clock)


class TestSharedMemory(JournalContract):
    """The in-memory model of a shared database, which tests and simulator rely on."""

    @pytest.fixture
    async def backend(self, clock: VirtualClock) -> Backend:
        store = SharedMemory(clock, clock.now_ms)
        here, there = (cast(Store, store.seat(holder, LocalNotifier())) for holder in ("h1", "h2"))

        async def restart() -> Backend:
            clock.advance(16.0)
            return Backend(cast(Store, store.seat("p1", LocalNotifier())), clock)

        return Backend(here, clock, other=there, restart=restart)


class TestSqliteStore(JournalContract):
    @pytest.fixture
    async def backend(self, open_store: Callable[..., Awaitable[OpenedStore]], tmp_path: Path) -> Backend:
        return restartable(await open_store(), open_store, tmp_path)


def restartable(one: OpenedStore, open_store: Callable[..., Awaitable[OpenedStore]], folder: Path) -> Backend:
    """A SQLite store. The next process opens a copy of the files, as a kill leaves them."""

    async def restart() -> Backend:
        await one.copy(folder / "copy.db")
        return (await open_store("copy.db")).backend

    return one.backend._replace(restart=restart)


class TestSqliteStoreThatSealsAtOnce(JournalContract):
    @pytest.fixture
    async def backend(
        self, open_store: Callable[..., Awaitable[OpenedStore]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> AsyncIterator[Backend]:
        monkeypatch.setattr(database, "UPKEEP_S", 0)
        monkeypatch.setattr(database, "SCRUB_S", 0)
        monkeypatch.setattr(tails, "SPILL_BYTES", -1)
        monkeypatch.setattr(database, "HOT_ROWS", 0)
        monkeypatch.setattr(segments, "SEGMENT_BYTES", 2_000)
        one = await open_store()
        yield restartable(one, open_store, tmp_path)
        assert one.database.problem is None
        assert not one.database.upkeep.done()


class TestPostgresStore(JournalContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with pg.backend() as one:
            yield one

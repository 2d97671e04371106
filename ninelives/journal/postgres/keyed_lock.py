"""Locks by name within one process. Owns: one lock per name that is in use, first come first served. Refuses to know:
what a name stands for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class KeyedLock:
    """Locks by name. A lock exists only while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold_all(self, names: Iterable[tuple[str, ...]]) -> AsyncIterator[None]:
        """Hold the locks of all these names. They are taken in sorted order, so there is no deadlock."""
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                await stack.enter_async_context(self._hold_one(name))
            yield

    @asynccontextmanager
    async def _hold_one(self, name: tuple[str, ...]) -> AsyncIterator[None]:
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)

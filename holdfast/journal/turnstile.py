"""One at a time through the same gate. Owns: locks by name, in the order of coming, that are gone when nobody waits.
Refuses to know: what is behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class Turnstile:
    """Locks by name. Several are taken in one order, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._gates: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def through(self, names: Iterable[tuple[str, ...]]) -> AsyncIterator[None]:
        """Go through these gates, alone."""
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                await stack.enter_async_context(self._gate(name))
            yield

    @asynccontextmanager
    async def _gate(self, name: tuple[str, ...]) -> AsyncIterator[None]:
        lock, waiting = self._gates.get(name, (asyncio.Lock(), 0))
        self._gates[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._gates[name]
            if waiting == 1:
                del self._gates[name]
            else:
                self._gates[name] = (lock, waiting - 1)

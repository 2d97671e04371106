"""Timelines of runs, read once. Owns: folding journals into timelines in small slices, and keeping what was folded, so
that the next look at a run reads its new entries only. Refuses to know: routes and owners' rights.

Both caches are bounded in bytes. Nothing kept is the truth: a caller looks first whether the run is still there."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from ninelives.dialects.inspector.shapes import RunLine
from ninelives.dialects.inspector.timeline import Timeline
from ninelives.engine.engine import Engine
from ninelives.journal.cache import BoundedCache
from ninelives.journal.values import RunRow

SLICE = 512
"""A loop over entries lets others run after so many, about 2 ms of work (R12)."""
TIMELINE_BYTES = 8 * 1024 * 1024
LINE_BYTES = 8 * 1024 * 1024
STEP_BYTES = 1_000
LINE_COST = 2_000


class Timelines:
    """The timelines of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: BoundedCache[str, Timeline] = BoundedCache(TIMELINE_BYTES)
        self._lines: BoundedCache[str, RunLine] = BoundedCache(LINE_BYTES)
        """Of ended runs, which do not change."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, row: RunRow) -> Timeline:
        """A run over time, up to its last committed entry."""
        lock = self._locks.setdefault(row.run, asyncio.Lock())
        async with lock:
            made = self._kept.get(row.run) or Timeline()
            if not made.ended:
                await self._go_on(row, made)
            size = len(made.kinds) + STEP_BYTES * (len(made.steps) + 1)
            self._kept.put(row.run, made, size)
            return made

    async def _go_on(self, row: RunRow, made: Timeline) -> None:
        count = 0
        async for entry in self._engine.entries(row.owner, row.run, made.seq):
            made.add(entry)
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)

    async def line(self, row: RunRow) -> RunLine | None:
        """A run in the list; None where its journal is gone."""
        line = self._lines.get(row.run)
        if line is None:
            made = await self.read(row)
            if made.seq < 0:
                return None
            line = made.line()
            if made.ended:
                self._lines.put(row.run, line, LINE_COST)
        return line

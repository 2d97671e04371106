"""Openings and claims whose answer was lost, in one process that uses PostgreSQL. Owns: what may be in the database
without anybody here knowing, and putting it right: a run that nobody drives goes back to be claimed, and a caller who
was told that the opening failed has lost its connection, so that asking again finds the run (G13, B8). Refuses to know:
how an opening or a claim is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.journal import queries
from holdfast.journal.postgres_lines import Line, Lines

SQL = queries.load("postgres.sql")
DOUBT_S = 60.0
"""A broken connection's last statement may still happen for a while."""


class Doubts:
    """Of one process."""

    def __init__(self, lines: Lines, holder: str) -> None:
        self._lines = lines
        self._holder = holder
        self._held: dict[tuple[str, int], float] = {}
        """(run, attempt) that may be held by this process without its knowledge, and since when."""
        self._begun: dict[str, float] = {}
        """Runs that may have begun though their callers were told otherwise, and since when."""
        self._settling = asyncio.Lock()
        """Runs in doubt are given back, or taken, never both at once."""

    def __bool__(self) -> bool:
        return bool(self._held or self._begun)

    def opening(self, run: str, *, held: bool) -> None:
        """The answer to an opening was lost."""
        now = asyncio.get_running_loop().time()
        self._begun[run] = now
        if held:
            self._held[run, 1] = now

    def claim(self, run: str, attempt: int) -> None:
        """The answer to a claim was lost."""
        self._held[run, attempt] = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def left_alone(self, run: str) -> AsyncIterator[None]:
        """While a run is taken anew it is not given back."""
        if not self._of(run):
            yield
            return
        async with self._settling:
            yield

    def taken(self, run: str) -> None:
        """It is driven here now: it must not be given back."""
        for doubt in self._of(run):
            self._held.pop(doubt, None)
        self._begun.pop(run, None)

    def _of(self, run: str) -> list[tuple[str, int]]:
        known = [doubt for doubt in self._held if doubt[0] == run]
        return known or ([(run, 0)] if run in self._begun else [])

    async def settle(self) -> bool:
        """Put right what can be found by now. Is there work for others?"""
        if not self:
            return False
        async with self._settling:
            held, begun = list(self._held), list(self._begun)
            columns = [[doubt[n] for doubt in held] for n in (0, 1)]

            async def work(line: Line) -> tuple[set[str], set[str]]:
                back = await line.fetch(SQL["give_back"], *columns, self._holder) if held else ()
                lost = await line.fetch(SQL["lose_begun"], begun, self._holder) if begun else ()
                return {row["id"] for row in back}, {row["id"] for row in lost}

            back, lost = await self._lines.ask(work)
            before = asyncio.get_running_loop().time() - DOUBT_S
            self._held = {doubt: at for doubt, at in self._held.items() if doubt[0] not in back and at > before}
            self._begun = {run: at for run, at in self._begun.items() if run not in lost and at > before}
        return bool(back)

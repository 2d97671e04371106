"""Retention in a SQLite store. Owns: which runs have to go, their going, and the end of their tombstones. Refuses to
know: why a bound was chosen, and who reads a run at the moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import apsw

from holdfast.journal import sqlite_rows
from holdfast.journal.base_upkeep import Gone, Kept, Retention, Use
from holdfast.journal.desk import Desk
from holdfast.journal.sqlite_rows import SQL, Fences
from holdfast.journal.tails import Tail

SLICE = 64
ROUND = 1024
Write = Callable[[Callable[[apsw.Connection], Any]], Awaitable[Any]]


class SqliteUpkeep:
    """See Upkeep."""

    def __init__(self, write: Write, query: Write, fences: Fences, tails: dict[str, Tail], writer: Desk[Any]) -> None:
        self._write = write
        self._writer = writer
        self._query = query
        self._fences = fences
        self._tails = tails
        self.room: str | None = None
        self.problem: str | None = None
        """Why sealing, trimming and checkpoints cannot go on now."""

    def short(self) -> str | None:
        """See Upkeep.short."""
        return self.room

    def told_room(self, short: str | None) -> None:
        """How the disk is filled now."""
        self.room = short

    def trouble(self) -> str | None:
        """See Upkeep.trouble."""
        return str(self._writer.broken) if self._writer.broken is not None else self.problem

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        if uses:
            await self._write(lambda db: db.executemany(SQL["touch"], uses) and None)

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        return bool(await self._write(lambda db: db.execute(SQL["pin"], (owner, run, int(pinned))).fetchall()))

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return bool(await self._query(lambda db: db.execute(SQL["expired"], (owner, run)).fetchall()))

    async def usage(self) -> list[Kept]:
        """See Upkeep.usage."""
        rows = await self._query(lambda db: db.execute(SQL["usage"]).fetchall())
        return [Kept(*row) for row in rows]

    async def evict(self, rule: Retention, spared: frozenset[str]) -> list[Gone]:
        """See Upkeep.evict."""
        bounds = (rule.runs, rule.owner_bytes, rule.total_bytes, rule.before, ROUND)
        stale: list[Gone] = await self._query(lambda db: db.execute(SQL["stale"], bounds).fetchall())
        stale = [found for found in stale if found[1] not in spared]
        gone: list[Gone] = []
        for start in range(0, len(stale), SLICE):
            part = stale[start : start + SLICE]
            gone += await self._write(lambda db, part=part: self._evict(db, part, rule.at))  # type: ignore[misc]
        await self._write(lambda db: _bury(db, rule.at - rule.tombstone_ms))
        for _owner, run in gone:
            self._tails.pop(run, None)
        return gone

    def _evict(self, db: apsw.Connection, stale: Sequence[Gone], at: int) -> list[Gone]:
        gone = []
        for owner, run in stale:
            row: Any = db.execute(SQL["youngest"], (owner, run)).fetchone()
            if row is None:  # pinned, deleted or taken up again since it was looked for
                continue
            used, later = row
            if later is not None and later > used:  # a chain ages by its youngest member
                db.execute(SQL["touch"], (owner, run, later))
            elif sqlite_rows.hide(db, self._fences, (owner, run), at, sqlite_rows.EVICTED):
                gone.append((owner, run))
        return gone


def _bury(db: apsw.Connection, before: int) -> None:
    forgotten = db.execute(SQL["forget_turns_of_hidden"]).fetchall()
    db.executemany(SQL["forget_edits_of"], forgotten)
    db.execute(SQL["drop_tombstones"], (before,))

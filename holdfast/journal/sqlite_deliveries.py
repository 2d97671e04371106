"""Who waits for which answer, in SQLite. Owns: three statements. Refuses to know: threads; it is given a way to
write."""

from __future__ import annotations

from holdfast.journal.sqlite_rows import SQL
from holdfast.journal.sqlite_sessions import Ask


class SqliteDeliveries:
    """See journal.base.Deliveries."""

    def __init__(self, write: Ask) -> None:
        self._write = write

    async def answered(self, owner: str, run: str) -> None:
        """See Deliveries.answered."""
        await self._write(lambda db: db.execute(SQL["answered"], (owner, run)) and None)

    async def lost(self, owner: str, run: str, at: int) -> None:
        """See Deliveries.lost."""
        await self._write(lambda db: db.execute(SQL["lose"], (owner, run, at)) and None)

    async def strand(self, at: int) -> None:
        """See Deliveries.strand."""
        await self._write(lambda db: db.execute(SQL["strand"], (at,)) and None)

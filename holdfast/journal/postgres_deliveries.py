"""Who waits for which answer, in PostgreSQL. Owns: three statements. A run knows the process on whose connection
somebody waits, so that the end of one process loses only its own. When something was lost is told by the database's
clock, because another machine may be asked again. Refuses to know: connections to the database; it is given lines."""

from __future__ import annotations

from holdfast.journal.postgres_bell import SQL as PEERS
from holdfast.journal.postgres_lines import WORK_S, Lines
from holdfast.journal.postgres_rows import SQL


class PostgresDeliveries:
    """See journal.base.Deliveries."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def answered(self, owner: str, run: str) -> None:
        """See Deliveries.answered."""
        await self._lines.ask(lambda line: line.execute(SQL["answered"], owner, run))

    async def lost(self, owner: str, run: str, at: int) -> None:
        """See Deliveries.lost."""
        await self._lines.ask(lambda line: line.execute(SQL["lose"], owner, run))

    async def strand(self, at: int) -> None:
        """See Deliveries.strand. Only the connections of processes that are gone."""
        await self._lines.ask(lambda line: line.execute(PEERS["strand"], ""), WORK_S)

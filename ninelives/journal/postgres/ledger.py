"""What was spent, in PostgreSQL. Owns: the tables of usage. All processes add to the same rows. Refuses to know:
limits."""

from __future__ import annotations

from collections.abc import Sequence

from ninelives.journal import queries
from ninelives.journal.postgres.connections import WORK_S, Connections
from ninelives.journal.values import (
    DAY_MS,
    MINUTE_MS,
    RECENT_MINUTES,
    Spending,
    Subject,
    Totals,
    columns_of,
    month_start,
    spending_of,
    totals_of,
)

SQL = queries.load("postgres", "ledger")


class PostgresLedger:
    """See journal.base.Ledger."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def add(self, spent: Sequence[Spending]) -> None:
        """See Ledger.add."""
        rows = [(each.owner, each.at // MINUTE_MS, each.model, each.key, *columns_of(each)) for each in spent]
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            oldest = max(each.at // MINUTE_MS for each in spent) - RECENT_MINUTES
            await self._connections.transact(lambda connection: connection.execute(SQL["add"], *columns, oldest))

    async def days(self, owner: str | None, since: int, until: int) -> list[Spending]:
        """See Ledger.days."""
        values = (owner, since // DAY_MS, until // DAY_MS)
        rows = await self._connections.fetch_filtered(SQL["days"], *values, limit_s=WORK_S)
        return [spending_of(*row) for row in rows]

    async def totals(self, subject: Subject, now: int) -> Totals:
        """See Ledger.totals."""
        kind, name = subject
        (sums,) = await self._connections.fetch(SQL[f"{kind}_days"], name, now // DAY_MS, month_start(now))
        minutes = await self._connections.fetch(SQL[f"{kind}_minutes"], name, now // MINUTE_MS - 1)
        return totals_of(sums, minutes)

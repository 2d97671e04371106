"""Keys and the audit log in PostgreSQL. Owns: their statements, and the notification that a key has changed. Refuses to
know: connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninelives.journal import queries
from ninelives.journal.accounts.base import ENDED_MS, AuditEntry, AuditQuery, KeyRow, columns_of, row_of
from ninelives.journal.accounts.sqlite import TRIM_AT_ONCE, audit_entry, audit_values
from ninelives.journal.postgres.connections import WORK_S, Connection, Connections, in_transaction
from ninelives.journal.postgres.listener import notify_payloads
from ninelives.journal.postgres.rows import SQL as ROWS

SQL = queries.load("postgres", "accounts")
TOPIC = "keys"
"""Other processes are notified under this name."""
AUDIT_COLUMNS = ("at", "owner", "key", "action", "object", "result", "remote", "detail", "id")


class PostgresKeys:
    """See Keys. `holder` is this process."""

    def __init__(self, connections: Connections, holder: str) -> None:
        self._connections = connections
        self._holder = holder

    async def add(self, row: KeyRow, entry: AuditEntry | None = None, old: KeyRow | None = None) -> bool:
        """See Keys.add."""
        await self._connections.execute(SQL["forget_ended"], row.created_at - ENDED_MS)
        return await self._change([("add", columns_of(row)), *([_replaced(old)] if old is not None else [])], entry)

    async def replace(self, row: KeyRow, entry: AuditEntry | None = None) -> bool:
        """See Keys.replace."""
        return await self._change([_replaced(row)], entry)

    async def _change(self, steps: Sequence[tuple[str, Sequence[Any]]], entry: AuditEntry | None) -> bool:
        """All steps and the entry, or nothing. One step may run twice: the second time it finds what it did."""

        async def change(connection: Connection) -> None:
            for query, values in steps:
                if not await connection.fetch(SQL[query], *values):
                    raise _ChangedMeanwhile
            await connection.execute(SQL["add_audit"], *_columns([entry] if entry is not None else []))
            (payload,) = notify_payloads(self._holder, [TOPIC])
            await connection.execute(ROWS["notify"], payload)

        try:
            if len(steps) > 1:
                await self._connections.transact(change)
            else:
                await self._connections.ask(lambda connection: in_transaction(connection, change))
        except _ChangedMeanwhile:
            return False
        return True

    async def find(self, key: str) -> KeyRow | None:
        """See Keys.find."""
        rows = await self._rows("find", key)
        return rows[0] if rows else None

    async def page(self, limit: int, after: str = "") -> list[KeyRow]:
        """See Keys.page."""
        return await self._rows("page", limit, after)

    async def since(self, version: int) -> list[KeyRow]:
        """See Keys.since."""
        return await self._rows("since", version)

    async def count(self) -> int:
        """See Keys.count."""
        return int(await self._connections.fetchval(SQL["count"]))

    async def used(self, at: Mapping[str, int]) -> None:
        """See Keys.used."""
        await self._connections.execute(SQL["used"], list(at), list(at.values()))

    async def _rows(self, query: str, *values: Any) -> list[KeyRow]:
        rows = await self._connections.fetch(SQL[query], *values)
        return [row_of(tuple(row)[:-1], row["version"]) for row in rows]


class _ChangedMeanwhile(Exception):
    """Nothing is changed: the transaction is rolled back."""


def _replaced(row: KeyRow) -> tuple[str, Sequence[Any]]:
    columns = columns_of(row)
    return "replace", (columns[0], *columns[2:11], row.version)


def _columns(entries: Sequence[AuditEntry]) -> list[list[Any]]:
    return [[getattr(entry, name) for entry in entries] for name in AUDIT_COLUMNS]


class PostgresAudit:
    """See AuditLog."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """See AuditLog.add."""
        if not entries:
            return
        columns = _columns(entries)
        await self._connections.once(lambda connection: connection.execute(SQL["add_audit"], *columns))

    async def page(self, query: AuditQuery) -> list[AuditEntry]:
        """See AuditLog.page."""
        name = "audit_down" if query.newest else "audit_up"
        rows = await self._connections.fetch_filtered(SQL[name], *audit_values(query), limit_s=WORK_S)
        return [audit_entry(tuple(row)) for row in rows]

    async def trim(self, before: int, keep: int) -> int:
        """See AuditLog.trim."""
        first = await self._connections.fetchval(SQL["audit_first_kept"], before, keep, limit_s=WORK_S)
        return len(await self._connections.fetch(SQL["trim_audit"], first, TRIM_AT_ONCE, limit_s=WORK_S))

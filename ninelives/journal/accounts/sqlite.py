"""Keys and the audit log in SQLite. Owns: their statements. Refuses to know: threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
from msgspec.structs import astuple

from ninelives.journal import queries
from ninelives.journal.accounts.base import ENDED_MS, AuditEntry, AuditQuery, KeyRow, columns_of, row_of
from ninelives.journal.sqlite.database import SqliteDatabase

SQL = queries.load("sqlite", "accounts")
TRIM_AT_ONCE = 1000


class SqliteKeys:
    """See Keys."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, row: KeyRow, entry: AuditEntry | None = None, old: KeyRow | None = None) -> bool:
        """See Keys.add."""

        def write(db: apsw.Connection) -> bool:
            db.execute(SQL["forget_ended"], (row.created_at - ENDED_MS,))
            if not db.execute(SQL["add"], (*columns_of(row), _next_version(db))).fetchall():
                return False
            if old is not None and not _replace(db, old):
                db.execute(SQL["take_back"], (row.id,))
                return False
            return _noted(db, entry)

        return await self._database.write(write)

    async def replace(self, row: KeyRow, entry: AuditEntry | None = None) -> bool:
        """See Keys.replace."""
        return await self._database.write(lambda db: _replace(db, row) and _noted(db, entry))

    async def find(self, key: str) -> KeyRow | None:
        """See Keys.find."""
        rows = await self._rows("find", (key,))
        return rows[0] if rows else None

    async def page(self, limit: int, after: str = "") -> list[KeyRow]:
        """See Keys.page."""
        return await self._rows("page", (limit, after))

    async def since(self, version: int) -> list[KeyRow]:
        """See Keys.since."""
        return await self._rows("since", (version,))

    async def count(self) -> int:
        """See Keys.count."""
        return int((await self._database.select(SQL["count"]))[0][0])

    async def used(self, at: Mapping[str, int]) -> None:
        """See Keys.used."""

        def write(db: apsw.Connection) -> None:
            for key, when in at.items():
                db.execute(SQL["used"], (key, when))

        await self._database.write(write)

    async def _rows(self, query: str, values: Sequence[apsw.SQLiteValue]) -> list[KeyRow]:
        return [row_of(row[:-1], row[-1]) for row in await self._database.select(SQL[query], values)]


def _replace(db: apsw.Connection, row: KeyRow) -> bool:
    return bool(db.execute(SQL["replace"], (*columns_of(row), row.version, _next_version(db))).fetchall())


def _noted(db: apsw.Connection, entry: AuditEntry | None) -> bool:
    if entry is not None:
        db.execute(SQL["add_audit"], astuple(entry)).fetchall()
    return True


def _next_version(db: apsw.Connection) -> int:
    found: Any = db.execute(SQL["next_version"]).fetchall()
    return int(found[0][0])


class SqliteAudit:
    """See AuditLog."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """See AuditLog.add."""
        rows = [astuple(entry) for entry in entries]
        await self._database.write(lambda db: db.executemany(SQL["add_audit"], rows).fetchall())

    async def page(self, query: AuditQuery) -> list[AuditEntry]:
        """See AuditLog.page."""
        name = "audit_down" if query.newest else "audit_up"
        rows = await self._database.select(SQL[name], audit_values(query))
        return [audit_entry(row) for row in rows]

    async def trim(self, before: int, keep: int) -> int:
        """See AuditLog.trim."""

        def write(db: apsw.Connection) -> int:
            first: Any = db.execute(SQL["audit_first_kept"], (before, keep)).fetchall()[0][0]
            return len(db.execute(SQL["trim_audit"], (first, TRIM_AT_ONCE)).fetchall())

        return await self._database.write(write)


def audit_values(query: AuditQuery) -> tuple[int | str, ...]:
    """The values of a query for a page."""
    return (query.limit, query.after, query.before, query.owner, query.key, query.action, query.object)


def audit_entry(row: Sequence[Any]) -> AuditEntry:
    """An entry from a row of a page."""
    at, owner, key, action, object, result, remote, detail, n = row
    return AuditEntry(
        at=at, owner=owner, key=key, action=action, object=object, result=result, remote=remote, detail=detail, n=n
    )

"""Keys and the audit log in memory. Owns: two tables. Refuses to know: anything durable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ninelives.journal.accounts.base import ENDED_MS, AuditEntry, AuditQuery, KeyRow


class MemoryKeys:
    """See Keys."""

    def __init__(self, audit: MemoryAudit) -> None:
        self._audit = audit
        self._rows: dict[str, KeyRow] = {}
        self._version = 0

    async def add(self, row: KeyRow, entry: AuditEntry | None = None, old: KeyRow | None = None) -> bool:
        """See Keys.add."""
        if row.id in self._rows or (old is not None and not await self.replace(old)):
            return False
        for old in [each for each in self._rows.values() if is_old(each, row.created_at)]:
            del self._rows[old.id]
        self._version += 1
        self._rows[row.id] = replace(row, version=self._version)
        await self._audit.add([entry] if entry is not None else [])
        return True

    async def replace(self, row: KeyRow, entry: AuditEntry | None = None) -> bool:
        """See Keys.replace."""
        old = self._rows.get(row.id)
        if old is None or old.version != row.version:
            return False
        self._version += 1
        fixed = {name: getattr(old, name) for name in ("digest", "created_by", "created_at", "last_used_at")}
        self._rows[row.id] = replace(row, version=self._version, **fixed)
        await self._audit.add([entry] if entry is not None else [])
        return True

    async def find(self, key: str) -> KeyRow | None:
        """See Keys.find."""
        return self._rows.get(key)

    async def page(self, limit: int, after: str = "") -> list[KeyRow]:
        """See Keys.page."""
        rows = sorted(self._rows.values(), key=lambda row: (row.created_at, row.id), reverse=True)
        if after:
            ids = [row.id for row in rows]
            rows = rows[ids.index(after) + 1 :] if after in ids else []
        return rows[:limit]

    async def since(self, version: int) -> list[KeyRow]:
        """See Keys.since."""
        return sorted((row for row in self._rows.values() if row.version > version), key=lambda row: row.version)

    async def count(self) -> int:
        """See Keys.count."""
        return len(self._rows)

    async def used(self, at: Mapping[str, int]) -> None:
        """See Keys.used."""
        for key, when in at.items():
            if key in self._rows:
                last = max(when, self._rows[key].last_used_at)
                self._rows[key] = replace(self._rows[key], last_used_at=last)


def is_old(row: KeyRow, now: int) -> bool:
    """Whether a key ended so long ago that it is deleted."""
    return row.ended(now - ENDED_MS) if not row.revoked_at else row.revoked_at <= now - ENDED_MS


class MemoryAudit:
    """See AuditLog."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []
        self._last = 0

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """See AuditLog.add."""
        self.put(entries)

    def put(self, entries: Sequence[AuditEntry]) -> None:
        """The same, at once."""
        known = {entry.id for entry in self._entries if entry.id}
        for entry in entries:
            if entry.id in known:
                continue
            known |= {entry.id} - {""}
            self._last += 1
            self._entries.append(replace(entry, n=self._last))

    async def page(self, query: AuditQuery) -> list[AuditEntry]:
        """See AuditLog.page."""
        found = [entry for entry in self._entries if _matches(entry, query)]
        return (found[::-1] if query.newest else found)[: query.limit]

    async def trim(self, before: int, keep: int) -> int:
        """See AuditLog.trim."""
        first = next((n for n, entry in enumerate(self._entries) if entry.at >= before), len(self._entries))
        gone = max(first, len(self._entries) - keep)
        del self._entries[:gone]
        return gone


def _matches(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        entry.n > query.after
        and (not query.before or entry.n < query.before)
        and query.owner in ("", entry.owner)
        and query.key in ("", entry.key)
        and query.object in ("", entry.object)
        and (query.action in ("", entry.action) or entry.action.startswith(query.action + "."))
    )

"""Retention in memory. Owns: which runs expire, and their removal. Refuses to know: why a limit was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ninelives.journal.memory.tables import MemoryRun, MemoryTables
from ninelives.journal.values import SETTLE_MS, Gone, Retention, StoredAmount, Use


class MemoryUpkeep:
    """See journal.base.Upkeep."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._runs = tables.runs
        self._expired = tables.expired

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        for owner, run, at in uses:
            if (found := self._tables.visible(owner, run)) is not None:
                found.used_at = max(found.used_at, at)

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        found = self._tables.visible(owner, run)
        if found is not None:
            found.pinned = pinned
        return found is not None

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return (owner, run) in self._expired

    async def usage(self) -> list[StoredAmount]:
        """See Upkeep.usage."""
        kept: dict[str, StoredAmount] = {}
        for run in self._runs.values():
            if not run.hidden:
                old = kept.get(run.owner, StoredAmount(run.owner, 0, 0, 0))
                kept[run.owner] = StoredAmount(run.owner, old.runs + 1, old.bytes + run.size(), old.pinned + run.pinned)
        return sorted(kept.values(), key=lambda one: -one.bytes)

    def short(self) -> str | None:
        """See Upkeep.short."""
        return None

    def trouble(self) -> str | None:
        """See Upkeep.trouble."""
        return None

    async def evict(self, rule: Retention, spared: frozenset[str]) -> list[Gone]:
        """See Upkeep.evict."""
        gone: list[Gone] = []
        for named, run in self._stale(rule):
            later = self._youngest(named)
            if named in spared:
                continue
            if later > run.used_at:  # a chain ages by its youngest member (R17)
                run.used_at = later
                continue
            self._tables.delete(run.owner, named)
            gone.append((run.owner, named))
            self._expired[run.owner, named] = rule.at, run.kept == "stored"
        for old in [named for named, (at, _) in self._expired.items() if at < rule.at - rule.tombstone_ms]:
            del self._expired[old]
        return gone

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """See Upkeep.forgettable."""
        runs = [(name, run) for name, run in self._runs.items() if run.ended and not run.hidden]
        runs = [(name, run) for name, run in runs if _is_forgettable(run, now, unstored_ms)]
        runs.sort(key=lambda pair: pair[1].updated_at)
        return [(run.owner, name) for name, run in runs[:limit]]

    def _stale(self, rule: Retention) -> list[tuple[str, MemoryRun]]:
        """Runs beyond a limit, least recently used first."""
        runs = list(self._runs.items())
        order = {name: place for place, (name, _) in enumerate(runs)}
        free = [(name, run) for name, run in runs if run.ended and not run.hidden and not run.pinned]
        free.sort(key=lambda pair: (pair[1].used_at, order[pair[0]]), reverse=True)
        places: Counter[tuple[str, bool]] = Counter()
        own: Counter[str] = Counter()
        stale, total = [], 0
        for name, run in free:
            part = run.owner, run.kept == "stored"
            places[part] += 1
            own[run.owner] += run.size()
            total += run.size()
            if (
                0 < rule.runs < places[part]
                or 0 < rule.owner_bytes < own[run.owner]
                or 0 < rule.total_bytes < total
                or (rule.before > 0 and run.used_at < rule.before)
            ):
                stale.append((name, run))
        return stale[::-1]

    def _youngest(self, name: str) -> int:
        """When a descendant of this run was last used."""
        latest, todo = -1, [name]
        while todo:
            parent = todo.pop()
            for child, run in self._runs.items():
                if run.resolved.previous == parent:
                    todo.append(child)
                    latest = latest if run.hidden else max(latest, run.used_at)
        return latest


def _is_forgettable(run: MemoryRun, now: int, unstored_ms: int) -> bool:
    if run.kept == "hours" and unstored_ms:
        return run.updated_at + unstored_ms <= now
    if run.kept not in ("hours", "delivery"):
        return False
    if run.delivered:
        return run.delivered + SETTLE_MS <= now
    return not run.waits and run.window_end < now

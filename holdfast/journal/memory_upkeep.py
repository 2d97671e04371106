"""Retention in a memory store. Owns: the same rules as a durable backend, in plain loops. Refuses to know: disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.journal.base_upkeep import Gone, Kept, Retention, Use

if TYPE_CHECKING:
    from holdfast.journal.memory import _Run


class MemoryUpkeep:
    """See Upkeep."""

    def __init__(self, runs: dict[str, _Run], tombs: dict[Gone, int], delete: Callable[[str, str], bool]) -> None:
        self._runs = runs
        self._tombs = tombs
        self._delete = delete

    def _named(self, owner: str, run: str) -> _Run | None:
        found = self._runs.get(run)
        return found if found is not None and found.owner == owner and not found.hidden else None

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        for owner, run, at in uses:
            if (found := self._named(owner, run)) is not None:
                found.used_at = max(found.used_at, at)

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        found = self._named(owner, run)
        if found is not None:
            found.pinned = pinned
        return found is not None

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return (owner, run) in self._tombs

    async def usage(self) -> list[Kept]:
        """See Upkeep.usage."""
        kept: dict[str, Kept] = {}
        for run in self._runs.values():
            if not run.hidden:
                old = kept.get(run.owner, Kept(run.owner, 0, 0, 0))
                kept[run.owner] = Kept(run.owner, old.runs + 1, old.bytes + run.size(), old.pinned + run.pinned)
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
            if later > run.used_at:  # a chain ages by its youngest member
                run.used_at = later
                continue
            self._delete(run.owner, named)
            gone.append((run.owner, named))
            self._tombs[run.owner, named] = rule.at
        for tomb in [tomb for tomb, at in self._tombs.items() if at < rule.at - rule.tombstone_ms]:
            del self._tombs[tomb]
        return gone

    def _stale(self, rule: Retention) -> list[tuple[str, _Run]]:
        """Runs beyond a bound, those used longest ago first."""
        runs = list(self._runs.items())
        order = {name: place for place, (name, _) in enumerate(runs)}
        free = [(name, run) for name, run in runs if run.ended and not run.hidden and not run.pinned]
        free.sort(key=lambda pair: (pair[1].used_at, order[pair[0]]), reverse=True)
        places: Counter[str] = Counter()
        own: Counter[str] = Counter()
        stale, total = [], 0
        for name, run in free:
            places[run.owner] += 1
            own[run.owner] += run.size()
            total += run.size()
            if (
                0 < rule.runs < places[run.owner]
                or 0 < rule.owner_bytes < own[run.owner]
                or 0 < rule.total_bytes < total
                or (rule.before > 0 and run.used_at < rule.before)
            ):
                stale.append((name, run))
        return stale[::-1]

    def _youngest(self, name: str) -> int:
        """When a run that follows this one was last used."""
        latest, todo = -1, [name]
        while todo:
            parent = todo.pop()
            for child, run in self._runs.items():
                if run.resolved.previous == parent:
                    todo.append(child)
                    latest = latest if run.hidden else max(latest, run.used_at)
        return latest

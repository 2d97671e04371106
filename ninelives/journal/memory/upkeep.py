"""Retention in memory. Owns: which runs expire, and their removal. Refuses to know: why a limit was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ninelives.journal.memory.tables import MemoryRun, MemoryTables
from ninelives.journal.values import ROW_BYTES, SETTLE_MS, Evicted, Gone, Retention, StoredAmount, Use

LAST = 1 << 62
"""Sessions and conversations go after runs that were used at the same time."""


class _Thing(Struct, frozen=True):
    """What counts, and may be evicted."""

    kind: Literal["run", "session", "conversation", "outside"]
    owner: str
    name: str
    bytes: int
    used_at: int
    n: int
    """Decides between things that were used at the same time. Of something outside: its place in Retention.outside."""
    stored: bool = False


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

    async def evict(self, rule: Retention, spared: frozenset[str]) -> Evicted:
        """See Upkeep.evict."""
        gone = Evicted([], [], [], [])
        for thing in self._stale(rule):
            match thing.kind:
                case "run":
                    self._evict_run(thing, rule, spared, gone.runs)
                case "session":
                    self._tables.drop_session(thing.owner, thing.name)
                    gone.sessions.append((thing.owner, thing.name))
                case "conversation":
                    self._tables.drop_conversation(thing.owner, thing.name)
                    gone.conversations.append((thing.owner, thing.name))
                case _:
                    gone.outside.append(rule.outside[thing.n])
        for old in [named for named, (at, _) in self._expired.items() if at < rule.at - rule.tombstone_ms]:
            del self._expired[old]
        return gone

    def _evict_run(self, thing: _Thing, rule: Retention, spared: frozenset[str], gone: list[Gone]) -> None:
        run, later = self._runs[thing.name], self._youngest(thing.name)
        if thing.name in spared:
            return
        if later > run.used_at:  # a chain ages by its youngest member (R17)
            run.used_at = later
            return
        self._tables.delete(run.owner, thing.name)
        gone.append((run.owner, thing.name))
        self._expired[run.owner, thing.name] = rule.at, run.kept == "stored"

    async def fixed(self) -> dict[str, int]:
        """See Upkeep.fixed."""
        found: Counter[str] = Counter()
        for grant in self._tables.grants.values():
            found[grant.owner] += ROW_BYTES + len(grant.arguments.encode("utf-8", "replace"))
        return dict(found)

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """See Upkeep.forgettable."""
        runs = [(name, run) for name, run in self._runs.items() if run.ended and not run.hidden]
        runs = [(name, run) for name, run in runs if _is_forgettable(run, now, unstored_ms)]
        runs.sort(key=lambda pair: pair[1].updated_at)
        return [(run.owner, name) for name, run in runs[:limit]]

    def _stale(self, rule: Retention) -> list[_Thing]:
        """What is beyond a limit, least recently used first."""
        things = sorted(self._things(rule), key=lambda thing: (thing.used_at, thing.n, thing.kind), reverse=True)
        places: Counter[tuple[str, bool]] = Counter()
        own: Counter[str] = Counter()
        stale, total = [], 0
        for thing in things:
            part = thing.owner, thing.stored
            places[part] += thing.kind == "run"
            own[thing.owner] += thing.bytes
            total += thing.bytes
            room = rule.owner_rooms.get(thing.owner, rule.owner_bytes)
            if (
                (thing.kind == "run" and 0 < rule.runs < places[part])
                or (rule.owner_bytes > 0 and own[thing.owner] > room)
                or 0 < rule.total_bytes < total
                or (rule.before > 0 and thing.used_at < rule.before)
            ):
                stale.append(thing)
        return stale[::-1]

    def _things(self, rule: Retention) -> Iterator[_Thing]:
        """All that can be evicted."""
        for n, (name, run) in enumerate(self._runs.items()):
            if run.ended and not run.hidden and not run.pinned:
                yield _Thing("run", run.owner, name, run.size(), run.used_at, n, run.kept == "stored")
        yield from self._sessions()
        yield from self._conversations()
        for n, one_outside in enumerate(rule.outside):
            yield _Thing("outside", one_outside.owner, "", one_outside.bytes, one_outside.used_at, n)

    def _sessions(self) -> Iterator[_Thing]:
        at_work = {(run.owner, run.resolved.session) for run in self._runs.values() if not run.ended}
        tables = self._tables
        for (owner, name), turns in tables.sessions.items():
            if turns and (owner, name) not in at_work:
                entry = tables.entries.get((owner, name))
                size = sum(ROW_BYTES + len(turn.turn) for turn in turns) + (entry.size() if entry else 0)
                yield _Thing("session", owner, name, size, max(turn.at for turn in turns), LAST)
        for (owner, name), entry in tables.entries.items():
            bare = entry.row.made and not tables.sessions.get((owner, name)) and not tables.runs_in(owner, name)
            if bare and (owner, name) not in at_work:
                size = ROW_BYTES + len(entry.row.title.encode())
                yield _Thing("session", owner, name, size, entry.row.updated_at, LAST)

    def _conversations(self) -> Iterator[_Thing]:
        for (owner, key), one in self._tables.conversations.items():
            if key == one.id and one.active is None:
                latest = self._runs.get(one.latest or "")
                used = max(one.created_at, latest.used_at if latest is not None else 0)
                yield _Thing("conversation", owner, key, one.size(), used, LAST)

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

"""Retention in a SQLite store, and what was spent. Owns: which runs expire, their removal, the end of their tombstones;
the tables of usage. Refuses to know: why a limit was chosen, and who reads a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from ninelives.journal import queries
from ninelives.journal.sqlite.conversations import FORGET_SESSION
from ninelives.journal.sqlite.database import SqliteDatabase
from ninelives.journal.sqlite.rows import EVICTED, SQL, hide
from ninelives.journal.values import (
    DAY_MS,
    MINUTE_MS,
    RECENT_MINUTES,
    SETTLE_MS,
    Evicted,
    Gone,
    Retention,
    Spending,
    StoredAmount,
    Subject,
    Totals,
    Use,
    month_start,
    spending_of,
    totals_of,
)

LEDGER = queries.load("sqlite", "ledger")
CONVERSATIONS = queries.load("sqlite", "conversations")
EVICT_RUNS = 64
"""Runs per transaction."""
ROUND = 1024


class SqliteUpkeep:
    """See journal.base.Upkeep."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def short(self) -> str | None:
        """See Upkeep.short."""
        return self._database.shortage

    def trouble(self) -> str | None:
        """See Upkeep.trouble."""
        return self._database.trouble()

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        if uses:
            await self._database.write(lambda db: db.executemany(SQL["touch"], uses).fetchall())

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        return bool(await self._database.execute(SQL["pin"], (owner, run, int(pinned))))

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return bool(await self._database.select(SQL["expired"], (owner, run)))

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """See Upkeep.forgettable."""
        return await self._database.select(SQL["forgettable"], (now, unstored_ms, SETTLE_MS, limit))

    async def usage(self) -> list[StoredAmount]:
        """See Upkeep.usage."""
        return [StoredAmount(*row) for row in await self._database.select(SQL["usage"])]

    async def fixed(self) -> dict[str, int]:
        """See Upkeep.fixed."""
        return dict(await self._database.select(SQL["fixed"]))

    async def evict(self, rule: Retention, spared: frozenset[str]) -> Evicted:
        """See Upkeep.evict."""
        lists = (msgspec.json.encode(each).decode() for each in (rule.owner_rooms, rule.outside))
        bounds = (rule.runs, rule.owner_bytes, rule.total_bytes, rule.before, ROUND, *lists)
        stale: dict[str, list[Any]] = {"run": [], "session": [], "conversation": [], "outside": []}
        for kind, owner, name in await self._database.select(SQL["stale"], bounds):
            stale[kind].append((owner, name))
        runs = [found for found in stale["run"] if found[1] not in spared]
        gone = Evicted([], [], [], [rule.outside[int(place)] for _, place in stale["outside"]])
        for start in range(0, len(runs), EVICT_RUNS):
            gone.runs.extend(await self._evict(runs[start : start + EVICT_RUNS], rule.at))
        for kind, evicted in (("session", gone.sessions), ("conversation", gone.conversations)):
            for start in range(0, len(stale[kind]), EVICT_RUNS):
                part = stale[kind][start : start + EVICT_RUNS]
                evicted.extend(await self._database.write(lambda db, part=part, kind=kind: _drop(db, kind, part)))  # type: ignore[misc]
        await self._database.write(lambda db: _bury(db, rule.at - rule.tombstone_ms))
        return gone

    async def _evict(self, stale: Sequence[Gone], at: int) -> list[Gone]:
        """Evict these runs, as far as they are still stale."""

        def evict(db: apsw.Connection) -> list[Gone]:
            gone = []
            for owner, run in stale:
                row: Any = db.execute(SQL["youngest"], (owner, run)).fetchone()
                if row is None:  # pinned, deleted or active again since the query
                    continue
                used, later = row
                if later is not None and later > used:  # a chain ages by its youngest member (R17)
                    db.execute(SQL["touch"], (owner, run, later))
                elif hide(db, self._database.fences, owner, run, at, EVICTED):
                    gone.append((owner, run))
            return gone

        def evicted(gone: list[Gone]) -> list[Gone]:
            for _owner, run in gone:
                self._database.tails.drop(run)
            return gone

        return await self._database.write(evict, evicted)


class SqliteLedger:
    """See journal.base.Ledger."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, spent: Sequence[Spending]) -> None:
        """See Ledger.add."""
        rows = [astuple(each) for each in spent]

        def add(db: apsw.Connection) -> None:
            db.executemany(LEDGER["add_day"], rows)
            db.executemany(LEDGER["add_minute"], [row[:7] for row in rows])
            db.execute(LEDGER["drop_minutes"], (max([each.at for each in spent]) // MINUTE_MS - RECENT_MINUTES,))

        if spent:
            await self._database.write(add)

    async def days(self, owner: str | None, since: int, until: int) -> list[Spending]:
        """See Ledger.days."""
        rows = await self._database.select(LEDGER["days"], (owner, since // DAY_MS, until // DAY_MS))
        return [spending_of(*row) for row in rows]

    async def totals(self, subject: Subject, now: int) -> Totals:
        """See Ledger.totals."""
        kind, name = subject
        bounds = (name, now // DAY_MS, month_start(now))
        (sums,) = await self._database.select(LEDGER[f"{kind}_days"], bounds)
        minutes = await self._database.select(LEDGER[f"{kind}_minutes"], (name, now // MINUTE_MS - 1))
        return totals_of(sums, minutes)


DROPS = {
    "session": ("session_is_stale", FORGET_SESSION),
    "conversation": ("conversation_is_stale", (CONVERSATIONS["forget"], CONVERSATIONS["forget_edits"])),
}


def _drop(db: apsw.Connection, kind: str, stale: Sequence[Gone]) -> list[Gone]:
    """Delete sessions or conversations that no run has begun to use since the search."""
    check, statements = DROPS[kind]
    gone = [found for found in stale if db.execute(SQL[check], found).fetchone() is not None]
    for statement in statements:
        db.executemany(statement, gone)
    return gone


def _bury(db: apsw.Connection, before: int) -> None:
    """Drop the turns of hidden runs that nobody follows, then tombstones older than `before`."""
    forgotten = db.execute(SQL["forget_turns_of_hidden"]).fetchall()
    db.executemany(SQL["forget_edits_of"], forgotten)
    db.execute(SQL["drop_tombstones"], (before,))

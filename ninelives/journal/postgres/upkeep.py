"""Retention in a PostgreSQL store. Owns: finding the runs that must go, evicting them in bounded rounds by one process
at a time, and the end of their tombstones. Refuses to know: why a limit was chosen, and who reads a run now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ninelives.journal import queries
from ninelives.journal.postgres.connections import WORK_S, Connection, Connections
from ninelives.journal.postgres.listener import Listener
from ninelives.journal.postgres.rows import EVICTED, hide_run
from ninelives.journal.values import SETTLE_MS, Evicted, Gone, Retention, StoredAmount, Use

SQL = queries.load("postgres", "upkeep")
SLICE = 64
ROUND = 1024
STALE_S = 120.0
"""Finding the runs that must go may take long in a big store. Nobody waits for it."""


class PostgresUpkeep:
    """See Upkeep."""

    def __init__(self, connections: Connections, listener: Listener) -> None:
        self._connections = connections
        self._listener = listener

    def short(self) -> str | None:
        """See Upkeep.short. The database manages its space."""
        return None

    def trouble(self) -> str | None:
        """See Upkeep.trouble. Why the database could not be reached."""
        return self._connections.trouble or self._listener.trouble

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        if uses:
            columns = [list(column) for column in zip(*sorted(uses), strict=True)]
            await self._connections.transact(lambda connection: connection.execute(SQL["touch"], *columns))

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        return bool(await self._connections.fetch(SQL["pin"], owner, run, pinned))

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """See Upkeep.forgettable. Goes by the clock of the database, not by `now`."""
        rows = await self._connections.fetch_filtered(SQL["forgettable"], unstored_ms, SETTLE_MS, limit, limit_s=WORK_S)
        return [(row["owner"], row["id"]) for row in rows]

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return bool(await self._connections.fetch(SQL["expired"], owner, run))

    async def usage(self) -> list[StoredAmount]:
        """See Upkeep.usage."""
        rows = await self._connections.fetch(SQL["usage"], limit_s=WORK_S)
        return [StoredAmount(*row) for row in rows]

    async def fixed(self) -> dict[str, int]:
        """See Upkeep.fixed."""
        return {row[0]: row[1] for row in await self._connections.fetch(SQL["fixed"], limit_s=WORK_S)}

    async def evict(self, rule: Retention, spared: frozenset[str]) -> Evicted:
        """See Upkeep.evict. Nothing of the store goes where another process is evicting."""
        bounds = (rule.runs, rule.owner_bytes, rule.total_bytes, rule.before, ROUND)
        rooms = (list(rule.owner_rooms), list(rule.owner_rooms.values()))
        outside = [[getattr(each, name) for each in rule.outside] for name in ("owner", "bytes", "used_at")]
        rows = await self._connections.fetch_filtered(SQL["stale"], *bounds, *rooms, *outside, limit_s=STALE_S)
        stale: dict[str, list[Gone]] = {"run": [], "session": [], "conversation": [], "outside": []}
        for kind, owner, name in rows:
            stale[kind].append((owner, name))
        runs = [found for found in stale["run"] if found[1] not in spared]
        gone = Evicted([], [], [], [rule.outside[int(place)] for _, place in stale["outside"]])
        for start in range(0, len(runs), SLICE):
            part = runs[start : start + SLICE]
            gone.runs.extend(
                await self._connections.transact(lambda connection, part=part: _evict(connection, part, rule.at))  # type: ignore[misc]
            )
        for kind, evicted in (("session", gone.sessions), ("conversation", gone.conversations)):
            if stale[kind]:
                drop = partial(_drop, kind=kind, stale=stale[kind])
                evicted.extend(await self._connections.transact(drop))
        await self._connections.transact(lambda connection: _drop_tombstones(connection, rule.at - rule.tombstone_ms))
        return gone


async def _drop(connection: Connection, kind: str, stale: Sequence[Gone]) -> list[Gone]:
    """Delete sessions or conversations that no run has begun to use since the search."""
    if not await connection.fetchval(SQL["alone"]):
        return []
    owners, names = zip(*stale, strict=True)
    return [tuple(row) for row in await connection.fetch(SQL[f"drop_{kind}s"], list(owners), list(names))]


async def _evict(connection: Connection, stale: Sequence[Gone], at: int) -> list[Gone]:
    gone: list[Gone] = []
    if not await connection.fetchval(SQL["alone"]):
        return gone
    for owner, run in stale:
        row = await connection.fetchrow(SQL["youngest"], owner, run)
        if row is None:  # pinned, deleted or read since the search
            continue
        used, later = row
        if later is not None and later > used:  # a chain ages by its youngest member (R17)
            await connection.execute(SQL["touch"], [owner], [run], [later])
        elif await hide_run(connection, owner, run, at, EVICTED):
            gone.append((owner, run))
    return gone


async def _drop_tombstones(connection: Connection, before: int) -> None:
    if await connection.fetchval(SQL["alone"]):
        await connection.execute(SQL["forget_turns_of_hidden"])
        await connection.execute(SQL["drop_tombstones"], before)

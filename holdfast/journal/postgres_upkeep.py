"""Retention in a PostgreSQL store. Owns: which runs have to go, their going in bounded rounds by one process at a
time, the end of their tombstones, and what is said when the database is away. Refuses to know: why a bound was chosen,
and who reads a run at the moment."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.journal import postgres_rows, queries
from holdfast.journal.base_upkeep import Gone, Kept, Retention, Use
from holdfast.journal.postgres_bell import Listener
from holdfast.journal.postgres_lines import WORK_S, Line, Lines

SQL = queries.load("postgres_upkeep.sql")
SLICE = 64
ROUND = 1024
LOOK_S = 120.0
"""Looking for what has to go may take long in a big store: nobody waits for it."""


class PostgresUpkeep:
    """See Upkeep."""

    def __init__(self, lines: Lines, listener: Listener) -> None:
        self._lines = lines
        self._listener = listener

    def short(self) -> str | None:
        """See Upkeep.short. Room is the database's affair."""
        return None

    def trouble(self) -> str | None:
        """See Upkeep.trouble: why the database could not be reached."""
        return self._lines.trouble or self._listener.trouble

    async def touch(self, uses: Sequence[Use]) -> None:
        """See Upkeep.touch."""
        if uses:
            columns = [list(column) for column in zip(*sorted(uses), strict=True)]
            await self._lines.transact(lambda line: line.execute(SQL["touch"], *columns))

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """See Upkeep.pin."""
        return bool(await self._lines.ask(lambda line: line.fetch(SQL["pin"], owner, run, pinned)))

    async def expired(self, owner: str, run: str) -> bool:
        """See Upkeep.expired."""
        return bool(await self._lines.ask(lambda line: line.fetch(SQL["expired"], owner, run)))

    async def usage(self) -> list[Kept]:
        """See Upkeep.usage."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["usage"]), WORK_S)
        return [Kept(*row) for row in rows]

    async def evict(self, rule: Retention, spared: frozenset[str]) -> list[Gone]:
        """See Upkeep.evict. Where another process is at it, nothing is done here."""
        bounds = (rule.runs, rule.owner_bytes, rule.total_bytes, rule.before, ROUND)
        rows = await self._lines.ask(lambda line: line.fetch(SQL["stale"], *bounds), LOOK_S)
        stale = [(row["owner"], row["id"]) for row in rows if row["id"] not in spared]
        gone: list[Gone] = []
        for start in range(0, len(stale), SLICE):
            part = stale[start : start + SLICE]
            gone += await self._lines.transact(lambda line, part=part: _evict(line, part, rule.at))  # type: ignore[misc]
        await self._lines.transact(lambda line: _bury(line, rule.at - rule.tombstone_ms))
        return gone


async def _evict(line: Line, stale: Sequence[Gone], at: int) -> list[Gone]:
    gone: list[Gone] = []
    if not await line.fetchval(SQL["alone"]):
        return gone
    for owner, run in stale:
        row = await line.fetchrow(SQL["youngest"], owner, run)
        if row is None:  # pinned, deleted or taken up again since it was looked for
            continue
        used, later = row
        if later is not None and later > used:  # a chain ages by its youngest member
            await line.execute(SQL["touch"], [owner], [run], [later])
        elif await postgres_rows.hide(line, (owner, run), at, postgres_rows.EVICTED):
            gone.append((owner, run))
    return gone


async def _bury(line: Line, before: int) -> None:
    if await line.fetchval(SQL["alone"]):
        await line.execute(SQL["forget_turns_of_hidden"])
        await line.execute(SQL["drop_tombstones"], before)

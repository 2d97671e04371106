"""The processes around one PostgreSQL database. Owns: what they tell each other in rows (Peers), and whose callers wait
for which answer (Deliveries). Refuses to know: how a process is found to be dead (listener.py).

A run names the process at which its caller waits, so the end of one process loses only its own callers. The time of a
loss is the database's, because the retry may reach another machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ninelives.journal import queries
from ninelives.journal.postgres.connections import WORK_S, Connections
from ninelives.journal.postgres.rows import SQL as ROWS
from ninelives.journal.values import Gone, HeldRun, Replica

SQL = queries.load("postgres", "peers")


class PostgresPeers:
    """See Peers. `holder` is this process."""

    shared = True

    def __init__(self, connections: Connections, holder: str) -> None:
        self._connections = connections
        self._holder = holder

    async def held(self, holder: str) -> Sequence[HeldRun]:
        """See Peers.held."""
        rows = await self._connections.fetch(SQL["held"], holder, limit_s=WORK_S)
        return [HeldRun(*row) for row in rows]

    async def queued(self) -> int:
        """See Peers.queued."""
        return int(await self._connections.fetchval(ROWS["queued"], self._holder, limit_s=WORK_S))

    async def active(self, owner: str) -> int:
        """See Peers.active."""
        return int(await self._connections.fetchval(SQL["active"], owner))

    async def settle(self, owner: str, place: str, home: str) -> str:
        """See Peers.settle."""
        await self._connections.execute(SQL["settle_home"], owner, place, home)
        return str(await self._connections.fetchval(SQL["home"], owner, place))

    async def replicas(self) -> Sequence[Replica]:
        """See Peers.replicas."""
        rows = await self._connections.fetch(SQL["replicas"])
        return [Replica(*row) for row in rows]


class PostgresDeliveries:
    """See Deliveries. `holder` is this process: it reports on its own callers only. `before`: see Identity."""

    def __init__(self, connections: Connections, holder: str, before: Sequence[str] = ()) -> None:
        self._connections = connections
        self._holder = holder
        self._before = before

    async def answered(self, told: Sequence[Gone]) -> None:
        """See Deliveries.answered."""
        if told:
            owners, runs = [list(column) for column in zip(*told, strict=True)]
            await self._connections.execute(SQL["answered"], owners, runs, self._holder)

    async def rest_given(self, owner: str, run: str) -> None:
        """See Deliveries.rest_given."""
        await self._connections.execute(SQL["rest_given"], owner, run)

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """See Deliveries.lost."""
        await self._connections.execute(SQL["lose"], owner, run, self._holder, left)

    async def strand(self, at: int, besides: Collection[Gone] = ()) -> None:
        """See Deliveries.strand. Affects only the callers of processes that are gone."""
        if self._before:
            before, self._before = list(self._before), ()
            owners, runs = [owner for owner, _ in besides], [run for _, run in besides]
            await self._connections.execute(SQL["succeed"], before, self._holder, owners, runs, limit_s=WORK_S)
        await self._connections.execute(SQL["strand"], "", limit_s=WORK_S)

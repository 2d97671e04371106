"""The processes around one PostgreSQL database. Owns: their rows and what is common to them. Refuses to know: what they
do."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.journal.base_peers import Replica
from holdfast.journal.postgres_bell import SQL
from holdfast.journal.postgres_lines import WORK_S, Line, Lines


class PostgresPeers:
    """See Peers."""

    shared = True

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def wished(self, holder: str) -> Sequence[tuple[str, str]]:
        """See Peers.wished."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["wished"], holder), WORK_S)
        return [(row["owner"], row["id"]) for row in rows]

    async def queued(self) -> int:
        """See Peers.queued."""
        return int(await self._lines.ask(lambda line: line.fetchval(SQL["queued"]), WORK_S))

    async def settle(self, owner: str, place: str, home: str) -> str:
        """See Peers.settle."""

        async def work(line: Line) -> str:
            await line.execute(SQL["settle"], owner, place, home)
            return str(await line.fetchval(SQL["home"], owner, place))

        return await self._lines.ask(work)

    async def replicas(self) -> Sequence[Replica]:
        """See Peers.replicas."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["replicas"]))
        return [Replica(*row) for row in rows]

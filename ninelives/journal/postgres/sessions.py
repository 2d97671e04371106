"""Named sessions in PostgreSQL. Owns: listing, reading, naming, forking and deleting them. Every query names its owner.
Refuses to know: how a run adds a turn to one."""

from __future__ import annotations

from collections.abc import Sequence

from ninelives.journal.postgres.connections import Connections
from ninelives.journal.postgres.rows import SQL
from ninelives.journal.values import SessionRow


class PostgresSessions:
    """See Sessions."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def page(self, owner: str, limit: int, after: str | None) -> Sequence[SessionRow]:
        """See Sessions.page."""
        rows = await self._connections.fetch(SQL["sessions"], owner, after, limit)
        return [SessionRow(*row) for row in rows]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        row = await self._connections.fetchrow(SQL["one_session"], owner, session)
        return SessionRow(*row) if row else None

    async def turns(self, owner: str, session: str) -> Sequence[bytes]:
        """See Sessions.turns."""
        rows = await self._connections.fetch(SQL["session"], owner, session, None)
        return [row["turn"] for row in rows]

    async def rename(self, owner: str, session: str, title: str) -> None:
        """See Sessions.rename."""
        await self._connections.execute(SQL["rename_session"], owner, session, title)

    async def fork(self, owner: str, session: str, copy: str) -> None:
        """See Sessions.fork."""
        await self._connections.execute(SQL["fork_session"], owner, session, copy)

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""
        await self._connections.execute(SQL["forget_session"], owner, session)

"""Named sessions in PostgreSQL. Owns: listing, reading, naming, forking and forgetting them; every query names its
owner. Refuses to know: connections; it is given lines."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.journal.base import SessionRow
from holdfast.journal.postgres_lines import Lines
from holdfast.journal.postgres_rows import SQL


class PostgresSessions:
    """See journal.base.Sessions."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def page(self, owner: str, limit: int, after: str | None) -> Sequence[SessionRow]:
        """See Sessions.page."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["sessions"], owner, after, limit))
        return [SessionRow(*row) for row in rows]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        row = await self._lines.ask(lambda line: line.fetchrow(SQL["one_session"], owner, session))
        return SessionRow(*row) if row else None

    async def turns(self, owner: str, session: str) -> Sequence[bytes]:
        """See Sessions.turns."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["session"], owner, session, None))
        return [row["turn"] for row in rows]

    async def rename(self, owner: str, session: str, title: str) -> None:
        """See Sessions.rename."""
        await self._lines.ask(lambda line: line.execute(SQL["rename_session"], owner, session, title))

    async def fork(self, owner: str, session: str, copy: str) -> None:
        """See Sessions.fork."""
        await self._lines.ask(lambda line: line.execute(SQL["fork_session"], owner, session, copy))

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""
        await self._lines.ask(lambda line: line.execute(SQL["forget_session"], owner, session))

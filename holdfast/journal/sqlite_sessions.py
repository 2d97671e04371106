"""Named sessions in SQLite. Owns: listing, reading, naming, forking and forgetting them; every query names its owner.
Refuses to know: threads: it is given a way to write and a way to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import apsw

from holdfast.journal.base import SessionRow
from holdfast.journal.sqlite_rows import SQL

Job = Callable[[apsw.Connection], Any]


class Ask(Protocol):
    """Does a job on a connection."""

    def __call__(self, job: Job) -> Awaitable[Any]:
        """The job's result."""
        ...


class SqliteSessions:
    """See journal.base.Sessions."""

    def __init__(self, write: Ask, query: Ask) -> None:
        self._write = write
        self._query = query

    async def page(self, owner: str, limit: int, after: str | None) -> Sequence[SessionRow]:
        """See Sessions.page."""
        rows = await self._query(lambda db: db.execute(SQL["sessions"], (owner, after, limit)).fetchall())
        return [SessionRow(*row) for row in rows]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        rows = await self._query(lambda db: db.execute(SQL["one_session"], (owner, session)).fetchall())
        return SessionRow(*rows[0]) if rows else None

    async def turns(self, owner: str, session: str) -> Sequence[bytes]:
        """See Sessions.turns."""
        rows = await self._query(lambda db: db.execute(SQL["session"], (owner, session, -1)).fetchall())
        return [turn for (turn,) in rows]

    async def rename(self, owner: str, session: str, title: str) -> None:
        """See Sessions.rename."""
        await self._write(lambda db: db.execute(SQL["rename_session"], (owner, session, title)).fetchall())

    async def fork(self, owner: str, session: str, copy: str) -> None:
        """See Sessions.fork."""
        await self._write(lambda db: db.execute(SQL["fork_session"], (owner, session, copy)).fetchall())

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""

        def work(db: apsw.Connection) -> None:
            db.execute(SQL["forget_turns"], (owner, session))
            db.execute(SQL["forget_title"], (owner, session))
            db.execute(SQL["forget_grants"], (owner, session))

        await self._write(work)

"""Conversations and named sessions in SQLite. Owns: the statements that find, list, annotate, edit, fork and delete
them. Each method is one transaction. Refuses to know: threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ninelives.core.admission import ConversationFound, editable
from ninelives.journal import queries
from ninelives.journal.sqlite.database import SqliteDatabase
from ninelives.journal.sqlite.rows import DELETED, hide
from ninelives.journal.sqlite.rows import SQL as ROWS
from ninelives.journal.values import ConversationLink, ConversationRow, Removal, SessionRow

SQL = queries.load("sqlite", "conversations")


class SqliteConversations:
    """See journal.base.Conversations."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        return await self._database.query(lambda db: _find(db, owner, named))

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        name = "page_up" if ascending else "page_down"
        return [_row(row) for row in await self._database.select(SQL[name], (owner, after, limit))]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        return bool(await self._database.execute(SQL["annotate"], (owner, named, metadata)))

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """See Conversations.line."""
        return await self._database.query(lambda db: _line(db, owner, named))

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""
        return await self._database.write(lambda db: _remove(db, owner, named, removal))

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""

        def forget(db: apsw.Connection) -> tuple[str, list[str]]:
            conversation = _editable(db, owner, named).id
            runs = [link.run for link in _line(db, owner, conversation) if link.dialect == own and not link.deleted]
            db.execute(SQL["forget"], (owner, conversation))
            db.execute(SQL["forget_edits"], (owner, conversation))
            for run in reversed(runs):  # newest first: each then finds its ancestor in one step
                hide(db, self._database.fences, owner, run, at, DELETED)
            return conversation, runs

        def forgotten(done: tuple[str, list[str]]) -> str:
            conversation, runs = done
            for run in runs:
                self._database.tails.drop(run)
            return conversation

        return await self._database.write(forget, forgotten)


def _row(row: Sequence[Any]) -> ConversationRow:
    conversation, name, created_at, metadata, latest, active = row
    return ConversationRow(conversation, name, created_at, bytes(metadata), latest, active)


def _find(db: apsw.Connection, owner: str, named: str) -> ConversationRow | None:
    row = db.execute(SQL["find"], (owner, named)).fetchone()
    return _row(row) if row else None


def _editable(db: apsw.Connection, owner: str, named: str) -> ConversationFound:
    row = _find(db, owner, named)
    return editable(named, ConversationFound(row.id, row.latest, row.active) if row else None)


def _line(db: apsw.Connection, owner: str, named: str) -> list[ConversationLink]:
    rows: list[Any] = db.execute(SQL["line"], (owner, named)).fetchall()
    return [ConversationLink(run, dialect, bool(hidden), _removed(removed)) for run, dialect, hidden, removed in rows]


def _removed(stored: bytes | None) -> frozenset[str]:
    return frozenset() if stored is None else msgspec.json.decode(stored, type=frozenset[str])


def _remove(db: apsw.Connection, owner: str, named: str, removal: Removal) -> bool:
    conversation = _editable(db, owner, named).id
    link = next((link for link in _line(db, owner, conversation) if link.run == removal.run), None)
    if link is None or link.deleted or removal.item in link.removed:
        return False
    removed = link.removed | {removal.item}
    stored = msgspec.json.encode(sorted(removed))
    db.execute(SQL["edit"], (owner, conversation, removal.run, stored, removal.turn(removed)))
    return True


class SqliteSessions:
    """See journal.base.Sessions."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def page(self, owner: str, limit: int, after: str | None) -> Sequence[SessionRow]:
        """See Sessions.page."""
        return [SessionRow(*row) for row in await self._database.select(ROWS["sessions"], (owner, after, limit))]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        rows = await self._database.select(ROWS["one_session"], (owner, session))
        return SessionRow(*rows[0]) if rows else None

    async def turns(self, owner: str, session: str) -> Sequence[bytes]:
        """See Sessions.turns."""
        return [turn for (turn,) in await self._database.select(ROWS["session"], (owner, session, -1))]

    async def rename(self, owner: str, session: str, title: str) -> None:
        """See Sessions.rename."""
        await self._database.execute(ROWS["rename_session"], (owner, session, title))

    async def fork(self, owner: str, session: str, copy: str) -> None:
        """See Sessions.fork."""
        await self._database.execute(ROWS["fork_session"], (owner, session, copy))

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""

        def forget(db: apsw.Connection) -> None:
            db.execute(ROWS["forget_turns"], (owner, session))
            db.execute(ROWS["forget_title"], (owner, session))
            db.execute(ROWS["forget_grants"], (owner, session))

        await self._database.write(forget)

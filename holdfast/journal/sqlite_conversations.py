"""Conversations in SQLite. Owns: finding, listing, noting, editing and forgetting them; every query names its owner,
and every method is one job, so one transaction. Refuses to know: threads: it is given ways to write and to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import apsw
import msgspec

from holdfast.core.admission import ConversationFound, editable
from holdfast.journal import queries, sqlite_rows
from holdfast.journal.base_conversations import ConversationRow, Link, Removal
from holdfast.journal.tails import Tail

SQL = queries.load("sqlite_conversations.sql")
Job = Callable[[apsw.Connection], Any]


class Write(Protocol):
    """Does a job on the writer's connection; `then` follows the commit, in memory."""

    def __call__(self, job: Job, then: Callable[[Any], Any] = ...) -> Awaitable[Any]:
        """What `then` made of the job's result."""
        ...


class SqliteConversations:
    """See Conversations. `fences` belong to the writer's thread, `tails` to the loop: a deleted run leaves both."""

    def __init__(
        self,
        write: Write,
        query: Callable[[Job], Awaitable[Any]],
        fences: sqlite_rows.Fences,
        tails: dict[str, Tail],
    ) -> None:
        self._write = write
        self._query = query
        self._fences = fences
        self._tails = tails

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        row: ConversationRow | None = await self._query(lambda db: _find(db, owner, named))
        return row

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        name = "page_up" if ascending else "page_down"
        rows = await self._query(lambda db: db.execute(SQL[name], (owner, after, limit)).fetchall())
        return [_row(row) for row in rows]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        return bool(await self._write(lambda db: db.execute(SQL["annotate"], (owner, named, metadata)).fetchall()))

    async def line(self, owner: str, named: str) -> list[Link]:
        """See Conversations.line."""
        links: list[Link] = await self._query(lambda db: _line(db, owner, named))
        return links

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""
        return bool(await self._write(lambda db: _remove(db, owner, named, removal)))

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""

        def work(db: apsw.Connection) -> tuple[str, list[str]]:
            talk = _editable(db, owner, named)
            runs = [link.run for link in _line(db, owner, talk.id) if link.dialect == own and not link.deleted]
            db.execute(SQL["forget"], (owner, talk.id))
            db.execute(SQL["forget_edits"], (owner, talk.id))
            for run in reversed(runs):  # the newest first: each then finds its ancestor in one step
                sqlite_rows.hide(db, self._fences, (owner, run), at, sqlite_rows.DELETED)
            return talk.id, runs

        def told(done: tuple[str, list[str]]) -> str:
            conversation, runs = done
            for run in runs:
                self._tails.pop(run, None)
            return conversation

        conversation: str = await self._write(work, told)
        return conversation


def _row(row: Sequence[Any]) -> ConversationRow:
    conversation, name, created_at, metadata, latest, active = row
    return ConversationRow(conversation, name, created_at, bytes(metadata), latest, active)


def _find(db: apsw.Connection, owner: str, named: str) -> ConversationRow | None:
    row = db.execute(SQL["find"], (owner, named)).fetchone()
    return _row(row) if row else None


def _editable(db: apsw.Connection, owner: str, named: str) -> ConversationFound:
    row = _find(db, owner, named)
    return editable(named, ConversationFound(row.id, row.latest, row.active) if row else None)


def _line(db: apsw.Connection, owner: str, named: str) -> list[Link]:
    rows: list[Any] = db.execute(SQL["line"], (owner, named)).fetchall()
    return [Link(run, dialect, bool(hidden), _removed(removed)) for run, dialect, hidden, removed in rows]


def _removed(stored: bytes | None) -> frozenset[str]:
    return frozenset() if stored is None else msgspec.json.decode(stored, type=frozenset[str])


def _remove(db: apsw.Connection, owner: str, named: str, removal: Removal) -> bool:
    talk = _editable(db, owner, named)
    link = next((link for link in _line(db, owner, talk.id) if link.run == removal.run), None)
    if link is None or link.deleted or removal.item in link.removed:
        return False
    removed = link.removed | {removal.item}
    stored = msgspec.json.encode(sorted(removed))
    db.execute(SQL["edit"], (owner, talk.id, removal.run, stored, removal.turn(removed)))
    return True

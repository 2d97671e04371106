"""Conversations in PostgreSQL. Owns: finding, listing, noting, editing and forgetting them; every query names its
owner, and every method that changes one locks its row first. Refuses to know: connections; it is given lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.admission import ConversationFound, editable
from holdfast.journal import postgres_rows, queries
from holdfast.journal.base_conversations import ConversationRow, Link, Removal
from holdfast.journal.postgres_lines import Line, Lines

SQL = queries.load("postgres_conversations.sql")


class PostgresConversations:
    """See Conversations."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        row = await self._lines.ask(lambda line: line.fetchrow(SQL["find"], owner, named))
        return ConversationRow(*row) if row else None

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        name = "page_up" if ascending else "page_down"
        rows = await self._lines.ask(lambda line: line.fetch(SQL[name], owner, after, limit))
        return [ConversationRow(*row) for row in rows]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        return bool(await self._lines.ask(lambda line: line.fetch(SQL["annotate"], owner, named, metadata)))

    async def line(self, owner: str, named: str) -> list[Link]:
        """See Conversations.line."""
        return await self._lines.ask(lambda line: _line(line, owner, named))

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""

        async def work(line: Line) -> bool:
            talk = await _editable(line, owner, named)
            links = await _line(line, owner, talk.id)
            link = next((link for link in links if link.run == removal.run), None)
            if link is None or link.deleted or removal.item in link.removed:
                return False
            removed = link.removed | {removal.item}
            stored = msgspec.json.encode(sorted(removed))
            await line.execute(SQL["edit"], owner, talk.id, removal.run, stored, removal.turn(removed))
            return True

        return await self._lines.transact(work)

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""

        async def work(line: Line) -> str:
            talk = await _editable(line, owner, named)
            links = await _line(line, owner, talk.id)
            runs = [link.run for link in links if link.dialect == own and not link.deleted]
            await line.execute(SQL["forget"], owner, talk.id)
            await line.execute(SQL["forget_edits"], owner, talk.id)
            for run in reversed(runs):  # the newest first: each then finds its ancestor in one step
                await postgres_rows.hide(line, (owner, run), at, postgres_rows.DELETED)
            return talk.id

        return await self._lines.transact(work)


async def _editable(line: Line, owner: str, named: str) -> ConversationFound:
    row = await line.fetchrow(postgres_rows.SQL["conversation_locked"], owner, named)
    return editable(named, ConversationFound(*row) if row else None)


async def _line(line: Line, owner: str, named: str) -> list[Link]:
    rows: list[Any] = await line.fetch(SQL["line"], owner, named)
    return [Link(row["id"], row["dialect"], bool(row["hidden"]), _removed(row["removed"])) for row in rows]


def _removed(stored: bytes | None) -> frozenset[str]:
    return frozenset() if stored is None else msgspec.json.decode(stored, type=frozenset[str])

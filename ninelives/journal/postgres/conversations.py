"""Conversations in PostgreSQL. Owns: finding, listing, annotating, editing and deleting them. Every query names its
owner, and every method that edits a conversation locks its row first. Refuses to know: how a run joins one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ninelives.core.admission import ConversationFound, editable
from ninelives.core.sessions import decoded_turn, previews, searchable
from ninelives.journal import queries
from ninelives.journal.postgres.connections import Connection, Connections
from ninelives.journal.postgres.rows import DELETED, SESSIONS, hide_run
from ninelives.journal.postgres.rows import SQL as ROWS
from ninelives.journal.values import ConversationLink, ConversationRow, Removal

SQL = queries.load("postgres", "conversations")


class PostgresConversations:
    """See Conversations."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        row = await self._connections.fetchrow(SQL["find"], owner, named)
        return ConversationRow(*row) if row else None

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        name = "page_up" if ascending else "page_down"
        rows = await self._connections.fetch_filtered(SQL[name], owner, after, limit)
        return [ConversationRow(*row) for row in rows]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        return bool(await self._connections.fetch(SQL["annotate"], owner, named, metadata))

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """See Conversations.line."""
        return await self._connections.ask(lambda connection: _links(connection, owner, named))

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""

        async def work(connection: Connection) -> bool:
            conversation = await _editable(connection, owner, named)
            links = await _links(connection, owner, conversation.id)
            link = next((link for link in links if link.run == removal.run), None)
            if link is None or link.deleted or removal.item in link.removed:
                return False
            removed = link.removed | {removal.item}
            stored = msgspec.json.encode(sorted(removed))
            turn = removal.turn(removed)
            await connection.execute(SQL["edit"], owner, conversation.id, removal.run, stored, turn)
            await _edit_text(connection, owner, conversation.id, removal.run, turn)
            shown = previews(removal.turn(link.removed), turn)
            await connection.execute(SESSIONS["edit_preview"], owner, conversation.id, *shown)
            return True

        return await self._connections.transact(work)

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""

        async def work(connection: Connection) -> str:
            conversation = await _editable(connection, owner, named)
            links = await _links(connection, owner, conversation.id)
            runs = [link.run for link in links if link.dialect == own and not link.deleted]
            await connection.execute(SQL["forget"], owner, conversation.id)
            await connection.execute(SQL["forget_edits"], owner, conversation.id)
            for run in reversed(runs):  # newest first: each then finds its ancestor in one step
                await hide_run(connection, owner, run, at, DELETED)
            return conversation.id

        return await self._connections.transact(work)


async def _editable(connection: Connection, owner: str, named: str) -> ConversationFound:
    row = await connection.fetchrow(ROWS["conversation_locked"], owner, named)
    return editable(named, ConversationFound(*row) if row else None)


async def _links(connection: Connection, owner: str, named: str) -> list[ConversationLink]:
    return [
        ConversationLink(run, dialect, bool(hidden), frozenset(msgspec.json.decode(removed or b"[]")))
        for run, dialect, hidden, removed in await connection.fetch(SQL["links"], owner, named)
    ]


async def _edit_text(connection: Connection, owner: str, conversation: str, run: str, turn: bytes) -> None:
    """A search finds no removed item."""
    if await connection.fetch(SESSIONS["has_text"], owner, conversation, run):
        text = searchable(decoded_turn(turn))
        await connection.execute(SESSIONS["forget_text"], owner, conversation, run)
        await connection.execute(SESSIONS["add_text"], owner, conversation, run, "", "", text)

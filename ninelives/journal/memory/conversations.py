"""Conversations in memory. Owns: finding, listing, annotating, editing and deleting them. Refuses to know: how a run is
opened or claimed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ninelives.core.admission import editable
from ninelives.core.sessions import decoded_turn, previews, searchable
from ninelives.journal.memory.tables import MemoryConversation, MemoryTables
from ninelives.journal.values import ConversationLink, ConversationRow, Removal


class MemoryConversations:
    """See journal.base.Conversations."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._conversations = tables.conversations

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        conversation = self._conversations.get((owner, named))
        return conversation.row() if conversation else None

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        rows = [one.row() for (whose, key), one in self._conversations.items() if whose == owner and key == one.id]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=not ascending)
        if after is not None:
            place = next((n for n, row in enumerate(rows) if row.id == after), len(rows))
            rows = rows[place + 1 :]
        return rows[:limit]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        conversation = self._conversations.get((owner, named))
        if conversation is not None:
            conversation.metadata = metadata
        return conversation is not None

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """See Conversations.line."""
        conversation = self._conversations.get((owner, named))
        return self._line(owner, conversation) if conversation else []

    def _line(self, owner: str, conversation: MemoryConversation) -> list[ConversationLink]:
        links: list[ConversationLink] = []
        run = conversation.latest
        while run is not None and (found := self._tables.runs.get(run)) and found.owner == owner:
            removed, _ = conversation.edits.get(run, (frozenset(), b""))
            links.append(ConversationLink(run, found.opening.dialect, found.hidden, removed))
            run = found.resolved.previous
        links.reverse()
        return links

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""
        conversation = self._editable(owner, named)
        link = next((link for link in self._line(owner, conversation) if link.run == removal.run), None)
        if link is None or link.deleted or removal.item in link.removed:
            return False
        removed = link.removed | {removal.item}
        turn = removal.turn(removed)
        conversation.edits[removal.run] = removed, turn
        entry = self._tables.entries.get((owner, conversation.id))
        for text in entry.texts if entry else ():
            if text.run == removal.run:  # a search finds no removed item
                text.text = searchable(decoded_turn(turn))
        before, after = previews(removal.turn(link.removed), turn)
        if entry is not None and entry.row.preview == before:
            entry.row = replace(entry.row, preview=after)
        return True

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""
        conversation = self._editable(owner, named)
        for link in self._line(owner, conversation):
            if link.dialect == own and not link.deleted:
                self._tables.delete(owner, link.run)
        self._tables.drop_conversation(owner, conversation.id)
        return conversation.id

    def _editable(self, owner: str, named: str) -> MemoryConversation:
        conversation = self._conversations.get((owner, named))
        found = editable(named, conversation.found() if conversation else None)
        return self._conversations[owner, found.id]

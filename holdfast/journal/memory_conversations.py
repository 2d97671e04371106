"""Conversations in memory. Owns: the same contract as the durable backends, over the dict that the memory store fills.
Refuses to know: how a run is kept: it is given a way to look at one and a way to delete one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.core.admission import ConversationFound, editable
from holdfast.journal.base_conversations import ConversationRow, Link, Removal

Step = Callable[[str, str], tuple[Link, str | None] | None]
"""(owner, run) -> the run and the one before it."""


class Talk(Struct):
    """One conversation. It stands in the dict under its id, and under its name where it has one."""

    id: str
    created_at: int
    name: str | None = None
    metadata: bytes = b"{}"
    latest: str | None = None
    active: str | None = None
    edits: dict[str, tuple[frozenset[str], bytes]] = {}
    """By run: its removed items, and its turn without them."""

    def found(self) -> ConversationFound:
        """As admission sees it."""
        return ConversationFound(self.id, self.latest, self.active)

    def row(self) -> ConversationRow:
        """As the API lists it."""
        return ConversationRow(self.id, self.name, self.created_at, self.metadata, self.latest, self.active)


class MemoryConversations:
    """See journal.base.Conversations."""

    def __init__(self, talks: dict[tuple[str, str], Talk], step: Step, drop: Callable[[str, str], object]) -> None:
        self._talks = talks
        self._step = step
        self._drop = drop

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        talk = self._talks.get((owner, named))
        return talk.row() if talk else None

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        rows = [talk.row() for (whose, key), talk in self._talks.items() if whose == owner and key == talk.id]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=not ascending)
        if after is not None:
            place = next((n for n, row in enumerate(rows) if row.id == after), len(rows))
            rows = rows[place + 1 :]
        return rows[:limit]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        talk = self._talks.get((owner, named))
        if talk is not None:
            talk.metadata = metadata
        return talk is not None

    async def line(self, owner: str, named: str) -> list[Link]:
        """See Conversations.line."""
        talk = self._talks.get((owner, named))
        return self._line(owner, talk) if talk else []

    def _line(self, owner: str, talk: Talk) -> list[Link]:
        links: list[Link] = []
        run = talk.latest
        while run is not None and (stepped := self._step(owner, run)):
            link, run = stepped
            removed, _ = talk.edits.get(link.run, (frozenset(), b""))
            links.append(Link(link.run, link.dialect, link.deleted, removed))
        links.reverse()
        return links

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""
        talk = self._editable(owner, named)
        link = next((link for link in self._line(owner, talk) if link.run == removal.run), None)
        if link is None or link.deleted or removal.item in link.removed:
            return False
        removed = link.removed | {removal.item}
        talk.edits[removal.run] = removed, removal.turn(removed)
        return True

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""
        talk = self._editable(owner, named)
        for link in self._line(owner, talk):
            if link.dialect == own and not link.deleted:
                self._drop(owner, link.run)
        for key in [key for key, other in self._talks.items() if other is talk]:
            del self._talks[key]
        return talk.id

    def _editable(self, owner: str, named: str) -> Talk:
        talk = self._talks.get((owner, named))
        found = editable(named, talk.found() if talk else None)
        return self._talks[owner, found.id]

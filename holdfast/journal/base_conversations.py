"""What a journal keeps of conversations. Owns: the Protocol Conversations and the values it exchanges: the row, the
line of runs, the removal of an item. Every backend passes the contract suite in holdfast/testing. Refuses to know: what
an item is (a name here) and what a turn holds (bytes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct


class ConversationRow(Struct, frozen=True):
    """A conversation."""

    id: str
    name: str | None
    created_at: int
    metadata: bytes
    latest: str | None
    active: str | None


class Link(Struct, frozen=True):
    """A run in the chain of a conversation. `removed`: the items of it that its owner took out."""

    run: str
    dialect: str
    deleted: bool
    removed: frozenset[str] = frozenset()


class Removal(Struct, frozen=True):
    """An item that is to be taken out of a conversation. `turn` makes the run's turn as the conversation shall see it
    from now on, given all its removed items; it is called in the transaction, so that no removal is lost to another."""

    run: str
    item: str
    turn: Callable[[frozenset[str]], bytes]


class Conversations(Protocol):
    """Conversations as things of their own: open() makes and extends them, this reads and edits them. Each method is
    one transaction; `named` is an id or a name. A run that joined a conversation gets the turns as they were edited
    there; one that follows by previous_response_id gets them as they were."""

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """One of them."""
        ...

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """A page by age; `after` is the id that the page before ended with. Nothing after an unknown id."""
        ...

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """Replace its metadata; False where there is none."""
        ...

    async def line(self, owner: str, named: str) -> list[Link]:
        """Its runs, oldest first, from the first to latest_completed, deleted ones too; empty where there is none."""
        ...

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """Take an item out. False where the run is not of this conversation or deleted, or the item was taken out
        before. Raises as core.admission.editable."""
        ...

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """Delete it, and with it its runs of the dialect `own`, which are nothing without it, as Journal.delete would;
        all other runs stay. The id that it had. Raises as core.admission.editable."""
        ...

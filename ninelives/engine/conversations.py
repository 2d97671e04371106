"""Edits of conversations: the one door to them. Owns: items that a client adds, as a run which is over in the
transaction that opens it, taking items out, and deleting a conversation. Every method is one transaction of the
journal: a process that dies has done all of it or nothing. Refuses to know: what an item is, dialects and HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ninelives.core import codec
from ninelives.core.errors import not_found
from ninelives.core.events import AttemptStarted, Entry, RunAccepted, RunCompleted
from ninelives.core.spec import Message, Resolved
from ninelives.core.state import RunState, fold
from ninelives.engine.base import Order
from ninelives.engine.engine import Engine
from ninelives.engine.run import end_mark
from ninelives.engine.writer import not_stored
from ninelives.journal.values import ConversationLink, ConversationRow, Opening, Removal, StoreUnavailable

T = TypeVar("T")


class ConversationEdits:
    """The conversations of one engine's durable store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows = engine.durable.conversations

    async def find(self, owner: str, named: str) -> ConversationRow:
        """One of them, by id or name; 404 where the owner has none."""
        row = await self._rows.find(owner, named)
        if row is None:
            raise not_found("conversation", named)
        return row

    async def page(self, owner: str, limit: int, after: str | None, *, ascending: bool) -> list[ConversationRow]:
        """A page of the owner's, by age."""
        return list(await self._rows.page(owner, limit, after, ascending))

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """Its runs that can still be read, oldest first. To read a conversation is to use it, as with a response."""
        links = [link for link in await self._rows.line(owner, named) if not link.deleted]
        if links:
            self._engine.retainer.used(owner, links[-1].run)
        return links

    async def add(self, order: Order) -> str:
        """Items join a conversation, or make one; or those that the key or a lost connection names are there already.
        The run of them."""
        self._engine.refuse_if_unable(stored=True)
        spec, run, at = order.spec, self._engine.new_id(), self._engine.now_ms()

        def events(resolved: Resolved) -> list[RunAccepted | AttemptStarted | RunCompleted]:
            return [RunAccepted(spec=spec, resolved=resolved, owner=order.owner), AttemptStarted(), RunCompleted()]

        whole = fold(Entry(run, seq, at, min(seq, 1), event) for seq, event in enumerate(events(Resolved())))
        opening = Opening(
            run=run,
            at=at,
            dialect=spec.dialect,
            model=spec.model,
            asked=replace(order.asked, fresh_conversation=f"conv_{self._engine.new_id()}"),
            accept=lambda resolved: [codec.encode(event) for event in events(resolved)],
            holder=self._engine.holder,
            metadata=msgspec.json.encode(spec.metadata),
            ended=end_mark(whole),
        )
        return (await self._stored(self._engine.durable.open(opening))).run

    async def annotate(self, owner: str, named: str, metadata: dict[str, str]) -> ConversationRow:
        """Replace its metadata."""
        self._engine.refuse_if_unable(stored=True)
        if not await self._stored(self._rows.annotate(owner, named, msgspec.json.encode(metadata))):
            raise not_found("conversation", named)
        return await self.find(owner, named)

    async def remove(
        self, owner: str, named: str, item: str, state: RunState, turn: Callable[[frozenset[str]], list[Message]]
    ) -> bool:
        """Take an item of a run out: `turn` is the run's turn without some items. False where it is gone already."""
        self._engine.refuse_if_unable(stored=True)
        removal = Removal(state.facts.run, item, lambda removed: msgspec.json.encode(turn(removed)))
        return await self._stored(self._rows.remove(owner, named, removal))

    async def forget(self, owner: str, named: str, own: str) -> str:
        """Delete a conversation with its runs of the dialect `own`; responses stay. 409 while a run is active in it:
        to stop that is a decision of its own, and two steps would be two transactions."""
        self._engine.refuse_if_unable(stored=True)
        return await self._stored(self._rows.forget(owner, named, own, self._engine.now_ms()))

    async def _stored(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StoreUnavailable as error:
            raise not_stored(error) from error

"""Edits of conversations, and sessions: the one door to them. Owns: items that a client adds to a conversation, as a
run which is over in the transaction that opens it, taking items out, and deleting a conversation. There every method is
one transaction of the journal: a process that dies has done all of it or nothing. Owns also: what was said in a
session, its copies and its deletion with its runs. Refuses to know: what an item is, dialects and HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ninelives.core import codec
from ninelives.core.errors import ClientError, not_found
from ninelives.core.events import AttemptStarted, Entry, RunAccepted, RunCompleted
from ninelives.core.history import turn_messages
from ninelives.core.sessions import decoded_turn
from ninelives.core.spec import Message, Resolved
from ninelives.core.state import RunState, chainable, fold
from ninelives.engine.base import Order
from ninelives.engine.engine import Engine
from ninelives.engine.run import end_mark
from ninelives.engine.writer import not_stored
from ninelives.journal.values import (
    ConversationLink,
    ConversationRow,
    NewSession,
    Opening,
    Removal,
    RunRow,
    SessionHit,
    SessionQuery,
    SessionRow,
    StoredTurn,
    StoreUnavailable,
)

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
        return (await _stored(self._engine.durable.open(opening))).run

    async def annotate(self, owner: str, named: str, metadata: dict[str, str]) -> ConversationRow:
        """Replace its metadata."""
        self._engine.refuse_if_unable(stored=True)
        if not await _stored(self._rows.annotate(owner, named, msgspec.json.encode(metadata))):
            raise not_found("conversation", named)
        return await self.find(owner, named)

    async def remove(
        self, owner: str, named: str, item: str, state: RunState, turn: Callable[[frozenset[str]], list[Message]]
    ) -> bool:
        """Take an item of a run out: `turn` is the run's turn without some items. False where it is gone already."""
        self._engine.refuse_if_unable(stored=True)
        # A run that is listed later would be found by what is removed here.
        await _stored(self._engine.lister.catch_up(owner))
        removal = Removal(state.facts.run, item, lambda removed: msgspec.json.encode(turn(removed)))
        return await _stored(self._rows.remove(owner, named, removal))

    async def forget(self, owner: str, named: str, own: str) -> str:
        """Delete a conversation with its runs of the dialect `own`; responses stay. 409 while a run is active in it:
        to stop that is a decision of its own, and two steps would be two transactions."""
        self._engine.refuse_if_unable(stored=True)
        return await _stored(self._rows.forget(owner, named, own, self._engine.now_ms()))


async def _stored(work: Awaitable[T]) -> T:
    try:
        return await work
    except StoreUnavailable as error:
        raise not_stored(error) from error


class SessionBook:
    """The sessions of one engine's durable store. Every session that owns a stored run is in it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.durable
        self._rows = engine.durable.sessions

    async def page(self, query: SessionQuery) -> list[SessionHit]:
        """A page of an owner's sessions, the one used last first."""
        await self._engine.lister.catch_up(query.owner)
        return await self._rows.page(query)

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """One session."""
        await self._engine.lister.catch_up(owner)
        return await self._rows.find(owner, session)

    async def turns(self, owner: str, session: str) -> list[StoredTurn]:
        """What was said in a session, oldest first: its own turns if it keeps them, else those up to its newest run. So
        it is too where a chain went on after its own turns. A chat that resends its history is one turn with all of
        it."""
        await self._engine.lister.catch_up(owner)
        kept = await self._rows.turns(owner, session)
        runs = await self._rows.runs(owner, session)
        if kept and not (runs and runs[-1].previous and runs[-1].created_at > kept[-1].at):
            return kept
        state = await self._engine.look(owner, runs[-1].run) if runs else None
        if state is None:
            return []
        self._engine.retainer.used(owner, state.facts.run)
        times = {row.run: (row.updated_at, row.previous) for row in runs}
        turns = [StoredTurn(state.facts.updated_at, state.facts.run, await self._turn_of(owner, state))]
        before = state.facts.accepted.resolved.previous
        for turn in reversed(await self._store.turns(owner, state.facts.accepted.resolved)):
            at, earlier = times.get(before or "", (turns[-1].at, None))
            turns.append(StoredTurn(at, before, turn))
            before = earlier
        return turns[::-1]

    async def _turn_of(self, owner: str, state: RunState) -> bytes:
        """The turn of a run, without items that were removed from its conversation."""
        resolved = state.facts.accepted.resolved
        if resolved.conversation is None or not chainable(state):
            return msgspec.json.encode(turn_messages(state))
        return (await self._store.turns(owner, replace(resolved, previous=state.facts.run)))[-1]

    async def keeps_turns(self, owner: str, session: str) -> bool:
        """Does it keep its turns itself? Then a caller that names it gets them as history."""
        return bool(await self._rows.turns(owner, session))

    async def newest(self, owner: str, session: str) -> RunRow | None:
        """Its newest run that is not deleted."""
        runs = await self._rows.runs(owner, session)
        return runs[-1] if runs else None

    async def messages(self, owner: str, session: str) -> list[tuple[int, Message]]:
        """The messages of a session, each with the time of its turn."""
        return [(turn.at, said) for turn in await self.turns(owner, session) for said in decoded_turn(turn.turn)]

    async def change(
        self,
        owner: str,
        session: str,
        *,
        title: str | None = None,
        end_reason: str | None = None,
        model: str | None = None,
    ) -> None:
        """See Sessions.change."""
        self._engine.refuse_if_unable(stored=True)
        await _stored(self._rows.change(owner, session, title=title, end_reason=end_reason, model=model))

    async def make(self, new: NewSession) -> SessionRow:
        """Create a session. 409 if there is one with this id."""
        self._engine.refuse_if_unable(stored=True)
        await self._engine.lister.catch_up(new.owner)
        made = await self._rows.find(new.owner, new.session) if await _stored(self._rows.make(new)) else None
        if made is None:
            message = f"There is a session {new.session} already. Choose another id."
            raise ClientError("session_exists", message, status=409, param="id")
        return made

    async def fork(self, owner: str, row: SessionRow, copy: str, title: str | None) -> SessionRow:
        """A named session with what was said up to now, which goes its own way."""
        new = NewSession(
            owner=owner,
            session=copy,
            at=self._engine.now_ms(),
            title=row.title if title is None else title,
            source=row.source,
            model=row.model,
            turns=tuple(await self.turns(owner, row.session)),
        )
        return await self.make(new)

    async def forget(self, owner: str, session: str) -> None:
        """Delete a session with its runs. A run that is at work goes on, and is listed again. A process that dies in
        between leaves a session with fewer runs."""
        self._engine.refuse_if_unable(stored=True)
        for row in await self._rows.runs(owner, session):
            if row.ended:
                await _stored(self._engine.delete(owner, row.run))
        await _stored(self._rows.forget(owner, session))

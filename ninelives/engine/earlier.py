"""What was said before a run, and where it is found again. Owns: reading the turns of a chain, a conversation or a
session as messages; keeping those of long chains in memory, so that the next turn of one does not read all of them
again; and listing runs in their sessions after they were written. Refuses to know: how turns are stored, and what is
done with them.

Theory of operation. Only chains are kept, because what comes before a run of a chain never changes. A conversation can
be edited, and a session forgotten. A run is admitted only if the run that it follows exists. So what is kept is never
shown for a deleted run.

Runs are listed in batches, a moment after they end, so that the end of a run costs nothing more. The store knows which
runs are not listed. After a crash, a start or a migration they are found there and read from the journal. Whoever asks
for sessions lists what is missing first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from ninelives.core.admission import Asked
from ninelives.core.errors import Damaged, IllegalEvent
from ninelives.core.events import RunAccepted
from ninelives.core.history import paired, turn_messages
from ninelives.core.sessions import SessionTurn, turn_of
from ninelives.core.spec import Message, Resolved
from ninelives.core.state import RunState, chainable
from ninelives.engine.base import BoundedCache, EngineParts
from ninelives.journal.base import Catalog
from ninelives.journal.values import Gone, StoreUnavailable

LONG_CHAIN = 16
"""Shorter ones are read again: that costs less than to look after them."""
HISTORY_BYTES = 32 * 1024 * 1024
DICT_BYTES = 400
"""What a message takes beside its text."""
LIST_S = 1.0
"""How long after its end a run is listed, if nobody asks for sessions before."""
LIST_RUNS = 64
LIST_PAUSE_S = 0.02
"""Between two batches, so that running streams get in between."""
LISTED_BYTES = 8 * 1024 * 1024
CATCH_UP_S = 2.0
"""How long somebody who asks for sessions waits for what is not listed yet, after the start of a big old store."""
_turn = msgspec.json.Decoder(list[Message])


async def earlier_messages(catalog: Catalog, owner: str, resolved: Resolved) -> tuple[Message, ...]:
    """The messages of all turns that come before a run, oldest first."""
    return _said(await catalog.turns(owner, resolved))


def _said(turns: list[bytes]) -> tuple[Message, ...]:
    return tuple([message for turn in turns for message in _turn.decode(turn)])


class Earlier:
    """The same, by one process that keeps long chains in memory."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: BoundedCache[tuple[str, str], tuple[tuple[Message, ...], int]] = BoundedCache(HISTORY_BYTES)
        """(owner, run) -> what is said up to its end, and the bytes of that."""

    async def messages(self, owner: str, resolved: Resolved) -> tuple[Message, ...]:
        """The messages of all turns that come before a run, oldest first."""
        follows = _follows(resolved)
        kept = self._kept.get((owner, follows)) if follows else None
        if kept is not None:
            return kept[0]
        turns = await self._catalog.turns(owner, resolved)
        messages = _said(turns)
        if follows and len(turns) >= LONG_CHAIN:
            self._keep(owner, follows, messages, sum(map(len, turns)))
        return messages

    async def before(self, accepted: RunAccepted) -> tuple[Message, ...]:
        """What the model is told before the request of a run."""
        earlier = await self.messages(accepted.owner, accepted.resolved)
        return paired(earlier, accepted.spec.input) if accepted.resolved.conversation else earlier

    def ended(self, state: RunState) -> None:
        """A run has ended: where it follows a chain that is kept, that chain is now one turn longer."""
        accepted = state.facts.accepted
        follows = _follows(accepted.resolved)
        kept = self._kept.get((accepted.owner, follows)) if follows and chainable(state) else None
        if kept is not None:
            turn = msgspec.json.encode(turn_messages(state))
            self._keep(accepted.owner, state.facts.run, (*kept[0], *_turn.decode(turn)), kept[1] + len(turn))

    def forget(self, owner: str, run: str) -> None:
        """A run was deleted."""
        self._kept.drop((owner, run))

    def _keep(self, owner: str, run: str, messages: tuple[Message, ...], size: int) -> None:
        self._kept.put((owner, run), (messages, size), size + DICT_BYTES * len(messages))


def _follows(resolved: Resolved) -> str | None:
    """The run whose chain is all that comes before, if that is so."""
    return None if resolved.conversation or resolved.session_turns is not None else resolved.previous


async def would_follow(catalog: Catalog, asked: Asked) -> tuple[Message, ...]:
    """What a request would follow if it were made now. Raises as its admission would."""
    return await earlier_messages(catalog, asked.owner, await catalog.resolve(asked))


class SessionLister:
    """Lists the runs of one durable store in their sessions."""

    def __init__(self, parts: EngineParts, look: Callable[[str, str], Awaitable[RunState | None]]) -> None:
        """`look` reads the state of a run."""
        self._parts = parts
        self._sessions = parts.durable.sessions
        self._look = look
        self._ended: BoundedCache[Gone, SessionTurn] = BoundedCache(LISTED_BYTES)
        self._unreadable: set[Gone] = set()
        self._due = asyncio.Event()

    def ended(self, state: RunState) -> None:
        """A run has ended here: its journal needs not be read again."""
        accepted = state.facts.accepted
        if accepted.spec.kept in ("stored", "hours"):
            turn = turn_of(state)
            self._ended.put((accepted.owner, turn.run), turn, len(turn.text) + DICT_BYTES)
            self._due.set()

    async def run(self) -> None:
        """List what the last process left, then what ends, until cancelled."""
        self._due.set()
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(LIST_S)
            try:
                more = True
                while more:
                    more = await self._list_some(None, begun=False)
            except StoreUnavailable as error:
                self._parts.log.warning("sessions_not_listed", reason=str(error))
                self._due.set()

    async def catch_up(self, owner: str) -> None:
        """List what this owner has, runs at work too. What takes longer than CATCH_UP_S is left to run()."""
        end = asyncio.get_running_loop().time() + CATCH_UP_S
        more = True
        while more and asyncio.get_running_loop().time() < end:
            more = await self._list_some(owner, begun=True)

    async def _list_some(self, owner: str | None, *, begun: bool) -> bool:
        """List some runs and stored turns, oldest first. False if there are none left."""
        limit = LIST_RUNS + len(self._unreadable)
        due = await self._sessions.unlisted(owner, limit, begun=begun)
        due = [each for each in due if each not in self._unreadable]
        found = [turn for each in due if (turn := await self._turn_of(*each)) is not None]
        stored = [] if found else await self._sessions.unlisted_turns(owner, LIST_RUNS)
        if found or stored:
            await self._sessions.list_turns(found or stored)
        for each in due:
            self._ended.drop(each)
        await asyncio.sleep(LIST_PAUSE_S if owner is None else 0)
        return bool(found or stored)

    async def _turn_of(self, owner: str, run: str) -> SessionTurn | None:
        """What a run shows. None if it is gone, or cannot be read."""
        known = self._ended.get((owner, run))
        if known is not None:
            return known
        try:
            state = await self._look(owner, run)
        except (Damaged, IllegalEvent) as error:  # also a run of a newer release (R18): its own release lists it
            self._parts.log.warning("run_not_listed", run=run, reason=str(error))
            self._unreadable.add((owner, run))
            return None
        return turn_of(state) if state is not None else None

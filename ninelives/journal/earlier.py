"""What was said before a run. Owns: reading the turns of a chain, a conversation or a session as messages, and keeping
those of long chains in memory, so that the next turn of one does not read all of them again. Refuses to know: how turns
are stored, and what is done with them.

Theory of operation. Only chains are kept, because what comes before a run of a chain never changes. A conversation can
be edited, and a session forgotten. A run is admitted only if the run that it follows exists. So what is kept is never
shown for a deleted run."""

from __future__ import annotations

import msgspec

from ninelives.core.admission import Asked
from ninelives.core.events import RunAccepted
from ninelives.core.history import paired, turn_messages
from ninelives.core.spec import Message, Resolved, is_short
from ninelives.core.state import RunState, chainable
from ninelives.journal.base import Catalog
from ninelives.journal.cache import BoundedCache

LONG_CHAIN = 16
"""Shorter ones are read again: that costs less than to look after them."""
HISTORY_BYTES = 32 * 1024 * 1024
DICT_BYTES = 400
"""What a message takes beside its text."""
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
        if kept is not None and is_short(accepted.spec):  # else it is read when it is needed, and not on the loop
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

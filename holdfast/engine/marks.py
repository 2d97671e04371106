"""What the end of a run changes beside its log. Owns: the Mark for a terminal state and for parking. Refuses to know:
when it is written."""

from __future__ import annotations

import msgspec

from holdfast.core.history import turn_messages
from holdfast.core.state import RunState, chainable, waiting
from holdfast.journal.base import Mark


def mark_for(state: RunState, *, stored: bool) -> Mark:
    """The mark of a terminal state. A run that is not stored leaves a turn to its session only."""
    facts = state.facts
    spec_session = facts.accepted.resolved
    remembers = spec_session.remember and chainable(state)
    chains = chainable(state) and stored
    turn = msgspec.json.encode(turn_messages(state)) if chains or remembers else b""
    return Mark(
        status=state.status,
        at=facts.updated_at,
        ended=True,
        chains=chains,
        turn=turn,
        session=(spec_session.session or "") if remembers else "",
        void=not chainable(state),
    )


def parked_mark(at: int, state: RunState) -> Mark:
    """The run waits for the next holder, or for a person's answer until that expires, and that is nobody's fault."""
    asked = state.facts.asked if waiting(state) else None
    if asked is None:
        return Mark(status="queued", at=at, parked=True)
    return Mark(status="waiting_for_approval", at=at, parked=True, wake_at=asked.expires_at, asks=asked.code)


def asking_mark(at: int) -> Mark:
    """A person is asked: whoever lists the runs must find the question, also where the server dies before it parks."""
    return Mark(status="waiting_for_approval", at=at)

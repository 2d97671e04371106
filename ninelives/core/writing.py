"""The state of a run while text streams in. Owns: building the states between text deltas only when somebody reads
them. Refuses to know: who reads.

Theory of operation. Once a text has begun, a further delta changes two fields of a RunState: its number and the length
of its rope, whose list all these states share. So it is enough to keep one state and to count the deltas since. The
state at any point is built on demand, and it equals what `apply` gives (a test compares them). A delta that changes
more (after reasoning, of a refusal, with a full list) goes through `apply`."""

from __future__ import annotations

from ninelives.core import events as e
from ninelives.core.rope import FULL, Rope
from ninelives.core.state import RunState, apply
from ninelives.core.table import TABLE

Place = tuple[RunState, int]
"""A state, and how many text deltas came after it."""


def at(place: Place) -> RunState:
    """The state at a place."""
    state, later = place
    if not later:
        return state
    rope = state.text
    assert rope is not None  # only Writing makes a place with later deltas
    text = Rope(rope.rest, rope.pieces, rope.count + later)
    return RunState(state.facts, state.phase, state.seq + later, text, state.text_seq, None, -1, state.thoughts)


class Writing:
    """A run at its newest event."""

    __slots__ = ("_base", "_length", "_pieces", "seq")

    def __init__(self, state: RunState) -> None:
        self._set(state)

    def _set(self, state: RunState) -> None:
        self._base = state
        self.seq = state.seq
        self._pieces: list[str] | None = None
        rope = state.text
        if rope is None or state.refusal is not None or state.thought_seq >= 0 or len(rope.pieces) != rope.count:
            return
        if TABLE[state.phase].get(e.TextDelta) is state.phase:
            self._pieces, self._length = rope.pieces, rope.count

    @property
    def drafting(self) -> bool:
        """True while a message is provisional."""
        return self._pieces is not None or self._base.drafting

    @property
    def state(self) -> RunState:
        """The newest state."""
        if self.seq != self._base.seq:
            self._set(at(self.place))
        return self._base

    @property
    def place(self) -> Place:
        """The newest place."""
        return self._base, self.seq - self._base.seq

    def add(self, entry: e.Entry) -> None:
        """Add one entry. Raises IllegalEvent where the table has no cell for it."""
        event, pieces = entry.event, self._pieces
        if (
            pieces is not None
            and type(event) is e.TextDelta
            and entry.seq == self.seq + 1
            and len(pieces) == self._length < FULL  # else the list is shared and longer, or it is full
            and not event.refusal
        ):
            pieces.append(event.text)
            self._length += 1
            self.seq += 1
        else:
            self._set(apply(self.state, entry))

"""A message while its text comes in. Owns: the states of a run in such a stretch, of which only those are made that
somebody looks at. Refuses to know: who looks.

Theory of operation. Once text has begun, one more piece of it changes two things of a RunState: its number, and the end
of its rope, whose list all these states share. So a stretch is a state and how many pieces came after it, and the state
at any place of it is made on demand. What it would be is what `apply` says: a test holds them against each other. A
piece that changes more (a thought before it, a refusal, a full list) is no part of a stretch."""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.rope import FULL, Rope
from holdfast.core.state import RunState, apply
from holdfast.core.table import TABLE

Place = tuple[RunState, int]
"""A state, and how many pieces later."""


def at(place: Place) -> RunState:
    """The state there."""
    state, later = place
    if not later:
        return state
    rope = state.text
    assert rope is not None  # Writing makes no other place
    text = Rope(rope.rest, rope.pieces, rope.count + later)
    return RunState(state.facts, state.phase, state.seq + later, text, state.text_seq, None, -1, state.thoughts)


class Writing:
    """A run at its newest place."""

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
        """Is a message provisional?"""
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
        """One entry more; IllegalEvent where the table has no cell for it."""
        event, pieces = entry.event, self._pieces
        if (
            pieces is not None
            and type(event) is e.TextDelta
            and entry.seq == self.seq + 1
            and len(pieces) == self._length < FULL  # else somebody else went on from here, or it is full
            and not event.refusal
        ):
            pieces.append(event.text)
            self._length += 1
            self.seq += 1
        else:
            self._set(apply(self.state, entry))

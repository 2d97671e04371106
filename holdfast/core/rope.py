"""Text that grows by pieces. Owns: adding a piece in constant time, with every earlier text still valid. Refuses to
know: what the text is.

Theory of operation. A rope is a list, how much of it counts, and the rope before it. Growing adds to the list and makes
a new rope; the old one still counts as much as before, so both are right for ever. Whoever goes on from an old rope
gets a list of its own. A full list is followed by a new one, because a list that moves as it grows is not constant
time. Cells (rest, piece) would do the same with one more object per piece for the search for cycles to walk over."""

from __future__ import annotations

from msgspec import Struct

FULL = 512
"""Pieces in a list."""


class Rope(Struct, frozen=True, eq=False, gc=False):
    """The text of `rest`, then the first `count` of `pieces`. Only grow() makes one or changes a list."""

    rest: Rope | None
    pieces: list[str]
    count: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rope) and join(self) == join(other)

    def __hash__(self) -> int:
        return hash(join(self))


def grow(rope: Rope | None, piece: str) -> Rope:
    """The rope with one piece more."""
    if rope is None or rope.count == FULL:
        return Rope(rope, [piece], 1)
    pieces, count = rope.pieces, rope.count
    if len(pieces) != count:
        pieces = pieces[:count]
    pieces.append(piece)
    return Rope(rope.rest, pieces, count + 1)


def join(rope: Rope | None) -> str:
    """The text of a rope."""
    texts: list[str] = []
    while rope is not None:
        texts.append("".join(rope.pieces[: rope.count]))
        rope = rope.rest
    texts.reverse()
    return "".join(texts)

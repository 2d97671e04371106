"""Text that grows by pieces (R9). Owns: adding a piece in constant time, while every earlier text stays valid. Refuses
to know: what the text is.

Theory of operation. A rope is a list, the number of its pieces that count, and the rope before it. To grow appends to
the list and makes a new rope. The old rope counts as many pieces as before, so both stay valid. Growing an old rope
again copies its list. A full list is followed by a new one, because appending to a very long list is not constant time.
Linked cells (rest, piece) would do the same, but with one more object per piece for the garbage collector."""

from __future__ import annotations

from msgspec import Struct

FULL = 512
"""Most pieces in a list."""


class Rope(Struct, frozen=True, eq=False, gc=False):
    """The text of `rest`, then the first `count` of `pieces`. Only grow() and Writing may append to the list."""

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

"""Moving a store. Owns: the order of a move (read, write, read back, compare, and only then keep). Refuses to know:
what kinds of stores there are."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.core.errors import Damaged
from holdfast.journal.base import StoreUnavailable
from holdfast.journal.base_carry import Carried, Carrier, Digest, HalfMoved


class Moved(Struct, frozen=True):
    """What a move did."""

    checksum: str
    counts: dict[str, int]
    source: str
    """What became of the store that it was moved from."""


def _untold(row: Carried) -> None:
    """Nobody looks."""


async def move(source: Carrier, target: Carrier, told: Callable[[Carried], None] = _untold) -> Moved:
    """Make `target` what `source` is. Both sides are told in canonical rows and must be equal before anything is kept;
    whatever goes wrong before that leaves the target empty. Then the source is put out of use: two servers over two
    copies would both carry out what is unfinished. HalfMoved where that may not have come to its end."""
    await source.lend()
    await target.receive()
    given, taken = Digest(), Digest()
    async for row in source.rows():
        given.add(row)
        await target.put(row)
        told(row)
    async for row in target.rows():
        taken.add(row)
    if given.checksum != taken.checksum:
        raise Damaged(f"what was written is not what was read ({given.counts} against {taken.counts})")
    await target.keep()
    try:
        left = await source.retire()
    except (StoreUnavailable, OSError) as error:
        raise HalfMoved(
            f"all of it was moved and kept, but the old store could not be put out of use ({error}). Never serve it "
            "again: unfinished runs would be carried out at both places. Drop it, or move its files away."
        ) from error
    return Moved(taken.checksum, taken.counts, left)


async def summed(source: Carrier) -> Digest:
    """The checksum of a store that is not in use."""
    await source.lend()
    digest = Digest()
    async for row in source.rows():
        digest.add(row)
    return digest

"""Long texts. Owns: Rope, text that grows by pieces in constant time, while every earlier text stays valid (R9);
BigFrame, a frame of a stream that is encoded when it is sent (R13); and the rule that threads work on large pieces one
after the other (R12). Refuses to know: what is said, and who reads it.

Theory of operation. A rope is a list, the number of its pieces that count, and the rope before it. To grow appends to
the list and makes a new rope. The old rope counts as many pieces as before, so both stay valid. Growing an old rope
again copies its list. A full list is followed by a new one, because appending to a very long list is not constant time.
Linked cells (rest, piece) would do the same, but with one more object per piece for the garbage collector.

A message of some megabytes is in four frames of a response. A reader holds one of them at a time, and readers of the
same run share it.

A call into C over ten megabytes keeps Python's interpreter for some 10 ms, and those who wait get it in no order. So
the event loop may wait for a call of each thread that has such work: 76 ms with four of them. With turns it is one. A
pause before a huge piece is for the loop alone: to answer one request it needs the interpreter several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Event, Lock
from typing import ParamSpec, TypeVar

from msgspec import Struct

FULL = 512
"""Most pieces in a list."""
BIG = 64 * 1024
"""Longer frames are big, in bytes or about so many characters."""
LARGE_BYTES = 256 * 1024
"""More is left to a thread: a shorter piece costs less than the way there and back."""
HUGE_BYTES = 1024 * 1024
P = ParamSpec("P")
T = TypeVar("T")
PAUSE_S = 0.001
LARGE_WORK = ThreadPoolExecutor(1, thread_name_prefix="ninelives-large")
"""Its thread does large work for all. Each caller waits, so its queue holds one piece per open request or run."""
_turn, _free, _never = Lock(), nullcontext(), Event()


def turn(size: int) -> AbstractContextManager[object]:
    """Held by a thread while it works on a piece of so many bytes. Never by the event loop."""
    return _turn if size > LARGE_BYTES else _free


def alone(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work on a large piece of about so many bytes, in LARGE_WORK. Threads of the store may be at theirs."""
    with _turn:
        if size > HUGE_BYTES:
            _never.wait(PAUSE_S)
        return work(*args, **kwargs)


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


class BigFrame(Struct, frozen=True):
    """A frame that is not encoded yet."""

    key: object
    """Which frame of its run and dialect it is. Frames with the same key have the same bytes."""
    size: int
    """About how long it is."""
    encode: Callable[[], bytes]

    def __len__(self) -> int:
        return max(self.size, BIG + 1)


Frame = bytes | BigFrame


def packed(frames: Sequence[Frame]) -> list[Frame]:
    """The same frames in as few parts as is cheap: small ones are joined, a big one stays alone."""
    if len(frames) == 1:
        return list(frames)
    parts: list[Frame] = []
    few: list[bytes] = []
    size = 0
    for frame in frames:
        length = len(frame)
        if few and size + length > BIG:
            parts.append(b"".join(few))
            few, size = [], 0
        if isinstance(frame, BigFrame):
            parts.append(frame)
        else:
            few.append(frame)
            size += length
    if few:
        parts.append(b"".join(few) if len(few) > 1 else few[0])
    return parts


def whole(frames: Sequence[Frame]) -> bytes:
    """All frames as bytes, for whoever needs them at once."""
    return b"".join(frame.encode() if isinstance(frame, BigFrame) else frame for frame in frames)

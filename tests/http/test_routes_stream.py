"""How frames become messages of a stream (G6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.dialects import shared
from holdfast.dialects.messages import errors
from holdfast.engine.base import Broken, News
from holdfast.http.stream import FRAME_END, SLICE, RunStream, pieces


def frames(sizes: list[int]) -> list[bytes]:
    return [b"data: ".ljust(size - len(FRAME_END), b"x") + FRAME_END for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [
        [100],
        [SLICE],
        [SLICE + 1],
        [SLICE - 1, 10],
        [SLICE - 1, SLICE, SLICE + 1],
        [3 * SLICE],
        [10, 5 * SLICE + 7, 10],
        [200] * 5000,
        [SLICE, SLICE, 10],
        [random.Random(n).choice([20, 200, 4000, SLICE - 2, SLICE, SLICE + 2, 3 * SLICE]) for n in range(60)],
    ],
    ids=str,
)
def test_g6_a_frame_is_never_split_over_two_sends_unless_it_is_larger_than_a_slice(sizes: list[int]) -> None:
    whole = frames(sizes)
    sent = list(pieces(b"".join(whole)))
    assert b"".join(sent) == b"".join(whole)
    assert all(0 < len(piece) <= SLICE for piece in sent)
    ends = {sum(map(len, sent[: n + 1])) for n in range(len(sent))}
    place = 0
    for frame in whole:
        inside = [end for end in ends if place < end < place + len(frame)]
        assert not inside or len(frame) > SLICE, "a small frame was split"
        place += len(frame)
        assert len(frame) <= SLICE or place in ends, "nothing goes out with the last slice of a large frame"


class Gone:
    """A subscription to a run that has vanished."""

    on_cut: Callable[[], None]

    async def next(self) -> News:
        return Broken("the run was deleted")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "begins"),
    [(shared.broken_frame, b'data: {"error":{'), (errors.broken_frame, b'event: error\ndata: {"type":"error",')],
)
async def test_a_stream_that_cannot_be_read_on_ends_with_an_error_in_its_dialect(
    broken: Callable[[str], bytes], begins: bytes
) -> None:
    """House rule 6.15: a client of messages passes over frames without a name, and would take the end for good."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def left(whole: bool) -> None:
        pass

    stream = RunStream(Gone(), [], left, broken=broken)  # type: ignore[arg-type]
    await stream({"type": "http"}, receive, send)
    bodies = [message["body"] for message in sent[1:]]
    assert bodies[0].startswith(begins) and b"stream_broken" in bodies[0] and bodies[1:] == [b""]

"""How frames become messages of a stream (G6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from ninelives.dialects import shared
from ninelives.dialects.messages import errors
from ninelives.engine.base import Broken, Chunk, News, StreamEnded
from ninelives.http.answering import RunStream
from ninelives.http.edge.kept import FRAME_END, PIECE, pieces


def frames(sizes: list[int]) -> list[bytes]:
    return [b"data: ".ljust(size - len(FRAME_END), b"x") + FRAME_END for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [
        [100],
        [PIECE],
        [PIECE + 1],
        [PIECE - 1, 10],
        [PIECE - 1, PIECE, PIECE + 1],
        [3 * PIECE],
        [10, 5 * PIECE + 7, 10],
        [200] * 5000,
        [PIECE, PIECE, 10],
        [random.Random(n).choice([20, 200, 4000, PIECE - 2, PIECE, PIECE + 2, 3 * PIECE]) for n in range(60)],
    ],
    ids=str,
)
def test_g6_a_frame_is_never_split_over_two_sends_unless_it_is_larger_than_a_slice(sizes: list[int]) -> None:
    whole = frames(sizes)
    sent = list(pieces(b"".join(whole)))
    assert b"".join(sent) == b"".join(whole)
    assert all(0 < len(piece) <= PIECE for piece in sent)
    ends = {sum(map(len, sent[: n + 1])) for n in range(len(sent))}
    place = 0
    for frame in whole:
        inside = [end for end in ends if place < end < place + len(frame)]
        assert not inside or len(frame) > PIECE, "a small frame was split"
        place += len(frame)
        assert len(frame) <= PIECE or place in ends, "nothing goes out with the last slice of a large frame"


async def streamed(subscription: Any, **named: Any) -> tuple[list[Any], list[bool]]:
    """What a response of it sends, and whether its caller had the whole answer."""
    sent: list[Any] = []
    told: list[bool] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def left(*, whole: bool, cut: bool) -> None:
        told.append(whole)
        assert cut is subscription.restarted

    await RunStream(subscription, [], left, **named)({"type": "http"}, receive, send)
    return sent, told


class Told:
    """A subscription to a run that ends with these frames."""

    on_cut: Callable[[], None]

    def __init__(self, *chunks: bytes, restarted: bool = False) -> None:
        self._left = list(chunks)
        self.restarted = restarted

    @property
    def told(self) -> bool:
        return not self._left

    def connect(self, line: object) -> None:
        pass

    async def next(self) -> News:
        return Chunk(self._left.pop(0)) if self._left else StreamEnded()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("last", [b"data: last\n\n", frames([3 * PIECE])[0]], ids=["small", "large"])
async def test_the_last_frames_go_out_with_the_end_of_the_body(last: bytes) -> None:
    sent, told = await streamed(Told(b"data: first\n\n", last))
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    assert b"".join(message["body"] for message in bodies) == b"data: first\n\n" + last
    assert [message["more_body"] for message in bodies] == [*[True] * (len(bodies) - 1), False]
    assert all(message["body"] for message in bodies), "no write for the end alone"
    assert told == [True]


async def test_B8_a_stream_that_ends_because_its_text_starts_again_is_no_delivery() -> None:
    _, told = await streamed(Told(b"data: first\n\n", b"data: error\n\n", restarted=True))
    assert told == [False]


class Gone:
    """A subscription to a run that has vanished."""

    restarted = False

    def connect(self, line: object) -> None:
        pass

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
    """R15: a client of messages passes over frames without a name, and would take the end for good."""
    sent, _ = await streamed(Gone(), broken=broken)
    bodies = [message["body"] for message in sent[1:]]
    assert bodies[0].startswith(begins) and b"stream_broken" in bodies[0]
    assert not bodies[1:] and not sent[-1]["more_body"]

"""Rules of ninelives/http/edge/kept.py: an answer that another process has begun goes on without a wrong byte."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from ninelives.http.edge.kept import (
    KEEPALIVE_CHUNK,
    PIECE,
    AdoptedTransport,
    KeptTransport,
    chunked,
    chunked_pieces,
    standing,
)
from ninelives.supervisor.custody import LeftClient
from ninelives.supervisor.kernel import why_not

HEAD = b"HTTP/1.1 200 OK\r\ndate: then\r\n\r\n"
END = b"0\r\n\r\n"


class Wire:
    """A transport whose kernel takes everything, until it is killed after `takes` bytes."""

    def __init__(self, takes: int = 1 << 40) -> None:
        self.taken, self._takes, self.aborted = b"", takes, False

    def write(self, data: bytes) -> None:
        self.taken = (self.taken + data)[: self._takes]

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Memory:
    """A custody in this process. After `dies` messages nothing is noted any more."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(64)).cast("Q")
        self.heads: dict[int, bytes] = {}
        self.beats: list[int] = []
        self.released: list[int] = []

    def word(self, slot: int) -> int:
        return slot

    def open(self, fd: int) -> int | None:
        return 3

    def begin(self, slot: int, note: bytes, base: int, *, keep_alive: bool) -> bool:
        return True

    def head(self, slot: int, head: bytes) -> bool:
        self.heads[slot] = head
        return True

    def beat(self, slot: int, place: int) -> bool:
        self.beats.append(place)
        return True

    def over(self, slot: int) -> None:
        self.released.append(slot)

    def wait(self, slot: int, read: int) -> None:
        return None

    def release(self, slot: int) -> None:
        self.released.append(slot)

    def left(self) -> LeftClient:
        none: Any = None
        return LeftClient(
            none, 3, "", 0, True, self.heads.get(3, b"").decode("latin-1"), tuple(self.beats), self.words[3]
        )


def begun(frames: list[bytes], beats: set[int], takes: int = 1 << 40) -> tuple[Memory, Wire]:
    """A stream that a process began: `beats` says before which frames a keepalive comes."""
    custody, wire = Memory(), Wire(takes)
    transport = KeptTransport(wire, custody, 3)
    transport.stream()
    transport.begin(HEAD)
    transport.write(HEAD)
    for number, frame in enumerate(frames):
        if number in beats:
            transport.beat(transport.write)
        transport.write(chunked(frame))
    return custody, wire


def went_on(custody: Memory, taken: int, frames: list[bytes], wire: Wire) -> AdoptedTransport:
    """The next process, which gets the frames in other groups."""
    transport = AdoptedTransport(wire, custody, custody.left(), taken)
    transport.write(b"HTTP/1.1 200 OK\r\ndate: now\r\n\r\n")
    for piece in chunked_pieces(b"".join(frames)):
        transport.write(piece)
    transport.write(END)
    transport.end()
    return transport


FRAMES = [b"data: %d%b\n\n" % (number, b"x" * (number * 7 % 50)) for number in range(40)]


@pytest.mark.parametrize("seed", range(60))
def test_the_client_gets_each_byte_once_wherever_the_process_was_killed(seed: int) -> None:
    chance = random.Random(seed)
    told = chance.randint(0, len(FRAMES))
    beats = {number for number in range(told) if chance.random() < 0.2}
    whole = begun(FRAMES[:told], beats)[1].taken
    takes = chance.choice((len(whole), chance.randint(0, len(whole))))
    custody, first = begun(FRAMES[:told], beats, takes)
    second = Wire()
    went_on(custody, len(first.taken), FRAMES, second)
    assert not second.aborted
    rest = b"".join(chunked(frame) for frame in FRAMES[told:]) + END
    assert first.taken + second.taken == whole + rest


def test_a_second_death_before_and_after_the_proof_changes_nothing() -> None:
    custody, first = begun(FRAMES[:10], {4}, 100)
    left, second = custody.left(), Wire()
    AdoptedTransport(second, custody, left, 100).write(HEAD)  # dies before it has proven anything
    assert second.taken == b"" and custody.left() == left
    third = Wire()
    transport = AdoptedTransport(third, custody, left, 100)
    transport.write(HEAD)
    for frame in FRAMES[:20]:
        transport.write(chunked(frame))
    transport.beat(transport.write)
    fourth = Wire()
    went_on(custody, len(first.taken + third.taken), FRAMES, fourth)
    frames = [chunked(frame) for frame in FRAMES]
    frames.insert(20, KEEPALIVE_CHUNK)
    frames.insert(4, KEEPALIVE_CHUNK)
    assert first.taken + third.taken + fourth.taken == HEAD + b"".join(frames) + END


def test_a_keepalive_that_was_noted_and_not_written_is_written_by_the_next_process() -> None:
    custody, first = begun(FRAMES[:5], set())
    custody.beats.append(len(first.taken))
    second = Wire()
    went_on(custody, len(first.taken), FRAMES, second)
    assert second.taken.startswith(KEEPALIVE_CHUNK + chunked(FRAMES[5])) and second.taken.endswith(END)


def test_a_keepalive_that_goes_out_with_the_head_is_noted_behind_it() -> None:
    """The head waits for the first piece of the answer, which may be a keepalive: the model is slow."""
    custody, first = Memory(), Wire()
    transport = KeptTransport(first, custody, 3)
    transport.stream()
    transport.begin(HEAD)
    transport.beat(lambda data: transport.write(HEAD + data))
    transport.write(chunked(FRAMES[0]))
    second = Wire()
    went_on(custody, len(first.taken), FRAMES, second)
    frames = b"".join(map(chunked, FRAMES))
    assert first.taken + second.taken == HEAD + KEEPALIVE_CHUNK + frames + END


@pytest.mark.parametrize(
    "other",
    [
        [b"data: other\n\n", *FRAMES[1:]],
        FRAMES[1:],
        FRAMES[:3],
        [],
        [*FRAMES[:9], FRAMES[9][:-3] + b"y\n\n"],
    ],
)
def test_an_answer_that_is_rendered_in_another_way_is_cut_and_not_a_byte_of_it_is_sent(other: list[bytes]) -> None:
    custody, first = begun(FRAMES[:10], set(), 200)
    second = Wire()
    went_on(custody, len(first.taken), other, second)
    assert second.aborted and second.taken == b""


def test_a_kernel_that_took_more_than_was_told_is_not_believed() -> None:
    custody, first = begun(FRAMES[:10], set())
    second = Wire()
    went_on(custody, len(first.taken) + 1, FRAMES, second)
    assert second.aborted and second.taken == b""


def test_an_answer_that_is_no_stream_goes_out_in_one_piece_and_is_known_to_be_whole() -> None:
    custody, wire = Memory(), Wire()
    transport = KeptTransport(wire, custody, 3)
    transport.begin(HEAD)
    transport.write(HEAD)
    transport.write(b"{}")
    assert wire.taken == b"" and standing(custody.left(), 0) == "anew"
    transport.end()
    assert wire.taken == HEAD + b"{}"
    assert [standing(custody.left(), taken) for taken in (0, 5, len(wire.taken))] == ["anew", "broken", "whole"]


def test_a_stream_whose_head_was_not_noted_is_never_taken_for_a_whole_answer() -> None:
    custody, wire = Memory(), Wire()
    custody.head = lambda slot, head: False  # type: ignore[method-assign]
    transport = KeptTransport(wire, custody, 3)
    transport.stream()
    transport.begin(HEAD)
    assert custody.released == [3], "the line to the supervisor was full: this client is not kept"
    custody, wire = begun(FRAMES[:2], set())
    custody.heads.clear()
    assert standing(custody.left(), len(wire.taken)) == "broken"


def test_what_is_released_is_written_on_as_before() -> None:
    custody, wire = Memory(), Wire()
    transport = KeptTransport(wire, custody, 3)
    transport.write(b"one ")
    transport.release()
    transport.write(b"two")
    assert wire.taken == b"one two" and custody.released == [3]


def test_frames_are_cut_into_the_same_chunks_however_they_are_grouped() -> None:
    frames = [*FRAMES, b"data: " + b"y" * (3 * PIECE) + b"\n\n", b"data: z\n\n"]
    alone = b"".join(chunked(frame) for frame in frames)
    assert chunked(b"".join(frames)) == alone == b"".join(chunked_pieces(b"".join(frames)))
    assert max(map(len, chunked_pieces(b"".join(frames)))) < 2 * PIECE
    assert zlib.crc32(alone)


def test_this_kernel_says_how_much_was_sent() -> None:
    assert why_not() == ""

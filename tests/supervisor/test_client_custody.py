"""Rules of ninelives/supervisor/custody.py: what an answer notes stands in memory that outlives its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ninelives.supervisor.custody import _MOST_BEATS, SLOT_BYTES, SLOTS, ClientCustody
from ninelives.supervisor.kernel import consumed, tcp_pair
from tests.supervisor.test_answer_memory import Line


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("slots")
    os.ftruncate(fd, SLOTS * SLOT_BYTES)
    yield fd
    os.close(fd)


def custody(line: Any, memory: int) -> ClientCustody:
    return ClientCustody(line, memory, line.left())


def opened(server: ClientCustody) -> int:
    ours, theirs = tcp_pair()
    with ours, theirs:
        slot = server.open(ours.fileno())
    assert slot is not None
    return slot


async def test_the_next_process_has_all_that_an_answer_noted(line: Line, memory: int) -> None:
    server = custody(line, memory)
    slot = opened(server)
    assert server.begin(slot, b'{"run":"r"}', 7, keep_alive=True)
    assert server.head(slot, b"HTTP/1.1 200 OK\r\n\r\n")
    assert server.beat(slot, 100) and server.beat(slot, 200)
    server.words[server.word(slot)] = 12345
    (left,) = custody(line, memory).left
    assert (left.slot, left.note, left.base, left.keep_alive) == (slot, '{"run":"r"}', 7, True)
    assert (left.head, left.beats, left.told) == ("HTTP/1.1 200 OK\r\n\r\n", (100, 200), 12345)
    left.sock.close()


async def test_a_connection_without_an_answer_is_closed_by_the_next_process(line: Line, memory: int) -> None:
    """A request that was read is lost, and its client must know that."""
    server = custody(line, memory)
    for ends in (True, False):
        slot = opened(server)
        if ends:
            assert server.begin(slot, b"note", 0, keep_alive=True)
            server.over(slot)
    assert len(line.held) == 2
    assert not custody(line, memory).left and not line.held


async def test_a_connection_that_waits_for_its_next_request_goes_on_unless_some_of_that_was_read(
    line: Line, memory: int
) -> None:
    server = custody(line, memory)
    for read in (False, True):
        ours, theirs = tcp_pair()
        slot = server.open(ours.fileno())
        assert slot is not None and server.begin(slot, b"note", 0, keep_alive=True)
        server.over(slot)
        server.wait(slot, consumed(ours.fileno()))
        theirs.sendall(b"GET / HTTP/1.1\r\n")
        if read:
            ours.recv(4)
        ours.close()
        after = custody(line, memory)
        assert (len(after.idle), bool(line.held)) == ((0, False) if read else (1, True))
        for sock, _ in after.idle:
            assert sock.recv(3) == b"GET"
        after.drop()
        theirs.close()


async def test_a_slot_is_used_for_the_next_answer_of_its_connection_and_then_by_others(line: Line, memory: int) -> None:
    server = custody(line, memory)
    slot = opened(server)
    for number in range(3):
        assert server.begin(slot, b"note %d" % number, number, keep_alive=False)
        assert server.beat(slot, number)
    assert len(line.held) == 1
    (left,) = custody(line, memory).left
    assert (left.note, left.base, left.beats, left.head, left.told) == ("note 2", 2, (2,), "", 0)
    left.sock.close()
    server.release(slot)
    assert opened(server) == slot


async def test_what_does_not_fit_into_a_slot_is_not_kept(line: Line, memory: int) -> None:
    server = custody(line, memory)
    slot = opened(server)
    assert not server.begin(slot, bytes(SLOT_BYTES), 0, keep_alive=True)
    assert server.begin(slot, b"note", 0, keep_alive=True)
    assert not server.head(slot, bytes(SLOT_BYTES))
    assert all(server.beat(slot, place) for place in range(_MOST_BEATS)) and not server.beat(slot, 0)


async def test_a_process_that_leaves_keeps_its_clients_for_the_next(line: Line, memory: int) -> None:
    server = custody(line, memory)
    slot = opened(server)
    assert server.begin(slot, b"note", 0, keep_alive=True)
    server.leave()
    server.over(slot)
    server.release(slot)
    (left,) = custody(line, memory).left
    assert left.note == "note"
    left.sock.close()

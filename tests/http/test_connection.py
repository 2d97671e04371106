"""A piece of a body that is written without a task: only where uvicorn's own send() would write it the same way."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from ninelives.http.edge.connection import write_piece
from ninelives.http.edge.whole import HeadFirst


class Cycle(SimpleNamespace):
    """Can be referred to weakly, as uvicorn's can."""


def cycle(sent: list[bytes], *, closing: bool = False, paused: bool = False, **fields: Any) -> Cycle:
    """What write_piece reads of uvicorn's request cycle."""
    transport = SimpleNamespace(write=sent.append, is_closing=lambda: closing)
    state = {"disconnected": False, "response_complete": False, "chunked_encoding": True, **fields}
    return Cycle(transport=transport, flow=SimpleNamespace(write_paused=paused), **state)


def test_a_piece_is_written_as_one_chunk() -> None:
    sent: list[bytes] = []
    kept = cycle(sent)
    assert write_piece(weakref.ref(kept), b"data: " + b"x" * 10 + b"\n\n")
    assert sent == [b"12\r\ndata: xxxxxxxxxx\n\n\r\n"]


@pytest.mark.parametrize(
    "state",
    [
        {"closing": True},
        {"paused": True},
        {"disconnected": True},
        {"response_complete": True},
        {"chunked_encoding": None},
        {"chunked_encoding": False},
    ],
    ids=str,
)
def test_a_line_that_is_full_broken_over_or_not_chunked_is_left_to_send(state: dict[str, Any]) -> None:
    sent: list[bytes] = []
    kept = cycle(sent, **state)
    assert not write_piece(weakref.ref(kept), b"data: x\n\n")
    assert not sent


def test_nothing_is_written_for_a_request_that_is_over() -> None:
    kept = cycle([])
    gone = weakref.ref(kept)
    del kept
    assert not write_piece(gone, b"data: x\n\n")


class Socket:
    """A transport that counts its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def answering() -> tuple[SimpleNamespace, Socket]:
    socket = Socket()
    cycle = SimpleNamespace(transport=socket)
    cycle.transport = HeadFirst(cycle, socket)
    return cycle, socket


async def test_a_head_and_the_piece_that_follows_at_once_are_one_write() -> None:
    cycle, socket = answering()
    cycle.transport.write(b"head ")
    cycle.transport.write(b"body")
    assert socket.writes == [b"head body"]
    cycle.transport.write(b"more")
    await asyncio.sleep(0)
    assert socket.writes == [b"head body", b"more"]
    assert cycle.transport is socket


async def test_a_head_that_nothing_follows_at_once_goes_alone() -> None:
    cycle, socket = answering()
    cycle.transport.write(b"head ")
    await asyncio.sleep(0)
    assert socket.writes == [b"head "]
    cycle.transport.write(b"body")
    assert socket.writes == [b"head ", b"body"]


async def test_a_head_goes_before_the_connection_is_closed() -> None:
    cycle, socket = answering()
    cycle.transport.write(b"head ")
    cycle.transport.close()
    assert (socket.writes, socket.closed) == ([b"head "], True)
    await asyncio.sleep(0)
    assert socket.writes == [b"head "]


async def test_nothing_is_written_to_a_connection_that_broke_meanwhile() -> None:
    cycle, socket = answering()
    cycle.transport.write(b"head ")
    socket.close()
    assert cycle.transport.is_closing()
    await asyncio.sleep(0)
    assert socket.writes == []

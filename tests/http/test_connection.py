"""A piece of a body that is written without a task: only where uvicorn's own send() would write it the same way."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.http.connection import write_of


class Cycle(SimpleNamespace):
    """Can be referred to weakly, as uvicorn's can."""


def cycle(sent: list[bytes], *, closing: bool = False, paused: bool = False, **fields: Any) -> Cycle:
    """What write_of reads of uvicorn's request cycle."""
    transport = SimpleNamespace(write=sent.append, is_closing=lambda: closing)
    state = {"disconnected": False, "response_complete": False, "chunked_encoding": True, **fields}
    return Cycle(transport=transport, flow=SimpleNamespace(write_paused=paused), **state)


def test_a_piece_is_written_as_one_chunk() -> None:
    sent: list[bytes] = []
    kept = cycle(sent)
    assert write_of(kept)(b"data: " + b"x" * 10 + b"\n\n")
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
    assert not write_of(kept)(b"data: x\n\n")
    assert not sent


def test_the_way_to_write_does_not_keep_a_request_that_is_over() -> None:
    kept = cycle([])
    kept.scope = {"write": write_of(kept)}
    gone = weakref.ref(kept)
    del kept
    assert gone() is None


def test_a_server_whose_cycle_is_another_is_left_to_send() -> None:
    assert not write_of(None)(b"data: x\n\n")
    assert not write_of(SimpleNamespace())(b"data: x\n\n")

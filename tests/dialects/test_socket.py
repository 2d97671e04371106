"""Rules of ninelives/dialects/responses/socket.py and of what a websocket remembers (C8)."""

from __future__ import annotations

import json

import pytest

from ninelives.core.errors import ClientError
from ninelives.dialects.responses.socket import Create, FrameRefused, Held, error_text, read_frame, texts
from ninelives.dialects.sse import DONE, named_frame
from ninelives.http.websocket import Memory


def test_frames_become_texts_and_the_end_mark_is_dropped() -> None:
    data = named_frame(b"a", b'{"type":"a","text":"data: \\n\\n x"}') + named_frame(b"b", b'{"type":"b"}') + DONE
    assert [json.loads(text) for text in texts(data, None)] == [{"type": "a", "text": "data: \n\n x"}, {"type": "b"}]
    assert [json.loads(text)["stream_id"] for text in texts(data, 'q"é')] == ['q"é', 'q"é']


def test_null_is_the_same_as_left_out() -> None:
    frame = read_frame(b'{"type":"response.create","stream":null,"background":null,"store":false,"stream_id":null}')
    assert isinstance(frame, Create) and not frame.stored and frame.stream_id is None


@pytest.mark.parametrize("field", [b'"stream":false', b'"stream_options":{}', b'"background":true'])
def test_what_belongs_to_http_is_refused(field: bytes) -> None:
    frame = read_frame(b'{"type":"response.create","stream_id":"s",' + field + b"}")
    assert (
        isinstance(frame, FrameRefused) and frame.error.param == field.decode().split('"')[1] and frame.stream_id == "s"
    )


def test_steering_is_answered_at_once_and_all_else_in_its_turn() -> None:
    steer, other = read_frame(b'{"type":"response.steer"}'), read_frame(b'{"type":"x"}')
    assert isinstance(steer, FrameRefused) and steer.at_once and steer.error.code == "steering_not_supported"
    assert isinstance(other, FrameRefused) and not other.at_once


def test_an_error_can_always_be_told() -> None:
    told = json.loads(error_text(ClientError("c", "half \ud800", param="p"), None))
    assert told == {
        "type": "error",
        "status": 400,
        "error": {"message": "half ?", "type": "invalid_request_error", "param": "p", "code": "c"},
    }


def test_a_connection_remembers_within_its_bound_and_the_longest_unused_go_first() -> None:
    def held(size: int) -> Held:
        return Held(({"role": "user", "content": "x" * size},), None, "")

    memory = Memory(1000)
    for run in ("a", "b", "c"):
        memory.keep(run, held(200))
    assert memory.find("a") == held(200)
    memory.keep("d", held(200))
    memory.keep("e", held(2000))
    assert [run for run in "abcde" if memory.find(run)] == ["a", "c", "d"]
    assert memory.size <= 1000
    for run in "abcde":
        memory.forget(run)
    assert memory.size == 0

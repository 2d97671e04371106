"""Rules of ninelives/dialects/responses/socket.py and of what a websocket remembers (C8)."""

from __future__ import annotations

import json

import pytest

from ninelives.core.errors import ClientError
from ninelives.dialects.responses.socket import (
    Create,
    FrameRefused,
    Held,
    SteerFrame,
    error_text,
    read_frame,
    successor,
    texts,
)
from ninelives.dialects.sse import DONE, named_frame
from ninelives.http.websocket import Memory


def test_frames_become_texts_and_the_end_mark_is_dropped() -> None:
    data = named_frame(b"a", b'{"type":"a","text":"data: \\n\\n x"}') + named_frame(b"b", b'{"type":"b"}') + DONE
    assert [json.loads(text) for text in texts(data, None)] == [{"type": "a", "text": "data: \n\n x"}, {"type": "b"}]
    assert [json.loads(text)["stream_id"] for text in texts(data, 'q"é')] == ['q"é', 'q"é']


def test_null_is_the_same_as_left_out() -> None:
    frame = read_frame(b'{"type":"response.create","stream":null,"background":null,"store":false,"stream_id":null}', 10)
    assert isinstance(frame, Create) and not frame.stored and frame.stream_id is None


@pytest.mark.parametrize("field", [b'"stream":false', b'"stream_options":{}', b'"background":true'])
def test_what_belongs_to_http_is_refused(field: bytes) -> None:
    frame = read_frame(b'{"type":"response.create","stream_id":"s",' + field + b"}", 10)
    assert (
        isinstance(frame, FrameRefused) and frame.error.param == field.decode().split('"')[1] and frame.stream_id == "s"
    )


def test_a_successor_has_the_settings_of_its_response_and_the_input_of_all_steers() -> None:
    first = read_frame(b'{"type":"response.create","model":"m","input":"x","stream_id":"s"}', 10)
    said = [
        read_frame(b'{"type":"response.steer","previous_response_id":"r","input":"' + each + b'"}', 10)
        for each in (b"a", b"b")
    ]
    steers = [frame for frame in said if isinstance(frame, SteerFrame)]
    assert isinstance(first, Create) and [steer.error for steer in steers] == [None, None]
    next_one = successor(first, steers)
    body = json.loads(next_one.raw)
    assert (body["model"], body["previous_response_id"], next_one.previous, next_one.stream_id) == ("m", "r", "r", "s")
    assert [item["content"][0]["text"] for item in body["input"]] == ["a", "b"]


def test_the_successor_in_a_conversation_goes_on_from_that() -> None:
    first = read_frame(b'{"type":"response.create","conversation":"c","input":"x"}', 10)
    assert isinstance(first, Create)
    next_one = successor(first, [SteerFrame("r", "a")])
    assert "previous_response_id" not in json.loads(next_one.raw) and next_one.previous is None


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

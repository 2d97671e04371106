"""Responses over a websocket (C8), as the SDK and as raw sockets see it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.exceptions import ConnectionClosed

from tests.story.responses import HANGS, get, text_of
from tests.story.server import KEY, Client, Json, Server, Upstream, wait_until
from tests.story.wire import ENDS, replayed, wire

SETTINGS = {"NINELIVES_LIMITS_BODY_BYTES": "200000", "NINELIVES_SERVER_UNKNOWN_MODEL": "error"}


# The SDK


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
def test_the_sdk_connects_and_takes_two_turns_without_a_store(server: Server, upstream: Upstream, mark: str) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY)
    with client.responses.connect() as connection:
        connection.response.create(model="hermes-agent", input=f"{mark} [[text=first answer]]", store=False)
        first = _completed(connection)
        assert first.output_text == "first answer"
        connection.response.create(
            model="hermes-agent", input=f"{mark} second", store=False, previous_response_id=first.id
        )
        second = _completed(connection)
    assert second.previous_response_id == first.id
    told = [message["content"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] != "system"]
    assert told == [f"{mark} [[text=first answer]]", "first answer", f"{mark} second"]


def _completed(connection: Any) -> Any:
    for event in connection:
        assert event.type != "error", event
        if event.type in ENDS:
            assert event.type == "response.completed"
            return event.response
    raise AssertionError("the connection ended")


async def test_the_async_sdk_gets_tool_calls_and_hands_back_its_own(server: Server, mark: str) -> None:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY)
    own: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    asked = f'{mark} [[tools=read_file:{{"path":"none.txt"}}|weather:{{"city":"Ulm"}}]]'
    async with client.responses.connect() as connection:
        await connection.response.create(model="hermes-agent", input=asked, store=False, tools=[own])
        first = await _completed_async(connection)
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Ulm"})
        assert "mcp_call" in [item.type for item in first.output], "server tools are shown, not handed back (C9)"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        await connection.response.create(
            model="hermes-agent", input=[result], store=False, tools=[own], previous_response_id=first.id
        )
        second = await _completed_async(connection)
    assert second.output_text.endswith("done after 2 results"), second.output_text
    await client.close()


async def _completed_async(connection: Any) -> Any:
    async for event in connection:
        assert event.type != "error", event
        if event.type in ENDS:
            return event.response
    raise AssertionError("the connection ended")


# One connection


def test_events_are_those_of_the_stream_without_an_end_mark(server: Server, client: Client) -> None:
    with wire(server) as line:
        line.send(input="[[tokens=3]]")
        frames = line.turn()
    shown = frames[-1]["response"]["id"]
    assert replayed(client, shown) == frames


def test_a_stream_id_comes_back_with_every_frame(server: Server) -> None:
    with wire(server) as line:
        line.send(input="[[tokens=3]]", stream_id='a "b"', store=False)
        assert {frame["stream_id"] for frame in line.turn()} == {'a "b"'}
        line.send(stream_id="c")
        error = line.error()
        assert (error["stream_id"], error["param"]) == ("c", "input")


def test_creates_are_answered_one_after_the_other_in_their_order(server: Server) -> None:
    with wire(server) as line:
        for n in range(5):
            line.send(input=f"[[text=answer {n}]] [[pace=0.01]]", stream_id=str(n), store=n % 2 == 0)
        line.send(input=7, stream_id="bad")
        line.send(input="[[text=last]]", stream_id="last")
        turns = [line.turn() for _ in range(7)]
    names = ("0", "1", "2", "3", "4", "bad", "last")
    assert [{frame["stream_id"] for frame in turn} for turn in turns] == [{name} for name in names]
    assert [text_of(turn[-1]["response"]) for turn in turns if turn[-1]["type"] != "error"] == [
        *(f"answer {n}" for n in range(5)),
        "last",
    ]


def test_too_many_waiting_frames_are_refused_and_the_others_go_on(server: Server) -> None:
    with wire(server) as line:
        line.send(input=HANGS, stream_id="hangs", store=False)
        while line.next()["type"] != "response.output_text.delta":
            pass
        for n in range(18):
            line.send(input="hi", stream_id=str(n), store=False)
        refused = []
        while len(refused) < 2:
            if (frame := line.next())["type"] == "error":
                refused.append(frame)
    assert {frame["error"]["code"] for frame in refused} == {"too_many_queued"}
    assert [frame["stream_id"] for frame in refused] == ["16", "17"]
    assert {frame["status"] for frame in refused} == {429}
    wait_until(lambda: server.health()["runs"]["active"] == 0, "leaving cancels the run that the connection owned")


def test_an_error_is_a_frame_with_the_codes_of_http_and_the_connection_goes_on(server: Server) -> None:
    asks: list[tuple[Json, str, str | None, int]] = [
        ({"input": "hi", "stream": True}, "unsupported_parameter", "stream", 400),
        ({"input": "hi", "stream_options": {}}, "unsupported_parameter", "stream_options", 400),
        ({"input": "hi", "background": False}, "unsupported_parameter", "background", 400),
        ({"input": "hi", "generate": False}, "unsupported_parameter", "generate", 400),
        ({}, "missing_required_parameter", "input", 400),
        ({"input": "hi", "temperature": 9}, "invalid_value", "temperature", 400),
        ({"input": "hi", "model": "none"}, "model_not_found", "model", 404),
        ({"input": "hi", "stream_id": 7}, "invalid_value", "stream_id", 400),
        ({"input": "hi", "type": "response.dance"}, "unknown_frame_type", "type", 400),
        ({"input": "hi", "type": None}, "unknown_frame_type", "type", 400),
        ({"input": "hi", "conversation": "conv_none"}, "conversation_not_found", "conversation", 404),
        ({"input": "hi", "previous_response_id": "resp_00000000"}, "response_not_found", "previous_response_id", 404),
    ]
    with wire(server) as line:
        for fields, code, param, status in asks:
            line.send(**fields)
            error = line.error()
            assert (error["code"], error["param"], error["status"]) == (code, param, status), fields
        assert text_of(line.ask("[[text=still here]]", store=False)) == "still here"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ("null", "invalid_json"),
        ('{"type":NaN}', "invalid_json"),
        ('{"type":"response.create","input":"\\ud800"}', "invalid_json"),
        ('{"type":"response.create","input":' + "[" * 100 + "]" * 100 + "}", "invalid_json"),
        (b"\x00\x01", "unsupported_frame"),
        (b'{"type":"response.create","input":"hi"}', "unsupported_frame"),
        ('{"type":"response.create","input":"' + "x" * 200_000 + '"}', "payload_too_large"),
    ],
)
def test_whatever_a_frame_holds_the_answer_is_an_error_frame(server: Server, frame: str | bytes, code: str) -> None:
    with wire(server) as line:
        line.raw.send(frame)
        assert line.error()["code"] == code
        assert text_of(line.ask("[[text=on]]", store=False)) == "on"


def test_a_frame_far_beyond_the_limit_closes_the_connection_and_not_the_server(server: Server) -> None:
    with wire(server) as line:
        with suppress(ConnectionClosed):  # the server may close before the last part is sent
            line.raw.send(iter(["x" * 500_000] * 4))
        assert line.closed() == 1009
    assert server.health()["status"] == "ok"


def test_broken_utf8_closes_the_connection_and_not_the_server(server: Server) -> None:
    with wire(server) as line:
        line.raw.send(b"\xff\xfe\xfd", text=True)
        assert line.closed() == 1007
    assert server.health()["status"] == "ok"


# Memory of the connection


def test_what_is_not_stored_is_known_on_its_own_connection_only(server: Server, client: Client) -> None:
    with wire(server) as line, wire(server) as other:
        first = line.ask("one", store=False)
        assert client.get(f"/v1/responses/{first['id']}").status == 404
        other.send(input="two", store=False, previous_response_id=first["id"])
        error = other.error()
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
        assert first["id"] in error["message"]
        other.send(input="two", store=False, previous_response_id="resp_!")
        assert other.error()["code"] == "previous_response_not_found"
        second = line.ask("two", store=False, previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]


def test_a_chain_goes_over_stored_and_unstored_turns(
    server: Server, client: Client, upstream: Upstream, mark: str
) -> None:
    with wire(server) as line:
        one = line.ask(f"{mark} 1 [[text=a]]", store=True)
        two = line.ask("2 [[text=b]]", store=False, previous_response_id=one["id"])
        three = line.ask("3 [[text=c]]", store=False, previous_response_id=two["id"])
        four = line.ask("4 [[text=d]]", store=True, previous_response_id=three["id"])
        assert [each["previous_response_id"] for each in (two, three, four)] == [one["id"], two["id"], three["id"]]
    assert get(client, four["id"])["previous_response_id"] == three["id"]
    answer = client.post("/v1/responses", {"input": "5", "previous_response_id": four["id"]})
    assert answer.status == 200, "a stored turn keeps its history when the connection is gone"
    told = [message["content"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] != "system"]
    assert told == [f"{mark} 1 [[text=a]]", "a", "2 [[text=b]]", "b", "3 [[text=c]]", "c", "4 [[text=d]]", "d", "5"]


def test_a_failed_continuation_is_forgotten(server: Server) -> None:
    with wire(server) as line:
        first = line.ask("one", store=False)
        line.send(input="two", store=False, previous_response_id=first["id"], temperature=9)
        assert line.error()["code"] == "invalid_value"
        line.send(input="two", store=False, previous_response_id=first["id"])
        assert line.error()["code"] == "previous_response_not_found"
        again = line.ask("one", store=False)
        line.send(input="[[status=400]]", store=False, previous_response_id=again["id"])
        assert line.turn()[-1]["type"] == "response.failed"
        line.send(input="two", store=False, previous_response_id=again["id"])
        assert line.error()["code"] == "previous_response_not_found"


def test_a_named_session_gives_history_once_and_takes_each_turn_once(
    server: Server, client: Client, upstream: Upstream, mark: str
) -> None:
    with wire(server, {"x-hermes-session-id": mark}) as line:
        first = line.ask(f"{mark} 1 [[text=a]]")
        line.ask("2 [[text=b]]", previous_response_id=first["id"])
    told = [message["content"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] != "system"]
    assert told == [f"{mark} 1 [[text=a]]", "a", "2 [[text=b]]"]
    kept = client.get(f"/api/sessions/{mark}/messages").json()["data"]
    assert [message["content"] for message in kept] == [*told, "b"]

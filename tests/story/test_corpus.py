"""A corpus of everything /v1/responses can say, recorded from the real server: every event and every body is legal by
the Open Responses schema where tools are function_call items, and by openai-python's own types in both styles (C1, C9,
issue: schema)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.story.responses import HANGS, PATH, check_whole, finished, get
from tests.story.server import Client, Json, Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")
SETTINGS = {"NINELIVES_AGENT_MAX_ROUNDS": "4"}

READ = 'read_file:{"path":"none.txt"}'
WRITE = 'write_file:{"path":"corpus.txt","content":"hi"}'
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT: Json = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
OPTIONS: Json = {
    "instructions": "Be brief.",
    "max_output_tokens": 4000,
    "max_tool_calls": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    "truncation": "auto",
    "metadata": {"k": "v"},
    "service_tier": "auto",
    "prompt_cache_key": "cache",
    "safety_identifier": "someone",
    "user": "someone",
    "parallel_tool_calls": False,
    "include": ["reasoning.encrypted_content", "something.new"],
    "tools": [WEATHER],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    "prompt": {"id": "pmpt_1"},
    "unknown_field": {"is": "ignored"},
}


@dataclass
class Recorder:
    """Talks to the server and keeps what it said."""

    client: Client
    style: str
    events: list[Json] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        return {"x-tool-items": self.style}

    def stream(self, given: Any, **fields: Any) -> Json:
        """A whole stream, then the same as a body and as a replay."""
        with self.client.stream(PATH, {"input": given, "stream": True, **fields}, self.headers) as stream:
            frames = stream.rest()
        last = check_whole(frames)
        self.events += [frame.data for frame in frames]
        if fields.get("store", True):
            self.look(last["id"])
        return last

    def body(self, given: Any, **fields: Any) -> Json:
        answer = self.client.post(PATH, {"input": given, **fields}, self.headers)
        assert answer.status == 200, answer.body
        self.bodies.append(answer.json())
        return dict(answer.json())

    def look(self, shown: str) -> Json:
        self.bodies.append(get(self.client, shown))
        answer = self.client.get(f"{PATH}/{shown}/input_items")
        assert answer.status == 200
        self.bodies.append(answer.json())
        return self.bodies[-2]

    def check(self) -> None:
        assert self.events or self.bodies
        for event in self.events:
            schemas.sdk_event(event)
            if self.style == "function_call":
                schemas.open_responses_event(event)
        for body in self.bodies:
            schemas.sdk_body(body)
            if self.style == "function_call":
                schemas.open_responses_body(body)


def plain(record: Recorder) -> None:
    assert record.stream("hello")["status"] == "completed"
    record.body("hello")


def not_stored(record: Recorder) -> None:
    record.stream("hello", store=False)
    record.body("hello", store=False)


def two_server_tools(record: Recorder) -> None:
    last = record.stream(f"[[tools={WRITE}|{READ}]]")
    assert len(last["output"]) == (7 if record.style == "function_call" else 5)
    record.body(f"[[tools={WRITE}|{READ}]]")


def parallel_tools(record: Recorder) -> None:
    record.stream(f"[[parallel={WRITE}|{READ}]]")


def odd_calls(record: Recorder) -> None:
    record.stream("[[badargs]]")
    record.stream("[[unknowntool]]")
    record.stream("[[dupids]]")


def client_tool_round_trip(record: Recorder) -> None:
    first = record.stream('[[tools=weather:{"city":"Rome"}]]', tools=[WEATHER])
    call = first["output"][-1]
    assert call["type"] == "function_call" and call["name"] == "weather"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    record.stream([result], previous_response_id=first["id"], tools=[WEATHER])
    parts = {**result, "output": [{"type": "input_text", "text": "sunny"}]}
    record.body([{"role": "user", "content": "Weather?"}, call, parts], tools=[WEATHER])


def reasoning(record: Recorder) -> None:
    kinds = {item["type"] for item in record.stream("[[reason=3]] [[tokens=3]]")["output"]}
    assert kinds == {"reasoning", "message"}


def refusal(record: Recorder) -> None:
    last = record.stream("[[refuse]] [[text=I will not do that.]]")
    assert last["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not do that."}]
    record.body("[[refuse]] [[text=I will not do that.]] [[json]]")


def failure_in_mid_stream(record: Recorder) -> None:
    last = record.stream("[[tokens=9 errorframe=3]]")
    assert last["status"] == "failed" and last["error"]["code"] == "server_error"


def failure_before_the_first_word(record: Recorder) -> None:
    assert record.stream("[[status=400]]")["status"] == "failed"
    assert record.body("[[status=400]]")["error"]["code"] == "server_error"


def incomplete_by_max_output_tokens(record: Recorder) -> None:
    last = record.stream("[[tokens=40 length=16]]", max_output_tokens=16)
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}


def incomplete_by_max_messages(record: Recorder) -> None:
    last = record.stream(f"[[tools={'|'.join([READ] * 6)}]]")
    assert last["incomplete_details"] == {"reason": "max_messages"}


def cancelled(record: Recorder) -> None:
    with record.client.stream(PATH, {"input": HANGS, "stream": True}, record.headers) as stream:
        frames = stream.until("response.output_text.delta")
        shown = frames[0].data["response"]["id"]
        assert record.look(shown)["status"] == "in_progress"
        record.bodies.append(record.client.post(f"{PATH}/{shown}/cancel").json())
        frames += stream.rest()
    assert check_whole(frames)["status"] == "cancelled"
    record.events += [frame.data for frame in frames]


def background(record: Recorder) -> None:
    shown = record.body("[[tokens=3]]", background=True)["id"]
    record.bodies.append(finished(record.client, shown))
    record.stream("hello", background=True)
    assert record.events[1]["type"] == "response.queued"


def chain(record: Recorder) -> None:
    first = record.stream("one")
    assert record.stream("two", previous_response_id=first["id"])["previous_response_id"] == first["id"]


def conversation(record: Recorder) -> None:
    first = record.stream("one", conversation=f"corpus-{record.style}")
    named = {"id": first["conversation"]["id"]}
    assert record.stream("two", conversation=named)["conversation"] == named


def json_schema(record: Recorder) -> None:
    last = record.stream('[[text={"a":"b"}]]', text={"format": FORMAT})
    assert last["text"]["format"] == {**FORMAT, "description": None, "strict": False}
    record.body("hi", text={"format": {**FORMAT, "strict": True, "description": "An answer"}})


def all_options(record: Recorder) -> None:
    last = record.stream("hello", **OPTIONS)
    for name in ("reasoning", "text", "truncation", "metadata", "tool_choice", "max_tool_calls", "temperature"):
        assert last[name] == OPTIONS[name]
    assert last["tools"] == [{**WEATHER, "description": None, "strict": None}]


def every_tool_choice(record: Recorder) -> None:
    for choice in ("none", "auto", "required", {"type": "function", "name": "weather"}):
        record.body("hello", tools=[WEATHER], tool_choice=choice)


def all_kinds_of_input(record: Recorder) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    record.stream(
        [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "See"}, image]},
            {"role": "assistant", "content": "I see."},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "And?"},
        ]
    )


def compaction(record: Recorder) -> None:
    answer = record.client.post(f"{PATH}/compact", {"model": "hermes-agent", "input": "A long story."})
    assert answer.status == 200, answer.body
    record.bodies.append(answer.json())
    record.stream([*answer.json()["output"], {"role": "user", "content": "Go on."}])


SHAPES: list[Callable[[Recorder], None]] = [
    plain,
    not_stored,
    two_server_tools,
    parallel_tools,
    odd_calls,
    client_tool_round_trip,
    reasoning,
    refusal,
    failure_in_mid_stream,
    failure_before_the_first_word,
    incomplete_by_max_output_tokens,
    incomplete_by_max_messages,
    cancelled,
    background,
    chain,
    conversation,
    json_schema,
    all_options,
    every_tool_choice,
    all_kinds_of_input,
    compaction,
]


@pytest.mark.parametrize("style", ["function_call", "mcp_call"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_c1_every_event_and_every_body_is_legal(client: Client, shape: Callable[[Recorder], None], style: str) -> None:
    record = Recorder(client, style)
    shape(record)
    record.check()


@pytest.mark.parametrize("style", ["function_call", "mcp_call"])
def test_g3_a_draft_that_a_crash_cut_off_is_legal_too(tmp_path: Path, upstream: Upstream, style: str) -> None:
    asked = f"{style} [[tools={WRITE}]] [[tokens=9 hang=4 at=1 times=1]]"
    server = start_server(tmp_path, upstream.url)
    body = {"input": asked, "stream": True}
    with server.client.stream(PATH, body, {"x-tool-items": style}) as stream:
        told = stream.until("response.output_item.done")
        shown = told[0].data["response"]["id"]
        told += stream.until("response.output_text.delta")
        server.process.child.kill()
        server.process.child.wait(10)
    server = start_server(tmp_path, upstream.url)
    try:
        finished(server.client, shown)
        with server.client.stream(f"{PATH}/{shown}?stream=true") as stream:
            frames = stream.rest()
        assert [frame.raw for frame in frames[: len(told)]] == [frame.raw for frame in told]
        last = check_whole(frames)
        assert [item["status"] for item in last["output"] if item["type"] == "message"].count("incomplete") == 1
        record = Recorder(server.client, style, [frame.data for frame in frames])
        record.look(shown)
        record.check()
    finally:
        assert server.stop() == 0

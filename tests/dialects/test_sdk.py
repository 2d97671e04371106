"""Our streams in the hands of the real openai-python: its accumulators read random transcripts, over a transport that
is a function. No server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from openai import APIError, OpenAI

from ninelives.core import events as e
from ninelives.core.spec import ToolItems
from ninelives.core.state import fold
from ninelives.dialects.chat.body import body as chat_body
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.dialects.responses.body import body as response_body
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.sse import KEEPALIVE
from tests.dialects.transcript import json_of, replay
from tests.journals import Pen, journals, quick, spec_of

try:  # openai 3 brought its own httpx
    import httpx2 as transport_kit
except ImportError:
    import httpx as transport_kit


@contextmanager
def client(frames: list[bytes]) -> Iterator[OpenAI]:
    """The SDK, talking to a server that answers everything with these frames, keepalives between them."""
    stream = KEEPALIVE.join(frames)

    def answer(request: transport_kit.Request) -> transport_kit.Response:
        return transport_kit.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    with transport_kit.Client(transport=transport_kit.MockTransport(answer)) as transport:
        yield OpenAI(api_key="k" * 16, base_url="http://ninelives/v1", http_client=transport, max_retries=0)


@quick
@given(journals())
def test_the_responses_helper_takes_every_stream(entries: list[e.Entry]) -> None:
    """C1: ResponseStreamState raises on any illegal order."""
    state = fold(entries)
    with client(replay(ResponsesProjection(), entries)) as sdk, sdk.responses.stream(input="Hi", model="m") as stream:
        shown = [event for event in stream][-1].response  # type: ignore[union-attr]
        output: Any = json_of(response_body(state))["output"]
        assert [(item.type, item.id) for item in shown.output] == [(item["type"], item["id"]) for item in output]
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        texts = [part["text"] for part in parts if "text" in part]
        assert shown.output_text == "".join(texts)
        if isinstance(state.facts.end, e.RunCompleted):
            assert stream.get_final_response().output_text == "".join(texts)


@quick
@given(journals("chat", approvals=False))
def test_the_chat_helper_takes_every_stream(entries: list[e.Entry]) -> None:
    """B2, B4: tool progress in its compatible form is a chunk without effect, also for unguarded loops."""
    accepted = entries[0].event
    assert isinstance(accepted, e.RunAccepted)
    if accepted.spec.tool_progress == "bare":
        return
    state = fold(entries)
    finished = isinstance(state.facts.end, e.RunCompleted | e.RunInterrupted)
    with client(replay(ChatProjection(), entries)) as sdk:
        chunks = sdk.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], model="m", stream=True)
        text = ""
        try:
            for chunk in chunks:
                if chunk.choices or not accepted.spec.include_usage:
                    text += chunk.choices[0].delta.content or ""
            assert finished
        except APIError:
            assert not finished
        assert text == (chat_body(state).choices[0].message.content or "")


@pytest.mark.parametrize("style", ["function_call", "mcp_call"])
def test_a_recovered_run_reads_clean_in_the_sdk(style: ToolItems) -> None:
    """G3: the helpers join the texts of all message items, so a dropped one must be empty."""
    pen = Pen(spec_of(tool_items=style)).attempt().think("Hm").text("Hel").crash().text("Hello. ")
    one, two = pen.call("terminal", '{"command":"ls"}'), pen.call("read_file", '{"path":"a"}')
    pen.settle(one, two).start(one, two).finish(two, "no", is_error=True).finish(one, "a b")
    pen.text("Done").settle().complete()
    with client(replay(ResponsesProjection(), pen.entries)) as sdk:
        with sdk.responses.stream(input="Hi", model="m") as stream:
            final = stream.get_final_response()
        assert final.output_text == "Hello. Done"
        kinds = [item.type for item in final.output]
        pair = ["function_call", "function_call", "function_call_output", "function_call_output"]
        calls = pair if style == "function_call" else ["mcp_call", "mcp_call"]
        assert kinds == ["reasoning", "message", "message", *calls, "message"]


@pytest.mark.parametrize("k", range(0, 14, 3))
def test_the_sdk_resumes_in_the_middle(k: int) -> None:
    """C3: retrieve(starting_after) expects the later events only."""
    pen = Pen().attempt().text("Hel", "lo", " world").settle().complete()
    full = replay(ResponsesProjection(), pen.entries)
    with client(replay(ResponsesProjection(), pen.entries, after=k)) as sdk:
        events = sdk.responses.retrieve("resp_1", stream=True, starting_after=k)
        assert [event.sequence_number for event in events] == list(range(min(k + 1, len(full) - 1), len(full)))

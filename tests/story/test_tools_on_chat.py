"""Tool progress on the chat stream is out of band and complete (B3, B4, G9)."""

from __future__ import annotations

import pytest

from tests.story.chat import PATH, PROGRESS, ask, check_whole, create, told
from tests.story.server import Client, Frame, Json, Upstream

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {"NINELIVES_AGENT_OUTPUT_EVENT_BYTES": "2000"}
WRITE = 'write_file:{"path":"note.txt","content":"hello tools"}'
READ = 'read_file:{"path":"note.txt"}'
TWO = f"[[tools={WRITE}|{READ}]]"
THREE = f'[[parallel={READ}|terminal:{{"command":"echo one"}}|read_file:{{"path":"missing.txt"}}]]'
FIELDS = {"tool", "name", "emoji", "label", "toolCallId", "status", "input", "args"}
OUTCOME = {"output", "result", "isError", "durationMs"}
CHUNK = {"id", "object", "created", "model", "choices", "event"}


def streamed(client: Client, text: str, headers: dict[str, str] | None = None, **fields: object) -> list[Frame]:
    with client.stream(PATH, ask(text, stream=True, **fields), headers) as stream:
        frames = stream.rest()
        assert stream.done
    return frames


def progress(frames: list[Frame]) -> list[Json]:
    """The tool progress of a stream, after the laws of B3: per call one running, then one completed."""
    events = [frame.data for frame in frames if frame.name]
    assert {frame.name for frame in frames if frame.name} <= {PROGRESS}
    for call in {event["toolCallId"] for event in events}:
        mine = [event for event in events if event["toolCallId"] == call]
        assert [event["status"] for event in mine] == ["running", "completed"]
        shared = ("tool", "name", "emoji", "label", "input", "args")
        assert [mine[0][key] for key in shared] == [mine[1][key] for key in shared]
    return events


def outside_of_text(frames: list[Frame]) -> None:
    """Nothing of a tool is in the answer's own deltas."""
    for frame in frames:
        if not frame.name:
            delta = frame.data["choices"][0]["delta"]
            assert "tool_calls" not in delta
    text = told(frames)
    assert not any(word in text for word in ("hello tools", "note.txt", "toolCallId", "call_"))


def test_b3_two_calls_one_after_the_other_have_one_start_and_one_end_each_with_all_fields(client: Client) -> None:
    frames = streamed(client, TWO)
    check_whole(frames)
    outside_of_text(frames)
    events = progress(frames)
    assert [(event["tool"], event["status"]) for event in events] == [
        ("write_file", "running"),
        ("write_file", "completed"),
        ("read_file", "running"),
        ("read_file", "completed"),
    ]
    for event in events:
        done = event["status"] == "completed"
        assert set(event) >= FIELDS | CHUNK | (OUTCOME if done else set())
        assert done or not OUTCOME & set(event)
        assert event["name"] == event["tool"] and event["input"] == event["args"]
        assert isinstance(event["input"], dict) and event["emoji"] and event["label"]
        assert event["event"]["type"] == "status" and event["event"]["data"]["done"] is done
        assert event["event"]["data"]["description"]
        assert "error" not in event, "a truthy error makes SDKs abort the stream"
    last = events[-1]
    assert last["output"] == last["result"] and "hello tools" in last["output"]
    assert last["isError"] is False and isinstance(last["durationMs"], int) and last["durationMs"] >= 0
    assert last["input"] == {"path": "note.txt"}


def test_b3_three_parallel_calls_have_one_start_and_one_end_each(client: Client) -> None:
    streamed(client, f"[[tools={WRITE}]]")
    frames = streamed(client, THREE)
    check_whole(frames)
    events = progress(frames)
    assert len(events) == 6 and len({event["toolCallId"] for event in events}) == 3
    ends = {event["toolCallId"]: event for event in events if event["status"] == "completed"}
    assert sorted(event["isError"] for event in ends.values()) == [False, False, True]
    assert told(frames).endswith("done after 3 results")


def test_b3_text_after_a_tool_arrives_and_stands_apart_from_the_text_before(client: Client) -> None:
    frames = streamed(client, f"{TWO} [[text=All is well.]]")
    places = [n for n, frame in enumerate(frames) if frame.name]
    before, between, after = told(frames[: places[0]]), told(frames[places[1] : places[2]]), told(frames[places[-1] :])
    assert before == "Step 0: calling write_file. " and between == "Step 1: calling read_file. "
    assert after == "All is well. done after 2 results"
    assert create(client, f"{TWO} [[text=All is well.]]")["choices"][0]["message"]["content"] == told(frames)


def test_b3_call_ids_are_ours_and_unique_even_where_the_upstream_repeats_its_own(
    client: Client, upstream: Upstream, mark: str
) -> None:
    frames = streamed(client, f"{mark} [[dupids]]")
    ids = {event["toolCallId"] for event in progress(frames)}
    assert len(ids) == 2 and all(shown.startswith("call_") and shown != "call_dup" for shown in ids)
    asked = upstream.asked(mark)[-1]["messages"]
    calls = [call["id"] for message in asked for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in asked if message["role"] == "tool"]
    assert sorted(calls) == sorted(results) and len(set(calls)) == 2


def test_b4_the_frame_is_a_chunk_that_changes_nothing(client: Client) -> None:
    frames = streamed(client, TWO)
    shown = check_whole(frames)
    for event in progress(frames):
        assert (event["id"], event["object"]) == (shown, "chat.completion.chunk")
        assert event["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert (event["created"], event["model"]) == (frames[0].data["created"], "hermes-agent")


def test_b4_bare_and_off_by_header(client: Client) -> None:
    bare = streamed(client, TWO, {"x-tool-progress": "bare"})
    for event in progress(bare):
        assert not CHUNK & set(event) and set(event) >= FIELDS
    off = streamed(client, TWO, {"x-tool-progress": "off"})
    assert progress(off) == [] and told(off) == told(bare)
    assert len(progress(streamed(client, TWO, {"x-tool-progress": "compatible"}))) == 4
    refused = client.post(PATH, ask("hi"), {"x-tool-progress": "loud"})
    assert refused.status == 400


@pytest.mark.parametrize(("version", "events"), [("4.104.0", 0), ("6.49.0", 4)])
def test_b4_openai_node_4_gets_no_custom_event(client: Client, version: str, events: int) -> None:
    headers = {"x-stainless-lang": "js", "x-stainless-package-version": version}
    assert len(progress(streamed(client, TWO, headers))) == events


def test_b4_the_output_in_an_event_is_bounded_and_says_so_and_the_model_gets_all_of_it(
    client: Client, upstream: Upstream, mark: str
) -> None:
    call = 'terminal:{"command":"head -c 9000 /dev/zero | tr \\"\\\\0\\" x"}'
    event = progress(streamed(client, f"{mark} [[tools={call}]]"))[-1]
    assert event["truncated"] is True and len(event["output"]) < 2200 and "x" * 1900 in event["output"]
    results = [m["content"] for m in upstream.asked(mark)[-1]["messages"] if m["role"] == "tool"]
    assert results[0].count("x") >= 9000


def test_g9_a_stored_stream_has_the_same_progress_with_its_place_in_it(client: Client) -> None:
    frames = streamed(client, TWO, store=True)
    events = progress(frames)
    assert len(events) == 4 and all(isinstance(event["sequence_number"], int) for event in events)
    with client.stream(f"{PATH}/{frames[0].data['id']}?stream=true") as again:
        assert [frame.raw for frame in again.rest()] == [frame.raw for frame in frames]

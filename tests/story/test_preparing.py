"""A sign while the model writes a call: the silence may be long (B3, B4, G8)."""

from __future__ import annotations

import pytest

from tests.story.chat import PATH, PROGRESS, ask, check_whole
from tests.story.server import Client, Frame, Upstream

RUNS = "/v1/runs"
CALL = '[[callgate]] [[tools=read_file:{"path":"none.txt"}]]'


@pytest.fixture(autouse=True)
def fresh(upstream: Upstream) -> None:
    upstream.post("/_reset")


def status(frame: Frame) -> tuple[str, bool] | None:
    """The status line of a frame that is no tool progress."""
    event = None if frame.name or frame.data == "[DONE]" else frame.data.get("event")
    return (event["data"]["description"], event["data"]["done"]) if event else None


def test_b4_a_chat_has_a_status_line_before_the_call_is_whole(client: Client, upstream: Upstream, mark: str) -> None:
    with client.stream(PATH, ask(f"{mark} {CALL}", stream=True)) as stream:
        frames: list[Frame] = []
        for frame in stream:
            frames.append(frame)
            if status(frame):
                break
        assert frames[-1].data["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert status(frames[-1]) == ("📄 Preparing read_file", False)
        upstream.post("/_go")
        rest = stream.rest()
    check_whole([*frames, *rest])
    tools = [frame.data for frame in rest if frame.name == PROGRESS]
    assert [tool["status"] for tool in tools] == ["running", "completed"], "B3"
    assert not [frame for frame in rest if status(frame)], "one line, which the tool's own line follows"


def test_g8_runs_tell_it_with_the_id_that_the_call_will_have(client: Client, upstream: Upstream, mark: str) -> None:
    run = client.post(RUNS, {"input": f"{mark} {CALL}"}).json()["run_id"]
    with client.stream(f"{RUNS}/{run}/events") as stream:
        seen = []
        for frame in stream:
            seen.append(frame.data)
            if frame.data["event"] == "tool.preparing":
                upstream.post("/_go")
    tools = [
        (event["event"], event["tool"], event["toolCallId"]) for event in seen if event["event"].startswith("tool")
    ]
    name, call = tools[0][1:]
    assert name == "read_file" and tools == [
        (f"tool.{kind}", name, call) for kind in ("preparing", "started", "completed")
    ]
    with client.stream(f"{RUNS}/{run}/events") as again:
        assert [frame.data for frame in again.rest()] == seen, "a replay has it too"


@pytest.mark.parametrize("progress", ["bare", "off"])
def test_b4_without_compatible_progress_a_chat_has_no_such_line(
    client: Client, upstream: Upstream, mark: str, progress: str
) -> None:
    upstream.post("/_go")
    with client.stream(PATH, ask(f"{mark} {CALL}", stream=True), {"x-tool-progress": progress}) as stream:
        assert not [frame for frame in stream.rest() if status(frame)]

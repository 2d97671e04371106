"""What story tests say of /v1/responses again and again. Owns: asking, and the laws that every stream of it keeps."""

from __future__ import annotations

from typing import Any

from tests.story.server import Client, Frame, Json, wait_until

PATH = "/v1/responses"
SLOW = "[[tokens=40 pace=0.02]]"
"""0.8 s of text: long enough to look at it from outside, short enough to wait for."""
HANGS = "[[hang=3]]"
"""Three tokens, then nothing for ever: such a run ends by somebody's will only."""
ENDS = ("response.completed", "response.failed", "response.incomplete")


def create(client: Client, text: Any, /, headers: dict[str, str] | None = None, **fields: Any) -> Json:
    """A response that is not streamed."""
    answer = client.post(PATH, {"input": text, **fields}, headers)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def get(client: Client, shown: str) -> Json:
    """The response object now."""
    answer = client.get(f"{PATH}/{shown}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def finished(client: Client, shown: str) -> Json:
    """The response object once it has ended."""
    return dict(
        wait_until(lambda: (r := get(client, shown))["status"] not in ("queued", "in_progress") and r, f"{shown} ends")
    )


def started(client: Client, text: Any, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """The id of a run whose client left when its first text had come."""
    with client.stream(PATH, {"input": text, "stream": True, **fields}, headers) as stream:
        frames = stream.until("response.output_text.delta")
    return str(frames[0].data["response"]["id"])


def text_of(response: Json) -> str:
    """All text of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def counted(n: int) -> str:
    """The text of the directive tokens=n."""
    return "".join(f"tok{place} " for place in range(n))


def check_whole(frames: list[Frame]) -> Json:
    """The laws of a whole stream (C1): names agree with types, numbers 0..n without a gap, created first, one end,
    items opened in order and all closed. The response in the last frame."""
    assert [frame.name for frame in frames] == [frame.data["type"] for frame in frames]
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[0].name == "response.created"
    assert [frame.name for frame in frames if frame.name in ENDS] == [frames[-1].name]
    added = [f.data["output_index"] for f in frames if f.name == "response.output_item.added"]
    done = [f.data["output_index"] for f in frames if f.name == "response.output_item.done"]
    assert added == list(range(len(added))) and sorted(done) == added
    last = dict(frames[-1].data["response"])
    assert [item["id"] for item in last["output"]] == [
        f.data["item"]["id"] for f in frames if f.name == "response.output_item.added"
    ]
    return last


def plain(response: Json) -> Json:
    """A response of a frame in the form of a JSON body: outputs of calls as plain text (C9)."""
    output = [
        {**item, "output": "".join(part["text"] for part in item["output"])}
        if item["type"] == "function_call_output"
        else item
        for item in response["output"]
    ]
    return {**response, "output": output}

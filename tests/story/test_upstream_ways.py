"""Upstreams that do not stream or do not count: a caller sees the same answer (E1, C11)."""

from __future__ import annotations

from tests.story.chat import PATH, ask, check_whole, told
from tests.story.server import Client, Frame

RUNS = "/v1/runs"
USAGE = {"stream_options": {"include_usage": True}}


def streamed(client: Client, text: str) -> list[Frame]:
    with client.stream(PATH, ask(text, stream=True, **USAGE)) as stream:
        frames = stream.rest()
    check_whole(frames, usage=True)
    return frames


def test_e1_a_chat_with_tools_works_on_an_upstream_that_refuses_to_stream(client: Client, mark: str) -> None:
    text = f'{mark} [[nostream]] [[tools=read_file:{{"path": "{mark}"}}]]'
    frames = streamed(client, text)
    assert told(frames).endswith("done after 1 results")
    deltas = [f.data["choices"][0]["delta"] for f in frames if not f.name and f.data.get("choices")]
    assert len([delta for delta in deltas if delta.get("content")]) == 2, "one delta for each message"


def test_c11_usage_that_the_upstream_leaves_out_is_estimated_and_marked(client: Client, mark: str) -> None:
    counts = {}
    for more in ("", "[[nousage]]"):
        frames = streamed(client, f"{mark} {more} [[tokens=40]]")
        run = f"{RUNS}/run_{str(frames[0].data['id']).removeprefix('chatcmpl-')}"
        seen, receipt = client.get(run).json(), client.get(f"{run}/receipt").json()
        estimated = bool(more)
        assert seen["usage_estimated"] is receipt["usage_estimated"] is estimated and not seen["usage_incomplete"]
        with client.stream(f"{run}/events") as stream:
            last = stream.rest()[-1].data
        assert last.get("usage_estimated", False) is estimated and last["usage"] == seen["usage"]
        counts[more] = seen["usage"]["output_tokens"], seen["usage"]["input_tokens"]
    assert counts[""][0] == 40 and 30 <= counts["[[nousage]]"][0] <= 80 and counts["[[nousage]]"][1] > 500

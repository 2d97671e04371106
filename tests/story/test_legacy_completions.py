"""/v1/completions with the real SDK, and as durable as a chat (G17, B6, B8)."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.story.server import KEY, Client, Server, Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")

PATH, MODEL = "/v1/completions", "hermes-agent"
TOOL = '[[tools=read_file:{"path":"none.txt"}]] [[text=The end.]]'
TEXT = "Step 0: calling read_file. The end. done after 1 results"


def test_g17_the_sdk_reads_a_completion_streamed_and_not(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as sdk:
        whole = sdk.completions.create(model=MODEL, prompt=TOOL)
        options = {"include_usage": True}
        pieces = list(sdk.completions.create(model=MODEL, prompt=TOOL, stream=True, stream_options=options))
        with pytest.raises(openai.BadRequestError, match="echo is not supported"):
            sdk.completions.create(model=MODEL, prompt="hi", echo=True)
    assert (whole.object, whole.choices[0].text, whole.choices[0].finish_reason) == ("text_completion", TEXT, "stop")
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == TEXT and pieces[-1].usage == whole.usage
    assert {piece.id for piece in pieces} == {pieces[0].id} and pieces[-2].choices[0].finish_reason == "stop"


def test_g17_a_run_is_watched_on_runs_by_its_id_and_a_key_replays_it(client: Client, mark: str) -> None:
    first = client.post(PATH, {"prompt": f"{mark} {TOOL}"}, {"idempotency-key": mark}).json()
    assert first["id"].startswith("cmpl-") and client.get(f"/v1/runs/{first['id']}").json()["output"] == TEXT
    assert client.post(PATH, {"prompt": f"{mark} {TOOL}"}, {"idempotency-key": mark}).json() == first
    other = client.post(PATH, {"prompt": "another"}, {"idempotency-key": mark})
    assert (other.status, other.error()["code"]) == (409, "idempotency_key_conflict")


def test_g17_capabilities_and_the_api_page_name_it(client: Client) -> None:
    assert "completions" in client.get("/v1/capabilities").json()["dialects"]
    assert "post" in client.get("/openapi.json").json()["paths"][PATH]


def test_g17_a_completion_survives_kill_9_and_the_same_request_gets_it(
    tmp_path: Path, upstream: Upstream, mark: str
) -> None:
    body = {"prompt": f"{mark} [[tokens=40 pace=0.05]]", "stream": True, "user": "ann"}
    server = start_server(tmp_path, upstream.url)
    with server.client.stream(PATH, body) as stream:
        shown = next(iter(stream)).data["id"]
        server.kill()
    server = start_server(tmp_path, upstream.url)
    try:
        with server.client.stream(PATH, body) as stream:
            frames = stream.rest()
        assert frames[0].data["id"] == shown
        assert "".join(f.data["choices"][0]["text"] for f in frames) == "".join(f"tok{n} " for n in range(40))
        run = server.client.get(f"/v1/runs/{shown}").json()
        assert run["status"] == "completed" and run["attempt"] == 2
    finally:
        server.stop()

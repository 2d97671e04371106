"""Steering a response over its websocket (C8): the frames, the refusals, leaving and kill -9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.story.responses import counted, finished, get, text_of
from tests.story.server import KEY, Client, Json, Server, Upstream, start_server, wait_until
from tests.story.wire import Wire, wire

pytestmark = pytest.mark.xdist_group("processes")

SLOW = "[[tokens=40 pace=0.05]]"
WORDS = ("response.created", "response.steer.accepted", "response.incomplete", "response.completed")
WISH = "now briefly [[text=As you wish.]]"


def begin(line: Wire, text: str, **fields: Any) -> str:
    """The id of a response whose text comes."""
    line.send(input=text, **fields)
    shown = str(line.next()["response"]["id"])
    while line.next()["type"] != "response.output_text.delta":
        pass
    return shown


def steer(line: Wire, shown: Any, said: Any) -> Json:
    """The answer to a steer, among the frames of a response."""
    line.send(type="response.steer", previous_response_id=shown, input=said)
    return told(line)


def told(line: Wire) -> Json:
    while not (frame := line.next())["type"].startswith("response.steer."):
        assert frame["type"] not in ("response.incomplete", "response.completed"), "it is told before the end"
    return frame


def check_failed(frame: Json, code: str, shown: str, said: Any) -> None:
    assert (frame["type"], frame["error"]["code"]) == ("response.steer.failed", code), frame
    assert frame["error"]["type"] == "invalid_request_error" and frame["error"]["message"]
    assert (frame["steer"]["previous_response_id"], frame["steer"]["input"]) == (shown, said)


@pytest.mark.parametrize("store", [True, False])
def test_a_steered_response_ends_incomplete_and_its_successor_answers(
    server: Server, upstream: Upstream, mark: str, store: bool
) -> None:
    with wire(server) as line:
        shown = begin(line, f"{mark} {SLOW}", store=store, stream_id="lane", metadata={"a": "b"})
        accepted = steer(line, shown, WISH)
        assert accepted["type"] == "response.steer.accepted" and accepted["stream_id"] == "lane"
        assert accepted["steer"] == {"id": accepted["steer"]["id"], "previous_response_id": shown}
        first, second = line.turn()[-1], line.turn()
    assert (first["type"], first["response"]["incomplete_details"]) == ("response.incomplete", {"reason": "steered"})
    assert first["response"]["id"] == shown and text_of(first["response"]) == counted(40)
    assert [frame["sequence_number"] for frame in second] == list(range(len(second)))
    assert second[0]["type"] == "response.created" and {frame["stream_id"] for frame in second} == {"lane"}
    answer = second[-1]["response"]
    assert (answer["status"], text_of(answer), answer["previous_response_id"]) == ("completed", "As you wish.", shown)
    assert answer["metadata"] == {"a": "b"}, "the successor has the settings of the response"
    asked = [message["content"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] != "system"]
    assert [str(content).strip() for content in asked] == [f"{mark} {SLOW}", counted(40).strip(), WISH]


def test_the_steers_of_one_response_make_one_successor_in_their_order(
    server: Server, upstream: Upstream, mark: str
) -> None:
    with wire(server) as line:
        shown = begin(line, f"{mark} {SLOW}")
        ids = [steer(line, shown, said)["steer"]["id"] for said in ("one", [{"role": "user", "content": "two"}])]
        assert len(set(ids)) == 2
        assert line.turn()[-1]["type"] == "response.incomplete"
        assert line.turn()[-1]["response"]["status"] == "completed"
        assert text_of(line.ask("[[text=on]]")) == "on", "no second successor comes"
    asked = [message["content"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] == "user"]
    assert asked[-2:] == ["one", "two"]


def test_a_steer_that_cannot_be_taken_fails_with_its_input_and_the_response_goes_on(server: Server) -> None:
    with wire(server) as line:
        done = line.ask("hi")["id"]
        unstored = line.ask("hi", store=False)["id"]
        check_failed(steer(line, done, "more"), "response_already_completed", done, "more")
        check_failed(steer(line, unstored, "more"), "response_already_completed", unstored, "more")
        shown = begin(line, SLOW)
        bad: tuple[Any, ...] = (
            [],
            None,
            7,
            ["x"],
            [{"role": "assistant", "content": "x"}],
            [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}],
            [{"type": "function_call_output", "call_id": "c", "output": "x"}],
        )
        for said in bad:
            check_failed(steer(line, shown, said), "invalid_input", shown, said)
        check_failed(steer(line, 7, "more"), "invalid_input", "", "more")
        check_failed(steer(line, "resp_none", "more"), "response_not_found", "resp_none", "more")
        with wire(server) as other:
            check_failed(steer(other, shown, "more"), "response_not_found", shown, "more")
        check_failed(steer(line, shown, "x" * 300_000), "too_many_pending_steers", shown, "x" * 300_000)
        assert text_of(line.turn()[-1]["response"]) == counted(40)


def test_a_steer_of_a_response_that_hands_back_a_call_fails_with_its_input(server: Server) -> None:
    own = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    with wire(server) as line:
        asked = '[[tokens=30 pace=0.05]] [[tools=weather:{"city":"Ulm"}]]'
        shown = begin(line, asked, tools=[own])
        accepted = steer(line, shown, "more")
        assert accepted["type"] == "response.steer.accepted"
        assert line.turn()[-1]["type"] == "response.completed"
        failed = told(line)
    check_failed(failed, "successor_creation_failed", shown, "more")
    assert failed["steer"]["id"] == accepted["steer"]["id"]


def test_an_accepted_steer_is_answered_when_its_client_has_left(server: Server, client: Client, mark: str) -> None:
    with wire(server) as line:
        shown = begin(line, f"{mark} {SLOW}", store=True)
        assert steer(line, shown, WISH)["type"] == "response.steer.accepted"
    assert finished(client, shown)["incomplete_details"] == {"reason": "steered"}

    def follows() -> Json | None:
        runs = [run["run_id"].replace("run_", "resp_") for run in client.get("/v1/runs?limit=20").json()["data"]]
        shows = [get(client, run) for run in runs if client.get(f"/v1/responses/{run}").status == 200]
        return next((r for r in shows if r["previous_response_id"] == shown and r["status"] == "completed"), None)

    assert text_of(dict(wait_until(follows, "the successor answers") or {})) == "As you wish."


def test_a_response_of_another_owner_is_unknown(upstream: Upstream, tmp_path: Path) -> None:
    key, config = "eva-key-0123456789abcdefgh", tmp_path / "ninelives.toml"
    config.write_text(f'[profiles.eva]\nowner = "eva"\nkey = "{key}"\n')
    server = start_server(tmp_path, upstream.url, NINELIVES_CONFIG=str(config))
    with wire(server) as line, wire(server, {"authorization": f"Bearer {key}"}) as other:
        done = line.ask("hi")["id"]
        shown = begin(line, SLOW)
        for known in (done, shown):
            check_failed(steer(other, known, "more"), "response_not_found", known, "more")
        assert line.turn()[-1]["type"] == "response.completed", "it was not steered"
    assert server.stop() == 0


def test_a_tool_that_runs_finishes_before_the_end_and_does_not_run_again(upstream: Upstream, tmp_path: Path) -> None:
    server = start_server(tmp_path, upstream.url, NINELIVES_TOOLS_APPROVAL="never")
    with wire(server) as line:
        line.send(input='[[tools=terminal:{"command":"echo x >> begun.txt; sleep 1; echo x >> ran.txt"}]]')
        shown = line.next()["response"]["id"]
        wait_until(lambda: list(tmp_path.rglob("begun.txt")), "the tool runs")
        assert steer(line, shown, WISH)["type"] == "response.steer.accepted"
        first, second = line.turn()[-1]["response"], line.turn()[-1]["response"]
    assert (first["incomplete_details"], text_of(second)) == ({"reason": "steered"}, "As you wish.")
    assert [item["type"] for item in first["output"]][-2:] == ["function_call", "function_call_output"]
    assert [path.read_text() for path in tmp_path.rglob("ran.txt")] == ["x\n"]
    assert server.stop() == 0


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_p3_after_a_kill_or_restart_the_response_itself_reads_an_accepted_steer_once(
    upstream: Upstream, tmp_path: Path, mark: str, end: str
) -> None:
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_DRAIN_S="1")
    with wire(server) as line:
        shown = begin(line, f"{mark} [[tokens=60 pace=0.1]]", store=True)
        assert steer(line, shown, WISH)["type"] == "response.steer.accepted"
        if end == "kill":
            server.kill()
        else:
            assert server.stop() == 0
    server = start_server(tmp_path, upstream.url)
    done = finished(server.client, shown)
    assert (done["status"], text_of(done)) == ("completed", "As you wish."), "the draft was dropped, the steer was not"
    assert [message["content"] for message in upstream.asked(mark)[-1]["messages"]].count(WISH) == 1
    assert server.stop() == 0


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
def test_the_sdk_steers(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY)
    seen: list[Any] = []
    with client.responses.connect() as connection:
        connection.response.create(model="hermes-agent", input=SLOW)
        for event in connection:
            seen.append(event)
            if event.type == "response.output_text.delta" and event.delta.startswith("tok0"):
                connection.response.steer(previous_response_id=seen[0].response.id, input=WISH)
            if event.type == "response.completed":
                break
    told = [each for each in seen if each.type in WORDS]
    assert [each.type for each in told] == [*WORDS[:3], "response.created", "response.completed"]
    assert told[1].steer.previous_response_id == told[0].response.id
    assert told[-1].response.output_text == "As you wish."

"""Model calls in the custody of the supervisor (server.keep_calls): the server is killed in the middle of a message,
and the message goes on. The model is asked once, and no text is dropped, repeated or lost."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from ninelives.supervisor.calls import Calls, Relay
from tests.story.server import Server, Upstream, start_supervised, start_upstream, wait_until
from tests.supervisor.test_supervisor import has_spare, kill_server

pytestmark = pytest.mark.xdist_group("processes")
TOOL = 'terminal:{"command": "echo out"}'


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    made = start_supervised(tmp_path_factory.mktemp("server"), upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    yield made
    assert made.stop() == 0, made.log()


def begun(server: Server, asked: str) -> str:
    made = server.client.post("/v1/responses", {"input": asked, "background": True, "store": True}).json()
    return str(made["id"])


def events(server: Server, response: str) -> list[dict[str, object]]:
    stream = server.client.stream(f"/v1/responses/{response}?stream=true")
    seen = [frame.data for frame in stream.rest()]
    stream.leave()
    return seen


def ended(server: Server, response: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        shown = dict(server.client.get(f"/v1/responses/{response}").json())
        return shown if shown["status"] not in ("queued", "in_progress") else None

    return dict(wait_until(look, "the run to end", 60))


def receipt(server: Server, response: str) -> dict[str, object]:
    return dict(server.client.get(f"/v1/runs/run_{response.removeprefix('resp_')}/receipt").json())


def deltas(seen: list[dict[str, object]], kind: str = "response.output_text.delta") -> str:
    return "".join(str(each["delta"]) for each in seen if each["type"] == kind)


def wait_for_deltas(server: Server, response: str, count: int) -> None:
    stream = server.client.stream(f"/v1/responses/{response}?stream=true")
    seen = 0
    for frame in stream:
        seen += frame.data["type"] == "response.output_text.delta"
        if seen >= count:
            break
    stream.leave()


def test_a_request_goes_out_after_its_call_was_named() -> None:
    """The name comes on the control line, the request on a socket of its own. Where the line was read later, the head
    of the answer was not kept."""
    told: list[object] = []

    class Wire:
        def write(self, data: bytes) -> None:
            told.append(data)

    def listen() -> None:
        calls.obey(1, {"begin": 7, "call": "run:0", "size": 4}, [])
        told.append(relay.call)

    calls = Calls(listen)
    relay = calls.relays[1, 7] = Relay(calls, (1, 7))
    relay.upstream = Wire()  # type: ignore[assignment]
    relay.asked(b"POST")
    assert told == ["run:0", b"POST"] and calls.held() == ["run:0"]


def test_a_call_whose_request_did_not_come_as_a_whole_is_not_held() -> None:
    """It was not asked: the next server asks, and does not wait for an answer that never comes."""
    calls = Calls(lambda: None)
    relay = calls.relays[1, 7] = Relay(calls, (1, 7))
    calls.obey(1, {"begin": 7, "call": "run:0", "size": 9}, [])
    relay.asked(b"POST")
    assert calls.held() == [] and not calls.relays


@pytest.mark.parametrize("kills", [1, 2])
def test_a_message_goes_on_after_a_kill_and_the_model_is_asked_once(
    server: Server, upstream: Upstream, kills: int
) -> None:
    tag = f"kept-{kills}"
    wait_until(lambda: has_spare(server), "a spare", 60)
    response = begun(server, f"{tag} [[tokens=150 pace=0.02]]")
    for number in range(kills):
        wait_for_deltas(server, response, 10 + 20 * number)
        kill_server(server)
    shown = ended(server, response)
    assert shown["status"] == "completed", (shown, server.log()[-2000:])
    seen = events(server, response)
    assert len(upstream.asked(tag)) == 1
    text = shown["output"][-1]["content"][0]["text"]  # type: ignore[index]
    assert deltas(seen) == text and len(text.split()) == 150
    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    assert not any(each.get("item", {}).get("status") == "incomplete" for each in seen)  # type: ignore[attr-defined]
    attempts = receipt(server, response)["attempts"]
    assert isinstance(attempts, list) and len(attempts) == 1 + kills
    assert all(each.get("kept_model_call") for each in attempts[1:])
    assert shown["usage"]["output_tokens"] == 150  # type: ignore[index]


def test_a_chat_stream_that_comes_back_sees_no_restart(server: Server, upstream: Upstream) -> None:
    """The journal has one message, so the replay of a chat has it too: stream_restarted is gone."""
    wait_until(lambda: has_spare(server), "a spare", 60)
    said = {"role": "user", "content": "kept-chat [[tokens=80 pace=0.02]]"}
    asked = {"model": "m", "stream": True, "store": True, "messages": [said]}
    headers = {"idempotency-key": "kept-chat"}
    stream = server.client.stream("/v1/chat/completions", asked, headers)
    stream.take(12)
    kill_server(server)
    stream.leave()
    again = server.client.stream("/v1/chat/completions", asked, headers)
    frames = again.rest()
    again.leave()
    choices = [frame.data["choices"][0] for frame in frames if frame.data.get("choices")]
    assert len("".join(each["delta"].get("content") or "" for each in choices).split()) == 80
    assert "stream_restarted" not in str(frames) and again.done
    assert len(upstream.asked("kept-chat")) == 1


def test_random_kills_in_reasoning_text_arguments_and_tools_ask_the_model_as_often_as_none(
    server: Server, upstream: Upstream
) -> None:
    chance = random.Random(21)
    for number in range(6):
        tag = f"kept-mix-{number}"
        wait_until(lambda: has_spare(server), "a spare", 60)
        response = begun(server, f"{tag} [[tools={TOOL}]] [[tokens=60 pace=0.02]]")
        time.sleep(chance.uniform(0.0, 1.0))
        kill_server(server)
        shown = ended(server, response)
        assert shown["status"] == "completed", (number, shown)
        assert len(upstream.asked(tag)) == 2, (number, receipt(server, response))
        seen = events(server, response)
        assert [each["sequence_number"] for each in seen] == list(range(len(seen)))


def test_a_cancelled_run_ends_its_call_at_the_upstream(server: Server, upstream: Upstream) -> None:
    response = begun(server, "kept-cancel [[tokens=4000 pace=0.02]]")
    wait_for_deltas(server, response, 5)
    before = upstream.stats()["closed_early"]
    assert server.client.post(f"/v1/responses/{response}/cancel").status == 200
    wait_until(lambda: upstream.stats()["closed_early"] > before, "the upstream to see the end")


def test_where_the_supervisor_died_too_the_message_is_asked_for_again(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> None:
    where = tmp_path_factory.mktemp("lost")
    first = start_supervised(where, upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    response = begun(first, "kept-not [[tokens=60 pace=0.02]]")
    wait_for_deltas(first, response, 10)
    first.kill()
    time.sleep(0.5)
    second = start_supervised(where, upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    try:
        assert ended(second, response)["status"] == "completed"
        assert len(upstream.asked("kept-not")) == 2
    finally:
        assert second.stop() == 0

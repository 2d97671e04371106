"""How a websocket begins and ends (C8, C2, C4, A9): the door, leaving, slow readers, its time, drain and kill -9."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.story.responses import HANGS, counted, finished, get, text_of
from tests.story.server import Client, Server, Upstream, start_server, wait_until
from tests.story.wire import ENDS, replayed, wire

# Ends


def test_leaving_detaches_from_a_stored_run_and_ends_one_that_is_not(server: Server, client: Client) -> None:
    with wire(server) as line:
        line.send(input="[[tokens=30 pace=0.02]]", store=True)
        stored = line.next()["response"]["id"]
    with wire(server) as line:
        line.send(input=HANGS, store=False)
        while line.next()["type"] != "response.output_text.delta":
            pass
    assert text_of(finished(client, stored)) == counted(30)
    wait_until(lambda: server.health()["runs"]["active"] == 0, "the run of the connection ends")
    wait_until(lambda: server.health()["readers"] == 0, "nobody reads any more")


def test_a_slow_reader_costs_bounded_memory(server: Server, client: Client) -> None:
    with wire(server, max_queue=1, max_size=None) as line:
        line.ask("warm", store=False)
        before = server.rss_kb()
        line.send(input="[[big=1000000 messages=20]]", store=True)
        shown = line.next()["response"]["id"]
        answer = wait_until(lambda: (r := get(client, shown))["status"] == "completed" and r, "20 MB", 60.0)
        assert len(text_of(answer)) > 19_000_000
        del answer
        grown = server.rss_kb() - before
        frames = line.turn()
        assert frames[-1]["type"] == "response.completed"
        assert frames[-1]["sequence_number"] == len(frames), "nothing was lost on the way (frame 0 was taken before)"
    assert grown < 400_000, f"{grown} kB: the run itself is 20 MB in several copies, its frames are more than that"


# The door


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ({"origin": "https://evil.example"}, 403, "origin_not_allowed"),
        ({"idempotency-key": "k"}, 400, "idempotency_not_supported"),
    ],
)
def test_the_door_checks_before_the_upgrade(server: Server, headers: dict[str, str], status: int, code: str) -> None:
    with pytest.raises(InvalidStatus) as told, wire(server, headers):
        pass
    answer = told.value.response
    assert (answer.status_code, json.loads(answer.body or b"")["error"]["code"]) == (status, code)
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-request-id"]


def test_a_foreign_host_is_refused_and_no_key_is_401(server: Server) -> None:
    upgrade = {
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert server.client.get("/v1/responses", {**upgrade, "host": "evil.example"}).error()["code"] == "host_not_allowed"
    assert server.anonymous.get("/v1/responses", upgrade).error()["code"] == "invalid_api_key"
    assert server.anonymous.get("/health", upgrade).status == 401, "only plain GETs are open"


def test_a_plain_get_is_told_to_upgrade(client: Client) -> None:
    answer = client.get("/v1/responses")
    assert (answer.status, answer.error()["code"], answer.headers["upgrade"]) == (426, "upgrade_required", "websocket")


# Its time, the server's end and its death


def test_the_connection_has_a_longest_life(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_WEBSOCKET_S="3")
    try:
        with wire(server) as idle, wire(server) as busy:
            busy.send(input=HANGS, store=True)
            shown = busy.next()["response"]["id"]
            frames = busy.turn()
            assert frames[-1]["error"]["code"] == "websocket_connection_limit_reached"
            assert idle.error()["code"] == "websocket_connection_limit_reached"
            assert (idle.closed(), busy.closed()) == (1000, 1000)
        assert get(server.client, shown)["status"] == "in_progress", "a stored run goes on"
        server.client.post(f"/v1/responses/{shown}/cancel")
    finally:
        assert server.stop() == 0


def test_a_drain_closes_with_a_restart_code_and_no_end(tmp_path: Path, upstream: Upstream) -> None:
    memory = {"NINELIVES_AGENT_STORE_FALSE": "memory"}
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_DRAIN_S="0.2", **memory)
    with wire(server) as idle, wire(server) as busy, wire(server) as owned:
        busy.send(input=HANGS, store=True)
        owned.send(input=HANGS, store=False)
        for line in (busy, owned):
            while line.next()["type"] != "response.output_text.delta":
                pass
        server.process.child.terminate()
        assert owned.turn()[-1]["type"] == "response.failed", "a run in memory ends with an error (A9)"
        seen: list[str] = []
        with pytest.raises(ConnectionClosed) as told:
            while True:
                seen.append(busy.next()["type"])
        assert told.value.rcvd is not None and told.value.rcvd.code == 1012
        assert not set(seen) & set(ENDS)
        assert idle.closed() == 1012 and owned.closed() == 1012
    assert server.process.child.wait(15) == 0


def test_kill_9_in_mid_stream_the_stored_run_goes_on_and_is_there_over_http(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url)
    with wire(server) as line:
        line.send(input="[[tokens=60 pace=0.03]]", store=True)
        seen = [line.next()]
        while sum(frame["type"] == "response.output_text.delta" for frame in seen) < 5:
            seen.append(line.next())
        server.process.child.kill()
        assert line.closed() == 1006
    server.process.child.wait(10)
    again = start_server(tmp_path, upstream.url)
    try:
        shown = seen[0]["response"]["id"]
        assert text_of(finished(again.client, shown)) == counted(60)
        assert replayed(again.client, shown)[: len(seen)] == seen, "a prefix of the replay (P1)"
        with wire(again) as line:
            assert line.ask("and then", previous_response_id=shown)["previous_response_id"] == shown
    finally:
        assert again.stop() == 0


def test_too_many_websockets_of_one_key_is_429_until_one_is_closed(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_WEBSOCKETS="2")
    try:
        with wire(server) as first:
            with wire(server):
                with pytest.raises(InvalidStatus) as told, wire(server):
                    pass
                assert told.value.response.status_code == 429 and told.value.response.headers["retry-after"]
            first.ask("the others go on", store=False)

            def opens() -> bool:
                try:
                    with wire(server):
                        return True
                except InvalidStatus:
                    return False

            wait_until(opens, "the place of the one that was closed", 60.0)
    finally:
        assert server.stop() == 0

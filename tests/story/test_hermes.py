"""A front end of hermes-agent after a change of its URL. The bodies and headers are those that hermes-webui sends, and
the answers are read as it reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story.server import KEY, Client, Json, Server, Upstream, start_server, wait_until

CONFIG = """
[profiles.careful]
approval = "on-write"
"""
RUNS, CHAT, SESSIONS = "/v1/runs", "/v1/chat/completions", "/api/sessions"
EARLIER = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("hermes")
    (folder / "ninelives.toml").write_text(CONFIG)
    started = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield started
    assert started.stop() == 0


def headers(session: str) -> dict[str, str]:
    """What hermes-webui sends with every request."""
    return {
        "content-type": "application/json",
        "accept": "application/json",
        "x-hermes-session-id": session,
        "x-hermes-session-key": f"webui:{session}",
    }


def run_body(session: str, text: Any, **more: Any) -> Json:
    """The body of hermes-webui's POST /v1/runs."""
    sent = {"model": "default", "input": text, "provider": "custom", "reasoning_effort": "medium"}
    return {**sent, "session_id": session, "instructions": "You are in a web page.", **more}


def ends(client: Client, run: str, status: str = "completed") -> Json:
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == status, status)
    return dict(client.get(f"{RUNS}/{run}").json())


def test_capabilities_have_the_flags_that_hermes_webui_asks_for(client: Client) -> None:
    told = client.get("/v1/capabilities").json()
    assert told["object"] == "hermes.api_server.capabilities" and told["platform"] == "hermes-agent"
    flags = (
        "approval_events",
        "run_approval_response",
        "approval_identity_v1",
        "session_chat",
        "run_stop",
        "skills_api",
    )
    assert {name: told["features"][name] for name in flags} == dict.fromkeys(flags, True)
    assert told["features"]["session_key_header"] == "X-Hermes-Session-Key"
    for name, each in told["endpoints"].items():
        path = each["path"].replace("{run_id}", "{id}").replace("{session_id}", "{id}")
        assert f"{each['method']} {path}" in told["routes"], name


def test_a1_health_and_status_have_the_names_of_hermes_agent_and_a_pid_for_admins_only(server: Server) -> None:
    for path in ("/health/detailed", "/api/status"):
        open_, admin = server.anonymous.get(path).json(), server.client.get(path).json()
        for told in (open_, admin):
            assert (told["platform"], told["gateway_state"], told["exit_reason"]) == ("hermes-agent", "running", None)
            assert told["platforms"] == {"api_server": {"state": "connected"}}
            assert isinstance(told["active_agents"], int) and told["updated_at"].startswith("20")
        assert "pid" not in open_ and admin["pid"] == server.process.pid
        assert str(server.data) not in str(open_)
    assert server.anonymous.get("/health").json()["platform"] == "hermes-agent"


def test_lists_for_pickers_have_the_shapes_of_hermes_agent(client: Client) -> None:
    options = client.get("/api/model/options").json()
    assert (options["model"], options["provider"]) == ("hermes-agent", "ninelives")
    assert options["providers"][0]["models"] == ["hermes-agent", "careful"]
    assert client.get("/v1/skills").json() == {"object": "list", "data": []}
    for each in client.get("/v1/toolsets").json()["data"]:
        assert each["enabled"] is True and "read_file" in each["tools"] and each["name"] == each["profile"]
    for model in client.get("/v1/models").json()["data"]:
        assert (model["root"], model["parent"], model["permission"]) == (model["id"], None, [])


def test_a2_chat_with_the_model_default_is_answered_and_names_the_profile(client: Client) -> None:
    body = {"model": "default", "stream": True, "messages": [{"role": "user", "content": "hi"}], "provider": "custom"}
    with client.stream(CHAT, body, headers("chat-1")) as stream:
        assert (stream.headers["x-hermes-session-id"], stream.headers["x-hermes-session-key"]) == (
            "chat-1",
            "webui:chat-1",
        )
        frames = stream.rest()
    assert {frame.data["model"] for frame in frames} == {"hermes-agent"}
    refused = client.post(CHAT, {"messages": "none"}, headers("chat-1"))
    assert (refused.status, refused.headers["x-hermes-session-key"]) == (400, "webui:chat-1")


def test_d1_a_given_history_wins_over_the_session_and_the_turn_is_added_to_it(
    client: Client, upstream: Upstream, mark: str
) -> None:
    session = f"webui-{mark}"
    first = client.post(RUNS, run_body(session, f"{mark} one", conversation_history=EARLIER), headers(session))
    assert first.status == 202
    ends(client, first.json()["run_id"])
    (asked,) = upstream.asked(f"{mark} one")
    assert [m["content"] for m in asked["messages"] if m["role"] != "system"] == [
        "My name is Ada.", "Hello Ada.", f"{mark} one",
    ]  # fmt: skip
    other = [{"role": "user", "content": "Forget it."}, {"role": "assistant", "content": "Done."}]
    second = client.post(RUNS, run_body(session, f"{mark} two", conversation_history=other), headers(session))
    ends(client, second.json()["run_id"])
    told = [m["content"] for m in upstream.asked(f"{mark} two")[0]["messages"] if m["role"] != "system"]
    assert told == ["Forget it.", "Done.", f"{mark} two"]
    third = client.post(RUNS, run_body(session, f"{mark} three"), headers(session))
    ends(client, third.json()["run_id"])
    told = [m["content"] for m in upstream.asked(f"{mark} three")[0]["messages"] if m["role"] == "user"]
    assert told == [f"{mark} one", f"{mark} two", f"{mark} three"], "without a history the session gives its turns"


def test_an_attachment_reaches_the_model(client: Client, upstream: Upstream, mark: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [{"type": "text", "text": mark}, image]
    run = client.post(RUNS, run_body("webui-image", [{"role": "user", "content": parts}])).json()["run_id"]
    ends(client, run)
    assert image in upstream.asked(mark)[0]["messages"][-1]["content"]


@pytest.mark.parametrize(("choice", "output"), [("approve", "hello"), ("denied", "denied")])
def test_d4_a_card_names_the_command_and_its_buttons_answer(client: Client, choice: str, output: str) -> None:
    body = run_body(f"webui-{choice}", '[[tools=terminal:{"command":"echo hello"}]]', model="careful")
    run = client.post(RUNS, body).json()["run_id"]
    with client.stream(f"{RUNS}/{run}/events") as stream:
        card = next(frame.data for frame in stream if frame.data["event"] == "approval.request")
        assert (card["command"], card["pattern_keys"], card["allow_permanent"]) == ("echo hello", ["terminal"], True)
        wrong = client.post(f"{RUNS}/{run}/approval", {"choice": choice, "approval_id": "call_x"})
        assert (wrong.status, wrong.error()["code"]) == (409, "approval_not_pending")
        given = client.post(f"{RUNS}/{run}/approval", {"choice": choice, "approval_id": card["approval_id"]})
        assert given.status == 200 and given.json()["object"] == "hermes.run.approval_response"
        assert given.json()["resolved"] == 1
        assert [frame.data["event"] for frame in stream][-1] == "run.completed"
    assert output in str(ends(client, run)) or choice == "approve"
    again = client.post(f"{RUNS}/{run}/approval", {"choice": choice, "all": True})
    assert again.status == 409


def test_a_run_is_stopped(client: Client) -> None:
    run = client.post(RUNS, run_body("webui-stop", "[[hang=60]]")).json()["run_id"]
    assert client.post(f"{RUNS}/{run}/stop", {}).json() == {"run_id": run, "status": "stopping"}
    ends(client, run, "cancelled")


def test_a_session_is_created_and_chatted_in(client: Client, upstream: Upstream, mark: str) -> None:
    made = client.post(SESSIONS, {"title": "A talk", "model": "default", "id": f"talk-{mark}"})
    assert made.status == 201 and made.json()["session"]["title"] == "A talk"
    assert client.post(SESSIONS, {"id": f"talk-{mark}"}).error()["code"] == "session_exists"
    assert f"talk-{mark}" in {row["id"] for row in client.get(f"{SESSIONS}?limit=200").json()["data"]}
    where = f"{SESSIONS}/talk-{mark}/chat"
    first = client.post(where, {"message": f"{mark} one"}, {"x-hermes-session-key": "memory-1"})
    assert first.status == 200 and first.headers["x-hermes-session-id"] == f"talk-{mark}"
    assert first.headers["x-hermes-session-key"] == "memory-1"
    told = first.json()
    assert (told["object"], told["session_id"]) == ("hermes.session.chat.completion", f"talk-{mark}")
    assert told["message"]["role"] == "assistant" and told["message"]["content"]
    with client.stream(f"{where}/stream", {"message": f"{mark} two", "system_message": "Be brief."}) as stream:
        frames = list(stream)
    assert [frame.name for frame in frames][:2] == ["run.started", "message.started"]
    assert [frame.name for frame in frames][-3:] == ["assistant.completed", "run.completed", "done"]
    text = "".join(frame.data["delta"] for frame in frames if frame.name == "assistant.delta")
    assert text == frames[-3].data["content"]
    asked = upstream.asked(f"{mark} two")[0]["messages"]
    assert f"{mark} one" in str(asked) and "Be brief." in str(asked[0])
    assert client.get(f"{RUNS}/{frames[0].data['run_id']}").json()["session_id"] == f"talk-{mark}"
    shown = client.get(f"{SESSIONS}/talk-{mark}").json()
    assert (shown["turns"], shown["model"]) == (2, "hermes-agent")


def test_a_chat_goes_on_in_a_session_that_nobody_named(client: Client, upstream: Upstream, mark: str) -> None:
    """A chain, and a chat of a front end that resends its history."""
    first = client.post("/v1/responses", {"input": f"{mark} chained"}).json()
    client.post("/v1/responses", {"input": f"{mark} again", "previous_response_id": first["id"]})
    client.post(CHAT, {"messages": [{"role": "user", "content": f"{mark} plain"}]})
    for word in ("again", "plain"):
        rows = client.get(f"{SESSIONS}?search={mark}").json()["data"]
        found = [row["id"] for row in rows if word in str(client.get(f"{SESSIONS}/{row['id']}/messages").json())]
        assert len(found) == 1, (word, rows)
        answer = client.post(f"{SESSIONS}/{found[0]}/chat", {"message": f"{mark} more after {word}"})
        assert answer.status == 200, answer.body
        (asked,) = upstream.asked(f"more after {word}")
        said = [m["content"] for m in asked["messages"] if m["role"] == "user"]
        assert f"{mark} {word}" in said and said[-1] == f"{mark} more after {word}"
        after = client.get(f"{SESSIONS}/{found[0]}/messages").json()["data"]
        assert [m["content"] for m in after if m["role"] == "user"] == said, "one session, and nothing twice"


def test_a_session_keeps_the_model_that_was_chosen(client: Client) -> None:
    made = client.post(SESSIONS, {}).json()["id"]
    lock = client.post(f"{SESSIONS}/{made}/model", {"model": "careful"})
    assert (lock.status, lock.json()["object"]) == (200, "hermes.session.model_lock")
    for _ in range(2):
        assert client.post(f"{SESSIONS}/{made}/chat", {"message": "hi"}).json()["model"] == "careful"
    unknown = client.post(f"{SESSIONS}/{made}/model", {"model": "gpt-4o"})
    assert (unknown.status, unknown.error()["code"]) == (404, "model_not_found")


def test_a_chat_in_a_session_tells_a_failure_and_refuses_nothing_to_say(client: Client) -> None:
    made = client.post(SESSIONS, {}).json()["id"]
    refused = client.post(f"{SESSIONS}/{made}/chat", {})
    assert (refused.status, refused.error()["code"]) == (400, "missing_message")
    with client.stream(f"{SESSIONS}/{made}/chat/stream", {"message": "[[status=400]]"}) as stream:
        assert [frame.name for frame in stream][-2:] == ["error", "done"]
    assert client.post(f"{SESSIONS}/{made}/chat", {"message": "[[status=400]]"}).status in (400, 502)
    for path in ("chat", "chat/stream", "model"):
        unknown = client.post(f"{SESSIONS}/nobody-has-it/{path}", {"message": "hi", "model": "careful"})
        assert (unknown.status, unknown.error()["code"]) == (404, "session_not_found")


def test_a_key_of_hermes_webui_is_the_key_of_the_server(server: Server) -> None:
    assert server.anonymous.get("/v1/capabilities").status == 401
    assert server.anonymous.get("/v1/capabilities", {"authorization": f"Bearer {KEY}"}).status == 200

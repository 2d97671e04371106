"""Drives the gateway client of hermes-webui: its own Python files send the requests and read the answers. It needs a
checkout of hermes-webui on its path, and prints one JSON row per route. Other routes of hermes-agent are tried with
requests of ours. Owns: what is asked, and what must have been understood. Refuses to know: how the server was
started."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
import urllib.request
from typing import Any

from api import agent_health, config, gateway_chat, models, route_approvals, routes, updates  # type: ignore

BASE, KEY = os.environ["HERMES_WEBUI_GATEWAY_BASE_URL"], os.environ["HERMES_WEBUI_GATEWAY_API_KEY"]
WAIT_S = 60.0


class Turn:
    """One message of a person, as hermes-webui sends it to its gateway."""

    def __init__(self, session: Any, text: str, model: str = "") -> None:
        self.session, self.stream = session, f"stream-{time.time_ns()}"
        self.events: list[tuple[str, Any]] = []
        box: queue.Queue[Any] = queue.Queue()
        self._box = box
        config.STREAMS[self.stream] = box
        session.active_stream_id = self.stream
        gateway_chat._mark_gateway_run_starting(self.stream)
        arguments = (session.session_id, text, model, str(session.workspace), self.stream)
        self._thread = threading.Thread(target=gateway_chat._run_gateway_chat_streaming, args=arguments, daemon=True)
        self._thread.start()

    def until(self, *names: str) -> Any:
        """The data of the first event with one of these names."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                name, data, *_ = self._box.get(timeout=0.2)
            except queue.Empty:
                if not self._thread.is_alive() and self._box.empty():
                    break
                continue
            self.events.append((name, data))
            if name in names:
                return data
        raise AssertionError(f"no {names} in {self.events}")

    def text(self) -> str:
        """What was streamed up to the end."""
        self.until("done", "apperror", "cancel")
        assert self.events[-1][0] == "done", self.events[-1]
        return "".join(data["text"] for name, data in self.events if name == "token")

    def run(self) -> str:
        """The run of the gateway behind it."""
        found, run = gateway_chat.wait_for_gateway_run_id(self.stream, WAIT_S)
        assert found and run, "no run id"
        return str(run)


def session() -> Any:
    """A conversation of hermes-webui."""
    made = models.new_session(workspace=os.environ["HERMES_WEBUI_WORKSPACE"])
    made.save()
    return made


def get(path: str) -> Any:
    asked = urllib.request.Request(BASE + path, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.loads(answer.read())


def post(path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    asked = urllib.request.Request(BASE + path, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        raw = answer.read().decode()
    return raw if answer.headers["Content-Type"].startswith("text/event-stream") else json.loads(raw)


def with_runs(enabled: bool) -> None:
    os.environ["HERMES_WEBUI_GATEWAY_USE_RUNS_API"] = "1" if enabled else "0"


def capabilities() -> str:
    caps = config.get_gateway_caps(BASE, KEY)
    assert caps["approval_events"] and caps["run_approval_response"] and caps["approval_identity_v1"], caps
    assert config.gateway_approval_unavailable_reason(BASE, KEY) is None
    return "approvals are supported, with identities"


def health() -> str:
    told = agent_health._run_remote_probe(BASE)
    assert told["alive"] and told["details"]["gateway_state"] == "running", told
    version = updates._detect_agent_version_from_gateway_health(10.0)
    assert version, "no version"
    return f"alive, running, version {version}"


def chat() -> str:
    with_runs(False)
    talk = session()
    assert Turn(talk, "[[text=Hello Ada.]] my name is Ada", "").text() == "Hello Ada."
    turn = Turn(models.get_session(talk.session_id), "[[text=Ada.]] what is my name?", "gpt-4o")
    assert turn.text() == "Ada."
    assert not [data for name, data in turn.events if name == "warning"], "no notice about a newer gateway"
    return "streamed; models 'default' and 'gpt-4o' answered; no warning"


def chat_tools() -> str:
    with_runs(False)
    turn = Turn(session(), '[[tools=read_file:{"path":"none.txt"}]] [[text=Done.]]')
    assert "Done." in turn.text()
    names = [name for name, _ in turn.events]
    assert names.count("tool") == 1 and names.count("tool_complete") == 1, names
    return "one tool event and one completion"


def runs() -> str:
    with_runs(True)
    talk = session()
    assert Turn(talk, "[[text=Hello Ada.]] my name is Ada").text() == "Hello Ada."
    turn = Turn(models.get_session(talk.session_id), "[[text=Ada.]] what is my name?")
    run = turn.run()
    assert turn.text() == "Ada."
    shown = get(f"/v1/runs/{run}")
    assert shown["session_id"] == talk.session_id and shown["status"] == "completed", shown
    usage = next(data for name, data in turn.events if name == "done")["usage"]
    assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0, usage
    return "history and session sent; answer, usage and session_id read"


def _asked(choice: str) -> tuple[Turn, dict[str, Any]]:
    with_runs(True)
    talk = session()
    turn = Turn(talk, '[[tools=terminal:{"command":"echo from-the-card"}]] [[text=Done.]]', "careful")
    card = turn.until("approval")
    assert card["command"] == "echo from-the-card" and card["description"] and card["approval_id"], card
    mirror = route_approvals.gateway_pending_mirror(talk.session_id, approval_id=card["approval_id"])
    assert mirror, "the card is kept"
    answer, status = routes._relay_gateway_run_approval(talk.session_id, mirror, choice, enable_yolo=False)
    assert status == 200 and answer.get("ok"), (status, answer)
    return turn, card


def approval() -> str:
    turn, card = _asked("once")
    turn.text()
    return f"card names {card['command']!r}; allowed once, the run goes on"


def denial() -> str:
    turn, _ = _asked("deny")
    turn.text()
    return "denied, the run goes on"


def stop() -> str:
    with_runs(True)
    turn = Turn(session(), "[[hang=60]]")
    run = turn.run()
    assert gateway_chat.stop_gateway_run(run) is True
    turn.until("cancel")
    return "acknowledged, and the stream tells it"


def listed() -> str:
    with_runs(True)
    talk = session()
    Turn(talk, "[[text=Hi.]] list me").text()
    rows = {row["id"]: row for row in get("/api/sessions?limit=200")["data"]}
    assert talk.session_id in rows, list(rows)
    row = rows[talk.session_id]
    assert row["message_count"] >= 2 and row["last_active"] and row["source"], row
    said = get(f"/api/sessions/{talk.session_id}/messages")["data"]
    assert [each["role"] for each in said] == ["user", "assistant"] and all(each["timestamp"] for each in said), said
    return "the session of hermes-webui is listed once, with its messages"


def key() -> str:
    with_runs(False)
    os.environ["HERMES_WEBUI_GATEWAY_API_KEY"] = "a-wrong-key-0123456789"
    try:
        told = Turn(session(), "hi").until("apperror")
    finally:
        os.environ["HERMES_WEBUI_GATEWAY_API_KEY"] = KEY
    assert told["type"] == "gateway_auth_error", told
    return "a wrong key is told as such"


def ours_pickers() -> str:
    options, models_ = get("/api/model/options"), get("/v1/models")
    assert options["providers"][0]["models"] == [each["id"] for each in models_["data"]], options
    assert get("/v1/skills") == {"object": "list", "data": []}
    assert all(each["enabled"] and each["tools"] for each in get("/v1/toolsets")["data"])
    status = get("/api/status")
    assert status["gateway_state"] == "running" and status["pid"], status
    return f"models {options['providers'][0]['models']}, no skills, toolsets, status running"


def ours_sessions() -> str:
    made = post("/api/sessions", {"title": "A talk"})["session"]["id"]
    first = post(f"/api/sessions/{made}/chat", {"message": "[[text=Hello.]] one"})
    assert first["message"] == {"role": "assistant", "content": "Hello."}, first
    told = post(f"/api/sessions/{made}/chat/stream", {"message": "[[text=Again.]] two"})
    assert "event: assistant.completed" in told and told.rstrip().splitlines()[-2] == "event: done", told
    assert post(f"/api/sessions/{made}/model", {"model": "careful"})["runtime"]["model"] == "careful"
    said = [each["role"] for each in get(f"/api/sessions/{made}/messages")["data"]]
    assert said == ["user", "assistant"] * 2, said
    return "created, chatted in both ways, model chosen"


def ours_steer() -> str:
    if not get("/v1/capabilities")["features"]["run_steer"]:
        return "not served, and the flag run_steer says so"
    run = post("/v1/runs", {"input": "[[tokens=200 pace=0.05]] work"})["run_id"]
    told = post(f"/v1/runs/{run}/steer", {"text": "be quick", "message": "be quick", "input": "be quick"})
    post(f"/v1/runs/{run}/stop", {})
    return f"accepted: {json.dumps(told)[:80]}"


def ours_profile_path() -> str:
    assert get("/p/careful/v1/models")["data"][0]["id"] == "careful"
    answer = post("/p/careful/v1/chat/completions", {"model": "x", "messages": [{"role": "user", "content": "hi"}]})
    assert answer["model"] == "careful", answer
    return "the profile is the default model there"


STEPS = [
    ("GET /v1/capabilities", capabilities),
    ("GET /health, /health/detailed", health),
    ("POST /v1/chat/completions (stream)", chat),
    ("hermes.tool.progress", chat_tools),
    ("POST /v1/runs, GET /v1/runs/{id}/events", runs),
    ("POST /v1/runs/{id}/approval: once", approval),
    ("POST /v1/runs/{id}/approval: deny", denial),
    ("POST /v1/runs/{id}/stop", stop),
    ("GET /api/sessions, .../messages", listed),
    ("401", key),
    ("GET /v1/models, /api/model/options, /v1/skills, /v1/toolsets, /api/status (ours)", ours_pickers),
    ("POST /api/sessions, .../chat, .../chat/stream, .../model (ours)", ours_sessions),
    ("POST /v1/runs/{id}/steer (ours)", ours_steer),
    ("/p/NAME/... (ours)", ours_profile_path),
]


def main() -> None:
    for route, step in STEPS:
        try:
            row = {"route": route, "ok": True, "saw": step()}
        except Exception:  # the table shows every failure
            row = {"route": route, "ok": False, "saw": traceback.format_exc()[-600:]}
        print("ROW " + json.dumps(row), flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads of hermes-webui may still wait


if __name__ == "__main__":
    main()

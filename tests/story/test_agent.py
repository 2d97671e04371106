"""The agent as a person uses it: a workspace that lasts, a folder that is kept, questions that outlive the server
(D2-D4, E2, G11)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.story.server import Client, Upstream, start_server, wait_until

RESPONSES, RUNS = "/v1/responses", "/v1/runs"


def calls(*made: tuple[str, dict[str, Any]]) -> str:
    """A message that makes the fake upstream ask for these calls, one after the other."""
    return "[[tools=" + "|".join(f"{name}:{json.dumps(arguments)}" for name, arguments in made) + "]]"


def outputs(client: Client, session: str, *made: tuple[str, dict[str, Any]]) -> list[str]:
    """What the calls gave, in order."""
    body = {"input": calls(*made)}
    answer = client.post(RESPONSES, body, {"x-hermes-session-id": session, "x-tool-items": "function_call"}).json()
    assert answer["status"] == "completed", answer
    return [item["output"] for item in answer["output"] if item["type"] == "function_call_output"]


def test_e2_files_folder_and_variables_last_over_the_requests_of_a_session(client: Client, mark: str) -> None:
    wrote, moved = outputs(
        client,
        mark,
        ("write_file", {"path": f"{mark}/greet.py", "content": "import os\nprint('hello', os.environ['WHO'])\n"}),
        ("terminal", {"command": f"cd {mark} && export WHO=world && pwd"}),
    )
    assert "written" in wrote and moved.strip().endswith(mark)
    ran, patched, again, found = outputs(
        client,
        mark,
        ("terminal", {"command": "python3 greet.py"}),
        ("patch", {"path": f"{mark}/greet.py", "search": "hello", "replace": "goodbye"}),
        ("terminal", {"command": "python3 greet.py"}),
        ("search_files", {"pattern": "goodbye", "path": mark}),
    )
    assert ran.strip() == "hello world" and again.strip() == "goodbye world"
    assert "greet.py" in patched and f"{mark}/greet.py" in found


def test_d3_another_session_of_the_owner_has_the_files_and_a_folder_of_its_own(client: Client, mark: str) -> None:
    outputs(client, mark, ("terminal", {"command": f"mkdir -p {mark} && cd {mark} && echo one > note"}))
    (shown,) = outputs(client, f"{mark}-other", ("terminal", {"command": f"cat {mark}/note; basename $PWD"}))
    assert shown.split()[0] == "one" and not shown.strip().endswith(mark)


def _waiting(client: Client, body: dict[str, Any]) -> str:
    run = str(client.post(RUNS, body).json()["run_id"])
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == "waiting_for_approval", "the question")
    return run


def test_d4_an_approval_after_kill_9_and_restart_makes_the_call_once(tmp_path: Path, upstream: Upstream) -> None:
    settings = {"NINELIVES_TOOLS_APPROVAL": "on-write"}
    first = start_server(tmp_path, upstream.url, **settings)
    run = _waiting(first.client, {"input": calls(("terminal", {"command": "echo x >> effect"}))})
    first.kill()
    second = start_server(tmp_path, upstream.url, **settings)
    assert second.client.get(f"{RUNS}/{run}").json()["status"] == "waiting_for_approval"
    assert second.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
    wait_until(lambda: second.client.get(f"{RUNS}/{run}").json()["status"] == "completed", "the end")
    assert second.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 409
    (effect,) = (tmp_path / "data" / "workspaces").glob("*/effect")
    assert effect.read_text() == "x\n"
    assert second.stop() == 0


def test_d4_a_question_expires_and_the_call_is_never_made(tmp_path: Path, upstream: Upstream, mark: str) -> None:
    settings = {"NINELIVES_TOOLS_APPROVAL": "on-write", "NINELIVES_TOOLS_APPROVAL_TTL_S": "0.3"}
    server = start_server(tmp_path, upstream.url, **settings)
    client = server.client
    text = f"{mark} " + calls(("terminal", {"command": "echo x >> effect"}))
    run = str(client.post(RUNS, {"input": text}).json()["run_id"])
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == "completed", "the end")
    assert not list((tmp_path / "data" / "workspaces").glob("*/effect"))
    told = [m for request in upstream.asked(mark) for m in request["messages"] if m["role"] == "tool"]
    assert told and re.search("not approved in time", told[-1]["content"])
    assert client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 409
    assert server.stop() == 0

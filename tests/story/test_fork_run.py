"""A run that is forked over HTTP: an effect file shows that finished tools of the prefix ran once in total (D1)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.story.server import KEY, ROOT, Client, Server
from tests.story.test_durable_runs import PATH, begin, ended, events

pytestmark = pytest.mark.xdist_group("processes")


def effects(mark: str, *names: str) -> str:
    """A request whose tools each add a line to a file."""
    calls = [("terminal:" + json.dumps({"command": f"echo {name} >> {mark}.txt"})) for name in names]
    return f"[[tools={'|'.join(calls)}]]"


def lines(server: Server, mark: str) -> list[str]:
    (found,) = server.data.rglob(f"{mark}.txt")
    return found.read_text().split()


def fork(client: Client, shown: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = client.post(f"{PATH}/{shown}/fork", body, headers)
    assert answer.status == 202, answer.body
    return dict(answer.json())


def test_d1_finished_tools_of_the_prefix_run_once_in_total(server: Server, mark: str) -> None:
    client = server.client
    shown = begin(client, f"hi {effects(mark, 'one', 'two')}")
    assert ended(client, shown)["status"] == "completed" and lines(server, mark) == ["one", "two"]
    first = next(frame.data["seq"] for frame in events(client, shown) if frame.data["event"] == "tool.completed")
    made = fork(client, shown, {"from_seq": first})
    assert (made["forked_from"], made["from_seq"], made["status"]) == (shown, first, "started")
    assert ended(client, made["run_id"])["status"] == "completed"
    assert lines(server, mark) == ["one", "two", "two"], "the first tool ran once, the second in both runs"
    receipt = client.get(f"{PATH}/{made['run_id']}/receipt").json()
    assert [step["tool"] for step in receipt["steps"]] == ["terminal", "terminal"]
    assert receipt["reused"] == [receipt["steps"][0]["call_id"]]
    assert receipt["forked_from"] == {"run_id": shown, "seq": first}


def test_d1_a_fork_with_input_under_a_key_is_one_run(server: Server, mark: str) -> None:
    client = server.client
    shown = begin(client, f"hi {effects(mark, 'one')}")
    last = ended(client, shown) and events(client, shown)[-1].data["seq"]
    body = {"from_seq": last, "input": "and now [[text=Otherwise.]]"}
    made = fork(client, shown, body, {"Idempotency-Key": mark})
    assert fork(client, shown, body, {"Idempotency-Key": mark})["run_id"] == made["run_id"]
    assert ended(client, made["run_id"])["output"].endswith("Otherwise.") and lines(server, mark) == ["one"]
    other = client.post(f"{PATH}/{shown}/fork", {**body, "input": "x"}, {"Idempotency-Key": mark})
    assert (other.status, other.error()["code"]) == (409, "idempotency_key_conflict")


@pytest.mark.parametrize("body", [{}, {"from_seq": -1}, {"from_seq": 10**6}, {"from_seq": "1"}])
def test_a7_a_fork_at_no_legal_place_is_400_and_names_the_places(client: Client, body: dict[str, Any]) -> None:
    shown = begin(client, "hi")
    ended(client, shown)
    answer = client.post(f"{PATH}/{shown}/fork", body)
    assert (answer.status, answer.error()["param"]) == (400, "from_seq")


def test_the_command_line_forks_a_run(server: Server) -> None:
    shown = begin(server.client, "hi [[text=First.]]")
    ended(server.client, shown)
    command = [
        sys.executable,
        "-m",
        "ninelives",
        "runs",
        "fork",
        shown,
        "--from",
        "1",
        "--input",
        "so [[text=Second.]]",
    ]
    env = {"API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT), "HOME": str(server.data)}
    told = subprocess.run(
        [*command, "--url", server.url, "--json"], capture_output=True, text=True, env=env, check=True, timeout=60
    )
    assert ended(server.client, json.loads(told.stdout)["run_id"])["output"] == "Second."

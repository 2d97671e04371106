"""What a person sees of runs in the terminal: the list, what is asked, and how it is answered."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, Server, Upstream, start_server, wait_until

WRITE = 'please write [[tools=write_file:{"path":"a.txt","content":"x"}]]'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    made = start_server(tmp_path_factory.mktemp("server"), upstream.url, NINELIVES_TOOLS_APPROVAL="on-write")
    yield made
    assert made.stop() == 0


def ninelives(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(server.data.parent), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "API_SERVER_KEY": KEY}
    command = [sys.executable, "-m", "ninelives", *words, "--url", server.url]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def waiting(server: Server) -> str:
    """A run that waits for a person."""
    run = server.client.post("/v1/runs", {"input": WRITE}).json()["run_id"]
    path = f"/v1/runs/{run}"
    wait_until(lambda: server.client.get(path).json()["status"] == "waiting_for_approval", "the question")
    return str(run)


def test_runs_ls_has_a_header_age_time_tokens_question_and_answer(server: Server) -> None:
    assert server.client.post("/v1/responses", {"input": "how many? [[text=forty two]]"}).status == 200
    header, first = ninelives(server, "runs", "ls").stdout.splitlines()[:2]
    assert header.split() == ["RUN", "STATUS", "CRASHES", "AGE", "TIME", "TOKENS", "QUESTION", "->", "ANSWER"]
    assert re.fullmatch(r"run_\w+  completed +\d+s +\d+s +\d+  how many\? .* -> forty two", first)


def test_runs_show_names_what_is_asked_and_approvals_answers_it(server: Server) -> None:
    run = waiting(server)
    shown = ninelives(server, "runs", "show").stdout
    assert "Waiting for you:" in shown and "a.txt" in shown and f"approvals approve {run}" in shown
    listed = ninelives(server, "approvals", "ls")
    assert run in listed.stdout and "a.txt" in listed.stdout and "please write" in listed.stdout
    assert json.loads(ninelives(server, "approvals", "ls", "--json").stdout)["waiting"][0]["run_id"] == run
    refused = ninelives(server, "approvals", "approve")
    assert refused.returncode == 1 and "a.txt" in refused.stderr, "without --yes it asks, and nobody answers here"
    assert "Pass --yes" in refused.stderr
    assert ninelives(server, "approvals", "approve", "--yes").stdout == f"{run}: once\n"
    wait_until(lambda: server.client.get(f"/v1/runs/{run}").json()["status"] == "completed", "the end")
    listed = next(line for line in ninelives(server, "runs", "ls").stdout.splitlines() if run in line)
    assert re.match(r"run_\w+  completed {10,}\d+s ", listed), "an answered question is no crash"
    receipt = ninelives(server, "runs", "receipt", run).stdout
    assert "completed  no crashes\n" in receipt and re.search(r"write_file +\S+ +ran once +", receipt), receipt
    assert ninelives(server, "approvals", "approve", run).stderr == f"Error: {run} does not wait for a person.\n"
    assert "0 runs wait for a person" in ninelives(server, "approvals", "deny").stderr


def test_runs_tail_without_a_terminal_says_what_is_asked_and_leaves(server: Server) -> None:
    run = waiting(server)
    followed = ninelives(server, "runs", "tail")
    assert followed.returncode == 3 and "Waiting for you:" in followed.stdout and "a.txt" in followed.stdout
    assert f"ninelives approvals approve {run} --yes" in followed.stdout
    assert ninelives(server, "approvals", "approve", run, "--yes").returncode == 0
    rest = ninelives(server, "runs", "tail", run)
    assert rest.returncode == 0 and "Answered: once." in rest.stdout and "Waiting for you" not in rest.stdout


def test_the_receipt_names_a_steer_that_the_model_has_not_read_yet(server: Server) -> None:
    run = waiting(server)
    assert ninelives(server, "runs", "steer", run, "be brief").returncode == 0
    assert "steer, not read by the model yet: be brief\n" in ninelives(server, "runs", "receipt", run).stdout
    assert ninelives(server, "approvals", "approve", run, "--yes").returncode == 0
    wait_until(lambda: server.client.get(f"/v1/runs/{run}").json()["status"] == "completed", "the end")
    told = [line for line in ninelives(server, "runs", "receipt", run).stdout.splitlines() if "steer" in line]
    assert told == ["  steer, read by the model: be brief"]


def test_a_cancelled_question_is_called_so_once(server: Server) -> None:
    env = {"HOME": str(server.data.parent), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "API_SERVER_KEY": KEY}
    command = [sys.executable, "-m", "ninelives", "ask", "--idempotency-key", "stop-me", "wait [[hang=60]]"]
    with subprocess.Popen([*command, "--url", server.url], env=env, stderr=subprocess.PIPE, text=True) as child:
        path = "/v1/runs?idempotency_key=stop-me"
        wait_until(lambda: [run["status"] for run in server.client.get(path).json()["data"]] == ["running"], "the run")
        run = server.client.get(path).json()["data"][0]["run_id"]
        assert server.client.post(f"/v1/runs/{run}/stop", {}).status == 200
        assert child.stderr is not None and child.stderr.read() == f"ninelives: {run} cancelled\n"
    assert child.returncode == 1


def test_status_names_the_process_of_the_own_server_only(server: Server) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NINELIVES_SERVER_DATA_DIR": str(server.data)}
    command = [sys.executable, "-m", "ninelives", "status", "--pid"]
    told = subprocess.run([*command, "--key", KEY], env=env, capture_output=True, text=True, timeout=60)
    assert told.stdout == f"{server.client.get('/health/detailed').json()['pid']}\n" and told.returncode == 0
    nobody = subprocess.run([*command, "--key", "not-an-admin"], env=env, capture_output=True, text=True, timeout=60)
    assert nobody.returncode == 1 and nobody.stdout == ""
    elsewhere = ninelives(server, "status", "--pid")
    assert elsewhere.returncode == 2 and "another machine" in elsewhere.stderr


def test_approvals_deny_and_the_older_answer(server: Server) -> None:
    one, two = waiting(server), waiting(server)
    several = ninelives(server, "approvals", "approve", "--yes").stderr
    assert "2 runs wait for a person" in several and one in several and two in several
    assert ninelives(server, "approvals", "deny", one).stdout == f"{one}: deny\n"
    assert ninelives(server, "approvals", "answer", two, "always", "--yes").stdout == f"{two}: always\n"
    grants = json.loads(ninelives(server, "approvals", "ls", "--json").stdout)["data"]
    assert ninelives(server, "approvals", "revoke", grants[0]["id"]).stdout == f"{grants[0]['id']}: revoked\n"


def test_the_newest_run_is_meant_where_none_is_named(server: Server) -> None:
    server.client.post("/v1/responses", {"input": "again [[text=last words]]"})
    assert "last words" in ninelives(server, "runs", "tail").stdout
    assert "completed" in ninelives(server, "runs", "receipt").stdout


def test_status_watch_shows_the_server_again_and_again(server: Server, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "API_SERVER_KEY": KEY}
    command = [sys.executable, "-m", "ninelives", "status", "--watch", "--json", "--url", server.url]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        seen = [json.loads(child.stdout.readline())["status"] for _ in range(2)]
        child.send_signal(signal.SIGINT)
    assert seen == ["ok", "ok"] and child.returncode == 1

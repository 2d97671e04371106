"""Profiles and approval rules from the configuration file (A2, A3, D4, E2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story.server import Client, Upstream, start_server, wait_until

CONFIG = """
[profiles.coder]
system_prompt = "You are the coder."
tools = ["read_file", "terminal"]
approval = "never"

[[approvals]]
tool = "terminal"
match = "rm -rf"
ask = "always"

[[approvals]]
tool = "terminal"
ask = "never"
"""
RUNS = "/v1/runs"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("profiles")
    (folder / "ninelives.toml").write_text(CONFIG)
    server = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield server.client
    assert server.stop() == 0


def chat(client: Client, model: str, text: str) -> Any:
    return client.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}]})


def test_a2_each_profile_is_a_model(configured: Client) -> None:
    assert [model["id"] for model in configured.get("/v1/models").json()["data"]] == ["hermes-agent", "coder"]
    assert configured.get("/v1/models/coder").status == 200
    unknown = configured.get("/v1/models/gpt-9")
    assert unknown.status == 404 and "hermes-agent, coder" in unknown.error()["message"]
    assert chat(configured, "gpt-9", "hi").json()["model"] == "hermes-agent"


def test_a_profile_has_its_own_prompt_and_tools(configured: Client, upstream: Upstream, mark: str) -> None:
    answer = chat(configured, "coder", mark)
    assert answer.status == 200 and answer.json()["model"] == "coder"
    (request,) = upstream.asked(mark)
    assert request["messages"][0]["content"] == "You are the coder."
    assert {tool["function"]["name"] for tool in request["tools"]} == {"read_file", "terminal"}


def test_a3_toolsets_tell_the_tools_and_approvals_of_each_profile(configured: Client) -> None:
    told = {each["profile"]: each["details"] for each in configured.get("/v1/toolsets").json()["data"]}
    assert {tool["name"] for tool in told["coder"]} == {"read_file", "terminal"}
    assert len(told["hermes-agent"]) > 2
    assert all(tool["effect"] and tool["approval"] for tools in told.values() for tool in tools)


def test_d4_a_rule_asks_for_one_command_and_lets_others_pass(configured: Client) -> None:
    def run(command: str) -> str:
        body = {"input": f'[[tools=terminal:{{"command":"{command}"}}]]'}
        return str(configured.post(RUNS, body).json()["run_id"])

    plain, asks = run("echo hi"), run("rm -rf nothing-there")
    wait_until(lambda: configured.get(f"{RUNS}/{plain}").json()["status"] == "completed", "no question")
    wait_until(lambda: configured.get(f"{RUNS}/{asks}").json()["status"] == "waiting_for_approval", "a question")
    assert configured.post(f"{RUNS}/{asks}/approval", {"choice": "deny"}).status == 200
    wait_until(lambda: configured.get(f"{RUNS}/{asks}").json()["status"] == "completed", "the end")

"""The table of clients: each as it was seen on the wire, and who decides where several have something to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninelives.app.keys import ConfigError
from ninelives.app.settings import load
from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.chat.parse import parse
from ninelives.dialects.clients import FIELDS, TABLE, Client, Policy, Rows

PYTHON = {"user-agent": "OpenAI/Python 3.49.0", "x-stainless-lang": "python", "x-stainless-package-version": "3.49.0"}
NODE_6 = {"user-agent": "OpenAI/JS 6.49.0", "x-stainless-lang": "js", "x-stainless-package-version": "6.49.0"}
NODE_4 = {"user-agent": "OpenAI/JS 4.104.0", "x-stainless-lang": "js", "x-stainless-package-version": "4.104.0"}
AIOHTTP = {"user-agent": "Python/3.11 aiohttp/3.14.5"}
ANTHROPIC = {"user-agent": "Anthropic/Python 0.74.0", "x-stainless-lang": "python"}
CLAUDE = {"user-agent": "claude-cli/2.0.50 (external, cli)", "x-stainless-lang": "js", "x-app": "cli"}
LANGCHAIN_JS = {"user-agent": "langchainjs-openai/1.0.0 (node/v22)", **{k: v for k, v in NODE_6.items() if k[0] == "x"}}
SEEN: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("openai-python", PYTHON, {"tool_items": "mcp_call", "on_disconnect": None, "client_tools": "pass"}),
    ("openai-node 6", NODE_6, {"tool_items": "mcp_call", "tool_progress": None}),
    ("openai-node 4", NODE_4, {"tool_items": "mcp_call", "tool_progress": "off"}),
    ("llm", {**PYTHON, "user-agent": "OpenAI/Python 2.8.0"}, {"tool_items": "mcp_call"}),
    ("LobeChat", {**NODE_6, "user-agent": "Mozilla/5.0"}, {"tool_items": "mcp_call", "tool_progress": None}),
    ("langchain-openai", PYTHON, {"tool_items": "mcp_call"}),
    ("@langchain/openai", LANGCHAIN_JS, {"tool_items": "mcp_call", "tool_progress": None}),
    ("litellm", {"user-agent": "litellm/1.106.2"}, {"tool_items": "mcp_call"}),
    ("Agents SDK", {**PYTHON, "user-agent": "Agents/Python 0.24.0"}, {"tool_items": "mcp_call"}),
    ("AI SDK", {"user-agent": "ai/6.0.326 ai-sdk/provider-utils/4.0 runtime/node.js/22"}, {"tool_items": "mcp_call"}),
    ("Codex", {"user-agent": "codex_cli_rs/0.166.0 (Ubuntu 24.4.0; x86_64)"}, {"tool_items": "mcp_call"}),
    ("Anthropic SDK", ANTHROPIC, {"tool_items": "mcp_call", "tool_progress": None, "client_tools": "pass"}),
    ("Claude Code", CLAUDE, {"tool_items": "mcp_call", "tool_progress": None, "client_tools": "pass"}),
    (
        "Open WebUI",
        {**AIOHTTP, "x-openwebui-chat-id": "c"},
        {"tool_items": "function_call", "on_disconnect": "cancel", "client_tools": "ignore", "chores": True},
    ),
    (
        "Open WebUI without its headers",
        AIOHTTP,
        {"tool_items": "function_call", "on_disconnect": None, "client_tools": "ignore-built-in", "chores": None},
    ),
    ("curl", {"user-agent": "curl/8.5"}, {"tool_items": "function_call", "client_tools": "pass", "chores": None}),
    ("nobody", {}, {"tool_items": "function_call", "on_disconnect": None, "chores": None, "store_false": None}),
]


def caller(headers: dict[str, str], profile: Profile | None = None, **fields: Any) -> Context:
    return Context("alice", headers, profile or Profile("m"), b"secret", credential="k1", **fields)


@pytest.mark.parametrize(("name", "headers", "expected"), SEEN, ids=[name for name, _, _ in SEEN])
def test_a_client_is_recognised_as_it_was_seen(name: str, headers: dict[str, str], expected: dict[str, Any]) -> None:
    """B4, B5, B7, C4, C9."""
    said = TABLE.recognise(headers)
    assert {field: getattr(said, field) for field in expected} == expected


def test_every_row_says_something_and_the_last_fits_all() -> None:
    assert all(any(getattr(row, field) is not None for field in FIELDS) for row in TABLE)
    assert [row.name for row in TABLE if row.matches({})] == ["anybody else"]


def test_the_page_about_clients_shows_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/clients.md").read_text()
    assert all(f"| {row.name} |" in page for row in TABLE)


def test_headers_go_before_the_key_the_key_before_the_profile_and_the_profile_before_the_table() -> None:
    webui = {"x-openwebui-chat-id": "c"}
    profile, key = Profile("m", on_disconnect="detach"), Policy(on_disconnect="cancel")
    assert caller(webui).on_disconnect("stored") == "cancel"
    assert caller(webui, profile).on_disconnect("stored") == "detach"
    assert caller(webui, profile).on_disconnect("hours") == "detach", "also where the run is not stored"
    assert caller({}).on_disconnect("hours") == "park"
    assert caller(webui, profile, settings=key).on_disconnect("stored") == "cancel"
    said = {**webui, "x-on-disconnect": "detach"}
    assert caller(said, profile, settings=key).on_disconnect("stored") == "detach"
    robot = Client(name="robot", agent="^robot/", on_disconnect="cancel")
    mine = {"user-agent": "Robot/1"}
    assert caller(mine).on_disconnect("stored") == "detach"
    assert caller(mine, clients=Rows((robot, *TABLE))).on_disconnect("stored") == "cancel"


def test_invalid_on_disconnect_is_400() -> None:
    with pytest.raises(ClientError) as caught:
        caller({"x-on-disconnect": "explode"}).on_disconnect("stored")
    assert (caught.value.status, caught.value.code) == (400, "invalid_on_disconnect")


def test_b6_store_false_is_said_by_the_key_then_the_client_then_the_profile() -> None:
    memory, row = Policy(store_false="memory"), Client(name="r", headers={"x-r": ""}, store_false="memory")
    strict = Profile("m", store_false="memory")
    assert caller({}).kept(False, "hours") == "delivery"
    assert caller({}, strict).kept(False, "hours") == "memory"
    assert caller({}, settings=memory).kept(False, "hours") == "memory"
    assert caller({}, strict, settings=Policy(store_false="journal")).kept(False, "hours") == "delivery"
    assert caller({"x-r": "1"}, clients=Rows((row, *TABLE))).kept(False, "hours") == "memory"
    assert caller({}, clients=Rows((row, *TABLE))).kept(False, "hours") == "delivery"


def test_b7_a_client_may_be_taken_out_of_chores() -> None:
    task = b'{"messages":[{"role":"user","content":"### Task: make a title <chat_history>"}]}'
    row = Client(name="robot", agent="robot", chores=False)
    assert parse(task, caller({}), 10).spec.chore
    assert not parse(task, caller({"user-agent": "robot"}, clients=Rows((row, *TABLE))), 10).spec.chore


def test_clients_of_the_configuration_file_come_first(tmp_path: Path) -> None:
    path = tmp_path / "ninelives.toml"
    path.write_text(
        '[[clients]]\nname = "robot"\nagent = "^robot"\nheaders = {"x-robot" = ""}\nclient_tools = "ignore"\n'
    )
    (row,) = load(path, {"HOME": str(tmp_path)}, {}).tables.clients
    assert row == Client(name="robot", agent="^robot", headers={"x-robot": ""}, client_tools="ignore")


@pytest.mark.parametrize(
    "text",
    [
        '[[clients]]\nagent = "x"\n',
        '[[clients]]\nname = "x"\nagent = "("\n',
        '[[clients]]\nname = "x"\nheaders = {a = "["}\n',
        '[[clients]]\nname = "x"\ntool_items = "xml"\n',
        '[[clients]]\nname = "x"\ncolour = "red"\n',
    ],
)
def test_a_client_row_that_makes_no_sense_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ninelives.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"ninelives\.toml"):
        load(path, {"HOME": str(tmp_path)}, {})


def test_what_is_remembered_of_a_caller_depends_on_all_that_the_table_reads() -> None:
    row = Client(name="mine", headers={"X-Robot": "yes"}, on_disconnect="cancel")
    table = Rows((row, *TABLE))
    for _ in range(2):
        for name, headers, expected in SEEN:
            said = table.recognise(headers)
            assert {field: getattr(said, field) for field in expected} == expected, name
        assert table.recognise({"x-robot": "yes"}).on_disconnect == "cancel"
        assert table.recognise({"x-robot": "no"}).on_disconnect is None
        assert TABLE.recognise({"x-robot": "yes"}).on_disconnect is None
        assert table.recognise({"user-agent": "codex " + "x" * 10_000}).tool_items == "mcp_call"

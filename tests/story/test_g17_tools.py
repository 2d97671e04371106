"""Tool results without their call, and tools that the server does not have (G17)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.story.server import Answer, Client

CHAT, RESPONSES, MESSAGES, RUNS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/runs"
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CODEX = {"user-agent": "codex_cli_rs/0.166.0 (Ubuntu 24.4.0; x86_64)"}
ORPHANS: list[tuple[str, dict[str, Any]]] = [
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "call_x1", "content": "y"}]},
    ),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "call_x1", "output": "y"}]}),
    (RUNS, {"input": [{"type": "function_call_output", "call_id": "call_x1", "output": "y"}]}),
    (
        MESSAGES,
        {
            "max_tokens": 99,
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_x1", "content": "y"}]}
            ],
        },
    ),
]


def output_of(call: str) -> list[dict[str, str]]:
    return [{"type": "function_call_output", "call_id": call, "output": "sunny"}]


def check_refused(answer: Answer, call: str) -> None:
    error = answer.json()["error"]
    assert answer.status == 400 and call in error["message"], answer.body
    assert error["code"] == "unknown_tool_call"
    assert error.get("param", "messages") in ("input", "messages")  # errors of Messages have none


@pytest.mark.parametrize(("path", "body"), ORPHANS, ids=[path for path, _ in ORPHANS])
def test_unknown_tool_call_is_400_with_the_call_id(client: Client, path: str, body: dict[str, Any]) -> None:
    check_refused(client.post(path, body), "call_x1")
    check_refused(client.post(path, body, {"x-hermes-session-id": "g17-no-such-session"}), "call_x1")


def asked_for(client: Client, mark: str, **fields: Any) -> tuple[str, str]:
    """A response that asks its caller for the weather, and the id of that call."""
    body = {"input": f"{mark} [[tools=weather:{{}}]]", "tools": [WEATHER], **fields}
    answer = client.post(RESPONSES, body).json()
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    return answer["id"], call["call_id"]


def test_g17_a_result_finds_its_call_in_the_chain(client: Client, mark: str) -> None:
    previous, call = asked_for(client, mark)
    more = {"previous_response_id": previous, "tools": [WEATHER]}
    assert client.post(RESPONSES, {"input": output_of(call), **more}).json()["status"] == "completed"
    check_refused(client.post(RESPONSES, {"input": output_of("call_other"), **more}), "call_other")


def test_g17_a_result_finds_its_call_in_the_conversation_and_in_the_session(client: Client, mark: str) -> None:
    _, call = asked_for(client, mark, conversation=mark)
    check_refused(client.post(RESPONSES, {"input": output_of("call_other"), "conversation": mark}), "call_other")
    done = client.post(RESPONSES, {"input": output_of(call), "conversation": mark, "tools": [WEATHER]}).json()
    assert done["status"] == "completed"
    session = {"x-hermes-session-id": f"{mark}-s"}
    body = {"input": f"{mark} [[tools=weather:{{}}]]", "tools": [WEATHER]}
    (made,) = [i for i in client.post(RESPONSES, body, session).json()["output"] if i["type"] == "function_call"]
    assert client.post(RESPONSES, {"input": output_of(made["call_id"])}, session).json()["status"] == "completed"


def test_g17_a_named_session_gives_the_history_so_the_call_must_be_there(client: Client, mark: str) -> None:
    function = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    asks = [{"role": "user", "content": f"{mark} [[tools=weather:{{}}]]"}]
    said = client.post(CHAT, {"messages": asks, "tools": [function]}, {"x-hermes-session-id": mark}).json()
    message = said["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    whole = {"messages": [*asks, message, result], "tools": [function]}
    assert client.post(CHAT, whole, {"x-hermes-session-id": mark}).status == 200
    assert client.post(CHAT, whole).status == 200, "the call is in the request"
    other = client.post(CHAT, whole, {"x-hermes-session-id": f"{mark}-new"})
    assert other.status == 400 and f"not in the session {mark}-new" in other.error()["message"]


def test_r16_the_key_of_a_run_comes_before_the_check(client: Client, mark: str) -> None:
    """The chain may have gone since: the answer to the key is the run."""
    previous, call = asked_for(client, mark)
    body, key = {"input": output_of(call), "previous_response_id": previous}, {"idempotency-key": mark}
    first = client.post(RESPONSES, body, key).json()
    assert client.delete(f"{RESPONSES}/{previous}").status == 200
    assert client.post(RESPONSES, body, key).json()["id"] == first["id"]


def test_g17_unknown_chains_keep_their_own_error(client: Client) -> None:
    body = {"input": output_of("call_x1"), "previous_response_id": "resp_" + "0" * 24}
    assert client.post(RESPONSES, body).json()["error"]["code"] == "response_not_found"


@pytest.mark.parametrize("kind", ["mcp", "web_search", "file_search", "code_interpreter", "image_generation"])
def test_unsupported_tool_is_refused_by_name(client: Client, kind: str) -> None:
    for path, body in ((RESPONSES, {"input": "hi"}), (CHAT, {"messages": [{"role": "user", "content": "hi"}]})):
        answer = client.post(path, {**body, "tools": [WEATHER, {"type": kind}]})
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "unsupported_tool", "tools")
        assert kind in error["message"]


def test_g17_a_client_that_sends_hosted_tools_unasked_is_told_what_was_left_out(client: Client, mark: str) -> None:
    tools = [WEATHER, {"type": "web_search", "external_web_access": False}, {"type": "custom", "name": "apply_patch"}]
    with client.stream(RESPONSES, {"input": mark, "tools": tools, "stream": True}, CODEX) as stream:
        frames = stream.rest()
    first, last = frames[0].data["response"], frames[-1].data["response"]
    assert first["ignored_tools"] == last["ignored_tools"] == ["web_search", "custom"]
    assert [tool["type"] for tool in last["tools"]] == ["function"] and last["status"] == "completed"
    assert client.get(f"{RESPONSES}/{last['id']}").json()["ignored_tools"] == ["web_search", "custom"]
    run = client.get(f"{RUNS}/{last['id']}").json()
    assert run["ignored_tools"] == ["web_search", "custom"]
    plain = client.post(RESPONSES, {"input": mark, "tools": [WEATHER]}, CODEX).json()
    assert "ignored_tools" not in plain

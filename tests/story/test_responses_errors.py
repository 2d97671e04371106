"""Every error that docs/api/responses.md lists for this dialect, by its status and code in the name of its test (A7). A
code in that list without a test here makes the last test fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story.responses import HANGS, PATH, create, started
from tests.story.server import ROOT, Answer, Client, Server, Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")
SETTINGS = {
    "NINELIVES_LIMITS_PARTS": "20",
    "NINELIVES_LIMITS_JSON_VALUES": "5000",
    "NINELIVES_SERVER_UNKNOWN_MODEL": "error",
}
UNKNOWN = "resp_0123456789abcdef01234567"


@pytest.fixture
def small(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    """A server with room for one run and a small window."""
    room = {"NINELIVES_LIMITS_CONCURRENT_RUNS": "1", "NINELIVES_LIMITS_QUEUE": "0"}
    server = start_server(tmp_path, upstream.url, NINELIVES_AGENT_CONTEXT_TOKENS="4000", **room)
    yield server
    server.stop()


def refused(answer: Answer, status: int, code: str, param: str | None) -> dict[str, Any]:
    error = answer.error()
    assert (answer.status, error["code"], error["param"]) == (status, code, param), error
    assert error["message"].endswith((".", UNKNOWN, "unknown", "gone")), "it says what to do"
    assert (answer.headers.get("x-should-retry") == "false") == (status == 409), "409 is not to be retried"
    return error


def post(client: Client, headers: dict[str, str] | None = None, /, **fields: Any) -> Answer:
    return client.post(PATH, {"input": "hi", **fields}, headers)


def test_400_invalid_json(client: Client) -> None:
    for path in (PATH, f"{PATH}/input_tokens", f"{PATH}/compact"):
        refused(client.post(path, b'{"input": '), 400, "invalid_json", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", []),
        ("input", 5),
        ("input", [{"type": "item_reference"}]),
        ("input", [{"type": "item_reference", "id": 5}]),
        ("input", [{"role": "nobody", "content": "x"}]),
        ("input", [{"type": 5, "role": "user", "content": "x"}]),
        ("input", [{"type": "function_call_output", "call_id": "", "output": "x"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]),
        ("instructions", ["x"]),
        ("store", "yes"),
        ("stream", 1),
        ("background", "no"),
        ("max_output_tokens", 15),
        ("max_tool_calls", 0),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("top_p", 1.1),
        ("top_logprobs", 21),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("truncation", "sometimes"),
        ("metadata", {f"k{n}": "v" for n in range(17)}),
        ("metadata", {"k" * 65: "v"}),
        ("metadata", {"k": "v" * 513}),
        ("metadata", {"k": 1}),
        ("include", "reasoning.encrypted_content"),
        ("prompt_cache_key", "k" * 65),
        ("safety_identifier", "s" * 129),
        ("reasoning", {"effort": "frantic"}),
        ("reasoning", {"summary": "long"}),
        ("text", {"verbosity": "loud"}),
        ("text", {"format": {"type": "xml"}}),
        ("text", {"format": {"type": "json_schema", "name": "x"}}),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": "yes"}}),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "function", "name": "x", "parameters": "y"}]),
        ("tool_choice", "sometimes"),
        ("tool_choice", {"type": "function"}),
        ("tool_choice", {"type": "allowed_tools"}),
        ("tool_choice", {"type": "allowed_tools", "tools": []}),
        ("tool_choice", {"type": "allowed_tools", "tools": [{"type": "function"}]}),
        ("tool_choice", {"type": "allowed_tools", "mode": "maybe", "tools": [{"type": "function", "name": "x"}]}),
        ("conversation", {"id": ""}),
        ("conversation", {}),
        ("previous_response_id", 5),
    ],
)
def test_400_invalid_value(client: Client, name: str, value: Any) -> None:
    refused(post(client, **{name: value}), 400, "invalid_value", name)


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=no", "after")]
)
def test_400_invalid_value_in_a_page_of_input_items(client: Client, query: str, param: str) -> None:
    shown = create(client, "hi")["id"]
    refused(client.get(f"{PATH}/{shown}/input_items?{query}"), 400, "invalid_value", param)


@pytest.mark.parametrize("query", ["stream=maybe", "stream=true&starting_after=-1", "stream=true&starting_after=x"])
def test_400_invalid_value_in_a_retrieval(client: Client, query: str) -> None:
    shown = create(client, "hi")["id"]
    param = "starting_after" if "starting_after" in query else "stream"
    refused(client.get(f"{PATH}/{shown}?{query}"), 400, "invalid_value", param)


def test_400_missing_required_parameter(client: Client) -> None:
    refused(client.post(PATH, {}), 400, "missing_required_parameter", "input")
    refused(client.post(f"{PATH}/compact", {"input": "x"}), 400, "missing_required_parameter", "model")
    refused(client.post(f"{PATH}/compact", {"model": "hermes-agent"}), 400, "missing_required_parameter", "input")


def test_400_background_requires_store(client: Client) -> None:
    refused(post(client, background=True, store=False), 400, "background_requires_store", "background")


def test_400_idempotency_requires_store(client: Client, mark: str) -> None:
    refused(post(client, {"idempotency-key": mark}, store=False), 400, "idempotency_requires_store", "store")


def test_400_mutually_exclusive_parameters(client: Client) -> None:
    answer = post(client, previous_response_id=UNKNOWN, conversation="x")
    refused(answer, 400, "mutually_exclusive_parameters", "conversation")


def test_400_unsupported_tool(client: Client) -> None:
    refused(post(client, input="x", tools=[{"type": "mcp"}]), 400, "unsupported_tool", "tools")


def test_400_unknown_tool_call(client: Client) -> None:
    result = {"type": "function_call_output", "call_id": "call_x1", "output": "y"}
    error = refused(post(client, input=[result]), 400, "unknown_tool_call", "input")
    assert "call_x1" in error["message"]


def test_400_too_many_parts(client: Client) -> None:
    parts = [{"type": "input_text", "text": "x"}] * 21
    refused(post(client, input=[{"role": "user", "content": parts}]), 400, "too_many_parts", "input")


def test_400_too_many_values(client: Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"enum": list(range(5001))}}
    error = refused(post(client, input="x", tools=[tool]), 400, "too_many_values", "tools")
    assert "limits.json_values" in error["message"]


def test_400_invalid_compaction(client: Client) -> None:
    item = client.post(f"{PATH}/compact", {"model": "hermes-agent", "input": "x"}).json()["output"][-1]
    sealed = item["encrypted_content"]
    other = "A" if sealed[40] != "A" else "B"
    for bad in (sealed[:-4], sealed[:40] + other + sealed[41:], "", "no base64!", "AAAA", "é", 5):
        given = [{"type": "compaction", "encrypted_content": bad}, {"role": "user", "content": "hi"}]
        for path, more in ((PATH, {}), (f"{PATH}/compact", {"model": "hermes-agent"}), (f"{PATH}/input_tokens", {})):
            refused(client.post(path, {"input": given, **more}), 400, "invalid_compaction", "input")
    given = [{"type": "compaction"}, {"role": "user", "content": "hi"}]
    refused(post(client, input=given), 400, "invalid_compaction", "input")


def test_400_context_length_exceeded(small: Server, upstream: Upstream, mark: str) -> None:
    story = f"{mark} " + "word " * 4000
    refused(post(small.client, input=story), 400, "context_length_exceeded", "input")
    assert not upstream.asked(mark), "nothing was begun"
    first = create(small.client, "word " * 800)
    second = create(small.client, "word " * 800, previous_response_id=first["id"])
    chained = {"input": f"{mark} " + "word " * 1200, "previous_response_id": second["id"]}
    refused(small.client.post(PATH, chained), 400, "context_length_exceeded", "input")
    made = small.client.post(PATH, {**chained, "truncation": "auto"})
    assert made.status == 200 and made.json()["status"] == "completed", "auto leaves the oldest out"


def test_400_invalid_idempotency_key(client: Client) -> None:
    refused(post(client, {"idempotency-key": "two words"}), 400, "invalid_idempotency_key", None)


def test_400_invalid_session_id(client: Client) -> None:
    refused(post(client, {"x-hermes-session-id": "two words"}), 400, "invalid_session_id", "X-Hermes-Session-Id")


def test_400_invalid_session_key(client: Client) -> None:
    refused(post(client, {"x-hermes-session-key": "two words"}), 400, "invalid_session_key", None)


def test_400_invalid_tool_items(client: Client) -> None:
    refused(post(client, {"x-tool-items": "both"}), 400, "invalid_tool_items", None)


def test_404_model_not_found(client: Client) -> None:
    for path in (PATH, f"{PATH}/input_tokens", f"{PATH}/compact"):
        error = refused(client.post(path, {"input": "x", "model": "gpt-0"}), 404, "model_not_found", "model")
        assert "hermes-agent" in error["message"]


def test_404_response_not_found(client: Client) -> None:
    for call in (client.get, client.delete):
        assert UNKNOWN in refused(call(f"{PATH}/{UNKNOWN}"), 404, "response_not_found", None)["message"]
    refused(client.get(f"{PATH}/{UNKNOWN}?stream=true"), 404, "response_not_found", None)
    refused(client.get(f"{PATH}/{UNKNOWN}/input_items"), 404, "response_not_found", None)
    refused(client.post(f"{PATH}/{UNKNOWN}/cancel"), 404, "response_not_found", None)
    for path, more in ((PATH, {}), (f"{PATH}/input_tokens", {}), (f"{PATH}/compact", {"model": "hermes-agent"})):
        for named in (UNKNOWN, "unknown", create(client, "hi", store=False)["id"]):
            answer = client.post(path, {"input": "hi", "previous_response_id": named, **more})
            assert answer.error()["message"] == f"Response not found: {named}"
            assert (answer.status, answer.error()["param"]) == (404, "previous_response_id")


def test_404_conversation_not_found(client: Client) -> None:
    for path in (PATH, f"{PATH}/input_tokens"):
        answer = client.post(path, {"input": "hi", "conversation": "conv_unknown"})
        refused(answer, 404, "conversation_not_found", "conversation")


def test_404_item_not_found(client: Client) -> None:
    unstored = create(client, "hi", store=False)["output"][0]["id"]
    gone = create(client, "hi")
    assert client.delete(f"{PATH}/{gone['id']}").status == 200
    for shown in ("msg_0123456789abcdef01234567000001", "x", "_", "é", "msg_", unstored, gone["output"][0]["id"]):
        for path, more in ((PATH, {}), (f"{PATH}/compact", {"model": "hermes-agent"}), (f"{PATH}/input_tokens", {})):
            given = {"input": [{"type": "item_reference", "id": shown}], **more}
            error = refused(client.post(path, given), 404, "item_not_found", "input")
            assert shown in error["message"]


def test_409_previous_response_not_completed(client: Client) -> None:
    running = started(client, HANGS)
    failed = create(client, "[[status=400]]")["id"]
    code, param = "previous_response_not_completed", "previous_response_id"
    for shown in (running, failed):
        refused(post(client, previous_response_id=shown), 409, code, param)
    client.post(f"{PATH}/{running}/cancel")
    refused(post(client, previous_response_id=running), 409, code, param)


def test_409_conversation_response_not_completed(client: Client, mark: str) -> None:
    running = started(client, HANGS, conversation=mark)
    answer = post(client, conversation=mark)
    assert running in refused(answer, 409, "conversation_response_not_completed", "conversation")["message"]
    assert post(client, conversation=mark, store=False).status == 200, "a turn that is not stored is never refused"
    client.post(f"{PATH}/{running}/cancel")
    assert post(client, conversation=mark).status == 200


def test_409_idempotency_key_conflict(client: Client, mark: str) -> None:
    key = {"idempotency-key": mark}
    assert post(client, key).status == 200
    refused(post(client, key, input="another"), 409, "idempotency_key_conflict", None)


def test_429_too_many_runs(small: Server) -> None:
    running = started(small.client, HANGS)
    refused(post(small.client), 429, "too_many_runs", None)
    small.client.post(f"{PATH}/{running}/cancel")


@pytest.mark.parametrize(
    ("place", "code"), [("/v1", "compaction_failed"), ("/nowhere", "upstream_rejected")], ids=["cut off", "no upstream"]
)
def test_502_compaction_failed(tmp_path: Path, upstream: Upstream, place: str, code: str) -> None:
    """Half a summary is none; an upstream that fails is told by its own code."""
    url = upstream.url.removesuffix("/v1") + place
    server = start_server(tmp_path, url, NINELIVES_AGENT_MAX_MESSAGE_BYTES="10")
    try:
        answer = server.client.post(f"{PATH}/compact", {"model": "hermes-agent", "input": "x"})
        assert (answer.status, answer.error()["code"]) == (502, code), answer.body
    finally:
        server.stop()


def test_every_code_that_the_documentation_lists_has_a_test_here() -> None:
    text = (ROOT / "docs" / "api" / "responses.md").read_text()
    listed = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", text, re.MULTILINE)
    assert len(listed) > 15
    tests = {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}
    assert not [f"test_{status}_{code}" for status, code in listed if f"test_{status}_{code}" not in tests]
    codes = {f"{status}_{code}" for status, code in listed}
    named = [found[1] for name in tests if (found := re.match(r"test_(\d{3}_\w+?)(_in_a_\w+)?$", name))]
    assert not set(named) - codes, "a code that has a test is in the documentation"

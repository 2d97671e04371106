"""Bad input of every kind gets its 4xx with the error's shape and, where one field is at fault, its name; never a 5xx,
never a trace (A4, A6, A7, C5, D2)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.story import chat, responses
from tests.story.server import KEY, Answer, Client, Json, Server, Upstream, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {
    "NINELIVES_LIMITS_BODY_BYTES": "200000",
    "NINELIVES_LIMITS_PARTS": "50",
    "NINELIVES_SERVER_UNKNOWN_MODEL": "error",
}
CHAT, RESPONSES, RUNS = chat.PATH, responses.PATH, "/v1/runs"
CREATES = (CHAT, RESPONSES, RUNS)
GOOD: dict[str, Json] = {CHAT: chat.ask("hi"), RESPONSES: {"input": "hi"}, RUNS: {"input": "hi"}}
UNKNOWN = "zzzzzzzzzzzzzzzzzzzzzzzz"
HUGE = 10**40


@pytest.fixture(scope="module", autouse=True)
def nothing_failed_inside(server: Server, upstream: Upstream) -> Iterator[None]:
    """However bad the input was: no bug was met, and no run began."""
    yield
    log = server.log()
    for word in ("request_failed", "Traceback", "agent_crashed", "worker_failed", "illegal_event"):
        assert word not in log, log
    assert server.health()["status"] == "ok"


@pytest.fixture
def asked_nothing(server: Server, upstream: Upstream) -> Iterator[None]:
    wait_until(lambda: server.health()["runs"]["active"] == 0, "runs of tests before are over")
    before = upstream.stats()["requests"]
    yield
    assert upstream.stats()["requests"] == before, "what is refused starts nothing"


def refused(answer: Answer, status: int | tuple[int, ...], param: str | None = None) -> Json:
    wanted = status if isinstance(status, tuple) else (status,)
    assert answer.status in wanted, (answer.status, answer.body[:500])
    error = answer.error()
    assert error["type"] == "invalid_request_error" and error["code"] and error["message"]
    assert b"Traceback" not in answer.body and b'File \\"' not in answer.body
    if param is not None:
        assert error["param"] == param, error
    assert answer.headers["x-request-id"] and answer.headers["content-type"] == "application/json"
    return error


# Bodies that are no JSON object

NOT_JSON = {
    "empty": b"",
    "space": b"   ",
    "text": b"hello",
    "half": b'{"input": "hi"',
    "two": b"{} {}",
    "array": b"[]",
    "string": b'"hi"',
    "number": b"5",
    "null": b"null",
    "true": b"true",
    "nan": b'{"input":"hi","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "infinity": b'{"input":"hi","messages":[{"role":"user","content":"x"}],"temperature":-Infinity}',
    "lone high surrogate": b'{"input":"\\ud83d","messages":[{"role":"user","content":"\\ud83d"}]}',
    "lone low surrogate": b'{"input":"\\ude00","messages":[{"role":"user","content":"\\ude00"}]}',
    "surrogate in an unknown field": b'{"input":"hi","messages":[{"role":"user","content":"x"}],"zzz":"\\ud800x"}',
    "surrogate in a name": b'{"input":"hi","messages":[{"role":"user","content":"x"}],"\\udfff":1}',
    "raw surrogate": b'{"input":"\xed\xa0\x80"}',
    "latin 1": b'{"input":"caf\xe9"}',
    "utf 16": '{"input":"hi"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"input":"hi"}',
    "zero byte": b'{"input":"a\x00b"}',
    "single quotes": b"{'input':'hi'}",
    "comma": b'{"input":"hi",}',
    "deep": b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep in an unknown field": b'{"input":"hi","messages":[{"role":"user","content":"x"}],"z":'
    + b'{"a":' * 300
    + b"1"
    + b"}" * 300
    + b"}",
    "very deep": b"[" * 90_000,
}


@pytest.mark.parametrize("path", [*CREATES, f"{RESPONSES}/input_tokens", f"{RESPONSES}/compact", "stored chat"])
@pytest.mark.parametrize("case", NOT_JSON)
@pytest.mark.usefixtures("asked_nothing")
def test_a7_a_body_that_is_no_json_object_is_400(client: Client, stored: Json, path: str, case: str) -> None:
    if path == "stored chat":
        path = f"{CHAT}/{stored['chat']}"
    refused(client.post(path, NOT_JSON[case]), 400)


@pytest.fixture(scope="module")
def stored(server: Server) -> Json:
    """One finished run of each dialect."""
    run = server.client.post(RUNS, {"input": "hi"}).json()["run_id"]
    return {
        "chat": chat.create(server.client, "hi", store=True)["id"],
        "responses": responses.create(server.client, "hi")["id"],
        "runs": run,
    }


# Fields with the wrong type or out of range

WRONG: list[tuple[str, str, Any]] = [
    *((CHAT, "messages", value) for value in (None, "hi", {}, 5, [], [5], ["hi"], [None], [[]])),
    *(
        (CHAT, "messages", [message])
        for message in (
            {},
            {"role": "user"},
            {"content": "x"},
            {"role": "wizard", "content": "x"},
            {"role": 5, "content": "x"},
            {"role": ["user"], "content": "x"},
            {"role": {"a": 1}, "content": "x"},
            {"role": None, "content": "x"},
            {"role": "user", "content": 5},
            {"role": "user", "content": True},
            {"role": "user", "content": {"type": "text"}},
            {"role": "user", "content": ["x"]},
            {"role": "user", "content": [{"text": "x"}]},
            {"role": "user", "content": [{"type": 5}]},
            {"role": "tool", "tool_call_id": "x"},
            {"role": "user", "content": [{"type": "text", "text": "x"}] * 60},
        )
    ),
    *((CHAT, "n", value) for value in (0, 2, -1, "1", 1.5, HUGE, [])),
    *((CHAT, "temperature", value) for value in (-0.1, 2.1, "1", HUGE, [], {})),
    *((CHAT, "top_p", value) for value in (-1, 1.5, "x")),
    *((CHAT, "frequency_penalty", value) for value in (3, -3, "x")),
    *((CHAT, "presence_penalty", value) for value in (3, -3, "x")),
    *((CHAT, "max_tokens", value) for value in (0, -5, "5", 1.5, HUGE, 2**40)),
    *((CHAT, "max_completion_tokens", value) for value in (0, -5, "5")),
    *((CHAT, "stream", value) for value in ("true", 1, [])),
    *((CHAT, "store", value) for value in ("true", 1, {})),
    *((CHAT, "stream_options", value) for value in ("x", 5, {"include_usage": "yes"})),
    *((CHAT, "stop", value) for value in (5, {}, [5])),
    *((CHAT, "seed", value) for value in ("x", 1.5, HUGE)),
    *((CHAT, "logit_bias", value) for value in ([], {"a": "b"})),
    *((CHAT, "top_logprobs", value) for value in (-1, 21, "x")),
    *((CHAT, "response_format", value) for value in ("json", [])),
    *((CHAT, "reasoning_effort", value) for value in (5, {})),
    *((CHAT, "tools", value) for value in ({}, "x", [5])),
    *((CHAT, "functions", value) for value in ([{"name": "f"}],)),
    *((CHAT, "user", value) for value in (5, [])),
    *((CHAT, "model", value) for value in (5, [], {})),
    *((RESPONSES, "input", value) for value in (None, 5, {}, [], [5], ["x"], [None], [[]])),
    *(
        (RESPONSES, "input", [item])
        for item in (
            {},
            {"role": "user"},
            {"role": "wizard", "content": "x"},
            {"role": ["user"], "content": "x"},
            {"type": 5},
            {"type": None},
            {"type": "message", "role": "user", "content": 5},
            {"type": "message", "role": "user", "content": ["x"]},
            {"type": "message", "role": "user", "content": [{}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text"}] * 60},
        )
    ),
    *((RESPONSES, "instructions", value) for value in (5, [], {})),
    *((RESPONSES, "stream", value) for value in ("true", 1)),
    *((RESPONSES, "store", value) for value in ("true", 1)),
    *((RESPONSES, "background", value) for value in ("true", 1)),
    *((RESPONSES, "temperature", value) for value in (-0.1, 2.1, "1", HUGE)),
    *((RESPONSES, "top_p", value) for value in (-1, 1.5)),
    *((RESPONSES, "top_logprobs", value) for value in (-1, 21)),
    *((RESPONSES, "max_output_tokens", value) for value in (0, 15, -1, "x", HUGE)),
    *((RESPONSES, "max_tool_calls", value) for value in (0, -1, "x")),
    *((RESPONSES, "truncation", value) for value in ("maybe", 5)),
    *((RESPONSES, "text", value) for value in ("x", [])),
    *((RESPONSES, "reasoning", value) for value in ("x", [])),
    *((RESPONSES, "include", value) for value in ("x", [5], {})),
    *((RESPONSES, "tools", value) for value in ({}, [5])),
    *((RESPONSES, "prompt_cache_key", value) for value in ("x" * 65, 5)),
    *((RESPONSES, "safety_identifier", value) for value in ("x" * 129, 5)),
    *((RESPONSES, "previous_response_id", value) for value in (5, [], {})),
    *((RESPONSES, "conversation", value) for value in (5, [], {}, {"id": 5}, {"id": None}, "", "x" * 300, "a\nb")),
    *((RESPONSES, "model", value) for value in (5, [])),
    *((RUNS, "input", value) for value in (None, 5, {}, [], [5])),
    *((RUNS, "instructions", value) for value in (5, [])),
    *((RUNS, "session_id", value) for value in (5, [])),
    *((RUNS, "previous_response_id", value) for value in (5, [])),
    *((RUNS, "conversation_history", value) for value in ("x", {}, [5], [{}], [{"role": "wizard"}], [{"role": []}])),
    *(
        (path, "metadata", value)
        for path in CREATES
        for value in (
            "x",
            [],
            {"a": 5},
            {"a": None},
            {"x" * 65: "v"},
            {"k": "x" * 513},
            {str(n): "v" for n in range(17)},
        )
    ),
]


@pytest.mark.parametrize(("path", "name", "value"), WRONG, ids=lambda value: str(value)[:40])
@pytest.mark.usefixtures("asked_nothing")
def test_a7_a_field_of_the_wrong_kind_is_400_with_its_name(client: Client, path: str, name: str, value: Any) -> None:
    refused(client.post(path, {**GOOD[path], name: value}), 400, name)


@pytest.mark.parametrize("value", [None, "x", [], {"a": 5}, {"x" * 65: "v"}, {"k": "x" * 513}])
def test_a7_bad_metadata_for_a_stored_chat_is_400(client: Client, stored: Json, value: Any) -> None:
    refused(client.post(f"{CHAT}/{stored['chat']}", {"metadata": value}), 400, "metadata")


HI = chat.ask("hi")["messages"]
DEEP_IN = {"a": {"b": [1, 2, {"c": None}]}}
ODD: list[tuple[str, Json]] = [
    (CHAT, {**chat.ask("hi"), "unknown": DEEP_IN, "access_programs": [], "moderation": None}),
    (CHAT, {"messages": [{"role": "user", "content": "hi", "number": HUGE}]}),
    (CHAT, {"messages": [{"role": "user", "content": "hi", "number": 1e300, "more": -HUGE}]}),
    (CHAT, {**chat.ask("hi"), "response_format": {"type": "text", "n": HUGE}}),
    (CHAT, {**chat.ask("hi"), "logit_bias": {"5": HUGE}}),
    (CHAT, {**chat.ask("hi"), "unknown": HUGE}),
    (CHAT, chat.ask("hi", metadata={})),
    (CHAT, chat.ask("")),
    (CHAT, chat.ask("a\u0000b \u2028 \U0001f600")),
    (CHAT, {"messages": [{"role": "system", "content": "only this"}]}),
    (CHAT, {"messages": [{"role": "assistant", "content": "only this"}]}),
    (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": "nonsense"}, *HI]}),
    (CHAT, {"messages": [{"role": "tool", "content": "result", "tool_call_id": HUGE}, *HI]}),
    (RESPONSES, {"input": "hi", "unknown": DEEP_IN}),
    (RESPONSES, {"input": ""}),
    (RESPONSES, {"input": [{"role": "user", "content": "hi", "number": HUGE}]}),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": HUGE, "name": 5, "arguments": {}}]}),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": [], "output": {"a": HUGE}}]}),
    (RESPONSES, {"input": [{"type": "mcp_call", "id": 5}]}),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}),
    (RESPONSES, {"input": [{"type": "item_reference", "id": HUGE}]}),
    (RESPONSES, {"input": [{"id": "\u0000"}, {"id": "msg_" + "a" * 9000}]}),
    (RESPONSES, {"input": [{"type": "compaction", "encrypted_content": HUGE}]}),
    (RESPONSES, {"input": [{"type": "compaction", "encrypted_content": "A" * 9000}]}),
    (RESPONSES, {"input": "hi", "tool_choice": {"type": "allowed_tools", "mode": HUGE, "tools": [HUGE]}}),
    (RESPONSES, {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {"a": HUGE}}]}),
    (RESPONSES, {"input": "hi", "text": {"verbosity": [], "format": {"type": HUGE}}}),
    (f"{RESPONSES}/input_tokens", {"input": [{"role": "user", "content": [{"type": "input_image"}]}], "tools": []}),
    (f"{RESPONSES}/input_tokens", {"input": "hi", "tools": [{"type": HUGE}], "unknown": DEEP_IN}),
    (f"{RESPONSES}/compact", {"model": "hermes-agent", "input": [{"type": "compaction"}]}),
    (f"{RESPONSES}/compact", {"model": "hermes-agent", "input": [{"type": "something_new", "a": HUGE}]}),
    (f"{RESPONSES}/compact", {"model": HUGE, "input": HUGE}),
    (RESPONSES, {"input": [{"type": "something_new", "a": HUGE}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": HUGE}]}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "n": HUGE}]}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}),
    (RESPONSES, {"input": "hi", "text": {"format": 5}}),
    (RESPONSES, {"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"maximum": HUGE}}}}),
    (RESPONSES, {"input": "hi", "reasoning": {"effort": HUGE}}),
    (RESPONSES, {"input": "hi", "tool_choice": {"type": HUGE}}),
    (RESPONSES, {"input": "hi", "stream_options": {"a": HUGE}}),
    (RUNS, {"input": "hi", "unknown": DEEP_IN}),
    (RUNS, {"input": "hi", "conversation_history": [{"role": "user", "content": HUGE}]}),
    (RUNS, {"input": "hi", "conversation_history": [{"role": "user"}]}),
]


@pytest.mark.parametrize(("path", "body"), ODD, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("key", [True, False])
def test_a7_odd_but_readable_input_is_answered_or_refused_and_never_a_5xx(
    client: Client, mark: str, path: str, body: Json, key: bool
) -> None:
    for more in ({}, {"store": True}, {"stream": True}):
        headers = {"idempotency-key": f"{mark}{'-'.join(more)}"} if key else {}
        answer = client.post(path, {**body, **more}, headers)
        assert answer.status in (200, 202, 400, 404), (answer.status, answer.body[:300])
        assert b"agent_crashed" not in answer.body and b"internal_error" not in answer.body
        if answer.status >= 400:
            refused(answer, answer.status)


NUMBERS = {
    "5000 digits": b"9" * 5000,
    "5000 digits below zero": b"-" + b"9" * 5000,
    "beyond all floats": b"1e999",
    "below all floats": b"-1e999",
    "a long fraction": b"0." + b"3" * 5000,
    "a long exponent": b"1e" + b"9" * 5000,
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", ["known", "unknown", "within"])
def test_a7_a_number_of_any_size_is_never_a_5xx(client: Client, number: str, place: str) -> None:
    value = NUMBERS[number]
    extra = {"known": b',"temperature":' + value, "unknown": b',"zzz":' + value, "within": b""}[place]
    within = b',"zzz":' + value if place == "within" else b""
    message = b'{"role":"user","content":"hi"' + within + b"}"
    for path, body in [
        (CHAT, b'{"messages":[' + message + b"]" + extra + b"}"),
        (RESPONSES, b'{"input":[' + message + b"]" + extra + b"}"),
        (RUNS, b'{"input":[' + message + b"]" + extra + b"}"),
    ]:
        answer = client.post(path, body)
        assert answer.status in (200, 202, 400), (answer.status, answer.body[:300])
        assert b"agent_crashed" not in answer.body and b'"failed"' not in answer.body
        if answer.status == 400:
            refused(answer, 400)


# Models, ids and queries


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize("name", ["gpt-4o", "", "hermes-agent ", "../x", "\u2603", "x" * 10_000])
@pytest.mark.usefixtures("asked_nothing")
def test_a2_an_unknown_model_is_404_and_the_known_ones_are_named(client: Client, path: str, name: str) -> None:
    error = refused(client.post(path, {**GOOD[path], "model": name}), 404, "model")
    assert error["code"] == "model_not_found" and "hermes-agent" in error["message"]


def test_a2_an_unknown_model_in_a_path_is_404(client: Client) -> None:
    for name in ("gpt-4o", "a/b/c", "%2e%2e%2fx", "%00", "%E2%98%83", "hermes-agent/"):
        error = refused(client.get(f"/v1/models/{name}"), 404, "model")
        assert error["code"] == "model_not_found"


ODD_IDS = [
    UNKNOWN,
    "x",
    "%20",
    "%00",
    "%F0%9F%98%80",
    "%ED%A0%80",
    "%FF",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "a" * 3000,
    "'%20OR%201=1--",
    "%7B%7D",
    "resp_",
    "run_",
    "chatcmpl-",
    "resp_ABC%0Adef",
    f"resp_{UNKNOWN}%00",
    f"run_{UNKNOWN}",
    f"resp_{UNKNOWN}",
    f"chatcmpl-{UNKNOWN}",
]
BY_ID = [
    ("GET", RESPONSES + "/{}"),
    ("GET", RESPONSES + "/{}?stream=true"),
    ("DELETE", RESPONSES + "/{}"),
    ("POST", RESPONSES + "/{}/cancel"),
    ("GET", RESPONSES + "/{}/input_items"),
    ("GET", CHAT + "/{}"),
    ("GET", CHAT + "/{}?stream=true"),
    ("POST", CHAT + "/{}"),
    ("DELETE", CHAT + "/{}"),
    ("GET", CHAT + "/{}/messages"),
    ("GET", RUNS + "/{}"),
    ("GET", RUNS + "/{}/events"),
    ("POST", RUNS + "/{}/stop"),
]


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_a7_g7_an_id_that_is_not_known_is_404_whatever_it_looks_like(client: Client, method: str, path: str) -> None:
    for shown in ODD_IDS:
        body = {"metadata": {}} if (method, path) == ("POST", CHAT + "/{}") else None
        answer = client.call(method, path.format(shown), body)
        assert refused(answer, 404)["code"].endswith("not_found"), shown
        assert len(answer.body) < 10_000


def test_a7_ids_in_bodies_and_queries_are_404_or_400(client: Client) -> None:
    for shown in ("", "x", "\x00", "\U0001f600", "../..", "a" * 100_000, "resp_", f"resp_{UNKNOWN}", "' OR 1=1"):
        for path in (RESPONSES, RUNS):
            refused(client.post(path, {"input": "hi", "previous_response_id": shown}), 404, "previous_response_id")
    for shown in ("conv_", "conv_x", "conv_' OR 1=1", "conv_\U0001f600"):
        refused(client.post(RESPONSES, {"input": "hi", "conversation": shown}), 404, "conversation")
    for path in (CHAT, RUNS):
        for shown in ("x", "%00", "%F0%9F%98%80", "%FF"):
            refused(client.get(f"{path}?after={shown}"), (400, 404))


QUERIES = [
    *((f"{CHAT}?limit={value}", "limit") for value in ("0", "-1", "101", "x", "1e3", "9" * 30, "", "%C2%B2")),
    *((f"{RUNS}?limit={value}", "limit") for value in ("0", "-1", "101", "x", "1e3", "9" * 30, "", "%C2%B2")),
    *((f"{path}?order={value}", "order") for path in (CHAT, RUNS) for value in ("up", "", "ASC")),
    *((f"{RUNS}?status={value}", "status") for value in ("done", "", "running%00")),
    *((RESPONSES + "/{responses}/input_items?limit=" + value, "limit") for value in ("0", "101", "x", "-1")),
    (RESPONSES + "/{responses}/input_items?order=up", "order"),
    (RESPONSES + "/{responses}/input_items?after=nothing", "after"),
    (CHAT + "/{chat}/messages?limit=0", "limit"),
    (CHAT + "/{chat}/messages?after=nothing", "after"),
    *(
        (path + "stream=true&starting_after=" + value, "starting_after")
        for path in (RESPONSES + "/{responses}?", CHAT + "/{chat}?")
        for value in ("x", "-1", "1.5", "", "%C2%B2", "9" * 30, "0x10", "1e3")
    ),
    *((RUNS + "/{runs}/events?after=" + value, "after") for value in ("x", "-1", "", "9" * 30)),
    (RESPONSES + "/{responses}?stream=maybe", "stream"),
    (CHAT + "/{chat}?stream=5", "stream"),
]


@pytest.mark.parametrize(("path", "param"), QUERIES)
def test_a7_a_bad_query_is_400_with_its_name(client: Client, stored: Json, path: str, param: str) -> None:
    refused(client.get(path.format(**stored)), 400, param)


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 30, "\xb2", "0 1"])
def test_a7_a_bad_last_event_id_is_400(client: Client, stored: Json, value: str) -> None:
    for path in (f"{RESPONSES}/{stored['responses']}?stream=true", f"{RUNS}/{stored['runs']}/events"):
        refused(client.get(path, {"last-event-id": value}), 400, "Last-Event-ID")


# Routes and methods


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/nothing"),
        ("POST", "/v1/nothing"),
        ("GET", "/v1/responses/a/b/c"),
        ("GET", "/v1//responses"),
        ("GET", "/v1/../v1/secret"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd"),
        ("GET", "/v1/responses/"),
        ("POST", "/v1/chat/completions/"),
        ("GET", "/%00"),
    ],
)
def test_a7_an_unknown_route_is_404_in_the_same_shape(client: Client, method: str, path: str) -> None:
    refused(client.call(method, path), 404)


def test_a7_a_wrong_method_is_405_in_the_same_shape(client: Client) -> None:
    wrong = [("PUT", CHAT), ("DELETE", CHAT), ("PUT", RESPONSES), ("PATCH", f"{RESPONSES}/x"), ("PUT", RUNS)]
    for method, path in wrong:
        answer = client.call(method, path)
        refused(answer, 405)
        assert answer.headers["allow"]


# Headers


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "caf\xe9", "a\tb", "\xff"])
@pytest.mark.usefixtures("asked_nothing")
def test_c5_a_bad_idempotency_key_is_400(client: Client, path: str, key: str) -> None:
    refused(client.post(path, GOOD[path], {"idempotency-key": key}), 400)


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "caf\xe9", "a\tb", "a;b", "<x>"])
@pytest.mark.usefixtures("asked_nothing")
def test_d2_a_bad_session_id_is_400(client: Client, path: str, name: str) -> None:
    refused(client.post(path, GOOD[path], {"x-hermes-session-id": name}), 400)
    if path == RUNS:
        refused(client.post(path, {**GOOD[path], "session_id": name}), 400)


def raw(server: Server, head: str, body: bytes = b"") -> Answer:
    """What a request that no client library would send is answered with."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n" + body)
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer.partition(b"\r\n\r\n")[2]) < _declared(answer):
            if not (data := sock.recv(65536)):
                break
            answer += data
    top, _, told = answer.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return Answer(int(lines[0].split()[1]), headers, told)


def _declared(answer: bytes) -> int:
    for line in answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


AUTH = f"Authorization: Bearer {KEY}"
HOST = "Host: 127.0.0.1"


@pytest.mark.parametrize(
    "lines",
    [
        "",
        f"{AUTH}\n{AUTH}\n",
        f"{AUTH}x\n",
        f"Authorization: {KEY}\n",
        f"Authorization: Basic {KEY}\n",
        "Authorization: Bearer\n",
        "Authorization: Bearer \n",
        "Authorization:\n",
        f"Authorization: Bearer {KEY}, Bearer {KEY}\n",
        f"Authorization: Bearer {KEY} {KEY}\n",
        "Authorization: Bearer caf\xe9\xff\n",
        f"Authorization: Bearer {'x' * 5000}\n",
    ],
)
def test_a4_missing_wrong_doubled_and_malformed_credentials_are_401(server: Server, lines: str) -> None:
    for route in ("GET /v1/models", f"GET {RUNS}", f"GET {RESPONSES}/resp_{UNKNOWN}", "GET /v1/nothing", f"PUT {RUNS}"):
        answer = raw(server, f"{route} HTTP/1.1\n{HOST}\n{lines}")
        assert refused(answer, 401)["code"] == "invalid_api_key"
    body = json.dumps(GOOD[CHAT]).encode()
    head = f"POST {CHAT} HTTP/1.1\n{HOST}\n{lines}Content-Type: application/json\nContent-Length: {len(body)}\n"
    assert refused(raw(server, head, body), 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx", "json"]
)
@pytest.mark.usefixtures("asked_nothing")
def test_a6_a_body_that_is_not_called_json_is_415(client: Client, path: str, kind: str) -> None:
    refused(client.post(path, GOOD[path], {"content-type": kind}), 415)


@pytest.mark.usefixtures("asked_nothing")
def test_a6_a_body_without_any_type_or_of_another_charset_or_compressed_is_415(server: Server, client: Client) -> None:
    body = json.dumps(GOOD[CHAT]).encode()
    head = f"POST {CHAT} HTTP/1.1\n{HOST}\n{AUTH}\nContent-Length: {len(body)}\n"
    refused(raw(server, head, body), 415)
    refused(client.post(CHAT, GOOD[CHAT], {"content-type": "application/json; charset=latin-1"}), 415)
    refused(client.post(CHAT, GOOD[CHAT], {"content-encoding": "gzip"}), 415)


def test_a6_posts_without_a_body_need_no_type(client: Client, stored: Json) -> None:
    assert client.post(f"{RESPONSES}/{stored['responses']}/cancel").status == 200
    assert client.post(f"{RUNS}/{stored['runs']}/stop").status == 200


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.usefixtures("asked_nothing")
def test_a8_a_body_over_the_limit_is_413_declared_or_not(server: Server, path: str) -> None:
    common = f"POST {path} HTTP/1.1\n{HOST}\n{AUTH}\nContent-Type: application/json\n"
    for length in ("200001", "99999999999999999999999"):
        answer = raw(server, f"{common}Content-Length: {length}\n")
        assert answer.status in (400, 413), "answered before a byte of it was sent"
    assert refused(raw(server, f"{common}Content-Length: 200001\n"), 413)["code"] == "payload_too_large"
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    answer = raw(server, f"{common}Transfer-Encoding: chunked\n", chunk * 7)
    assert refused(answer, 413)["code"] == "payload_too_large"


def test_a7_after_all_of_this_a_good_request_is_answered(client: Client) -> None:
    for path in CREATES:
        assert client.post(path, GOOD[path]).status in (200, 202)

"""Every code of docs/api/chat.md, met on the wire: one test each, with the code as its name (A4 to A9, B1, B2, B6, C5,
D2, G7, G11)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninelives.app.agents import choose_model
from ninelives.app.assemble import assemble
from ninelives.app.settings import load
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.engine.base import EngineLimits, EngineParts
from ninelives.engine.readers import Readers
from ninelives.http.answering import RunStream
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.observe.log import Log
from tests.asgi import call
from tests.story.chat import PATH, ask
from tests.story.responses import HANGS
from tests.story.server import KEY, ROOT, Answer, Client, Json, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {
    "NINELIVES_SERVER_UNKNOWN_MODEL": "error",
    "NINELIVES_LIMITS_BODY_BYTES": "100000",
    "NINELIVES_LIMITS_PARTS": "20",
    "NINELIVES_LIMITS_JSON_VALUES": "5000",
    "NINELIVES_AGENT_CONTEXT_TOKENS": "5000",
}
UNKNOWN = "chatcmpl-0123456789abcdef01234567"


def refused(answer: Answer, status: int, code: str, param: str | None = None) -> Json:
    """The answer is this error, in the one shape of all errors."""
    error = answer.error()
    assert (answer.status, error["code"], error["param"]) == (status, code, param), answer.body
    assert error["message"] and error["type"]
    assert answer.headers["x-request-id"] and answer.headers["cache-control"] == "no-store"
    assert (answer.headers.get("x-should-retry") == "false") == (status == 409)
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return error


def post(client: Client, headers: dict[str, str] | None = None, **fields: object) -> Answer:
    return client.post(PATH, {**ask("hi"), **fields}, headers)


def test_invalid_api_key(server: Server) -> None:
    for client in (server.anonymous, Client(server.port, {"authorization": "Bearer wrong-key-0123456789"})):
        refused(post(client), 401, "invalid_api_key")


def test_origin_not_allowed(client: Client) -> None:
    refused(post(client, {"origin": "https://evil.example"}), 403, "origin_not_allowed")


def test_host_not_allowed(client: Client) -> None:
    assert "server.allowed_hosts" in refused(post(client, {"host": "evil.example"}), 421, "host_not_allowed")["message"]


def test_unsupported_media_type(client: Client) -> None:
    refused(client.post(PATH, b"{}", {"content-type": "text/plain"}), 415, "unsupported_media_type")


def test_payload_too_large(client: Client) -> None:
    refused(client.post(PATH, ask("x" * 100_001)), 413, "payload_too_large")


def test_not_found_and_method_not_allowed(client: Client) -> None:
    refused(client.get("/v1/nothing"), 404, "not_found")
    refused(client.call("PUT", PATH, {}), 405, "method_not_allowed")


def test_invalid_json(client: Client) -> None:
    refused(client.post(PATH, b"{", {"content-type": "application/json"}), 400, "invalid_json")


def test_invalid_value(client: Client) -> None:
    refused(post(client, temperature=3), 400, "invalid_value", "temperature")
    refused(client.get(f"{PATH}?limit=0"), 400, "invalid_value", "limit")


def test_missing_required_parameter(client: Client) -> None:
    refused(client.post(PATH, {}), 400, "missing_required_parameter", "messages")


def test_unsupported_value(client: Client) -> None:
    refused(post(client, n=2), 400, "unsupported_value", "n")


def test_unsupported_parameter(client: Client) -> None:
    refused(post(client, functions=[{"name": "f"}]), 400, "unsupported_parameter", "functions")


def test_unsupported_tool(client: Client) -> None:
    refused(post(client, tools=[{"type": "file_search"}]), 400, "unsupported_tool", "tools")


def test_unknown_tool_call(client: Client) -> None:
    result = {"role": "tool", "tool_call_id": "call_x1", "content": "y"}
    refused(post(client, messages=[*ask("hi")["messages"], result]), 400, "unknown_tool_call", "messages")


def test_too_many_parts(client: Client) -> None:
    parts = [{"type": "text", "text": "x"}] * 21
    refused(post(client, messages=[{"role": "user", "content": parts}]), 400, "too_many_parts", "messages")


def test_too_many_values(client: Client) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"logit_bias":{' + b",".join([b'"1":1'] * 5001) + b"}}"
    answer = client.post(PATH, body, {"content-type": "application/json"})
    assert "limits.json_values" in refused(answer, 400, "too_many_values", "logit_bias")["message"]


def test_context_length_exceeded(client: Client) -> None:
    for stream in (True, False):
        refused(client.post(PATH, ask("word " * 8000, stream=stream)), 400, "context_length_exceeded")


def test_model_not_found(client: Client) -> None:
    assert "hermes-agent" in refused(post(client, model="gpt-4o"), 404, "model_not_found", "model")["message"]


def test_completion_not_found(client: Client) -> None:
    for method, path in [("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/messages"), ("GET", "?stream=true")]:
        body = {"metadata": {}} if method == "POST" else None
        refused(client.call(method, f"{PATH}/{UNKNOWN}{path}", body), 404, "completion_not_found")


def test_invalid_idempotency_key(client: Client) -> None:
    refused(post(client, {"idempotency-key": "a b"}), 400, "invalid_idempotency_key")


def test_idempotency_requires_store(client: Client) -> None:
    refused(post(client, {"idempotency-key": "k"}, store=False), 400, "idempotency_requires_store", "store")


def test_idempotency_key_conflict(client: Client, mark: str) -> None:
    assert post(client, {"idempotency-key": mark}).status == 200
    refused(post(client, {"idempotency-key": mark}, temperature=0.5), 409, "idempotency_key_conflict")


def test_invalid_session_id_and_invalid_session_key(client: Client) -> None:
    refused(post(client, {"x-hermes-session-id": "a b"}), 400, "invalid_session_id", "X-Hermes-Session-Id")
    refused(post(client, {"x-hermes-session-key": "a b"}), 400, "invalid_session_key")


def test_invalid_tool_progress_and_invalid_on_disconnect(client: Client) -> None:
    refused(post(client, {"x-tool-progress": "loud"}), 400, "invalid_tool_progress")
    refused(post(client, {"x-on-disconnect": "explode"}), 400, "invalid_on_disconnect")


def test_approval_not_pending(client: Client) -> None:
    asked = {"role": "assistant", "content": "**Approval needed** Reply `approve ABCD23`"}
    messages = [{"role": "user", "content": "hi"}, asked, {"role": "user", "content": "approve ABCD23"}]
    refused(client.post(PATH, {"messages": messages}), 409, "approval_not_pending")


def test_run_cancelled(client: Client, mark: str) -> None:
    """Whoever waits for a run that somebody stops is told so: as a status, or as a frame in mid-stream."""
    with client.left_waiting(PATH, ask(f"{mark} {HANGS}"), {"idempotency-key": mark}) as sock:
        (run,) = wait_until(lambda: client.get(f"/v1/runs?idempotency_key={mark}").json()["data"], "the run")
        client.post(f"/v1/runs/{run['run_id']}/stop")
        sock.settimeout(20)
        assert b" 409 " in sock.recv(100)
    refused(client.post(PATH, ask(f"{mark} {HANGS}"), {"idempotency-key": mark}), 409, "run_cancelled")
    with client.stream(PATH, ask(HANGS, stream=True, store=True)) as stream:
        shown = stream.take(3)[0].data["id"]
        client.post(f"/v1/runs/{shown}/stop")
        assert stream.rest()[-1].data["error"]["code"] == "run_cancelled"


def test_upstream_failures_have_their_own_codes(client: Client) -> None:
    """upstream_error, upstream_timeout and the others: see test_failures.py for all of them."""
    answer = client.post(PATH, ask("[[status=400]]"))
    assert answer.status == 502 and answer.error()["code"].startswith("upstream_")


async def test_stream_broken() -> None:
    """A journal that cannot be read on ends a stream with an error, never as if done (R15)."""
    given: Any = (MemoryStore(lambda: 0.0), MemoryStore(lambda: 0.0), LocalNotifier(), None, EngineLimits(), None)
    readers = Readers(EngineParts(*given, lambda: 1, str))
    told: list[bool] = []

    async def left(*, whole: bool, cut: bool) -> None:
        told.append(whole)

    stream = RunStream(readers.subscribe("alice", "gone", ChatProjection(), -1), [], left)
    answer = await call(stream, "GET", "/", {}, b"")
    assert b'"code":"stream_broken"' in answer.body and b"[DONE]" not in answer.body
    assert told == [False], "that is no delivery"


# Servers of their own: full, stopping, dying


@pytest.fixture
def own(tmp_path: Path, upstream: Upstream) -> Iterator[list[Server]]:
    """A server that a test may kill, and its successors."""
    settings = {"NINELIVES_LIMITS_CONCURRENT_RUNS": "1", "NINELIVES_LIMITS_QUEUE": "0", "NINELIVES_LIMITS_DRAIN_S": "3"}
    servers = [start_server(tmp_path, upstream.url, **settings)]
    yield servers
    if servers[-1].process.child.poll() is None:
        servers[-1].process.stop()


def test_too_many_runs(own: list[Server], upstream: Upstream, mark: str) -> None:
    client = own[0].client
    with client.left_waiting(PATH, ask(f"{mark} {HANGS}")):
        wait_until(lambda: upstream.asked(mark), "the one slot is taken")
        refused(post(client), 429, "too_many_runs")
    wait_until(lambda: post(client).status == 200, "the slot is free again")


def test_shutting_down(own: list[Server], upstream: Upstream, mark: str) -> None:
    client = own[0].client
    with client.left_waiting(PATH, ask(f"{mark} {HANGS}", store=True)):
        wait_until(lambda: upstream.asked(mark), "there is something to wait for")
        own[0].process.child.terminate()
        answer = wait_until(lambda: (a := post(client)).status == 503 and a, "new work is refused", every=0.02)
        refused(answer, 503, "shutting_down")


def test_draft_dropped(own: list[Server], upstream: Upstream, tmp_path: Path, mark: str) -> None:
    body = ask(f"{mark} [[hang=5 times=1]] [[tokens=8]]", stream=True, store=True)
    with own[0].client.stream(PATH, body) as stream:
        seen = stream.take(5)
        own[0].kill()
    own.append(start_server(tmp_path, upstream.url))
    client, shown, place = own[1].client, seen[0].data["id"], seen[-1].number
    wait_until(lambda: client.get(f"{PATH}/{shown}").json()["status"] == "completed", "the run goes on")
    answer = client.get(f"{PATH}/{shown}?stream=true&starting_after={place}")
    refused(answer, 409, "draft_dropped", "starting_after")
    with client.stream(f"{PATH}/{shown}?stream=true") as stream:
        assert stream.rest()[0].data["id"] == shown, "without starting_after it is replayed"


async def test_storage_full(tmp_path: Path) -> None:
    """A database that may not grow: SQLite's own limit, as a full disk would be."""
    loaded = load(None, {"HOME": str(tmp_path)}, {"server.data_dir": str(tmp_path / "data"), "tools.sandbox": "off"})
    model, _ = await choose_model(loaded.settings, {})
    built = await assemble(loaded, KEY, Log(lambda: "", None), model)
    await built.start()
    try:
        pages = await built.store.database.writer.ask(lambda db: db.pragma("page_count"))
        await built.store.database.writer.ask(lambda db: db.pragma("max_page_count", pages))
        headers = {"authorization": f"Bearer {KEY}", "host": "127.0.0.1", "content-type": "application/json"}
        raw = b'{"store":true,"messages":[{"role":"user","content":"' + b"x" * 60_000 + b'"}]}'
        answer = await call(built.app, "POST", PATH, headers, raw)
        assert (answer.status, answer.error()["code"]) == (503, "storage_full")
        assert answer.header("retry-after")
        await built.store.database.writer.ask(lambda db: db.pragma("max_page_count", 1 << 30))
    finally:
        await built.stop()


# The page


def test_every_code_of_the_page_has_a_test_with_its_name() -> None:
    page = (ROOT / "docs/api/chat.md").read_text()
    codes = re.findall(r"^\| \d{3}|^\| stream", page, re.MULTILINE)
    named = re.findall(r"^\| (?:\d{3}|stream) \| `(\w+)`", page, re.MULTILINE)
    assert len(codes) == len(named) >= 25
    names = [name for path in ROOT.glob("tests/*/*.py") for name in re.findall(r"def (test\w+)", path.read_text())]
    assert not [code for code in named if not any(code in name.lower() for name in names)]

"""The real anthropic-python against the real server: every way of reading, tools of both kinds, thoughts, errors of
each class, and a server that is killed in the middle (docs/api/messages.md)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

try:  # anthropic 2 brought its own httpx
    import httpx2 as transport_kit
except ImportError:
    import httpx as transport_kit

from tests.lazy import LazyModule
from tests.story.server import KEY, Client, Server, Upstream, start_server, wait_until

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

pytestmark = pytest.mark.xdist_group("processes")

PATH = "/v1/messages"
BROKEN = (transport_kit.HTTPError,)
SETTINGS = {"NINELIVES_LIMITS_KEEPALIVE_S": "0.2", "NINELIVES_SERVER_UNKNOWN_MODEL": "error"}
TWO = '[[tools=write_file:{"path":"sdk.txt","content":"from the sdk"}|read_file:{"path":"sdk.txt"}]] [[text=The end.]]'
TEXTS = ["Step 0: calling write_file. ", "Step 1: calling read_file. ", "The end. done after 2 results"]
KINDS = ["text", "mcp_tool_use", "mcp_tool_result", "text", "mcp_tool_use", "mcp_tool_result", "text"]
TOOL: Any = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {}}}


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "hermes-agent", "max_tokens": 2000, "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def sdk(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def texts(message: Any) -> list[str]:
    return [block.text for block in message.content if block.type == "text"]


def test_a_plain_create_has_text_and_the_servers_tools_as_its_own_blocks(sdk: anthropic.Anthropic) -> None:
    message = sdk.messages.create(**ask(TWO))
    assert [block.type for block in message.content] == KINDS and texts(message) == TEXTS
    assert (message.stop_reason, message.role, message.id[:4]) == ("end_turn", "assistant", "msg_")
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert message._request_id


def test_the_beta_client_knows_these_blocks_by_their_types(sdk: anthropic.Anthropic) -> None:
    message = sdk.beta.messages.create(**ask(TWO))
    call, result = message.content[4], message.content[5]
    assert isinstance(call, anthropic.types.beta.BetaMCPToolUseBlock)
    assert isinstance(result, anthropic.types.beta.BetaMCPToolResultBlock)
    assert (call.name, call.input, call.server_name) == ("read_file", {"path": "sdk.txt"}, "ninelives")
    assert result.tool_use_id == call.id and not result.is_error and "from the sdk" in str(result.content)


@pytest.mark.parametrize("beta", [False, True])
def test_the_stream_helper_puts_the_same_message_together(sdk: anthropic.Anthropic, beta: bool) -> None:
    messages: Any = sdk.beta.messages if beta else sdk.messages
    with messages.stream(**ask(TWO)) as stream:
        told = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert told == "".join(TEXTS) == "".join(texts(final))
    assert [block.type for block in final.content] == KINDS and final.stop_reason == "end_turn"
    assert final.usage.input_tokens > 0 and final.usage.output_tokens > 0


def test_raw_events_come_in_legal_order(sdk: anthropic.Anthropic) -> None:
    kinds = [event.type for event in sdk.messages.create(**ask("hi [[tokens=3]]"), stream=True)]
    block = ["content_block_start", *["content_block_delta"] * 3, "content_block_stop"]
    assert kinds == ["message_start", *block, "message_delta", "message_stop"]


async def test_the_async_client_reads_all_of_it_too(server: Server) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as sdk:
        assert texts(await sdk.messages.create(**ask(TWO))) == TEXTS
        async with sdk.messages.stream(**ask(TWO)) as stream:
            assert texts(await stream.get_final_message()) == TEXTS
        events = [event async for event in await sdk.messages.create(**ask("hi"), stream=True)]
        assert events[-1].type == "message_stop"
        assert (await sdk.messages.count_tokens(model="hermes-agent", messages=ask("hi")["messages"])).input_tokens > 0


def test_thoughts_come_signed_to_those_who_ask(sdk: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with sdk.messages.stream(**ask("hi [[reason=3]]"), thinking=thinking) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds
    first = final.content[0]
    assert first.type == "thinking" and first.thinking == "think0 think1 think2 " and first.signature
    plain = sdk.messages.create(**ask("hi [[reason=3]]"), thinking=thinking)
    assert plain.content[0].type == "thinking" and plain.content[0].thinking == first.thinking
    assert [block.type for block in sdk.messages.create(**ask("hi [[reason=3]]")).content] == ["text"]


def test_tool_blocks_can_be_left_out(sdk: anthropic.Anthropic) -> None:
    message = sdk.messages.create(**ask(TWO), extra_headers={"X-Tool-Progress": "off"})
    assert [block.type for block in message.content] == ["text"] * 3


@pytest.mark.parametrize("stream", [True, False])
def test_b5_a_client_tool_is_handed_back_and_its_result_goes_on(
    sdk: anthropic.Anthropic, upstream: Upstream, mark: str, stream: bool
) -> None:
    given = ask(f'{mark} [[tools=get_weather:{{"city":"Köln"}}]]', tools=[TOOL])
    if stream:
        with sdk.messages.stream(**given) as reading:
            first = reading.get_final_message()
    else:
        first = sdk.messages.create(**given)
    call = first.content[-1]
    assert first.stop_reason == "tool_use" and call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Köln"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    talk = [*given["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = sdk.messages.create(**{**given, "messages": talk})
    assert second.stop_reason == "end_turn"
    last = upstream.asked(mark)[-1]["messages"]
    assert [m["role"] for m in last][-3:] == ["user", "assistant", "tool"] and last[-1]["content"] == "rain"


def test_what_was_given_out_can_be_sent_back_and_reaches_the_model_as_history(
    sdk: anthropic.Anthropic, upstream: Upstream, mark: str
) -> None:
    given = ask(f"{mark} {TWO}")
    first = sdk.messages.create(**given)
    talk = [*given["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": "and now"}]
    assert sdk.messages.create(**{**given, "messages": talk}).stop_reason == "end_turn"
    roles = [message["role"] for message in upstream.asked(mark)[-1]["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(("directive", "stop"), [("[[length=3]]", "max_tokens"), ("hi", "end_turn")])
def test_the_stop_reason(sdk: anthropic.Anthropic, directive: str, stop: str) -> None:
    assert sdk.messages.create(**ask(directive)).stop_reason == stop


# Errors


def test_a_failure_in_the_middle_raises_in_the_sdk_and_one_before_has_its_status(sdk: anthropic.Anthropic) -> None:
    """B2."""
    text = ""
    with pytest.raises(anthropic.APIStatusError) as caught, sdk.messages.stream(**ask("[[cut=4]]")) as stream:
        for piece in stream.text_stream:
            text += piece
    assert text == "tok0 tok1 tok2 tok3 "
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"], body["error"]["code"]) == ("error", "api_error", "upstream_cut")
    for streamed in (True, False):
        with pytest.raises(anthropic.InternalServerError) as early:
            sdk.messages.create(**ask("[[status=400]]"), stream=streamed)
        assert early.value.status_code == 502


def check_error(error: anthropic.APIStatusError, kind: str, code: str) -> None:
    body: Any = error.body
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)
    assert body["request_id"] == error.request_id == error.response.headers["x-request-id"]


def test_a7_each_class_of_client_error_has_its_status_and_type(sdk: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        sdk.messages.create(**ask("hi"), extra_body={"temperature": 7})
    check_error(bad.value, "invalid_request_error", "invalid_value")
    with pytest.raises(anthropic.NotFoundError) as unknown:
        sdk.messages.create(**{**ask("hi"), "model": "claude-x"})
    check_error(unknown.value, "not_found_error", "model_not_found")
    assert "hermes-agent" in str(unknown.value)
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong" * 8, max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError) as wrong:
        stranger.messages.create(**ask("hi"))
    check_error(wrong.value, "authentication_error", "invalid_api_key")
    with pytest.raises(anthropic.PermissionDeniedError) as page:
        sdk.messages.create(**ask("hi"), extra_headers={"Origin": "https://evil.example"})
    check_error(page.value, "permission_error", "origin_not_allowed")
    with pytest.raises(anthropic.APIStatusError) as large:
        sdk.messages.create(**ask("x" * 11_000_000))
    assert large.value.status_code == 413
    check_error(large.value, "request_too_large", "payload_too_large")
    with pytest.raises(anthropic.NotFoundError) as route:
        sdk.messages.batches.list()
    check_error(route.value, "not_found_error", "not_found")


def test_a7_a_409_is_sent_once(server: Server, mark: str) -> None:
    headers = {"Idempotency-Key": mark}
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=2) as sdk:
        first = sdk.messages.create(**ask("hi"), extra_headers=headers)
        assert sdk.messages.create(**ask("hi"), extra_headers=headers).id == first.id
        before = server.log().count("idempotency_key_conflict")
        with pytest.raises(anthropic.ConflictError) as caught:
            sdk.messages.create(**ask("other"), extra_headers=headers)
    check_error(caught.value, "invalid_request_error", "idempotency_key_conflict")
    assert server.log().count("idempotency_key_conflict") == before + 1, "x-should-retry: false is heeded"


def test_an_upstream_that_is_busy_is_a_rate_limit_error(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.RateLimitError) as caught:
        sdk.messages.create(**ask("[[status=429]]"))
    assert caught.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index,call-overload]


# The key (A4)


def test_a4_the_key_may_come_as_x_api_key_and_two_credentials_are_401(server: Server) -> None:
    key, bearer = ("x-api-key", KEY), ("authorization", f"Bearer {KEY}")
    anonymous, version = server.anonymous, {"anthropic-version": "2023-06-01"}
    for given in (key, bearer):
        assert anonymous.post(PATH, ask("hi"), {**version, given[0]: given[1]}).status == 200
    for wrong in ({}, {"x-api-key": "wrong"}, {"x-api-key": f"{KEY}, {KEY}"}, dict((key, bearer))):
        answer = anonymous.post(PATH, ask("hi"), wrong)
        told = answer.json()
        assert answer.status == 401 and told["error"]["type"] == "authentication_error", wrong
        assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert anonymous.get("/v1/models", {"x-api-key": KEY}).status == 200
    assert anonymous.get("/v1/models", {"x-api-key": "a proxy's own", "authorization": f"Bearer {KEY}"}).status == 200


def test_g7_a_stored_message_can_be_watched_as_a_run_by_its_own_id(client: Client, mark: str) -> None:
    shown = client.post(PATH, ask("hi"), {"idempotency-key": mark}).json()["id"]
    run = client.get(f"/v1/runs/{shown}").json()
    assert run["run_id"] == shown.replace("msg_", "run_") and run["status"] == "completed"
    assert client.get(f"/v1/chat/completions/{shown}").status == 404


@pytest.mark.parametrize("stream", [True, False])
def test_b6_what_is_not_stored_ends_with_its_connection(
    client: Client, upstream: Upstream, mark: str, stream: bool
) -> None:
    early = upstream.stats()["closed_early"]
    sock = client.left_waiting(PATH, ask(f"{mark} [[hang=3]]", stream=stream))
    wait_until(lambda: upstream.asked(mark), "the upstream is asked")
    sock.close()
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")


def test_a2_the_models_are_listed_in_the_sdks_words_too(sdk: anthropic.Anthropic) -> None:
    (model,) = sdk.models.list()
    assert (model.id, model.type, model.display_name) == ("hermes-agent", "model", "hermes-agent")
    assert sdk.models.retrieve("hermes-agent").created_at == model.created_at


def test_a3_the_dialect_is_among_the_capabilities(client: Client) -> None:
    told = client.get("/v1/capabilities").json()
    assert "messages" in told["dialects"] and "POST /v1/messages/count_tokens" in told["routes"]


# Durable, over a kill


def read_and_kill(sdk: anthropic.Anthropic, server: Server, body: Any, headers: dict[str, str]) -> str:
    """Read until the server has said tok3, kill it, and read on: the SDK must raise, not end as if done."""
    seen = ""
    with pytest.raises((anthropic.APIError, *BROKEN)), sdk.messages.stream(**body, extra_headers=headers) as stream:
        for piece in stream.text_stream:
            seen += piece
            if "tok3" in seen:
                server.process.child.send_signal(signal.SIGKILL)
                server.process.child.wait(10)
    return seen


def test_a_killed_servers_message_is_finished_and_the_same_key_gets_it_whole(
    tmp_path: Path, upstream: Upstream, mark: str
) -> None:
    """G3, C5: the tool is not run again, the retry reads a clean message."""
    body = ask(f'{mark} [[tools=write_file:{{"path":"k.txt","content":"x"}}]] [[tokens=40 pace=0.05]]')
    headers = {"Idempotency-Key": mark}
    first = start_server(tmp_path, upstream.url)
    try:
        with anthropic.Anthropic(base_url=first.url, api_key=KEY, max_retries=0) as sdk:
            seen = read_and_kill(sdk, first, body, headers)
        assert "tok3" in seen
    finally:
        first.process.stop()
    second = start_server(tmp_path, upstream.url)
    try:
        with anthropic.Anthropic(base_url=second.url, api_key=KEY, max_retries=0) as sdk:
            with sdk.messages.stream(**body, extra_headers=headers) as stream:
                whole = stream.get_final_message()
            assert [block.type for block in whole.content] == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
            counted = "".join(f"tok{n} " for n in range(40))
            assert texts(whole) == ["Step 0: calling write_file. ", counted + "done after 1 results"]
            again = sdk.messages.create(**body, extra_headers=headers)
            assert again.id == whole.id and texts(again) == texts(whole)
            receipt = second.client.get(f"/v1/runs/{whole.id}/receipt").json()
            assert [step["starts"] for step in receipt["steps"]] == [1]
    finally:
        assert second.stop() == 0

"""Approvals, client tools and errands over HTTP, on the real server process (B5, B7, C9, D1, D4, G11)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openai import OpenAI

from tests.story.server import KEY, Client, Server, Upstream, wait_until

SETTINGS = {"NINELIVES_TOOLS_APPROVAL": "on-write"}
WRITE = '[[tools=terminal:{"command":"echo done >> effect"}]]'
CHAT, RUNS = "/v1/chat/completions", "/v1/runs"
CLIENT_TOOL = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {}}}


NAMED = {"type": "function", "function": {"name": "get_weather"}}


def say(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], **more}


def ask(client: Client, text: str) -> tuple[str, str]:
    """The question in the answer, and its code."""
    answer = client.post(CHAT, say(text)).json()
    shown = answer["choices"][0]
    assert shown["finish_reason"] == "stop"
    found = re.search(r"approve ([A-Z0-9]+)", shown["message"]["content"])
    assert found, shown
    return shown["message"]["content"], found[1]


def test_g11_the_question_names_the_exact_call_and_nothing_is_done_before_the_answer(client: Client) -> None:
    text, code = ask(client, WRITE)
    assert 'terminal {"command":"echo done >> effect"}' in text
    (run,) = [each for each in client.get(f"{RUNS}?status=waiting_for_approval").json()["data"]][:1]
    receipt = client.get(f"{RUNS}/{run['run_id']}/receipt").json()
    assert receipt["steps"] == [] and receipt["approvals"][0]["tool"] == "terminal"
    assert client.post(CHAT, say(WRITE, text, f"deny {code}")).status == 200


def test_g11_approve_in_chat_makes_the_call_once_and_a_second_time_is_409(client: Client) -> None:
    text, code = ask(client, WRITE)
    with client.stream(CHAT, say(WRITE, text, f"approve {code}", stream=True)) as stream:
        frames = stream.rest()
    states = [frame.data["status"] for frame in frames if frame.name == "hermes.tool.progress"]
    assert states == ["running", "completed"]
    again = client.post(CHAT, say(WRITE, text, f"approve {code}"))
    assert again.status == 409 and again.error()["code"] == "approval_not_pending"


def test_g11_deny_in_chat_is_a_tool_error_that_the_model_reads(client: Client, upstream: Upstream, mark: str) -> None:
    text, code = ask(client, f"{mark} {WRITE}")
    answer = client.post(CHAT, say(f"{mark} {WRITE}", text, f"deny {code}")).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    told = [m for request in upstream.asked(mark) for m in request["messages"] if m["role"] == "tool"]
    assert told and "denied by a person" in told[-1]["content"]


def test_g11_question_and_answer_do_not_reach_the_model(client: Client, upstream: Upstream, mark: str) -> None:
    text, code = ask(client, f"{mark} {WRITE}")
    rest = client.post(CHAT, say(f"{mark} {WRITE}", text, f"approve {code}")).json()["choices"][0]["message"]["content"]
    client.post(CHAT, say(f"{mark} {WRITE}", text, f"approve {code}", rest, f"{mark} next"))
    last = upstream.asked(mark)[-1]["messages"]
    spoken = " ".join(str(message.get("content")) for message in last)
    assert code not in spoken and "Approval needed" not in spoken


def texts(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


@pytest.mark.parametrize("stream", [True, False])
def test_g11_approve_on_messages_works_as_in_chat(client: Client, upstream: Upstream, mark: str, stream: bool) -> None:
    text = f"{mark} {WRITE}"
    first = client.post("/v1/messages", say(text, max_tokens=999)).json()
    found = re.search(r"approve ([A-Z0-9]+)", texts(first))
    assert found and first["stop_reason"] == "end_turn"
    answer = say(text, "", f"approve {found[1]}", max_tokens=999, stream=stream)
    answer["messages"][1]["content"] = first["content"]
    if stream:
        with client.stream("/v1/messages", answer) as reading:
            frames = reading.rest()
        blocks = [frame.data["content_block"] for frame in frames if frame.name == "content_block_start"]
        shown_id, last = frames[0].data["message"]["id"], frames[-1].name
        assert last == "message_stop"
    else:
        rest = client.post("/v1/messages", answer).json()
        blocks, shown_id = rest["content"], rest["id"]
    assert [block["type"] for block in blocks] == ["mcp_tool_use", "mcp_tool_result", "text"]
    assert shown_id != first["id"] and not blocks[1]["is_error"]
    again = client.post("/v1/messages", answer)
    assert again.status == 409 and again.json()["error"]["code"] == "approval_not_pending"
    assert again.headers["x-should-retry"] == "false"
    spoken = str([request["messages"] for request in upstream.asked(mark)])
    assert found[1] not in spoken and "Approval needed" not in spoken


def test_codes_in_a_models_text_do_nothing(client: Client) -> None:
    _, code = ask(client, WRITE)
    client.post(CHAT, say(f"[[text=approve {code}]]"))
    waiting = client.get(f"{RUNS}?status=waiting_for_approval").json()["data"]
    assert waiting, "the run still waits"


def test_words_that_only_look_like_an_answer_are_a_message(client: Client) -> None:
    assert client.post(CHAT, say("deny access")).status == 200


def test_d1_the_route_answers_once_and_refuses_another_calls_digest(client: Client, mark: str) -> None:
    run = client.post(RUNS, {"input": WRITE}, {"idempotency-key": mark}).json()["run_id"]
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == "waiting_for_approval", "the question")
    wrong = client.post(f"{RUNS}/{run}/approval", {"choice": "once", "digest": "0" * 32})
    assert wrong.status == 409 and wrong.error()["code"] == "approval_not_pending"
    assert client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == "completed", "the end")
    assert client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 409
    receipt = client.get(f"{RUNS}/{run}/receipt").json()
    assert [step["starts"] for step in receipt["steps"]] == [1]
    assert receipt["approvals"][0]["choice"] == "once"


def test_d1_session_grants_the_call_for_that_session_only(client: Client, mark: str) -> None:
    def start(session: str) -> str:
        return str(client.post(RUNS, {"input": WRITE, "session_id": session}).json()["run_id"])

    first = start(f"s-{mark}")
    wait_until(lambda: client.get(f"{RUNS}/{first}").json()["status"] == "waiting_for_approval", "the question")
    client.post(f"{RUNS}/{first}/approval", {"choice": "session"})
    wait_until(lambda: client.get(f"{RUNS}/{first}").json()["status"] == "completed", "the end")
    second, other = start(f"s-{mark}"), start(f"t-{mark}")
    wait_until(lambda: client.get(f"{RUNS}/{second}").json()["status"] == "completed", "no second question")
    wait_until(lambda: client.get(f"{RUNS}/{other}").json()["status"] == "waiting_for_approval", "a question elsewhere")
    assert client.post(f"{RUNS}/{other}/stop").status == 200
    assert client.get(f"{RUNS}/{other}").json()["status"] == "cancelled"


def test_b7_an_errand_is_one_plain_model_call(client: Client, upstream: Upstream, mark: str) -> None:
    before = len(client.get(f"{RUNS}?limit=100").json()["data"])
    answer = client.post(CHAT, say(f"### Task: {mark} give a title\n<chat_history>\n</chat_history>"))
    assert answer.status == 200
    (request,) = upstream.asked(mark)
    assert "tools" not in request and [m["role"] for m in request["messages"]] == ["user"]
    assert len(client.get(f"{RUNS}?limit=100").json()["data"]) == before


@pytest.fixture
def sdk(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY)


def test_b5_client_tools_round_trip_on_chat(sdk: OpenAI, upstream: Upstream, mark: str) -> None:
    tools: Any = [{"type": "function", "function": CLIENT_TOOL}]
    messages: Any = [{"role": "user", "content": f"{mark} [[tools=get_weather:{{}}]]"}]
    first = sdk.chat.completions.create(model="hermes-agent", messages=messages, tools=tools)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    call = choice.message.tool_calls[0]
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    second = sdk.chat.completions.create(model="hermes-agent", messages=messages, tools=tools)
    assert second.choices[0].finish_reason == "stop"
    assert upstream.asked(mark)[-1]["messages"][-1]["content"] == "sunny"


def test_c9_client_tools_round_trip_on_responses(sdk: OpenAI, upstream: Upstream, mark: str) -> None:
    tools: Any = [{"type": "function", **CLIENT_TOOL}]
    first = sdk.responses.create(model="hermes-agent", input=f"{mark} [[tools=get_weather:{{}}]]", tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    given: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    second = sdk.responses.create(model="hermes-agent", input=given, previous_response_id=first.id, tools=tools)
    assert second.status == "completed"
    assert upstream.asked(mark)[-1]["messages"][-1]["content"] == "rain"


def test_b5_open_webuis_own_tools_are_ignored(client: Client, upstream: Upstream, mark: str) -> None:
    tools = [{"type": "function", "function": {**CLIENT_TOOL, "name": name}} for name in ("ask_user", "search_chats")]
    headers = {"user-agent": "Python/3.11 aiohttp/3.14.5"}
    assert client.post(CHAT, say(mark, tools=tools), headers).status == 200
    names = {tool["function"]["name"] for tool in upstream.asked(mark)[-1].get("tools", [])}
    assert names and not names & {"ask_user", "search_chats"}


def test_c9_server_calls_of_the_same_turn_finish_before_client_calls_are_handed_back(
    sdk: OpenAI, upstream: Upstream, mark: str
) -> None:
    tools: Any = [{"type": "function", "function": CLIENT_TOOL}]
    text = f'{mark} [[parallel=search_files:{{"pattern":"x","kind":"names"}}|get_weather:{{}}]]'
    messages: Any = [{"role": "user", "content": text}]
    first = sdk.chat.completions.create(model="hermes-agent", messages=messages, tools=tools, store=True)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls or []] == ["get_weather"]
    run = first.id.replace("chatcmpl-", "run_")
    receipt = sdk.get(f"/runs/{run}/receipt", cast_to=dict[str, Any])
    assert [(step["tool"], step["outcome"]) for step in receipt["steps"]] == [("search_files", "known")]
    assert len(upstream.asked(mark)) == 1


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("none", "none"),
        ("required", "required"),
        ("auto", None),
        (NAMED, NAMED),
    ],
)
def test_b5_tool_choice_reaches_the_upstream(
    client: Client, upstream: Upstream, mark: str, choice: Any, sent: Any
) -> None:
    body = say(mark, tools=[{"type": "function", "function": CLIENT_TOOL}], tool_choice=choice)
    assert client.post(CHAT, body).status == 200
    assert upstream.asked(mark)[-1].get("tool_choice") == sent


def test_b5_an_empty_list_means_none_of_the_clients(client: Client, upstream: Upstream, mark: str) -> None:
    assert client.post(CHAT, say(mark, tools=[])).status == 200
    names = {tool["function"]["name"] for tool in upstream.asked(mark)[-1]["tools"]}
    assert "read_file" in names and "get_weather" not in names

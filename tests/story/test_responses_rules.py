"""What a Responses request may ask for beyond text, seen from both ends: what the model is told and what the caller
gets (C6, C8, C9, C11, G4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.story.chat import PATH as CHAT
from tests.story.responses import PATH, check_whole, create, finished, text_of
from tests.story.server import Client, Json, Upstream

pytestmark = pytest.mark.xdist_group("processes")

READ = 'read_file:{"path":"none.txt"}'
WRITE = 'write_file:{"path":"rules.txt","content":"hi"}'
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def told(upstream: Upstream, mark: str) -> Json:
    """The last request with this mark that the upstream got."""
    return upstream.asked(mark)[-1]


def roles(request: Json) -> list[tuple[str, str]]:
    """Role and text of all messages but the first, which is the profile's own prompt."""
    return [(message["role"], message["content"]) for message in request["messages"][1:]]


def offered(request: Json) -> set[str]:
    return {tool["function"]["name"] for tool in request.get("tools", ())}


def outputs(response: Json) -> list[str]:
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


# System and developer items (C6)


def test_c6_system_and_developer_items_stay_in_their_place_and_go_along_a_chain_while_instructions_do_not(
    client: Client, upstream: Upstream, mark: str
) -> None:
    given = [
        {"role": "user", "content": f"one {mark}"},
        {"role": "assistant", "content": "uno"},
        {"role": "developer", "content": "Speak French."},
        {"role": "user", "content": "two [[text=deux]]"},
    ]
    first = create(client, given, instructions="Be a pirate.")
    assert "Be a pirate." in told(upstream, mark)["messages"][0]["content"]
    assert roles(told(upstream, mark)) == [
        ("user", f"one {mark}"),
        ("assistant", "uno"),
        ("system", "Speak French."),
        ("user", "two [[text=deux]]"),
    ]
    create(client, f"three {mark}", previous_response_id=first["id"])
    request = told(upstream, f"three {mark}")
    assert "pirate" not in str(request["messages"])
    assert roles(request)[2:] == [
        ("system", "Speak French."),
        ("user", "two [[text=deux]]"),
        ("assistant", "deux"),
        ("user", f"three {mark}"),
    ]
    listed = client.get(f"{PATH}/{first['id']}/input_items?order=asc").json()["data"]
    assert [item["role"] for item in listed] == ["user", "assistant", "developer", "user"]


def test_c6_a_system_item_that_comes_first_is_one_prompt_with_the_profiles_own(
    client: Client, upstream: Upstream, mark: str
) -> None:
    first = create(client, [{"role": "system", "content": f"Rule {mark}."}, {"role": "user", "content": "one"}])
    create(client, f"two {mark}", previous_response_id=first["id"])
    for request in upstream.asked(mark):
        assert [message["role"] for message in request["messages"]].count("system") == 1
        assert f"Rule {mark}." in request["messages"][0]["content"]


# Refusals


@pytest.mark.parametrize("form", ["", "[[json]]"])
def test_a_refusal_is_a_part_of_its_own_and_goes_on_in_the_history(
    client: Client, upstream: Upstream, mark: str, form: str
) -> None:
    with client.stream(PATH, {"input": f"{mark} [[refuse]] [[text=I will not.]] {form}", "stream": True}) as stream:
        frames = stream.rest()
    last = check_whole(frames)
    assert last["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]
    assert "".join(f.data["delta"] for f in frames if f.name == "response.refusal.delta") == "I will not."
    create(client, f"why {mark}", previous_response_id=last["id"])
    assert roles(told(upstream, f"why {mark}"))[1] == ("assistant", "I will not.")


def test_a_refusal_on_chat_is_in_message_refusal_and_delta_refusal(client: Client) -> None:
    messages = [{"role": "user", "content": "[[refuse]] [[text=I will not.]]"}]
    message = client.post(CHAT, {"messages": messages}).json()["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == (None, "I will not.")
    with client.stream(CHAT, {"messages": messages, "stream": True}) as stream:
        deltas = [frame.data["choices"][0]["delta"] for frame in stream.rest() if frame.data["choices"]]
    assert "".join(delta.get("refusal", "") for delta in deltas) == "I will not."
    assert "".join(delta.get("content", "") for delta in deltas) == ""


# Tools


def allowed(*names: str, mode: str = "auto") -> Json:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def test_allowed_tools_is_a_hard_bound_others_are_neither_offered_nor_carried_out(
    client: Client, upstream: Upstream, mark: str
) -> None:
    text = f"{mark} [[tools={WRITE}|{READ}]]"
    made = create(client, text, tool_choice=allowed("read_file", "weather"), tools=[WEATHER])
    assert all(offered(request) == {"read_file", "weather"} for request in upstream.asked(mark))
    refused, read = outputs(made)
    assert "may not be used" in refused and "read_file, weather" in refused and "none.txt" in read
    assert "may not be used" in str(told(upstream, mark)["messages"]), "the model is told"


def test_allowed_tools_bounds_the_callers_tools_too(client: Client, upstream: Upstream, mark: str) -> None:
    made = create(client, f"{mark} [[tools=weather:{{}}]]", tool_choice=allowed("read_file"), tools=[WEATHER])
    assert "weather" not in offered(told(upstream, mark))
    assert "may not be used" in outputs(made)[0] and made["status"] == "completed"


def test_allowed_tools_with_mode_required_forces_a_call(client: Client, upstream: Upstream, mark: str) -> None:
    create(client, f"{mark} [[tools={READ}]]", tool_choice=allowed("read_file", mode="required"))
    first, second = upstream.asked(mark)
    assert first["tool_choice"] == "required" and "tool_choice" not in second


def test_max_tool_calls_bounds_server_calls_and_the_run_goes_on(client: Client, upstream: Upstream, mark: str) -> None:
    made = create(client, f"{mark} [[parallel={READ}|{READ}|{READ}]] [[text=The end.]]", max_tool_calls=2)
    assert made["status"] == "completed" and made["max_tool_calls"] == 2 and "The end." in text_of(made)
    assert ["used up" in output for output in outputs(made)].count(True) == 1
    first, second = upstream.asked(mark)
    assert "read_file" in offered(first) and offered(second) == set(), "what is used up is not offered any more"
    assert [m["content"] for m in second["messages"] if m["role"] == "tool"][-1].startswith("All 2 tool calls")


def test_max_tool_calls_counts_over_all_messages_of_the_run(client: Client) -> None:
    made = create(client, f"[[tools={READ}|{READ}|{READ}]]", max_tool_calls=1)
    assert ["used up" in output for output in outputs(made)] == [False, True, True]


def test_parallel_tool_calls_false_reaches_the_upstream(client: Client, upstream: Upstream, mark: str) -> None:
    create(client, mark, parallel_tool_calls=False)
    assert told(upstream, mark)["parallel_tool_calls"] is False


# Formats


def test_text_format_and_verbosity_reach_the_upstream(client: Client, upstream: Upstream, mark: str) -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    create(client, f"one {mark}", text={"format": form, "verbosity": "low"})
    request = told(upstream, f"one {mark}")
    inner = {"name": "a", "schema": {"type": "object"}, "strict": True}
    assert request["response_format"] == {"type": "json_schema", "json_schema": inner}
    assert request["verbosity"] == "low"
    create(client, f"two {mark}", text={"format": {"type": "json_object"}})
    assert told(upstream, f"two {mark}")["response_format"] == {"type": "json_object"}


def test_reasoning_comes_as_summary_events_and_a_summary_item(client: Client, upstream: Upstream, mark: str) -> None:
    asked = {"input": f"{mark} [[reason=3]]", "stream": True, "reasoning": {"effort": "low", "summary": "detailed"}}
    with client.stream(PATH, asked) as stream:
        frames = stream.rest()
    last = check_whole(frames)
    thought = "think0 think1 think2 "
    assert "".join(f.data["delta"] for f in frames if f.name == "response.reasoning_summary_text.delta") == thought
    assert last["output"][0]["summary"] == [{"type": "summary_text", "text": thought}]
    assert last["reasoning"] == {"effort": "low", "summary": "detailed"}
    assert told(upstream, mark)["reasoning_effort"] == "low"


# References


def test_item_references_are_resolved_to_the_owners_stored_items(client: Client, upstream: Upstream, mark: str) -> None:
    first = create(client, f"one {mark} [[tools={READ}]] [[text=Nothing.]]")
    given = client.get(f"{PATH}/{first['id']}/input_items").json()["data"]
    named: list[Json] = [{"type": "item_reference", "id": item["id"]} for item in [*given, *first["output"]]]
    second = create(client, [*named, {"role": "user", "content": f"two {mark}"}])
    messages = told(upstream, f"two {mark}")["messages"][1:]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"].startswith(f"one {mark}") and "Nothing." in messages[3]["content"]
    listed = client.get(f"{PATH}/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["id"] for item in listed[:-1]] == [item["id"] for item in named], "the items themselves are listed"


def test_a_reference_may_leave_out_its_type_and_name_a_call_that_was_handed_back(
    client: Client, upstream: Upstream, mark: str
) -> None:
    call = create(client, f"{mark} [[tools=weather:{{}}]]", tools=[WEATHER])["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    create(client, [{"role": "user", "content": f"so {mark}"}, {"id": call["id"]}, result], tools=[WEATHER])
    assert [m["role"] for m in told(upstream, f"so {mark}")["messages"][1:]] == ["user", "assistant", "tool"]


def test_a_reference_may_name_an_item_that_the_caller_gave_an_id_in_the_response_before(
    client: Client, upstream: Upstream, mark: str
) -> None:
    first = create(client, [{"role": "user", "content": f"one {mark}", "id": "my-own"}])
    create(
        client,
        [{"type": "item_reference", "id": "my-own"}, {"role": "user", "content": f"two {mark}"}],
        previous_response_id=first["id"],
    )
    said = [content for role, content in roles(told(upstream, f"two {mark}")) if role == "user"]
    assert said == [f"one {mark}", f"one {mark}", f"two {mark}"]


def test_house_6_16_a_known_key_is_answered_though_what_the_request_names_is_gone(client: Client, mark: str) -> None:
    first = create(client, f"one {mark}")
    named = {"type": "item_reference", "id": first["output"][0]["id"]}
    asked = {"input": [named, {"role": "user", "content": "two"}]}
    made = client.post(PATH, asked, {"idempotency-key": mark}).json()
    assert client.delete(f"{PATH}/{first['id']}").status == 200
    again = client.post(PATH, asked, {"idempotency-key": mark})
    assert (again.status, again.json()) == (200, made)
    other = client.post(PATH, {**asked, "user": "another"}, {"idempotency-key": mark})
    assert (other.status, other.error()["code"]) == (409, "idempotency_key_conflict")


# Counting and compacting


def count(client: Client, **fields: Any) -> int:
    answer = client.post(f"{PATH}/input_tokens", fields)
    assert answer.status == 200 and answer.json()["object"] == "response.input_tokens", answer.body
    return int(answer.json()["input_tokens"])


def test_c8_input_tokens_counts_prompt_tools_history_and_input_and_begins_nothing(
    client: Client, upstream: Upstream, mark: str
) -> None:
    words = "word " * 400
    bare = count(client)
    short, long = count(client, input="hi"), count(client, input=words)
    assert 0 < bare < short < long and 450 <= long - short <= 550
    assert count(client, input="hi", instructions=words) - short >= 450
    assert count(client, input="hi", tools=[{**WEATHER, "description": words}]) - short >= 450
    first = create(client, words, conversation=mark)
    follows = count(client, input="hi", previous_response_id=first["id"])
    assert follows - short >= 450 and count(client, input="hi", conversation=mark) == follows
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400_000}
    shown = count(client, input=[{"role": "user", "content": [picture]}])
    assert bare < shown < bare + 2000, "a picture is not counted by its bytes"
    asked = len(upstream.get("/_requests").json())
    count(client, input=f"uncounted {mark}")
    assert len(upstream.get("/_requests").json()) == asked


def compact(client: Client, **fields: Any) -> Json:
    answer = client.post(f"{PATH}/compact", {"model": "hermes-agent", **fields})
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_c8_compact_is_one_model_call_and_its_item_is_context_for_a_later_create(
    client: Client, upstream: Upstream, mark: str
) -> None:
    first = create(client, f"one {mark} [[text=uno]]")
    made = compact(client, previous_response_id=first["id"], input=f"two {mark}", instructions="Mind the numbers.")
    assert made["object"] == "response.compaction" and made["usage"]["output_tokens"] > 0
    asked = told(upstream, f"two {mark}")
    assert "tools" not in asked and asked["messages"][0]["content"] == "Mind the numbers."
    assert [m["role"] for m in asked["messages"][1:]] == ["user", "assistant", "user", "user"]
    assert asked["messages"][-1]["content"].startswith("Summarise")
    *kept, item = made["output"]
    assert [message["content"][0]["text"] for message in kept] == [f"one {mark} [[text=uno]]", f"two {mark}"]
    assert item["type"] == "compaction" and "Hello" not in item["encrypted_content"]
    create(client, [*made["output"], {"role": "user", "content": f"three {mark}"}])
    said = roles(told(upstream, f"three {mark}"))
    assert said[-2] == ("user", "[Summary of the conversation so far]\nHello from the fake upstream.")
    assert said[-1] == ("user", f"three {mark}")
    assert client.get(f"{PATH}/{made['id']}").status == 404, "a compaction is not stored"


def test_c8_a_compaction_of_a_compaction_keeps_the_users_words_once(client: Client, mark: str) -> None:
    once = compact(client, input=f"one {mark}")
    twice = compact(client, input=[*once["output"], {"role": "user", "content": f"two {mark}"}])
    kept = [item["content"][0]["text"] for item in twice["output"][:-1]]
    assert kept == [f"one {mark}", f"two {mark}"]
    assert twice["output"][-1]["encrypted_content"] != once["output"][-1]["encrypted_content"]


def test_c8_a_compaction_can_be_chained_on(client: Client, upstream: Upstream, mark: str) -> None:
    item = compact(client, input="A long story.")["output"][-1]
    first = create(client, [item, {"role": "user", "content": f"one {mark}"}])
    create(client, f"two {mark}", previous_response_id=first["id"])
    assert roles(told(upstream, f"two {mark}"))[0][1].startswith("[Summary of the conversation so far]\n")
    listed = client.get(f"{PATH}/{first['id']}/input_items?order=asc").json()["data"]
    assert listed[0] == item, "the sealed item is listed as it was sent"


# Retrieval


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 7, 45, 100])
def test_c8_the_pages_of_input_items_give_every_item_once(client: Client, order: str, limit: int) -> None:
    given = [{"role": "user", "content": f"item {n}"} for n in range(45)]
    shown = create(client, given)["id"]
    seen: list[str] = []
    after = ""
    while True:
        page = client.get(f"{PATH}/{shown}/input_items?limit={limit}&order={order}{after}").json()
        assert 0 < len(page["data"]) <= limit
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    expected = [item["content"] for item in given]
    assert seen == (expected if order == "asc" else expected[::-1])
    default = client.get(f"{PATH}/{shown}/input_items").json()
    assert len(default["data"]) == 20 and default["has_more"] is True


def test_include_is_accepted_wherever_the_api_has_it(client: Client) -> None:
    shown = create(client, "hello", include=["message.output_text.logprobs", "something.new"])["id"]
    query = "include[]=reasoning.encrypted_content&include=something.new&include_obfuscation=false"
    assert client.get(f"{PATH}/{shown}?{query}").status == 200
    assert client.get(f"{PATH}/{shown}/input_items?{query}").status == 200
    with client.stream(f"{PATH}/{shown}?stream=true&{query}") as stream:
        check_whole(stream.rest())


def test_c2_a_background_run_is_queued_and_then_completes(client: Client) -> None:
    made = create(client, "hello", background=True)
    assert made["status"] in ("queued", "in_progress") and made["background"] is True
    assert finished(client, made["id"])["status"] == "completed"

"""What comes before a turn: conversations, chains and sessions (C6, C7, D2). Seen from both ends: what the server says,
and what the fake upstream was asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.story.responses import HANGS, PATH, SLOW, create, finished, get, started, text_of
from tests.story.server import Answer, Client, Json, Upstream

pytestmark = pytest.mark.xdist_group("processes")


def told(upstream: Upstream, marker: str) -> list[tuple[str, Any]]:
    """Role and content of what the upstream was told last with this marker, without the system prompt."""
    messages = upstream.asked(marker)[-1]["messages"]
    return [(message["role"], message["content"]) for message in messages if message["role"] != "system"]


def system(upstream: Upstream, marker: str) -> str:
    messages = upstream.asked(marker)[-1]["messages"]
    return "\n".join(message["content"] for message in messages if message["role"] == "system")


def say(text: str) -> str:
    return f"[[text={text}]]"


# Conversations (C7)


def test_c7_a_conversation_keeps_its_history_under_its_name_its_id_and_as_an_object(
    client: Client, upstream: Upstream, mark: str
) -> None:
    first = create(client, f"one {say('uno')}", conversation=mark)
    shown = first["conversation"]["id"]
    assert shown.startswith("conv_") and first["previous_response_id"] is None
    second = create(client, f"two {say('due')}", conversation=shown)
    third = create(client, f"three {mark} {say('tre')}", conversation={"id": shown})
    fourth = create(client, f"four {mark}", conversation=mark)
    assert {r["conversation"]["id"] for r in (first, second, third, fourth)} == {shown}
    assert told(upstream, f"four {mark}") == [
        ("user", "one [[text=uno]]"),
        ("assistant", "uno"),
        ("user", "two [[text=due]]"),
        ("assistant", "due"),
        ("user", f"three {mark} [[text=tre]]"),
        ("assistant", "tre"),
        ("user", f"four {mark}"),
    ]


def test_c7_an_unknown_conversation_id_is_404_with_the_id(client: Client) -> None:
    for given in ("conv_nosuchthing", {"id": "conv_nosuchthing"}):
        answer = client.post(PATH, {"input": "hi", "conversation": given})
        assert (answer.status, answer.error()["code"]) == (404, "conversation_not_found")
        assert "conv_nosuchthing" in answer.error()["message"] and answer.error()["param"] == "conversation"


def test_c7_a_turn_that_is_not_stored_reads_the_history_and_leaves_no_trace(
    client: Client, upstream: Upstream, mark: str
) -> None:
    create(client, f"one {say('uno')}", conversation=mark)
    ghost = create(client, f"ghost {mark} {say('boo')}", conversation=mark, store=False)
    assert text_of(ghost) == "boo"
    one = [("user", "one [[text=uno]]"), ("assistant", "uno")]
    assert told(upstream, f"ghost {mark}") == [*one, ("user", f"ghost {mark} [[text=boo]]")]
    create(client, f"two {mark}", conversation=mark)
    assert told(upstream, f"two {mark}") == [*one, ("user", f"two {mark}")]
    assert client.get(f"{PATH}/{ghost['id']}").status == 404


def test_c7_a_turn_that_is_not_stored_does_not_make_a_conversation(
    client: Client, upstream: Upstream, mark: str
) -> None:
    create(client, f"ghost {say('boo')}", conversation=mark, store=False)
    create(client, f"first {mark}", conversation=mark)
    assert told(upstream, f"first {mark}") == [("user", f"first {mark}")]


def busy(answer: Answer) -> None:
    assert (answer.status, answer.error()["code"]) == (409, "conversation_response_not_completed"), answer.body
    assert answer.headers["x-should-retry"] == "false"


def test_c7_an_active_conversation_is_409_for_a_stored_turn_and_never_for_another(
    client: Client, upstream: Upstream, mark: str
) -> None:
    active = started(client, HANGS, conversation=mark)
    shown = get(client, active)["conversation"]["id"]
    for name in (mark, shown):
        for more in ({}, {"stream": True}, {"background": True}):
            busy(client.post(PATH, {"input": f"loser {mark}", "conversation": name, **more}))
    assert not upstream.asked(f"loser {mark}")
    assert create(client, f"reader {mark}", conversation=mark, store=False)["status"] == "completed"
    assert told(upstream, f"reader {mark}") == [("user", f"reader {mark}")]
    assert client.post(f"{PATH}/{active}/cancel").json()["status"] == "cancelled"
    create(client, f"next {mark}", conversation=mark)
    assert told(upstream, f"next {mark}") == [("user", f"next {mark}")], "a cancelled run leaves no turn"


@pytest.mark.parametrize("end", ["delete", "fail"])
def test_c7_a_failed_or_deleted_run_frees_the_conversation(
    client: Client, upstream: Upstream, mark: str, end: str
) -> None:
    create(client, f"one {say('uno')}", conversation=mark)
    if end == "delete":
        client.delete(f"{PATH}/{started(client, HANGS, conversation=mark)}")
    else:
        assert create(client, "[[status=400]]", conversation=mark)["status"] == "failed"
    create(client, f"two {mark}", conversation=mark)
    assert told(upstream, f"two {mark}") == [
        ("user", "one [[text=uno]]"),
        ("assistant", "uno"),
        ("user", f"two {mark}"),
    ]


def test_c7_when_the_latest_is_deleted_the_conversation_goes_back_to_the_one_before(
    client: Client, upstream: Upstream, mark: str
) -> None:
    create(client, f"one {say('uno')}", conversation=mark)
    gone = [create(client, f"{word} {say('x')}", conversation=mark)["id"] for word in ("two", "three")]
    for shown in gone:
        client.delete(f"{PATH}/{shown}")
    create(client, f"four {mark}", conversation=mark)
    assert [content for _, content in told(upstream, f"four {mark}")] == ["one [[text=uno]]", "uno", f"four {mark}"]


# Chains (C6)


def test_c6_a_chain_sends_input_and_output_of_all_its_turns_and_no_instructions_of_before(
    client: Client, upstream: Upstream, mark: str
) -> None:
    tool = f'one [[tools=read_file:{{"path":"{mark}"}}]]'
    first = create(client, tool, instructions="speak like a pirate")
    second = create(client, f"two {say('due')}", previous_response_id=first["id"], instructions="speak like a monk")
    assert second["previous_response_id"] == first["id"]
    third = create(client, f"three {mark}", previous_response_id=second["id"])
    assert third["instructions"] is None
    messages = told(upstream, f"three {mark}")
    assert [role for role, _ in messages] == ["user", "assistant", "tool", "assistant", "user", "assistant", "user"]
    assert messages[0][1] == tool and messages[3][1] == "done after 1 results" and messages[-1][1] == f"three {mark}"
    assert "pirate" in upstream.asked(mark)[0]["messages"][0]["content"]
    assert "pirate" not in system(upstream, f"three {mark}") and "monk" not in system(upstream, f"three {mark}")


def test_c6_a_deleted_ancestor_still_lends_its_history(client: Client, upstream: Upstream, mark: str) -> None:
    first = create(client, f"one {say('uno')}")["id"]
    second = create(client, f"two {say('due')}", previous_response_id=first)["id"]
    assert client.delete(f"{PATH}/{first}").status == 200
    third = create(client, f"three {mark}", previous_response_id=second)["id"]
    contents = [content for _, content in told(upstream, f"three {mark}")]
    assert contents == ["one [[text=uno]]", "uno", "two [[text=due]]", "due", f"three {mark}"]
    for gone in (second, third):
        client.delete(f"{PATH}/{gone}")
        answer = client.post(PATH, {"input": "hi", "previous_response_id": gone})
        assert (answer.status, answer.error()["code"]) == (404, "response_not_found")


def test_c6_what_failed_was_cancelled_or_still_runs_cannot_be_followed(client: Client) -> None:
    active = started(client, HANGS)
    cancelled = started(client, HANGS)
    client.post(f"{PATH}/{cancelled}/cancel")
    failed = create(client, "[[status=400]]")["id"]
    for previous in (active, cancelled, failed):
        answer = client.post(PATH, {"input": "hi", "previous_response_id": previous})
        assert (answer.status, answer.error()["code"]) == (409, "previous_response_not_completed")
        assert answer.headers["x-should-retry"] == "false" and previous in answer.error()["message"]
    client.delete(f"{PATH}/{active}")


def test_c6_what_a_token_limit_ended_can_be_followed(client: Client, upstream: Upstream, mark: str) -> None:
    short = create(client, "one [[length=2]]")
    assert short["status"] == "incomplete"
    create(client, f"two {mark}", previous_response_id=short["id"])
    assert told(upstream, f"two {mark}")[1] == ("assistant", "tok0 tok1 ")


def test_c6_an_unknown_previous_response_is_404_with_the_id(client: Client) -> None:
    for given in ("resp_doesnotexist0", "nonsense", ""):
        answer = client.post(PATH, {"input": "hi", "previous_response_id": given})
        assert (answer.status, answer.error()["code"]) == (404, "response_not_found")
        assert given in answer.error()["message"] and answer.error()["param"] == "previous_response_id"


def test_c6_previous_response_and_conversation_together_are_400(client: Client, mark: str) -> None:
    shown = create(client, "one")["id"]
    answer = client.post(PATH, {"input": "hi", "previous_response_id": shown, "conversation": mark})
    assert answer.status == 400 and answer.error()["param"] in ("conversation", "previous_response_id")


def test_c6_the_chain_of_a_turn_that_is_not_stored_is_read_too(client: Client, upstream: Upstream, mark: str) -> None:
    first = create(client, f"one {say('uno')}")["id"]
    create(client, f"two {mark}", previous_response_id=first, store=False)
    assert [content for _, content in told(upstream, f"two {mark}")] == ["one [[text=uno]]", "uno", f"two {mark}"]


# Sessions (D2)


def chat(client: Client, messages: list[Json], headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    answer = client.post("/v1/chat/completions", {"messages": messages, **fields}, headers)
    assert answer.status == 200, answer.body
    return answer


def test_d2_a_turn_with_store_false_reads_its_session_and_changes_nothing(
    client: Client, upstream: Upstream, mark: str
) -> None:
    headers = {"x-hermes-session-id": mark}
    for n, store in ((1, None), (2, False), (3, False)):
        fields = {} if store is None else {"store": store}
        chat(client, [{"role": "user", "content": f"{n} {mark} {say('well')}"}], headers, **fields)
    first = [f"1 {mark} [[text=well]]", "well"]
    assert [content for _, content in told(upstream, f"3 {mark}")] == [*first, f"3 {mark} [[text=well]]"]
    kept = client.get(f"/api/sessions/{mark}/messages").json()["data"]
    assert [message["content"] for message in kept] == first


@pytest.mark.parametrize("store", [True, None])
def test_d2_a_named_session_gives_the_history_and_takes_the_new_turn_only(
    client: Client, upstream: Upstream, mark: str, store: bool | None
) -> None:
    headers = {"x-hermes-session-id": mark}
    fields = {} if store is None else {"store": store}
    first = chat(client, [{"role": "user", "content": f"one {say('uno')}"}], headers, **fields)
    assert first.headers["x-hermes-session-id"] == mark
    resent = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "an old question as the front end remembers it"},
        {"role": "assistant", "content": "an old answer"},
        {"role": "user", "content": f"two {mark}"},
    ]
    chat(client, resent, headers, **fields)
    assert [content for _, content in told(upstream, f"two {mark}")] == ["one [[text=uno]]", "uno", f"two {mark}"]
    assert "be brief" in system(upstream, f"two {mark}")
    answer = client.post(PATH, {"input": f"three {mark}"}, headers)
    assert answer.headers["x-hermes-session-id"] == mark
    contents = [content for _, content in told(upstream, f"three {mark}")]
    assert contents[:2] == ["one [[text=uno]]", "uno"] and contents[-1] == f"three {mark}" and len(contents) == 5


def test_d2_a_streamed_turn_is_in_the_session_when_its_stream_ends(
    client: Client, upstream: Upstream, mark: str
) -> None:
    headers = {"x-hermes-session-id": mark}
    body = {"messages": [{"role": "user", "content": f"one {say('uno')}"}], "stream": True}
    with client.stream("/v1/chat/completions", body, headers) as stream:
        assert stream.headers["x-hermes-session-id"] == mark
        stream.rest()
    chat(client, [{"role": "user", "content": f"two {mark}"}], headers)
    assert [content for _, content in told(upstream, f"two {mark}")] == ["one [[text=uno]]", "uno", f"two {mark}"]


def test_d2_a_session_that_nobody_named_gives_no_history(client: Client, upstream: Upstream, mark: str) -> None:
    messages = [{"role": "user", "content": f"same {mark}"}]
    first, second = chat(client, messages), chat(client, messages)
    named = first.headers["x-hermes-session-id"]
    assert named == second.headers["x-hermes-session-id"], "the same owner, prompt and first message"
    assert told(upstream, f"same {mark}") == [("user", f"same {mark}")]
    other = chat(client, [{"role": "user", "content": f"other {mark}"}]).headers["x-hermes-session-id"]
    assert other != named
    resent = [*messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": f"more {mark}"}]
    assert chat(client, resent).headers["x-hermes-session-id"] == named
    assert len(told(upstream, f"more {mark}")) == 3, "what the front end resends comes once"


def test_d2_the_session_goes_along_a_chain_and_a_conversation(client: Client, upstream: Upstream, mark: str) -> None:
    first = client.post(PATH, {"input": f"one {say('uno')}"})
    session = first.headers["x-hermes-session-id"]
    second = client.post(PATH, {"input": f"two {mark}", "previous_response_id": first.json()["id"]})
    assert second.headers["x-hermes-session-id"] == session
    talk = client.post(PATH, {"input": "one", "conversation": mark})
    again = client.post(PATH, {"input": "two", "conversation": mark})
    assert talk.headers["x-hermes-session-id"] == again.headers["x-hermes-session-id"] != session


def test_d2_with_a_previous_response_the_chain_gives_the_history_and_the_header_names_the_session(
    client: Client, upstream: Upstream, mark: str
) -> None:
    headers = {"x-hermes-session-id": mark}
    create(client, f"in session {say('x')}", headers)
    chained = create(client, f"one {say('uno')}")["id"]
    answer = client.post(PATH, {"input": f"two {mark}", "previous_response_id": chained}, headers)
    assert answer.headers["x-hermes-session-id"] == mark
    assert [content for _, content in told(upstream, f"two {mark}")] == ["one [[text=uno]]", "uno", f"two {mark}"]


def test_d2_the_session_is_echoed_on_every_answer_about_a_run(client: Client, mark: str) -> None:
    headers = {"x-hermes-session-id": mark}
    shown = create(client, "hello", headers)["id"]
    core = shown.removeprefix("resp_")
    for method, path in [
        ("GET", f"{PATH}/{shown}"),
        ("GET", f"{PATH}/{shown}?stream=true"),
        ("GET", f"{PATH}/{shown}/input_items"),
        ("POST", f"{PATH}/{shown}/cancel"),
        ("GET", f"/v1/runs/run_{core}"),
        ("GET", f"/v1/runs/run_{core}/events"),
        ("DELETE", f"{PATH}/{shown}"),
    ]:
        assert client.call(method, path).headers.get("x-hermes-session-id") == mark, path
    ghost = client.post(PATH, {"input": "hi", "conversation": f"new-{mark}", "store": False})
    assert ghost.headers.get("x-hermes-session-id"), "a turn that is not stored, in a conversation that is not there"


def test_d2_two_turns_of_one_session_side_by_side_both_end_in_it(client: Client, upstream: Upstream, mark: str) -> None:
    headers = {"x-hermes-session-id": mark}
    slow = started(client, f"slow {SLOW}", headers)
    create(client, f"fast {say('quick')}", headers)
    finished(client, slow)
    create(client, f"last {mark}", headers)
    contents = [content for _, content in told(upstream, f"last {mark}")]
    assert contents[:3] == ["fast [[text=quick]]", "quick", f"slow {SLOW}"] and len(contents) == 5

"""The shapes of hermes-agent: answers to a question, feature flags, and a chat in a session as a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from ninelives.core import events as e
from ninelives.core.errors import ClientError
from ninelives.core.spec import Resolved
from ninelives.core.state import fold
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.hermes import capabilities
from ninelives.dialects.hermes.approval import ApprovalAnswer, card
from ninelives.dialects.hermes.body import completion
from ninelives.dialects.hermes.frames import SessionProjection
from ninelives.dialects.hermes.requests import SessionPlace, parse
from tests.dialects.transcript import follow, replay
from tests.journals import AT, Pen, journals, quick, spec_of

SESSION: Any = SessionProjection()
CONTEXT = Context("alice", {}, Profile("hermes-agent"), b"secret", {"coder": Profile("coder")})
MEANINGS = {
    "once": ["once", "approve", "approved", "allow", " Approve "],
    "deny": ["deny", "denied", "reject", "DENY"],
    "session": ["session"],
    "always": ["always"],
}


@pytest.mark.parametrize(("meaning", "words"), MEANINGS.items())
def test_d4_an_answer_has_the_words_of_hermes_agent(meaning: str, words: list[str]) -> None:
    for word in words:
        assert ApprovalAnswer(choice=word).meaning() == meaning


@pytest.mark.parametrize("word", ["", "yes", "all", "onceonce"])
def test_d4_any_other_word_is_400(word: str) -> None:
    with pytest.raises(ClientError) as refused:
        ApprovalAnswer(choice=word).meaning()
    assert (refused.value.status, refused.value.code) == (400, "invalid_approval_choice")


def test_d4_an_answer_that_names_another_question_does_not_fit() -> None:
    asked = e.ApprovalRequested(call=e.Call("call_1", "terminal", "{}"), digest="d", code="C", expires_at=1)
    for name in ("toolCallId", "approval_id", "request_id"):
        assert ApprovalAnswer(choice="once", **{name: "call_1"}).fits(asked)
        assert ApprovalAnswer(choice="once", **{name: ""}).fits(asked), "hermes-webui sends an empty id"
        assert not ApprovalAnswer(choice="once", **{name: "call_2"}).fits(asked)
    assert ApprovalAnswer(choice="once", digest="d", all=True).fits(asked)
    assert not ApprovalAnswer(choice="once", digest="x", resolve_all=True).fits(asked)


def test_a3_a_flag_is_true_only_where_its_route_is_served() -> None:
    none = capabilities.features(set(), cors=False)
    assert not any(value is True for value in none.values())
    some = capabilities.features({("POST", "/v1/runs/{id}/approval")}, cors=True)
    told = {name for name, value in some.items() if value is True}
    assert told == {"run_approval_response", "approval_identity_v1", "cors"}
    assert set(none) == set(some)
    served = {("POST", "/v1/runs/{id}/stop"), ("GET", "/api/sessions/{id}")}
    assert capabilities.endpoints(served) == {
        "run_stop": {"method": "POST", "path": "/v1/runs/{run_id}/stop"},
        "session": {"method": "GET", "path": "/api/sessions/{session_id}"},
    }


PLACE = SessionPlace("s1", "s1", "")


def asked(place: SessionPlace = PLACE, **fields: object) -> Any:
    sent = Context("alice", {"x-hermes-session-id": "another"}, CONTEXT.profile, b"secret", CONTEXT.others)
    return parse(msgspec.json.encode(fields), sent, place, 100)


def test_a_chat_in_a_session_is_a_run_there() -> None:
    found = asked(message="hi", system_message="Be brief.", model="default")
    assert (found.spec.dialect, found.spec.model) == ("runs", "hermes-agent")
    assert found.spec.input == ({"role": "user", "content": "hi"},)
    assert (found.spec.instructions, found.asked.session, found.asked.history_given) == ("Be brief.", "s1", False)
    assert asked(input="hi", instructions="Be brief.").asked.session == "s1"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    parts = asked(message=[{"type": "text", "text": "look"}, image]).spec.input[0]["content"]
    assert parts == [{"type": "text", "text": "look"}, image]
    for empty in ({}, {"message": ""}, {"message": []}):
        with pytest.raises(ClientError) as refused:
            asked(**empty)
        assert (refused.value.status, refused.value.code) == (400, "missing_message")


def test_a_chat_in_a_session_that_keeps_no_turns_brings_what_was_said_along() -> None:
    said = ({"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello."})
    found = asked(SessionPlace("auto-1~2", "auto-1", "", history=said), message="What is my name?")
    assert (found.spec.history, found.asked.session, found.asked.derived_session) == (said, None, "auto-1")
    chained = asked(SessionPlace("auto-1", "auto-1", "", "run_0123456789ab"), message="And then?")
    assert (chained.asked.previous, chained.asked.session, chained.spec.history) == ("0123456789ab", None, ())


def test_the_model_of_a_session_answers_where_the_request_names_none() -> None:
    place = SessionPlace("s1", "s1", "coder")
    assert asked(place, message="hi").spec.model == "coder"
    assert asked(place, message="hi", model="hermes-agent").spec.model == "hermes-agent"


def told(frames: list[bytes]) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.split(b"\n") for block in b"".join(frames).split(b"\n\n") if block]
    return [(name[7:].decode(), json.loads(data[6:])) for name, data in blocks]


def test_a_stream_tells_a_run_in_the_words_of_hermes_agent() -> None:
    pen = Pen(spec_of("runs"), resolved=Resolved(session="s1")).attempt().think("Hm.").text("Look.")
    call = pen.call("terminal", '{"command":"ls"}')
    pen.settle(call).start(call).finish(call).text("Do", "ne").settle().complete()
    events = told(replay(SESSION, pen.entries))
    assert [name for name, _ in events] == [
        "run.started",
        "message.started",
        "assistant.delta",
        "tool.progress",
        "tool.started",
        "tool.completed",
        "assistant.delta",
        "assistant.delta",
        "assistant.completed",
        "run.completed",
        "done",
    ]
    assert [fields["seq"] for _, fields in events] == list(range(1, len(events) + 1))
    assert {(fields["session_id"], fields["run_id"]) for _, fields in events} == {("s1", "run_0123456789abcdef")}
    by_name = dict(events)
    assert by_name["run.started"]["user_message"] == {"role": "user", "content": "Say hello"}
    assert by_name["run.started"]["ts"] == AT / 1000
    assert by_name["tool.started"]["args"] == {"command": "ls"} and by_name["tool.started"]["tool_name"] == "terminal"
    assert by_name["assistant.completed"]["content"] == "Look.\n\nDone"
    assert (by_name["run.completed"]["completed"], by_name["run.completed"]["usage"]["total_tokens"]) == (True, 30)
    assert by_name["run.completed"]["messages"][-1] == {"role": "assistant", "content": "Look.\n\nDone"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"command":"ls\\n\\tpwd"}', "ls\n\tpwd"),
        ('{"command":"ls","host":"prod"}', 'terminal {"command":"ls","host":"prod"}'),
        ('{"command":"ls \\u202e"}', 'terminal {"command":"ls \\u202e"}'),
    ],
)
def test_d4_a_card_hides_no_argument_and_no_sign_of_a_call(arguments: str, shown: str) -> None:
    call = e.Call("call_1", "terminal", arguments)
    assert card(e.ApprovalRequested(call=call, digest="d", code="C", expires_at=AT))["command"] == shown


def test_a_stream_tells_a_question_a_failed_tool_and_a_failure() -> None:
    pen = Pen(spec_of("runs", projection=4)).attempt()
    call = pen.call("terminal", '{"command":"rm x"}')
    asks = e.ApprovalRequested(call=call, digest="d", code="C", expires_at=AT)
    pen.settle(call).write(asks, e.ApprovalGiven(call_id=call.id, choice="once")).start(call)
    pen.finish(call, is_error=True).write(e.RunFailed(code="server_error", message="It broke."))
    events = told(replay(SESSION, pen.entries))
    assert [name for name, _ in events][2:] == [
        "approval.request",
        "approval.responded",
        "tool.started",
        "tool.failed",
        "error",
        "done",
    ]
    assert dict(events)["approval.request"]["command"] == "rm x"
    assert dict(events)["error"]["message"] == "It broke."


@quick
@given(journals("runs"))
def test_every_reader_of_a_session_gets_the_same_frames_and_one_end(entries: list[e.Entry]) -> None:
    full = replay(SESSION, entries)
    for edge in range(1, len(entries) + 1):
        before, then = follow(SESSION, entries, edge)
        assert before + then == full
    names = [name for name, _ in told(full)]
    assert names[:2] == ["run.started", "message.started"]
    assert names.count("done") == 1 and names[-1] == "done"
    body = completion(fold(entries))
    ends = dict(told(full)).get("assistant.completed")
    assert ends is None or ends["content"] == body.message.content, "what was seen of a cancelled answer stays"

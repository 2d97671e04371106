"""From settled facts to the messages a model is sent: one test per rule."""

from __future__ import annotations

from itertools import takewhile

import msgspec
import pytest
from hypothesis import given

from ninelives.core import events as e
from ninelives.core.context import HEAD, TAIL
from ninelives.core.history import Transcript, ask_messages, output_messages, paired, split_turn, text_of, turn_messages
from ninelives.core.spec import Message, messages_json
from ninelives.core.state import fold
from tests.journals import Pen, journals, quick, spec_of

A, B = e.Call("call_a", "terminal", '{"command":"ls"}'), e.Call("call_b", "read_file", "{}")
USER: Message = {"role": "user", "content": "Say hello"}


def added(pen: Pen) -> list[Message]:
    return output_messages(pen.state.facts.messages, pen.state.facts.results)


def test_a_draft_is_not_history() -> None:
    """G3: only facts go in; a dropped draft never, an open one not yet."""
    assert added(Pen().attempt().text("Hel").crash().text("Hello").settle()) == [
        {"role": "assistant", "content": "Hello"}
    ]
    assert added(Pen().attempt().text("Hel")) == []


def test_each_call_comes_once_with_its_result_in_the_order_it_was_asked_for() -> None:
    """E3: whatever order the results came in, and over a crash."""
    pen = Pen().attempt().text("Look.").settle(A, B).start(A, B).finish(B, "b").crash().start(A).finish(A, "a")
    assert added(pen) == [
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"ls"}'}},
                {"id": "call_b", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "a"},
        {"role": "tool", "tool_call_id": "call_b", "content": "b"},
    ]


def test_a_call_without_a_result_is_left_out() -> None:
    """An upstream refuses a call that nobody answered."""
    pen = Pen().attempt().settle(A, B).start(A).finish(A, "a")
    (said, result) = added(pen)
    assert [call["id"] for call in said["tool_calls"]] == ["call_a"] and result["tool_call_id"] == "call_a"
    assert added(Pen().attempt().settle(A)) == []


def test_a_call_of_the_caller_is_kept_without_a_result() -> None:
    """B5: its result comes with the next request."""
    theirs = e.Call("call_c", "theirs", "{}", client=True)
    (said,) = added(Pen().attempt().settle(theirs))
    assert said["content"] is None and [call["id"] for call in said["tool_calls"]] == ["call_c"]


def test_an_unknown_outcome_is_told_in_words() -> None:
    """P5: the words of the result reach the model as they are."""
    pen = Pen().attempt().settle(A).start(A, effect="write").crash()
    pen.write(e.ToolFinished(call_id="call_a", output="its outcome is unknown", is_error=True, outcome="unknown"))
    assert added(pen)[1] == {"role": "tool", "tool_call_id": "call_a", "content": "its outcome is unknown"}


def test_a_long_output_is_shown_by_its_ends() -> None:
    """The journal keeps all of it; the model is told where the rest lies."""
    pen = Pen().attempt().settle(A).start(A).finish(A, "a" * HEAD + "m" * 5 + "z" * TAIL)
    shown = added(pen)[1]["content"]
    assert isinstance(shown, str) and shown.startswith("a" * HEAD) and shown.endswith("z" * TAIL)
    assert "5 characters left out" in shown and "call_a" in shown and "m" * 5 not in shown


def test_a_message_that_said_nothing_is_left_out() -> None:
    """Upstreams refuse an assistant message without content and calls."""
    assert added(Pen().attempt().think("Hm").settle().complete()) == []


def test_reasoning_is_not_history() -> None:
    """It was the model's own."""
    assert added(Pen().attempt().think("Hm").text("Hi").settle()) == [{"role": "assistant", "content": "Hi"}]


def test_a_turn_is_what_was_sent_and_what_was_added() -> None:
    """C6: input + output come before the next input; instructions do not."""
    spec = spec_of("chat", history_json=messages_json([{"role": "user", "content": "Before"}]), instructions="Be brief")
    pen = Pen(spec).attempt().text("Hello").settle().complete()
    assert turn_messages(pen.state) == [
        {"role": "user", "content": "Before"},
        USER,
        {"role": "assistant", "content": "Hello"},
    ]


def test_prompts_are_layered_and_earlier_turns_come_before_the_new_one() -> None:
    """B1: the client's on top of the profile's own."""
    sent = messages_json([{"role": "user", "content": "Sent along"}])
    spec = spec_of("chat", history_json=sent, instructions="Be brief")
    earlier: list[Message] = [{"role": "user", "content": "Kept"}]
    assert [*ask_messages("You are Ninelives.", spec, earlier)] == [
        {"role": "system", "content": "You are Ninelives.\n\nBe brief"},
        {"role": "user", "content": "Kept"},
        {"role": "user", "content": "Sent along"},
        USER,
    ]
    assert [*ask_messages("", spec_of("chat"), [])] == [USER]


PROMPT: Message = {"role": "system", "content": "Be kind"}
BEFORE: list[Message] = [{"role": "user", "content": 'Say "x"\\'}, {"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("sent", [BEFORE, [PROMPT, *BEFORE], [{"content": [], "role": "user"}, *BEFORE]])
@pytest.mark.parametrize("earlier", [[], [PROMPT], BEFORE])
def test_the_json_for_a_model_is_that_of_its_messages(sent: list[Message], earlier: list[Message]) -> None:
    """Also where a request brought its history as JSON, which nobody has decoded."""
    messages = ask_messages("You are Ninelives.", spec_of("chat", history_json=messages_json(sent)), earlier)
    more = Transcript(messages.before, messages.middle, (*messages.after, {"role": "assistant", "content": "Hello"}))
    for each in (messages, more):
        assert msgspec.json.decode(b"".join(each.json())) == [*each]
    assert len(more) == len(messages) + 1 and more[-1] == {"role": "assistant", "content": "Hello"}
    leading = [message for message in takewhile(PROMPT.__eq__, [*earlier, *sent])]
    prompt = {"role": "system", "content": "\n\n".join(["You are Ninelives.", *("Be kind" for _ in leading)])}
    assert [*messages] == [prompt, *[*earlier, *sent, USER][len(leading) :]]


def test_a_long_history_is_not_decoded_on_its_way_to_the_model() -> None:
    """The bytes that were sent along go into the request of the model."""
    history = messages_json(BEFORE)
    pieces = ask_messages("", spec_of("chat", history_json=history), []).json()
    assert any(isinstance(piece, memoryview) and piece.obj is history for piece in pieces)


def say(*roles: str) -> list[Message]:
    return [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "history", "turn"),
    [
        (("user",), 0, 1),
        (("user", "assistant", "user"), 2, 1),
        (("user", "assistant", "user", "user"), 2, 2),
        (("user", "assistant", "tool"), 2, 1),
        (("user", "assistant", "tool", "assistant", "user"), 4, 1),
        (("user", "assistant"), 1, 1),
        (("assistant",), 0, 1),
        ((), 0, 0),
    ],
)
def test_the_new_turn_comes_after_the_last_assistant_message(roles: tuple[str, ...], history: int, turn: int) -> None:
    """D2; where nothing comes after it, it is the turn itself."""
    messages = say(*roles)
    system, before, new = split_turn([*say("system")[:0], *messages])
    assert system is None
    assert (before, new) == (messages[:history], messages[history:]) and len(new) == turn


def test_system_and_developer_messages_are_layered_wherever_they_stand() -> None:
    """B1."""
    system, before, new = split_turn(say("system", "user", "developer", "assistant", "user"))
    assert system == "system 0\n\ndeveloper 2"
    assert [m["role"] for m in before] == ["user", "assistant"] and [m["role"] for m in new] == ["user"]
    empty: list[Message] = [{"role": "system", "content": ""}, USER]
    assert split_turn(empty)[0] is None


def test_the_text_of_parts() -> None:
    """A string or parts; images have none."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    assert text_of("a") == "a"
    assert text_of([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]) == "a\nb"
    assert text_of(None) == ""


@quick
@given(journals("chat", ended=False))
def test_history_has_only_settled_messages_and_every_result_follows_its_call(entries: list[e.Entry]) -> None:
    """G3, E3, over random journals."""
    state = fold(entries)
    messages = output_messages(state.facts.messages, state.facts.results)
    texts = [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]
    assert texts == [said.spoken for said in state.facts.messages if said.spoken]
    open_calls: set[object] = set()
    seen: set[object] = set()
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls", [])
            assert isinstance(calls, list)
            ids = {call["id"] for call in calls}
            assert not ids & seen
            seen |= ids
            open_calls = {call for call in ids if call in state.facts.results}
        else:
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
    assert not open_calls


# Conversations that were edited


def asks(*ids: str, text: str | None = None) -> dict[str, object]:
    calls = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(call: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call, "content": "r"}


def test_a_call_without_a_result_and_a_result_without_a_call_are_left_out() -> None:
    """C8."""
    user: dict[str, object] = {"role": "user", "content": "hi"}
    whole = [user, asks("a", "b"), result("a"), result("b")]
    assert paired(whole, []) == tuple(whole)
    assert paired([user, asks("a", "b"), result("a")], []) == (user, asks("a"), result("a"))
    assert paired([user, asks("a", text="x")], []) == (user, {"role": "assistant", "content": "x"})
    assert paired([user, asks("a")], []) == (user,)
    assert paired([result("a"), user, asks("a"), result("a")], []) == (user, asks("a"), result("a"))


def test_a_result_that_comes_now_keeps_its_call() -> None:
    """C9: client tools are answered by the next request."""
    assert paired([asks("a")], [result("a")]) == (asks("a"),)

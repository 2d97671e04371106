"""Approval for front ends that only know chat (G11)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.spec import Message
from ninelives.dialects import approval
from ninelives.dialects.approval import Reply, is_too_long, question, reply_in, shown_call, without_questions
from ninelives.dialects.chat import body
from ninelives.dialects.chat.frames import ChatProjection, ContinuedChat
from tests.dialects.transcript import Frame, edge_view, follow, json_of, read, replay
from tests.journals import AT, RUN, Pen, spec_of

CHAT = ChatProjection()
REST = ContinuedChat("K7QM2X", "chatcmpl-new")


def waiting(**spec: Any) -> tuple[Pen, e.Call, e.ApprovalRequested]:
    pen = Pen(spec_of("chat", **spec)).attempt().text("I must delete it.")
    call = pen.call("terminal", '{"command":"rm -r build"}')
    asked = e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT + 3_600_000)
    return pen.settle(call).write(asked), call, asked


def answered(**spec: Any) -> Pen:
    pen, call, _ = waiting(**spec)
    pen.write(e.ApprovalGiven(call_id=call.id, choice="once", by="key 1")).start(call).finish(call, "gone")
    return pen.text("It is gone.").settle().complete()


def told(frames: list[bytes]) -> list[Frame]:
    return read(b"".join(frames))


def content(frames: list[Frame]) -> str:
    chunks = [f.data for f in frames if isinstance(f.data, dict) and f.data.get("choices")]
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)


def test_the_question_shows_the_exact_call_and_what_to_reply() -> None:
    """G11: a person must see what is asked."""
    _, _, asked = waiting()
    shown = question(asked, RUN)
    assert 'terminal {"command":"rm -r build"}' in shown
    assert "approve K7QM2X" in shown and "deny K7QM2X" in shown


def new(arguments: str) -> e.ApprovalRequested:
    """A question as this release asks it."""
    call = e.Call("call_1", "terminal", arguments)
    return e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT, choices=("once", "deny"))


def test_the_question_shows_what_will_run_and_not_how_it_was_written() -> None:
    """Decoded values on one line; what cannot be seen is escaped."""
    asked = new('{\n "command":\t"\\u0072m \\u002drf ä\\n```\\u202e\u202e\\u001b"}')
    shown = 'terminal {"command":"rm -rf ä\\n```\\u202e\\u202e\\u001b"}'
    assert shown_call(asked.call) == shown and f"```\n{shown}\n```" in question(asked, RUN)
    assert shown_call(new("no json\n").call) == "terminal no json\\n"


def test_a_call_of_8000_characters_is_shown_whole_and_a_longer_one_by_head_and_tail() -> None:
    whole = new('{"command":"' + "a" * (8000 - len('terminal {"command":""}')) + '"}')
    assert not is_too_long(whole) and shown_call(whole.call) in question(whole, RUN)
    longer = new('{"command":"head ' + "a" * 8000 + ' tail"}')
    shown = question(longer, RUN)
    assert is_too_long(longer) and "approve K7QM2X" not in shown and "deny K7QM2X" in shown
    assert "head aaa" in shown and "aaa tail" in shown and len(shown) < 4000
    assert f"… {len(shown_call(longer.call)) - 3000} characters are left out …" in shown
    assert f"ninelives runs show run_{RUN}" in shown and f"POST /v1/runs/run_{RUN}/approval" in shown


def test_the_question_says_why_it_is_asked_and_where_the_page_shows_it() -> None:
    """G11. A question of an older release has no reason, and keeps its text (R1)."""
    short, long = (replace(new(f'{{"command":"{"a" * n}"}}'), why="It runs a program.") for n in (1, 9000))
    assert "**Approval needed** before this call is made. It runs a program.\n\n" in question(short, RUN)
    assert "too long to be approved in a chat. It runs a program.\n\n" in question(long, RUN)
    for asked in (short, long):
        assert "on the server's page" in question(asked, RUN) and f"`/#/approvals/run_{RUN}`" in question(asked, RUN)
    assert "page" not in question(replace(short, why=""), RUN)


@pytest.mark.parametrize("length", [1990, 2001])
def test_r1_a_question_of_an_older_release_keeps_its_text(length: int) -> None:
    """A part that it did not show cannot be approved by its code."""
    arguments = "x" * length
    old = e.ApprovalRequested(call=e.Call("c", "terminal", arguments), digest="d", code="C0DE", expires_at=AT)
    cut = arguments if length <= 2000 else f"{arguments[:2000]}… ({length} characters in all)"
    assert question(old, RUN) == (
        f"\n\n**Approval needed** before this call is made:\n\n```\nterminal {cut}\n```\n\n"
        "Reply `approve C0DE` to allow it once, or `deny C0DE`."
    )
    assert is_too_long(old) is (length > 2000)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_the_first_answer_ends_with_the_question_and_finish_reason_stop(store: bool, usage: bool) -> None:
    """G11, B2, B6: [DONE] follows; the last chunk carries the number."""
    pen, _, asked = waiting(store=store, include_usage=usage)
    frames = told(replay(CHAT, pen.entries))
    assert content(frames) == "I must delete it." + question(asked, RUN)
    assert frames[-1].data == "[DONE]"
    assert frames[-3 if usage else -2].data["choices"][0]["finish_reason"] == "stop"
    numbers = [f.data["sequence_number"] for f in frames[:-1] if "sequence_number" in f.data]
    assert numbers == ([2, 4] if store else [])
    assert (("usage" in frames[-2].data) and frames[-2].data["choices"] == []) is usage
    choice = json_of(body.body(pen.state))["choices"][0]
    assert choice["message"]["content"] == content(frames) and choice["finish_reason"] == "stop"


def test_the_first_answer_is_the_same_whenever_it_is_read() -> None:
    """A stored stream that ended does not grow when the run goes on."""
    full = replay(CHAT, waiting()[0].entries)
    entries = answered().entries
    assert replay(CHAT, entries) == full
    for edge in range(1, len(entries) + 1):
        before, then = follow(CHAT, entries, edge)
        assert before + then == full
    view, _ = edge_view(CHAT, entries[:5])
    assert view.over


@pytest.mark.parametrize("after", [4, 5, 99])
def test_a_resume_at_or_beyond_the_question_gives_it_again(after: int) -> None:
    """G5: the end of this answer."""
    frames = told(replay(CHAT, answered(store=True).entries, after=after))
    assert frames[-1].data == "[DONE]" and frames[-2].data["choices"][0]["finish_reason"] == "stop"


def test_the_answer_to_it_is_a_completion_of_its_own_from_there_on() -> None:
    """G11: a new chatcmpl id that shows the run from ApprovalGiven on."""
    pen = answered()
    frames = told(replay(REST, pen.entries))
    assert content(frames) == "It is gone."
    chunks = [f.data for f in frames if f.data != "[DONE]"]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-new"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["status"] for c in chunks if "status" in c] == ["running", "completed"]
    assert frames[-1].data == "[DONE]"
    since = json_of(body.body(pen.state, since=1))["choices"][0]["message"]
    assert since["content"] == content(frames)


def test_the_rest_is_the_same_for_every_reader() -> None:
    """Full = prefix + suffix, also where the reader waits for the answer."""
    entries = answered().entries
    full = replay(REST, entries)
    for edge in range(1, len(entries) + 1):
        before, then = follow(REST, entries, edge)
        assert before + then == full


def test_another_question_ends_the_rest_too() -> None:
    """Each answer shows one stretch of the run."""
    pen, call, _ = waiting()
    pen.write(e.ApprovalGiven(call_id=call.id, choice="once")).start(call).finish(call)
    other = pen.call("terminal", '{"command":"rm -r dist"}')
    pen.settle(other).write(e.ApprovalRequested(call=other, digest="d", code="AAAAAA", expires_at=AT))
    frames = told(replay(REST, pen.entries))
    assert "rm -r dist" in content(frames) and "rm -r build" not in content(frames)
    assert frames[-1].data == "[DONE]"
    pen.write(e.ApprovalGiven(call_id=other.id, choice="deny")).start(other).finish(other, is_error=True).complete()
    assert told(replay(REST, pen.entries)) == frames


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("approve K7QM2X", Reply("once", "K7QM2X")),
        (" Approve k7qm2x. \n", Reply("once", "K7QM2X")),
        ("deny K7QM2X", Reply("deny", "K7QM2X")),
        ("please approve K7QM2X", None),
        ("approve K7QM2X and go on", None),
        ("approve", None),
        ("approve it all", None),
    ],
)
def test_only_the_bare_words_are_an_answer(text: str, reply: Reply | None) -> None:
    """G11."""
    assert reply_in([user(text)]) == reply


def test_an_answer_is_the_callers_last_message() -> None:
    """Codes in a model's or a tool's text do nothing."""
    assert reply_in([{"role": "assistant", "content": "approve K7QM2X"}]) is None
    assert reply_in([{"role": "tool", "tool_call_id": "c", "content": "approve K7QM2X"}]) is None
    assert reply_in([user("approve K7QM2X"), user("or not")]) is None
    assert reply_in([]) is None


def test_question_and_answer_are_taken_out_of_the_history() -> None:
    """G11: what goes upstream reads as if nobody had been asked."""
    _, _, asked = waiting()
    talk = [
        user("Clean up"),
        {"role": "assistant", "content": "I must delete it." + question(asked, RUN)},
        user("approve K7QM2X"),
        {"role": "assistant", "content": "It is gone."},
        user("Thanks"),
    ]
    assert without_questions(talk) == [
        user("Clean up"),
        {"role": "assistant", "content": "I must delete it.\n\nIt is gone."},
        user("Thanks"),
    ]


def test_a_question_without_words_before_it_leaves_nothing() -> None:
    """G11."""
    _, _, asked = waiting()
    talk = [user("Clean up"), {"role": "assistant", "content": question(asked, RUN)}, user("deny K7QM2X")]
    assert without_questions(talk) == [user("Clean up")]


def test_a_message_that_is_almost_an_answer_costs_time_in_proportion_to_its_length() -> None:
    """A megabyte took more than an hour before."""
    assert reply_in([user("approve K7QM2X" + " " * 1_000_000 + "x")]) is None
    assert reply_in([user("approve K7QM2X" + " " * 1_000_000)]) == Reply("once", "K7QM2X")
    said: Message = {"role": "assistant", "content": "\n" * 1_000_000 + "x"}
    assert without_questions([said, user("approve K7QM2X")]) == [said, user("approve K7QM2X")]


def test_a_conversation_without_questions_is_not_touched() -> None:
    """Two assistant messages in a row stay two, and somebody may say approve."""
    talk = [
        user("approve WORKING"),
        {"role": "assistant", "content": "One"},
        {"role": "assistant", "content": "Two"},
        user("deny THAT"),
    ]
    assert without_questions(talk) == talk


@pytest.mark.parametrize("fill", [" ", "\n", "a", "\n\n*"])
def test_no_expression_runs_over_a_message_that_is_too_long_to_be_an_answer(
    fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of 40,000 spaces kept the process for ten seconds."""

    class Noting:
        read = 0

        def match(self, text: str) -> None:
            Noting.read += len(text)

    monkeypatch.setattr(approval, "_ANSWER", Noting())
    long = "approve ABCD" + fill * 40_000 + "x"
    talk: list[dict[str, object]] = [{"role": "assistant", "content": long}, {"role": "user", "content": long}] * 2
    assert reply_in(talk) is None
    assert without_questions(talk) == talk
    assert Noting.read <= 400

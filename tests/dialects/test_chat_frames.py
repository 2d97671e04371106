"""The Chat Completions stream: properties over random legal journals, and the payloads of tool progress."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.state import fold
from ninelives.dialects.chat import body
from ninelives.dialects.chat.frames import ChatProjection, usage_object
from ninelives.dialects.shared import hidden
from tests.dialects.transcript import Frame, edge_view, follow, json_of, read, replay
from tests.journals import Pen, journals, quick, spec_of

CHAT = ChatProjection()
PROGRESS = "hermes.tool.progress"
chats = journals("chat", approvals=False)
"""A question ends a chat stream (G11): that has tests of its own."""


def told(frames: list[bytes]) -> list[Frame]:
    return read(b"".join(frames))


def spec_in(entries: list[e.Entry]) -> Any:
    accepted = entries[0].event
    assert isinstance(accepted, e.RunAccepted)
    return accepted.spec


def deltas(frames: list[Frame], field: str) -> list[str]:
    """The values of one delta field, in order."""
    chunks = [f.data for f in frames if isinstance(f.data, dict) and f.data.get("choices")]
    return [c["choices"][0]["delta"][field] for c in chunks if field in c["choices"][0]["delta"]]


def content(frames: list[Frame]) -> str:
    return "".join(deltas(frames, "content"))


def errors(frames: list[Frame]) -> list[str]:
    return [f.data["error"]["code"] for f in frames if isinstance(f.data, dict) and "error" in f.data]


def finishes(frames: list[Frame]) -> list[str]:
    chunks = [f.data for f in frames if isinstance(f.data, dict) and f.data.get("choices")]
    return [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]


def number(frame: bytes) -> int | None:
    data = read(frame)[0].data
    return data.get("sequence_number") if isinstance(data, dict) else None


@quick
@given(chats)
def test_chunks_come_in_legal_order(entries: list[e.Entry]) -> None:
    """B2: the role first and once; one finish chunk or one error frame; usage only when asked for; [DONE] only after a
    finish; nothing follows."""
    frames, spec = told(replay(CHAT, entries)), spec_in(entries)
    assert len(errors(frames)) + len(finishes(frames)) == 1
    if errors(frames):
        assert "error" in frames[-1].data
    else:
        assert frames[-1] == Frame(None, "[DONE]")
        last = frames[-3 if spec.include_usage else -2].data
        assert last["choices"][0]["finish_reason"] and last["choices"][0]["delta"] == {}
    roles = deltas(frames, "role")
    assert roles == ["assistant"] * (not errors(frames) or bool(frames[:-1]))
    if roles:
        assert frames[0].data["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    plain = [f.data for f in frames if f.event is None and f.data != "[DONE]" and "error" not in f.data]
    identity = {(c["id"], c["object"], c["created"], c["model"]) for c in plain}
    assert len(identity) <= 1


@quick
@given(chats)
def test_the_usage_chunk_comes_only_when_asked_for(entries: list[e.Entry]) -> None:
    """B2, C11: choices empty, usage summed over the run; all other chunks then say null."""
    frames, spec, state = told(replay(CHAT, entries)), spec_in(entries), fold(entries)
    plain = [f.data for f in frames if f.event is None and f.data != "[DONE]" and "error" not in f.data]
    usages = [c["usage"] for c in plain if c.get("usage")]
    if not spec.include_usage:
        assert not any("usage" in c for c in plain)
    elif finishes(frames):
        assert usages == [json_of(usage_object(state.facts.usage))] and plain[-1]["choices"] == []
        assert all("usage" in c for c in plain)
    else:
        assert not usages


@quick
@given(chats)
def test_a_replay_says_what_the_body_says(entries: list[e.Entry]) -> None:
    """House idea 3, G3: settled text, then the tail of the last attempt; never a dropped draft."""
    frames, state = told(replay(CHAT, entries)), fold(entries)
    message = json_of(body.body(state))["choices"][0]["message"]
    assert content(frames) == (message["content"] or "")
    declined = "".join(deltas(frames, "refusal"))
    assert declined == (message["refusal"] or "")
    calls = [call for calls in deltas(frames, "tool_calls") for call in calls]
    assert [{k: c[k] for k in ("id", "type", "function")} for c in calls] == (
        message.get("tool_calls", []) if finishes(frames) else []
    )
    if not state.facts.dropped and isinstance(state.facts.end, e.RunCompleted):
        assert "".join(deltas(frames, "reasoning_content")) == message.get("reasoning_content", "")
    if finishes(frames):
        assert finishes(frames) == [body.body(state).choices[0].finish_reason]


@quick
@given(chats)
def test_each_visible_call_has_one_running_and_one_completed_in_order(entries: list[e.Entry]) -> None:
    """B3, G9: also over a crash; hidden tools and `off` make no frame."""
    frames, spec = told(replay(CHAT, entries)), spec_in(entries)
    shown = [(f.data["toolCallId"], f.data["status"]) for f in frames if f.event == PROGRESS]
    expected: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    for entry in entries:
        match entry.event:
            case e.ToolStarted(call=call) if call.id not in names:
                names[call.id] = call.name
                expected.append((call.id, "running"))
            case e.ToolFinished(call_id=call_id):
                expected.append((call_id, "completed"))
    visible = [each for each in expected if not hidden(names[each[0]])]
    assert shown == ([] if spec.tool_progress == "off" else visible)


@quick
@given(chats)
def test_tool_progress_is_never_in_the_text_and_never_a_tool_call(entries: list[e.Entry]) -> None:
    """B3: out of band, and no top-level `error` in it."""
    for frame in told(replay(CHAT, entries)):
        if frame.event == PROGRESS:
            assert "error" not in frame.data
            assert frame.data.get("choices", [{"delta": {}}])[0]["delta"] == {}
        else:
            assert frame.event is None


@quick
@given(chats)
def test_only_stored_chats_are_numbered_and_only_the_last_chunk_of_an_entry(entries: list[e.Entry]) -> None:
    """B6: sequence_number is the journal seq that a chunk renders."""
    frames, spec = replay(CHAT, entries), spec_in(entries)
    numbers = [n for n in map(number, frames) if n is not None]
    if not spec.store:
        assert numbers == []
        return
    assert numbers == sorted(set(numbers)) and set(numbers) <= {entry.seq for entry in entries}
    shown = [read(frame)[0].data for frame in frames]
    for data, follower in itertools.pairwise(shown):
        if "sequence_number" in data or "role" in data["choices"][0]["delta"]:
            continue
        first = set(data["choices"][0]["delta"]) or {data["choices"][0]["finish_reason"]}
        then = set(follower["choices"][0]["delta"]) if follower["choices"] else {"usage"}
        words = [({"reasoning_content"}, {"content"}), ({"reasoning_content"}, {"refusal"}), ({"content"}, {"refusal"})]
        pairs = (*words, ({"tool_calls"}, {"tool_calls"}), ({"tool_calls"}, set()))
        assert (first, then) in pairs or then == {"usage"}, "a chunk without a number is not the last of its entry"


@quick
@given(chats, st.data())
def test_a_resume_at_every_seq_gives_exactly_the_later_chunks(entries: list[e.Entry], data: st.DataObject) -> None:
    """B6, G5: for every k outside of a dropped draft; at or beyond the end: the terminal entry again."""
    spec, state = spec_in(entries), fold(entries)
    full = replay(CHAT, entries)
    last = entries[-1].seq
    for k in range(-1, last + 3):
        if any(first <= k <= end for first, end in state.facts.dropped):
            continue
        tail = replay(CHAT, entries, after=k)
        assert full[len(full) - len(tail) :] == tail
        if k >= last:
            assert tail == replay(CHAT, entries, after=last - 1)
            assert errors(told(tail)) or finishes(told(tail))
        elif spec.store:
            gone = full[: len(full) - len(tail)]
            assert all(n is None or n > k for n in map(number, tail))
            assert all(n is None or n <= k for n in map(number, gone))


def first_taken_over(entries: list[e.Entry], edge: int) -> int | None:
    """The first restart after the edge that drops text which a live reader has seen."""
    text = False
    for n, entry in enumerate(entries):
        match entry.event:
            case e.TextDelta(piece):
                text = text or bool(piece)
            case e.AttemptStarted():
                if text and n >= edge:
                    return n
                text = False
            case e.MessageCompleted():
                text = False
    return None


@quick
@given(chats)
def test_a_live_reader_sees_the_replay_or_is_told_stream_restarted(entries: list[e.Entry]) -> None:
    """G3: taken over after visible draft text: stream_restarted, then the stream is over."""
    full = content(told(replay(CHAT, entries)))
    for edge in range(1, len(entries) + 1):
        before, then = follow(CHAT, entries, edge)
        frames = told(before + then)
        over = first_taken_over(entries, edge)
        if over is None:
            assert content(frames) == full
            assert "stream_restarted" not in errors(frames)
            continue
        assert errors(frames) == ["stream_restarted"] and "error" in frames[-1].data
        view, _ = edge_view(CHAT, entries[:edge])
        for n in range(edge, over + 1):
            assert not view.over
            view, _ = CHAT.step(view, entries[n])
        assert view.over


@quick
@given(chats, st.data())
def test_a_replay_that_knows_the_last_attempt_holds_nothing_of_it_and_gives_the_same_bytes(
    entries: list[e.Entry], data: st.DataObject
) -> None:
    last, told = entries[-1].attempt, []
    view, known = CHAT.view0(-1), data.draw(st.integers(0, len(entries)))
    for n, entry in enumerate(entries):
        view = CHAT.stand(view, last) if n == known else view
        view, frames = CHAT.step(view, entry)
        told += frames
        assert not frames or n < known or entry.attempt < last or view.held is None
    view, held = CHAT.live(view)
    _, whole = edge_view(CHAT, entries)
    assert told + held == whole
    assert view == edge_view(CHAT, entries)[0]


def test_a_draft_that_was_sent_because_its_attempt_went_on_ends_with_stream_restarted_when_it_is_dropped() -> None:
    entries = Pen(spec_of(dialect="chat")).attempt().text("a", "b").crash().attempt().text("c").settle().entries
    view = CHAT.stand(CHAT.view0(-1), 1)
    told_so_far: list[bytes] = []
    for entry in entries:
        view, frames = CHAT.step(view, entry)
        told_so_far += frames
    assert content(told(told_so_far)) == "ab" and errors(told(told_so_far)) == ["stream_restarted"]


@quick
@given(chats)
def test_where_nothing_was_dropped_every_reader_gets_the_same_bytes(entries: list[e.Entry]) -> None:
    """Full = prefix + suffix, wherever the edge is met."""
    if fold(entries).facts.dropped:
        return
    full = replay(CHAT, entries)
    for edge in range(1, len(entries) + 1):
        before, then = follow(CHAT, entries, edge)
        assert before + then == full


@quick
@given(chats, st.data())
def test_all_readers_whose_stream_goes_on_share_one_view_at_the_live_edge(
    entries: list[e.Entry], data: st.DataObject
) -> None:
    """A lane renders once for all its readers, so it must not matter when they came and what they asked for."""
    edge = data.draw(st.integers(1, len(entries)))
    replayed, _ = edge_view(CHAT, entries[:edge])
    earlier = data.draw(st.integers(1, edge))
    live, _ = edge_view(CHAT, entries[:earlier])
    for entry in entries[earlier:edge]:
        live, _ = CHAT.step(live, entry)
    for after in (-1, 1, 4, 10_000):
        resumed, _ = edge_view(CHAT, entries[:edge], after)
        if not resumed.over:
            assert resumed == replayed
    if not live.over:
        assert live == replayed


def test_a_resume_inside_a_draft_that_is_dropped_meanwhile_is_told_so() -> None:
    """B6, G3: the position was good when the reader asked; before it reached the edge the draft was gone."""
    pen = Pen(spec_of("chat", store=True)).attempt().text("Hel", "lo").crash().text("Good day").settle().complete()
    assert errors(told(replay(CHAT, pen.entries, after=2))) == ["stream_restarted"]
    assert content(told(replay(CHAT, pen.entries, after=1))) == "Good day"
    assert content(told(replay(CHAT, pen.entries, after=4))) == "Good day"


def test_texts_of_several_messages_are_paragraphs() -> None:
    """A stream and its body put the same gap between messages, and none where there is a space already."""
    pen = Pen(spec_of("chat")).attempt().text("One.").settle().text("Two. ").settle().text("Three").settle().complete()
    assert content(told(replay(CHAT, pen.entries))) == "One.\n\nTwo. Three" == body.visible_text(pen.state)


def test_an_empty_piece_of_text_shows_nothing() -> None:
    """An upstream may send empty deltas: they begin no paragraph and are no visible draft."""
    pen = Pen(spec_of("chat")).attempt().text("One.").settle().text("").settle().text("Two.").settle().complete()
    assert content(told(replay(CHAT, pen.entries))) == "One.\n\nTwo."
    pen = Pen(spec_of("chat")).attempt().text("").crash().text("Two.").settle().complete()
    before, then = follow(CHAT, pen.entries, 3)
    assert errors(told(before + then)) == []


def test_reasoning_is_told_whether_it_was_streamed_or_not() -> None:
    """B2: delta.reasoning_content."""
    streamed = Pen(spec_of("chat")).attempt().think("Hm", "m").text("Hi").settle().complete()
    whole = Pen(spec_of("chat")).attempt().write(e.MessageCompleted("Hi", reasoning="Hmm")).complete()
    for pen in (streamed, whole):
        frames = told(replay(CHAT, pen.entries))
        assert "".join(deltas(frames, "reasoning_content")) == "Hmm" and content(frames) == "Hi"


def tool_run(**spec: Any) -> list[e.Entry]:
    pen = Pen(spec_of("chat", **spec)).attempt()
    call = pen.call("terminal", '{"command":"ls -a"}')
    pen.settle(call).start(call).finish(call, "a\nb", is_error=True).text("Done").settle().complete()
    return pen.entries


def progress(entries: list[e.Entry]) -> list[dict[str, Any]]:
    return [f.data for f in told(replay(CHAT, entries)) if f.event == PROGRESS]


def test_a_second_start_after_a_crash_makes_no_second_frame() -> None:
    """B3, G9: one running, one completed."""
    pen = Pen(spec_of("chat")).attempt()
    call = pen.call("read_file")
    pen.settle(call).start(call).crash().start(call).finish(call).text("Done").settle().complete()
    assert [each["status"] for each in progress(pen.entries)] == ["running", "completed"]


def test_bare_tool_progress_has_the_fields_of_hermes() -> None:
    """B3, G9: input = args, an object; output = result, a string."""
    running, completed = progress(tool_run(store=False, tool_progress="bare"))
    assert running == {
        "tool": "terminal",
        "name": "terminal",
        "emoji": "🔧",
        "label": "run terminal",
        "toolCallId": "call_0123456789abcdef0000",
        "status": "running",
        "input": {"command": "ls -a"},
        "args": {"command": "ls -a"},
    }
    assert completed == running | {
        "status": "completed",
        "output": "a\nb",
        "result": "a\nb",
        "isError": True,
        "durationMs": 12,
        "truncated": False,
    }


def test_compatible_tool_progress_is_also_a_chunk_without_effect_and_a_status_line() -> None:
    """B4."""
    entries = tool_run(store=False, tool_progress="compatible")
    bare = progress(tool_run(store=False, tool_progress="bare"))
    status = {
        "running": {"description": "🔧 run terminal", "done": False},
        "completed": {"description": "🔧 run terminal · failed after 0.0 s", "done": True},
    }
    for shown, plain in zip(progress(entries), bare, strict=True):
        extra = {k: v for k, v in shown.items() if k not in plain}
        assert plain == {k: v for k, v in shown.items() if k in plain}
        assert extra == {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "hermes-agent",
            "choices": [{"index": 0, "delta": {}, "finish_reason": None}],
            "event": {
                "type": "status",
                "data": status[plain["status"]],
            },
        }


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ({"duration_ms": 4049}, "4.0 s"),
        ({"duration_ms": 90_000}, "90.0 s"),
        ({"duration_ms": 12, "is_error": True}, "failed after 0.0 s"),
        ({"is_error": True, "outcome": "unknown"}, "outcome unknown"),
    ],
)
def test_the_status_line_of_a_call_that_ended_says_how_it_went(outcome: dict[str, Any], told: str) -> None:
    """B4: Open WebUI keeps both lines in its history, and two that are alike look like two calls."""
    pen = Pen(spec_of("chat")).attempt()
    call = pen.call("terminal")
    pen.settle(call).start(call).write(e.ToolFinished(call_id=call.id, output="x", **outcome))
    running, completed = [frame["event"]["data"]["description"] for frame in progress(pen.entries)]
    assert completed == f"{running} · {told}"


def test_tool_progress_off_leaves_a_plain_openai_stream() -> None:
    """B4: for openai-node 4."""
    entries = tool_run(store=False, tool_progress="off")
    assert progress(entries) == []
    assert {frame.event for frame in told(replay(CHAT, entries))} == {None}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [("", {}), ("{}", {}), ('{"a":1}', {"a": 1}), ("not json", {"raw": "not json"}), ("[1]", {"value": [1]})],
)
def test_the_input_of_a_call_is_an_object_whatever_the_model_wrote(arguments: str, shown: object) -> None:
    """G9."""
    pen = Pen(spec_of("chat")).attempt()
    call = pen.call("terminal", arguments)
    pen.settle(call).start(call)
    (running,) = progress(pen.entries)
    assert running["input"] == running["args"] == shown


def test_long_output_is_bounded_in_events_with_a_mark() -> None:
    """B4: the full output stays in the journal; no character is cut in half."""
    pen = Pen(spec_of("chat", output_bound=5)).attempt()
    call = pen.call("terminal")
    pen.settle(call).start(call).finish(call, "aé日本語")
    completed = progress(pen.entries)[1]
    assert completed["output"] == completed["result"] == "aé\n[truncated: 12 bytes in all]"
    assert completed["truncated"] is True
    assert pen.state.facts.results[call.id].output == "aé日本語"

"""The Responses stream: properties over random legal journals."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.state import apply, fold, start
from ninelives.dialects.responses import body, items
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.responses.reattach import ReattachProjection
from tests.dialects.transcript import ResponsesChecker, edge_view, follow, json_of, read, replay
from tests.journals import Pen, journals, quick, spec_of

RESPONSES = ResponsesProjection()
REATTACH = ReattachProjection()


@quick
@given(journals())
def test_every_stream_is_legal_for_the_sdk_accumulators(entries: list[e.Entry]) -> None:
    """C1: first created, numbers 0..n, dense indices, deltas inside their item, one terminal,
    [DONE], nothing open at the end."""
    checker = ResponsesChecker().feed(b"".join(replay(RESPONSES, entries)))
    assert checker.done


@quick
@given(journals())
def test_the_response_in_the_last_frame_is_the_body(entries: list[e.Entry]) -> None:
    """C2, C9: streaming and not streaming cannot disagree, but for the form of function_call_output.output."""
    state = fold(entries)
    checker = ResponsesChecker().feed(b"".join(replay(RESPONSES, entries)))
    assert checker.terminal == json_of(body.response(state))
    plain = json_of(body.body(state))
    assert plain == {**checker.terminal, "output": json_of([items.plain_output(item) for item in body.output(state)])}
    for item in plain["output"]:
        if item["type"] == "function_call_output":
            assert isinstance(item["output"], str)


@quick
@given(journals(ended=False))
def test_a_body_at_any_moment_shows_what_the_frames_have_told(entries: list[e.Entry]) -> None:
    """C2: GET shows status and all output so far."""
    view, checker = RESPONSES.view0(-1), ResponsesChecker()
    state = start(entries[0])
    for n, entry in enumerate(entries):
        state = apply(state, entry) if n else state
        view, frames = RESPONSES.step(view, entry)
        checker.feed(b"".join(frames))
        assert json_of(body.output(state)) == checker.output


@quick
@given(journals())
def test_a_resume_at_every_frame_gives_the_rest_byte_for_byte(entries: list[e.Entry]) -> None:
    """C3, P2: for every k, replay after k is the tail of the full replay."""
    full = replay(RESPONSES, entries)
    for k in range(-1, len(full) - 1):
        assert replay(RESPONSES, entries, after=k) == full[k + 1 :]


@quick
@given(journals(), st.integers(0, 50))
def test_a_resume_at_or_beyond_the_end_gives_the_terminal_frame_again(entries: list[e.Entry], beyond: int) -> None:
    """C3, G5."""
    full = replay(RESPONSES, entries)
    assert replay(RESPONSES, entries, after=len(full) - 1 + beyond) == full[-1:]


@quick
@given(journals(), st.data())
def test_a_live_reader_gets_prefix_and_suffix(entries: list[e.Entry], data: st.DataObject) -> None:
    """Wherever the edge is met, full = prefix + suffix."""
    full = replay(RESPONSES, entries)
    for edge in range(1, len(entries) + 1):
        before, then = follow(RESPONSES, entries, edge)
        assert before + then == full
    edge = data.draw(st.integers(1, len(entries) - 1))
    told = len(replay(RESPONSES, entries[:edge]))
    after = data.draw(st.integers(-1, told - 1))
    before, then = follow(RESPONSES, entries, edge, after)
    assert before + then == full[after + 1 :]


@quick
@given(journals(), st.data())
def test_all_readers_share_one_view_at_the_live_edge(entries: list[e.Entry], data: st.DataObject) -> None:
    """A lane renders once for all its readers: whatever they saw before, their views must be equal."""
    edge = data.draw(st.integers(1, len(entries)))
    first, _ = edge_view(RESPONSES, entries[:1])
    for entry in entries[1:edge]:
        first, _ = RESPONSES.step(first, entry)
    for after in (-1, 0, 5, 10_000):
        assert edge_view(RESPONSES, entries[:edge], after)[0] == first
    assert edge_view(REATTACH, entries[:edge])[0] == first


@quick
@given(journals(), st.data())
def test_a_snapshot_and_the_rest_give_the_whole_response(entries: list[e.Entry], data: st.DataObject) -> None:
    """C5, G2: the snapshot's number is the last one it contains; what it shows and what follows make the output."""
    edge = data.draw(st.integers(1, len(entries) - 1))
    (snapshot,), rest = follow(REATTACH, entries, edge)
    full = replay(RESPONSES, entries)
    told = len(replay(RESPONSES, entries[:edge]))
    (frame,) = read(snapshot)
    assert frame.event == frame.data["type"] == "response.snapshot"
    assert set(frame.data) == {"type", "sequence_number", "response"}
    assert frame.data["sequence_number"] == told - 1
    assert rest == full[told:]
    seen = ResponsesChecker().feed(b"".join(full[:told]))
    assert frame.data["response"]["output"] == seen.output == json_of(body.output(fold(entries[:edge])))
    assert seen.feed(b"".join(rest)).done


def test_a_reattach_to_a_run_that_ended_meanwhile_gives_a_snapshot_and_the_terminal_frame() -> None:
    """C5, G2: it ran when its caller came back, so a snapshot comes first; then only the end is left to tell."""
    entries = Pen().attempt().text("Hi").settle().complete().entries
    snapshot, last = replay(REATTACH, entries)
    full = replay(RESPONSES, entries)
    assert last == full[-1]
    (frame,) = read(snapshot)
    assert frame.event == "response.snapshot" and frame.data["sequence_number"] == len(full) - 2


def test_a_reattach_tells_one_snapshot_only() -> None:
    """G2: a reader who falls behind and meets the edge again is not shown a second one."""
    entries = Pen().attempt().text("Hi").settle().complete().entries
    view, _ = edge_view(REATTACH, entries[:3])
    assert REATTACH.live(view) == (view, [])


def test_hidden_tools_are_in_no_frame_and_no_body() -> None:
    """B3, G9: tools whose name begins with _ are invisible in every dialect."""
    for style in ("function_call", "mcp_call"):
        pen = Pen(spec_of(tool_items=style)).attempt().text("Hm")
        call = pen.call("_memory", '{"secret":1}')
        pen.settle(call).start(call).finish(call, "hidden output").text("Done").settle().complete()
        stream = b"".join(replay(RESPONSES, pen.entries))
        shown = msgspec.json.encode(body.body(pen.state))
        for secret in (b"_memory", b"secret", b"hidden output"):
            assert secret not in stream and secret not in shown


def kinds(pen: Pen) -> list[str]:
    return [frame.event or frame.data for frame in read(b"".join(replay(RESPONSES, pen.entries)))]


def last(pen: Pen) -> dict[str, object]:
    return read(replay(RESPONSES, pen.entries)[-1])[0].data["response"]  # type: ignore[no-any-return]


def test_a_background_run_is_queued_first() -> None:
    """C2: created and queued with status queued, then in_progress when a worker takes it."""
    frames = read(b"".join(replay(RESPONSES, Pen(spec_of(background=True)).attempt().entries)))
    assert [(frame.event, frame.data["response"]["status"]) for frame in frames] == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]


def test_in_progress_is_told_once_over_all_attempts() -> None:
    """C1."""
    assert kinds(Pen().attempt().crash().attempt()) == ["response.created", "response.in_progress"]


def test_a_dropped_draft_is_closed_incomplete_and_empty() -> None:
    """G3: the deltas that were told stay in the event log."""
    pen = Pen().attempt().think("Hm").text("Hel").crash()
    assert kinds(pen)[-3:] == ["response.content_part.added", "response.output_text.delta", "response.output_item.done"]
    thought, message = json_of(body.output(pen.state))
    assert (thought["status"], message["status"], message["content"]) == ("completed", "incomplete", [])
    (thought,) = json_of(body.output(Pen().attempt().think("Hm").crash().state))
    assert (thought["status"], thought["summary"]) == ("incomplete", [])


def test_text_before_between_and_after_tools_is_in_items_of_its_own() -> None:
    """C9: in the order they happened."""
    pen = Pen().attempt().text("a")
    one, two = pen.call("terminal"), pen.call("terminal")
    pen.settle(one).start(one).finish(one).text("b").settle(two).start(two).finish(two).text("c").settle().complete()
    pair = ["function_call", "function_call_output"]
    assert [item["type"] for item in json_of(body.output(pen.state))] == ["message", *pair, "message", *pair, "message"]


def test_a_failure_tells_its_code_and_our_reason_in_the_message() -> None:
    """C10: codes stay on the SDK's list; GET agrees."""
    failed = e.RunFailed(code="rate_limit_exceeded", message="Too many requests.", reason="upstream_429", status=429)
    error = {"code": "rate_limit_exceeded", "message": "Too many requests. (upstream_429)"}
    for pen, told in ((Pen(), error), (Pen(spec_of(projection=2)), {"type": "server_error", **error})):
        pen.attempt().write(failed)
        assert kinds(pen)[-2:] == ["response.failed", "[DONE]"]
        assert (last(pen)["status"], last(pen)["error"]) == ("failed", told)
        assert body.body(pen.state).error == told


def test_a_cancelled_run_ends_with_incomplete_whose_status_is_cancelled() -> None:
    """C10: the SDKs know no response.cancelled."""
    pen = Pen().attempt().write(e.CancelRequested(), e.RunCancelled())
    assert kinds(pen)[-2:] == ["response.incomplete", "[DONE]"]
    assert (last(pen)["status"], last(pen)["incomplete_details"]) == ("cancelled", None)


def test_a_limit_is_incomplete_with_its_reason() -> None:
    """C10: max_output_tokens, max_messages, content_filter."""
    for reason in ("max_output_tokens", "max_messages", "content_filter"):
        pen = Pen().attempt().write(e.RunInterrupted(reason))
        assert kinds(pen)[-2:] == ["response.incomplete", "[DONE]"]
        assert (last(pen)["status"], last(pen)["incomplete_details"]) == ("incomplete", {"reason": reason})


def test_a_call_that_the_end_cut_off_is_incomplete() -> None:
    """C1: nothing is open at the end."""
    pen = Pen(spec_of(tool_items="mcp_call")).attempt()
    call = pen.call("terminal", '{"command":"ls"}')
    pen.settle(call).start(call).write(e.CancelRequested(), e.RunCancelled())
    (item,) = json_of(body.output(pen.state))
    assert (item["status"], item["arguments"], item["output"]) == ("incomplete", '{"command":"ls"}', None)


def test_frames_do_not_depend_on_the_length_of_the_text_before_them() -> None:
    """House 6.9: a delta costs one small object; the view shares all but its last cell."""
    view, _ = edge_view(RESPONSES, Pen().attempt().text("a").entries)
    after, (frame,) = RESPONSES.step(view, e.Entry("0123456789abcdef", 3, 0, 1, e.TextDelta("b")))
    assert after.text.pieces is view.text.pieces and after.rest is view.rest
    assert len(frame) < 300


@quick
@given(journals(), st.integers(-1, 40), st.integers(1, 9))
def test_many_entries_at_once_render_as_each_by_itself(entries: list[e.Entry], after: int, size: int) -> None:
    """G1: the bulk way of a replay is no second renderer."""
    for projection in (RESPONSES, REATTACH):
        view, frames = projection.view0(after), []
        for start_ in range(0, len(entries), size):
            view, more = projection.steps(view, entries[start_ : start_ + size])
            frames += more
        plain, expected = projection.view0(after), []
        for entry in entries:
            plain, more = projection.step(plain, entry)
            expected += more
        assert frames == expected and view == plain

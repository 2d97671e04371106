"""The Runs stream (G8): properties over random legal journals, and each event's fields."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.state import fold
from ninelives.dialects.runs.body import body as run_body
from ninelives.dialects.runs.frames import RunsProjection
from ninelives.dialects.shared import hidden
from tests.dialects.transcript import edge_view, follow, json_of, read, replay
from tests.journals import AT, STEP_MS, Pen, journals, quick, spec_of

RUNS = RunsProjection()
ENDS = {"run.completed", "run.failed", "run.cancelled", "run.incomplete"}


def events(frames: list[bytes]) -> list[dict[str, Any]]:
    return [frame.data for frame in read(b"".join(frames)) if frame.event is None]


def names(frames: list[bytes]) -> list[str]:
    return [event["event"] for event in events(frames)]


@quick
@given(journals("runs"))
def test_every_event_is_data_only_with_its_place(entries: list[e.Entry]) -> None:
    """G8: {event, seq, run_id, timestamp, ...}; one end, then the comment `: stream closed`."""
    frames = replay(RUNS, entries)
    shown = read(b"".join(frames))
    assert [frame.event for frame in shown] == [None] * (len(shown) - 1) + [":"]
    assert shown[-1].data == "stream closed"
    told = events(frames)
    for event in told:
        assert list(event)[:4] == ["event", "seq", "run_id", "timestamp"]
        assert event["run_id"] == "run_0123456789abcdef"
        assert event["timestamp"] == (AT + event["seq"] * STEP_MS) / 1000
    assert [event["event"] in ENDS for event in told] == [False] * (len(told) - 1) + [True]
    assert [event["seq"] for event in told] == sorted(event["seq"] for event in told)


@quick
@given(journals("runs"))
def test_after_gives_exactly_the_later_events_and_the_end_again(entries: list[e.Entry]) -> None:
    """D1, G5: `after` counts journal seqs; at or beyond the end the terminal event comes again."""
    full = replay(RUNS, entries)
    seqs = [events([frame])[0]["seq"] for frame in full]
    for k in range(-1, entries[-1].seq + 3):
        later = [frame for frame, seq in zip(full, seqs, strict=True) if seq > k]
        assert replay(RUNS, entries, after=k) == (later or full[-1:])


@quick
@given(journals("runs"), st.data())
def test_every_reader_gets_the_same_events(entries: list[e.Entry], data: st.DataObject) -> None:
    """P1 holds for runs: what was seen is a prefix of the replay, wherever the edge is met."""
    full = replay(RUNS, entries)
    for edge in range(1, len(entries) + 1):
        before, then = follow(RUNS, entries, edge)
        assert before + then == full
    edge = data.draw(st.integers(1, len(entries)))
    shared, _ = edge_view(RUNS, entries[:edge])
    assert edge_view(RUNS, entries[:edge], 7)[0] == shared
    assert not shared.over


@quick
@given(journals("runs"))
def test_deltas_that_were_not_dropped_are_the_output(entries: list[e.Entry]) -> None:
    """G8: message.dropped {from_seq} takes back every delta from there on; what is left is the text of the run."""
    state, shown = fold(entries), events(replay(RUNS, entries))
    left: list[dict[str, Any]] = []
    for event in shown:
        match event["event"]:
            case "message.delta":
                left.append(event)
            case "message.dropped":
                assert left and left[-1]["seq"] >= event["from_seq"]
                left = [each for each in left if each["seq"] < event["from_seq"]]
    text = "".join(event["delta"] for event in left)
    body = json_of(run_body(state))
    assert "".join(text.split()) == "".join(str(body["output"]).split()), "the same but for paragraphs"
    if shown[-1]["event"] in ("run.completed", "run.incomplete"):
        assert shown[-1]["output"] == body["output"] and shown[-1]["usage"] == body["usage"]
    if shown[-1]["event"] == "run.failed":
        assert shown[-1]["error"] == body["error"]
    assert body["last_event"] == shown[-1]["event"]


@quick
@given(journals("runs"))
def test_each_visible_call_starts_once_and_completes_once(entries: list[e.Entry]) -> None:
    """G8, G9: a second start after a crash makes no second event; `_tools` make none."""
    shown = [event for event in events(replay(RUNS, entries)) if event["event"].startswith("tool.")]
    started = [event["toolCallId"] for event in shown if event["event"] == "tool.started"]
    completed = [event["toolCallId"] for event in shown if event["event"] == "tool.completed"]
    assert len(set(started)) == len(started) and len(set(completed)) == len(completed)
    assert set(completed) <= set(started)
    state = fold(entries)
    assert not any(hidden(event["tool"]) for event in shown)
    settled = {call for call in state.facts.results if call in started}
    assert set(completed) == settled


def test_the_fields_of_each_event() -> None:
    """G8."""
    pen = Pen(spec_of("runs")).attempt().think("Hmm").text("Look").crash().think("So").text("Look.")
    call = pen.call("terminal", '{"command":"ls"}')
    pen.settle(call).start(call).finish(call, "no", is_error=True)
    pen.write(e.MessageCompleted("Done", usage=e.Usage(3, 4), reasoning="Good")).complete()
    shown = events(replay(RUNS, pen.entries))
    told = [{k: v for k, v in event.items() if k not in ("run_id", "timestamp")} for event in shown]
    usage = {
        "input_tokens": 13,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 22,
    }
    assert told == [
        {"event": "message.delta", "seq": 3, "delta": "Look"},
        {"event": "message.dropped", "seq": 4, "from_seq": 3},
        {"event": "message.delta", "seq": 6, "delta": "Look."},
        {"event": "reasoning.available", "seq": 7, "text": "So"},
        {"event": "tool.started", "seq": 8, "tool": "terminal", "toolCallId": call.id, "preview": "run terminal"},
        {
            "event": "tool.completed",
            "seq": 9,
            "tool": "terminal",
            "toolCallId": call.id,
            "duration": 0.012,
            "error": True,
            "outcome": "known",
        },
        {"event": "reasoning.available", "seq": 10, "text": "Good"},
        {"event": "message.delta", "seq": 10, "delta": "Done"},
        {"event": "run.completed", "seq": 11, "output": "Look.\n\nDone", "usage": usage},
    ]


def test_r1_a_question_names_the_command_as_a_card_shows_it_since_version_4() -> None:
    """Front ends of hermes-agent read command, description, pattern_key(s), allow_permanent and approval_id."""
    shown = {}
    for version in (3, 4):
        pen = Pen(spec_of("runs", projection=version)).attempt()
        calls = [pen.call("terminal", '{"command":"rm x"}'), pen.call("write_file", '{"path":"a\\u200b"}')]
        asked = [
            e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT, tool_digest="t") for call in calls
        ]
        pen.settle(*calls).write(asked[0], e.ApprovalGiven(call_id=calls[0].id, choice="once"), asked[1])
        shown[version] = [event for event in events(replay(RUNS, pen.entries)) if event["event"] == "approval.request"]
    ours = set(shown[3][0])
    assert set(shown[4][0]) - ours == {
        "approval_id", "command", "description", "pattern_key", "pattern_keys", "allow_permanent",
    }  # fmt: skip
    for old, new in zip(shown[3], shown[4], strict=True):
        assert old == {name: new[name] for name in ours}
    terminal, file = shown[4]
    assert (terminal["command"], terminal["pattern_key"], terminal["pattern_keys"]) == (
        "rm x",
        "terminal",
        ["terminal"],
    )
    assert terminal["approval_id"] == terminal["toolCallId"] and terminal["allow_permanent"] is True
    assert file["command"] == 'write_file {"path":"a\\u200b"}' and "write_file" in file["description"]


def test_a_question_and_its_answer_are_events() -> None:
    """G8, D4: with the choices, and what they are bound to."""
    pen = Pen(spec_of("runs")).attempt()
    call = pen.call("terminal", '{"command":"rm x"}')
    asked = e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT + 3_600_000)
    pen.settle(call).write(asked, e.ApprovalGiven(call_id=call.id, choice="session"))
    request, responded = events(replay(RUNS, pen.entries))
    assert {k: v for k, v in request.items() if k not in ("run_id", "timestamp")} == {
        "event": "approval.request",
        "seq": 3,
        "tool": "terminal",
        "toolCallId": call.id,
        "arguments": '{"command":"rm x"}',
        "digest": "d",
        "code": "K7QM2X",
        "expires_at": (AT + 3_600_000) / 1000,
        "choices": ["once", "session", "always", "deny"],
    }
    assert (responded["event"], responded["toolCallId"], responded["choice"]) == (
        "approval.responded",
        call.id,
        "session",
    )


def test_a_limit_is_run_incomplete_with_its_reason() -> None:
    """G8, C10."""
    pen = Pen(spec_of("runs")).attempt().text("Lo").settle(finish="length")
    pen.write(e.RunInterrupted("max_output_tokens"))
    last = events(replay(RUNS, pen.entries))[-1]
    assert (last["event"], last["reason"], last["output"]) == ("run.incomplete", "max_output_tokens", "Lo")


def test_the_object_of_a_run_has_the_fields_of_hermes() -> None:
    """G8."""
    pen = Pen(spec_of("runs")).attempt().text("Hel")
    assert json_of(run_body(pen.state)) == {
        "object": "hermes.run",
        "run_id": "run_0123456789abcdef",
        "status": "running",
        "session_id": "auto-1",
        "title": "Say hello",
        "model": "hermes-agent",
        "created_at": AT / 1000,
        "updated_at": (AT + STEP_MS) / 1000,
        "last_event": "message.delta",
        "output": "",
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
        "usage_incomplete": False,
        "usage_estimated": False,
        "cost": 0.0,
        "attempt": 1,
        "recoveries": 0,
        "error": None,
    }


def test_the_status_of_each_phase() -> None:
    """G8: queued, running, waiting_for_approval, stopping, completed, failed, cancelled, incomplete."""

    def status(pen: Pen) -> object:
        return run_body(pen.state).status

    pen = Pen(spec_of("runs"))
    assert status(pen) == "queued"
    assert status(pen.attempt()) == "running"
    call = pen.call("terminal")
    assert status(pen.settle(call)) == "running"
    asked = e.ApprovalRequested(call=call, digest="d", code="1", expires_at=0)
    assert status(pen.write(asked)) == "waiting_for_approval"
    assert status(pen.write(e.CancelRequested())) == "stopping"
    assert status(pen.write(e.RunCancelled())) == "cancelled"
    failed = e.RunFailed(code="server_error", message="No")
    assert status(Pen().write(failed)) == "failed"
    assert run_body(Pen().write(failed).state).error == "No"
    assert status(Pen().attempt().complete()) == "completed"
    assert status(Pen().attempt().write(e.RunInterrupted("max_messages"))) == "incomplete"

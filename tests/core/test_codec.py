"""Events as bytes: stored for years, so their bytes are written down here."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec import Raw

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.errors import Damaged, NewerEvent
from ninelives.core.spec import Resolved, Spec
from tests.journals import journals, quick

CALL = e.Call("call_1", "terminal", '{"command":"ls"}')
GOLDEN: list[tuple[e.AnyEvent, str]] = [
    (
        e.RunAccepted(spec=Spec(dialect="chat", model="m"), resolved=Resolved(), owner="alice"),
        '{"type":"run.accepted","spec":{"dialect":"chat","model":"m"},"resolved":{},"owner":"alice"}',
    ),
    (
        e.RunAccepted(
            spec=Spec(
                dialect="responses",
                model="m",
                input=({"role": "user", "content": "Grüße 🦑"},),
                history_json=Raw(b'[{"role":"user","content":"h"}]'),
                instructions="Be brief",
                sampling={"temperature": 0.5},
                client_tools=({"type": "function", "function": {"name": "f"}},),
                tool_choice="required",
                chore=True,
                max_output_tokens=16,
                max_tool_calls=2,
                metadata={"a": "b"},
                store=False,
                background=True,
                include_usage=True,
                tool_items="mcp_call",
                tool_progress="bare",
                output_bound=100,
                on_disconnect="cancel",
                projection=2,
                echo={"user": "u"},
                items=({"type": "message"},),
            ),
            resolved=Resolved(previous="r", conversation="conv_1", session="s", session_turns=0, remember=True),
            owner="alice",
        ),
        '{"type":"run.accepted","spec":{"dialect":"responses","model":"m",'
        '"input":[{"role":"user","content":"Grüße 🦑"}],'
        '"history":[{"role":"user","content":"h"}],"instructions":"Be brief","sampling":{"temperature":0.5},'
        '"client_tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","chore":true,'
        '"max_output_tokens":16,"max_tool_calls":2,"metadata":{"a":"b"},"store":false,"background":true,'
        '"include_usage":true,"tool_items":"mcp_call","tool_progress":"bare","output_bound":100,'
        '"on_disconnect":"cancel","projection":2,"echo":{"user":"u"},"items":[{"type":"message"}]},'
        '"resolved":{"previous":"r","conversation":"conv_1","session":"s","session_turns":0,"remember":true},'
        '"owner":"alice"}',
    ),
    (e.AttemptStarted(), '{"type":"attempt.started"}'),
    (e.AttemptStarted(clean=False), '{"type":"attempt.started","clean":false}'),
    (e.TextDelta("Grüße\n\u2028"), '{"type":"text.delta","text":"Grüße\\n\u2028"}'),
    (e.ReasoningDelta("Hm"), '{"type":"reasoning.delta","text":"Hm"}'),
    (e.CallBegun(call_id="call_1", name="f"), '{"type":"call.begun","call_id":"call_1","name":"f"}'),
    (
        e.CallBegun(call_id="call_1", name="f", emoji="🔧"),
        '{"type":"call.begun","call_id":"call_1","name":"f","emoji":"🔧"}',
    ),
    (e.MessageCompleted("Hi"), '{"type":"message.completed","text":"Hi"}'),
    (
        e.MessageCompleted("Hi", (CALL, e.Call("call_2", "f", "", True)), e.Usage(1, 2, 3, 4), "Hm", "tool_calls"),
        '{"type":"message.completed","text":"Hi","calls":[{"id":"call_1","name":"terminal",'
        '"arguments":"{\\"command\\":\\"ls\\"}"},{"id":"call_2","name":"f","arguments":"","client":true}],'
        '"usage":{"input_tokens":1,"output_tokens":2,"cached_tokens":3,"reasoning_tokens":4},"reasoning":"Hm",'
        '"finish":"tool_calls"}',
    ),
    (
        e.ToolStarted(call=CALL),
        '{"type":"tool.started","call":{"id":"call_1","name":"terminal","arguments":"{\\"command\\":\\"ls\\"}"}}',
    ),
    (
        e.ToolStarted(call=CALL, effect="read", label="ls", emoji="🔧", process=e.Process("boot", 42, 7)),
        '{"type":"tool.started","call":{"id":"call_1","name":"terminal","arguments":"{\\"command\\":\\"ls\\"}"},'
        '"effect":"read","label":"ls","emoji":"🔧","process":{"boot":"boot","pid":42,"started":7}}',
    ),
    (e.ToolProgressed("call_1", "half"), '{"type":"tool.progressed","call_id":"call_1","text":"half"}'),
    (e.ToolFinished(call_id="call_1", output="ok"), '{"type":"tool.finished","call_id":"call_1","output":"ok"}'),
    (
        e.ToolFinished(call_id="call_1", output="?", is_error=True, outcome="unknown", duration_ms=9),
        '{"type":"tool.finished","call_id":"call_1","output":"?","is_error":true,"outcome":"unknown","duration_ms":9}',
    ),
    (
        e.ApprovalRequested(call=CALL, digest="d", code="1234", expires_at=5),
        '{"type":"approval.requested","call":{"id":"call_1","name":"terminal",'
        '"arguments":"{\\"command\\":\\"ls\\"}"},"digest":"d","code":"1234","expires_at":5}',
    ),
    (
        e.ApprovalGiven(call_id="call_1", choice="once"),
        '{"type":"approval.given","call_id":"call_1","choice":"once"}',
    ),
    (
        e.ApprovalGiven(call_id="call_1", choice="deny", by="bob"),
        '{"type":"approval.given","call_id":"call_1","choice":"deny","by":"bob"}',
    ),
    (
        e.SteerApplied(id="steer_1", messages=({"role": "user", "content": "Grüße"},), by="key 1"),
        '{"type":"steer.applied","id":"steer_1","messages":[{"role":"user","content":"Grüße"}],"by":"key 1"}',
    ),
    (
        e.SteerUnused(id="steer_1", messages=({"role": "user", "content": "Grüße"},)),
        '{"type":"steer.unused","id":"steer_1","messages":[{"role":"user","content":"Grüße"}]}',
    ),
    (e.CancelRequested(), '{"type":"cancel.requested"}'),
    (e.CancelRequested("stalled"), '{"type":"cancel.requested","reason":"stalled"}'),
    (e.RunCompleted(), '{"type":"run.completed"}'),
    (
        e.RunFailed(code="server_error", message="No"),
        '{"type":"run.failed","code":"server_error","message":"No"}',
    ),
    (
        e.RunFailed(code="server_error", message="No", reason="why", status=502),
        '{"type":"run.failed","code":"server_error","message":"No","reason":"why","status":502}',
    ),
    (e.RunCancelled(), '{"type":"run.cancelled"}'),
    (e.RunInterrupted("max_messages"), '{"type":"run.interrupted","reason":"max_messages"}'),
]
IDS = [type(event).__name__ for event, _ in GOLDEN]


def test_every_kind_is_written_down() -> None:
    """A new kind needs its bytes here, and a new FORMAT (R18)."""
    assert {type(event) for event, _ in GOLDEN} == set(e.AnyEvent.__args__)  # type: ignore[attr-defined]
    assert codec.FORMAT == 4


@pytest.mark.parametrize(("event", "stored"), GOLDEN, ids=IDS)
def test_the_bytes_of_each_kind_are_these_for_years(event: e.AnyEvent, stored: str) -> None:
    """Kinds are added, never changed: what was stored can always be read."""
    assert codec.encode(event) == stored.encode()
    assert codec.decode(stored.encode()) == event


@quick
@given(journals())
def test_every_event_of_a_run_comes_back_as_it_was(entries: list[e.Entry]) -> None:
    """Round trip, with any text."""
    for entry in entries:
        again = codec.decode(codec.encode(entry.event))
        assert again == entry.event and type(again) is type(entry.event)


@pytest.mark.parametrize(
    "stored",
    [
        b'{"type":"run.teleported"}',
        b'{"text":"no kind"}',
        b'{"type":"text.delta"}',
        b'{"type":"text.delta","text":3}',
        b'{"type":"run.interrupted","reason":"bored"}',
        b'{"type":"text.delta","text":"cut of',
        b'{"type":"text.delta","text":"\xff"}',
        b"[]",
        b"",
    ],
)
def test_an_unknown_kind_or_shape_is_damage_and_never_skipped(stored: bytes) -> None:
    """R18."""
    with pytest.raises(Damaged):
        codec.decode(stored)


def test_an_unknown_kind_is_told_apart_from_damage() -> None:
    """R18: while releases are mixed a caller can ask another replica. No backup has to be restored."""
    with pytest.raises(NewerEvent, match=r"run\.teleported"):
        codec.decode(b'{"type":"run.teleported"}')
    with pytest.raises(Damaged) as caught:
        codec.decode(b'{"type":"text.delta","text":3}')
    assert not isinstance(caught.value, NewerEvent)


def test_fields_that_were_added_later_are_no_damage() -> None:
    """Fields are only ever added: an older reader passes over them."""
    assert codec.decode(b'{"type":"text.delta","text":"a","later":1}') == e.TextDelta("a")


KINDS_OF_FORMAT_2 = {
    "call.begun",
}
KINDS_OF_FORMAT_1 = {
    "approval.given",
    "approval.requested",
    "attempt.started",
    "cancel.requested",
    "message.completed",
    "reasoning.delta",
    "run.accepted",
    "run.cancelled",
    "run.completed",
    "run.failed",
    "run.interrupted",
    "text.delta",
    "tool.finished",
    "tool.progressed",
    "tool.started",
}


KINDS_OF_FORMAT_3 = {"steer.applied", "steer.unused"}


def test_R18_a_new_kind_of_event_comes_with_a_new_format() -> None:
    """A release that does not know the kind must refuse the store at its start, not meet the event later."""
    known = KINDS_OF_FORMAT_1 | KINDS_OF_FORMAT_2 | KINDS_OF_FORMAT_3
    assert codec.FORMAT == 4 and known == codec._KINDS, "raise FORMAT and add the kinds of the new one here"

"""The transition table: which event may come when. Every cell is tried, the allowed and the absent ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from ninelives.core import events as e
from ninelives.core.errors import Damaged, IllegalEvent
from ninelives.core.state import apply, fold, start
from ninelives.core.table import TABLE, TERMINAL, Phase
from tests.journals import AT, RUN, Pen, journals, quick, spec_of

FAILED = e.RunFailed(code="server_error", message="No")
A, B = e.Call("call_a", "terminal", "{}"), e.Call("call_b", "terminal", "{}")
"""A is started where calls are due, B is not."""


def acting() -> Pen:
    return Pen().attempt().text("Hi").settle(A, B).start(A)


def asked() -> Pen:
    return acting().write(e.ApprovalRequested(call=B, digest="d", code="1", expires_at=AT))


STANDS: dict[Phase, Callable[[], Pen]] = {
    Phase.QUEUED: Pen,
    Phase.READY: lambda: Pen().attempt(),
    Phase.DRAFTING: lambda: Pen().attempt().text("Hi"),
    Phase.ACTING: acting,
    Phase.WAITING: asked,
    Phase.STOPPING: lambda: acting().write(e.CancelRequested()),
    Phase.COMPLETED: lambda: Pen().attempt().complete(),
    Phase.FAILED: lambda: Pen().write(FAILED),
    Phase.CANCELLED: lambda: Pen().write(e.CancelRequested(), e.RunCancelled()),
    Phase.INTERRUPTED: lambda: Pen().attempt().write(e.RunInterrupted("max_messages")),
}
EVENTS: list[e.AnyEvent] = [
    Pen().entries[0].event,
    e.AttemptStarted(),
    e.TextDelta("x"),
    e.ReasoningDelta("x"),
    e.CallBegun(call_id="call_c", name="f"),
    e.MessageCompleted("Hi"),
    e.ToolStarted(call=B),
    e.ToolProgressed("call_a", "half"),
    e.ToolFinished(call_id="call_a", output="ok"),
    e.ApprovalRequested(call=B, digest="d", code="1", expires_at=AT),
    e.ApprovalGiven(call_id="call_b", choice="once"),
    e.SteerApplied(id="steer_1", messages=()),
    e.SteerUnused(id="steer_1", messages=()),
    e.CancelRequested(),
    e.RunCompleted(),
    FAILED,
    e.RunCancelled(),
    e.RunInterrupted("max_messages"),
]
ENDS = {"CancelRequested": "STOPPING", "RunFailed": "FAILED", "RunInterrupted": "INTERRUPTED"}
ALLOWED: dict[str, dict[str, str]] = {
    "QUEUED": {
        "AttemptStarted": "READY",
        "CancelRequested": "STOPPING",
        "RunFailed": "FAILED",
        "SteerUnused": "QUEUED",
    },
    "READY": ENDS
    | {
        "AttemptStarted": "READY",
        "TextDelta": "DRAFTING",
        "ReasoningDelta": "DRAFTING",
        "CallBegun": "READY",
        "MessageCompleted": "READY",
        "ToolStarted": "ACTING",
        "ApprovalRequested": "WAITING",
        "SteerApplied": "READY",
        "SteerUnused": "READY",
        "RunCompleted": "COMPLETED",
    },
    "DRAFTING": {
        "AttemptStarted": "READY",
        "TextDelta": "DRAFTING",
        "ReasoningDelta": "DRAFTING",
        "CallBegun": "DRAFTING",
        "MessageCompleted": "READY",
        "CancelRequested": "STOPPING",
        "RunFailed": "FAILED",
        "SteerUnused": "DRAFTING",
    },
    "ACTING": ENDS
    | {
        "AttemptStarted": "ACTING",
        "ToolStarted": "ACTING",
        "ToolProgressed": "ACTING",
        "ToolFinished": "ACTING",
        "ApprovalRequested": "WAITING",
        "SteerUnused": "ACTING",
    },
    "WAITING": ENDS
    | {
        "AttemptStarted": "WAITING",
        "ApprovalGiven": "ACTING",
        "ToolFinished": "WAITING",
        "SteerUnused": "WAITING",
    },
    "STOPPING": {
        "AttemptStarted": "STOPPING",
        "ToolFinished": "STOPPING",
        "SteerUnused": "STOPPING",
        "RunCancelled": "CANCELLED",
        "RunFailed": "FAILED",
    },
    "COMPLETED": {},
    "FAILED": {},
    "CANCELLED": {},
    "INTERRUPTED": {},
}
"""The table, written down a second time: a change of it is a decision, not a slip."""
CELLS = [(phase, event) for phase in STANDS for event in EVENTS]


def named(value: object) -> str:
    return value.name if isinstance(value, Phase) else type(value).__name__


def test_the_events_tried_here_are_all_there_are() -> None:
    """A new kind of event needs a row here."""
    assert {type(event) for event in EVENTS} == set(e.AnyEvent.__args__)  # type: ignore[attr-defined]
    assert len(TABLE) == len(Phase)


@pytest.mark.parametrize("phase", list(STANDS), ids=named)
def test_each_stand_is_in_its_phase(phase: Phase) -> None:
    """The tests below begin where they say."""
    assert STANDS[phase]().state.phase is phase


@pytest.mark.parametrize(("phase", "event"), CELLS, ids=named)
def test_a_cell_leads_to_its_phase_and_an_absent_cell_is_the_error(phase: Phase, event: e.AnyEvent) -> None:
    """House idea 2, rule 5.6."""
    pen = STANDS[phase]()
    leads_to = ALLOWED[phase.name].get(type(event).__name__)
    if leads_to is None:
        with pytest.raises(IllegalEvent, match=f"{type(event).__name__} cannot come in phase {phase.name}"):
            pen.write(event)
    else:
        assert pen.write(event).state.phase.name == leads_to


def test_the_last_result_leads_from_acting_to_ready() -> None:
    """ACTING while calls are due, else READY."""
    pen = acting().finish(A)
    assert pen.state.phase is Phase.ACTING
    assert pen.start(B).finish(B).state.phase is Phase.READY


def test_a_message_that_asks_for_calls_leads_to_acting() -> None:
    """And one whose calls the caller runs leads to READY."""
    assert Pen().attempt().settle(A).state.phase is Phase.ACTING
    client = e.Call("call_c", "theirs", "{}", client=True)
    assert Pen().attempt().settle(client).state.phase is Phase.READY


@pytest.mark.parametrize("phase", sorted(TERMINAL), ids=named)
def test_nothing_follows_an_end(phase: Phase) -> None:
    """P3: terminal states never change."""
    assert TABLE[phase] == {}
    assert STANDS[phase]().state.ended


@quick
@given(journals())
def test_a_legal_journal_has_exactly_one_terminal_event_and_it_is_the_last(entries: list[e.Entry]) -> None:
    """P3."""
    assert [isinstance(entry.event, e.Terminal) for entry in entries] == [False] * (len(entries) - 1) + [True]
    assert fold(entries).facts.end == entries[-1].event


@quick
@given(journals())
def test_no_event_at_all_can_follow_a_legal_end(entries: list[e.Entry]) -> None:
    """P3, over random journals."""
    state = fold(entries)
    for event in EVENTS:
        with pytest.raises(IllegalEvent):
            apply(state, e.Entry(RUN, state.seq + 1, AT, 9, event))


def test_a_journal_begins_with_its_acceptance() -> None:
    """NEW has one cell, and its number is 0."""
    accepted = e.RunAccepted(spec=spec_of(), resolved=Pen().state.facts.accepted.resolved, owner="alice")
    assert TABLE[Phase.NEW] == {e.RunAccepted: Phase.QUEUED}
    assert start(e.Entry(RUN, 0, AT, 0, accepted)).phase is Phase.QUEUED
    with pytest.raises(Damaged):
        start(e.Entry(RUN, 1, AT, 0, accepted))
    with pytest.raises(Damaged):
        start(e.Entry(RUN, 0, AT, 0, e.AttemptStarted()))


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_a_missing_or_doubled_number_is_damage(seq: int) -> None:
    """Journals are gapless."""
    state = Pen().attempt().state
    with pytest.raises(Damaged):
        apply(state, e.Entry(RUN, seq, AT, 1, e.TextDelta("x")))

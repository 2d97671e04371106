"""The loop's state is the fold of the journal without its deltas."""

from __future__ import annotations

from hypothesis import given

from ninelives.agents.base import Turn
from ninelives.agents.loop_state import LoopState, end_of
from ninelives.core import events as e
from ninelives.core.state import Facts, apply, start
from ninelives.core.table import DELTAS
from tests.journals import Pen, journals, quick, spec_of

A, B = e.Call("call_a", "read_file", "{}"), e.Call("call_b", "terminal", "{}")


class NeverLast:
    """A sink with room, in which no message is the last."""

    def has_room(self) -> bool:
        return True

    def is_read(self) -> bool:
        return False

    def put(self, delta: e.Delta) -> None:
        raise AssertionError("no delta comes")

    def put_last(self, message: e.MessageCompleted) -> None:
        raise AssertionError("a message with calls is not the last")


def settled(facts: Facts) -> tuple[object, ...]:
    """What the loop decides by."""
    due = [(call_id, due.call, due.attempt, due.started) for call_id, due in facts.due.items()]
    return facts.messages, facts.results, due, facts.usage, facts.calls, facts.approvals, facts.asked, facts.end


@quick
@given(journals())
def test_the_facts_are_those_of_the_journal_after_every_event(entries: list[e.Entry]) -> None:
    state, loop = start(entries[0]), None
    for entry in entries[1:]:
        state = apply(state, entry)
        if isinstance(entry.event, e.AttemptStarted):
            loop = LoopState(Turn(state, ()), "")
        elif loop is not None and type(entry.event) not in DELTAS:
            loop.add(entry.event)
        if loop is not None:
            assert settled(loop.facts) == settled(state.facts)


def test_calls_are_due_in_the_order_of_their_message_until_they_have_a_result() -> None:
    loop = LoopState(Turn(Pen().attempt().settle(A, B).state, ()), "")
    assert [due.call for due in loop.facts.due.values()] == [A, B]
    for event in (e.ToolStarted(call=B), e.ToolStarted(call=A), e.ToolFinished(call_id=A.id, output="")):
        loop.add(event)
    assert [due.call for due in loop.facts.due.values()] == [B]


def test_where_the_window_is_not_known_the_model_is_told_everything() -> None:
    pen = Pen(spec_of(echo={"truncation": "disabled"})).attempt()
    earlier = ({"role": "user", "content": "u" * 100_000}, {"role": "assistant", "content": "a"})
    messages, _, _ = LoopState(Turn(pen.state, earlier), "").request((), 0)
    assert [*messages] == [*earlier, *pen.state.facts.accepted.spec.input]


def test_C10_the_token_budget_is_over_the_whole_run() -> None:
    pen = Pen(spec_of(max_output_tokens=12)).attempt().settle(A, usage=e.Usage(1, 5))
    loop = LoopState(Turn(pen.start(A).finish(A).state, ()), "")
    _, _, options = loop.request((), 0)
    assert options["max_tokens"] == 7 and end_of(loop.facts, 50) is None
    more = e.MessageCompleted("", (B,), e.Usage(1, 7), finish="tool_calls")
    loop.deltas = NeverLast()
    assert loop.end_at_once(more) is None, "its call comes first"
    for event in (more, e.ToolStarted(call=B), e.ToolFinished(call_id=B.id, output="")):
        loop.add(event)
    assert end_of(loop.facts, 50) == e.RunInterrupted("max_output_tokens")

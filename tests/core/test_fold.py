"""What is true of a run: one test per rule of the fold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.errors import IllegalEvent
from ninelives.core.state import (
    Called,
    Handed,
    Returned,
    Said,
    Thought,
    apply,
    between_steps,
    chainable,
    fold,
    join,
    start,
    stopping,
    waiting,
)
from ninelives.core.table import TERMINAL, Phase
from tests.journals import AT, STEP_MS, Pen, journals, quick

A, B = e.Call("call_a", "terminal", "{}"), e.Call("call_b", "read_file", "{}")


def question(call: e.Call) -> e.ApprovalRequested:
    return e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT)


# drafts and facts


def test_a_refusal_comes_after_the_text_of_its_message_and_is_dropped_with_it() -> None:
    """G3 for the words with which a model declines."""
    pen = Pen().attempt().text("Well. ").decline("No").crash()
    assert pen.state.facts.items == (Said(2, "", "dropped"),)
    pen.text("Well. ").decline("No", ".")
    assert pen.state.draft_items == (Said(5, "Well. ", "cut", "No."),)
    pen.settle().complete()
    assert pen.state.facts.items[1:] == (Said(5, "Well. ", "whole", "No."),)
    assert pen.state.facts.messages[-1].spoken == "Well. No."


def test_text_cannot_follow_a_refusal_and_a_refusal_is_never_empty() -> None:
    for pen in (Pen().attempt().decline("No"), Pen().attempt().text("Well. ").decline("No")):
        with pytest.raises(IllegalEvent):
            pen.text("but")
    for pen in (Pen().attempt(), Pen().attempt().text("Well. ")):
        with pytest.raises(IllegalEvent):
            pen.decline("")
    with pytest.raises(IllegalEvent):
        Pen().attempt().text("").decline("No")
    with pytest.raises(IllegalEvent):
        Pen().attempt().decline("No").write(e.MessageCompleted("", refusal="Yes"))


def test_a_draft_is_dropped_when_a_new_attempt_starts_and_the_facts_stay() -> None:
    """House idea 5, G3."""
    pen = Pen().attempt().text("Look: ").settle(A).start(A).finish(A, "42").think("Hm").text("The ans")
    before = pen.state.facts
    facts = pen.crash().state.facts
    assert (facts.messages, facts.results, facts.usage) == (before.messages, before.results, before.usage)
    assert not pen.state.drafting and join(pen.state.text) == ""
    assert facts.items[: len(before.items)] == before.items
    assert facts.items[len(before.items) :] == (Thought(6, "Hm"), Said(7, "", "dropped"))


def test_a_draft_whose_model_call_was_kept_stands() -> None:
    pen = Pen().attempt().think("Hm").text("The ", "ans").keep()
    state = pen.state
    assert state.phase is Phase.DRAFTING and join(state.text) == "The ans"
    assert (state.facts.dropped, state.facts.usage_incomplete, state.facts.attempt) == ((), False, 2)
    pen.text("wer").write(e.MessageCompleted("The answer", reasoning="Hm"))
    assert pen.state.facts.items == (Thought(2, "Hm"), Said(3, "The answer"))
    assert Pen().attempt().keep().state.phase is Phase.READY


def test_r7_text_that_stays_is_progress_and_an_attempt_that_adds_none_is_a_strike() -> None:
    pen = Pen().attempt().keep()
    assert pen.state.facts.strikes == 1
    pen.text("The ").keep()
    assert pen.state.facts.strikes == 0
    pen.keep().keep()
    assert pen.state.facts.strikes == 2
    assert pen.text("ans").crash().state.facts.strikes == 3, "text that a crash drops is no progress"


def test_a_thought_that_a_crash_cut_off_is_not_kept() -> None:
    """G3: closed with empty content."""
    assert Pen().attempt().think("Hm").crash().state.facts.items == (Thought(2, "", kept=False),)


def test_the_range_of_a_dropped_draft_is_remembered() -> None:
    """B6: a resume inside of it is refused."""
    pen = Pen().attempt().think("Hm").text("a", "b").crash().crash().text("c").crash()
    assert pen.state.facts.dropped == ((2, 4), (7, 7))


def test_the_end_keeps_a_draft_as_cut() -> None:
    """What a client has seen stands."""
    pen = Pen().attempt().think("Hm").text("Hel").write(e.CancelRequested(), e.RunCancelled())
    assert pen.state.facts.items == (Thought(2, "Hm"), Said(3, "Hel", "cut"))


def test_the_draft_is_shown_to_those_who_ask_in_the_middle() -> None:
    """C2: GET shows all output so far."""
    pen = Pen().attempt().text("a").think("b").text("c")
    assert pen.state.draft_items == (Said(2, "ac", "cut"), Thought(3, "b"))
    assert pen.settle().state.draft_items == ()


def test_a_message_must_equal_its_deltas() -> None:
    """Text and reasoning alike."""
    for wrong in (e.MessageCompleted("Hallo"), e.MessageCompleted("Hello", reasoning="Hmm")):
        with pytest.raises(IllegalEvent, match="sum of its deltas"):
            Pen().attempt().think("Hm").text("Hel", "lo").write(wrong)
    assert Pen().attempt().think("Hm").text("Hel", "lo").write(e.MessageCompleted("Hello", reasoning="Hm"))


def test_a_message_may_come_without_deltas() -> None:
    """Its reasoning and its text are then items of its own entry."""
    pen = Pen().attempt().write(e.MessageCompleted("Hello", reasoning="Hm"))
    assert pen.state.facts.items == (Thought(2, "Hm"), Said(2, "Hello"))


def test_a_message_that_a_limit_cut_is_marked() -> None:
    """C10."""
    for finish in ("length", "content_filter"):
        pen = Pen().attempt().text("Hel").settle(finish=finish)
        assert pen.state.facts.items == (Said(2, "Hel", "cut"),)


def test_items_are_in_the_order_in_which_they_happened() -> None:
    """C9: text before, between and after tools."""
    theirs = e.Call("call_c", "theirs", "{}", client=True)
    pen = Pen().attempt().text("a").settle(A, B).start(A, B).finish(B).finish(A).text("b").settle(theirs).complete()
    assert [type(item) for item in pen.state.facts.items] == [Said, Called, Called, Returned, Returned, Said, Handed]
    seqs = [item.seq for item in pen.state.facts.items]
    assert seqs == sorted(seqs)


# calls


def test_due_calls_settle() -> None:
    """Asked for, started, finished."""
    pen = Pen().attempt().settle(A, B)
    assert {key: due.attempt for key, due in pen.state.facts.due.items()} == {"call_a": 0, "call_b": 0}
    pen.start(A)
    assert {key: due.attempt for key, due in pen.state.facts.due.items()} == {"call_a": 1, "call_b": 0}
    pen.finish(A)
    assert list(pen.state.facts.due) == ["call_b"] and list(pen.state.facts.results) == ["call_a"]
    assert pen.start(B).finish(B).state.facts.due == {}


def test_the_callers_own_calls_are_never_due() -> None:
    """B5: they are handed back."""
    theirs = e.Call("call_c", "theirs", "{}", client=True)
    assert list(Pen().attempt().settle(theirs, A).state.facts.due) == ["call_a"]


def test_a_second_start_in_the_same_attempt_is_illegal() -> None:
    """E3: one start, one deed."""
    with pytest.raises(IllegalEvent, match="twice in one attempt"):
        Pen().attempt().settle(A).start(A, A)


def test_a_second_start_in_a_later_attempt_is_fine_and_makes_no_second_item() -> None:
    """G9."""
    pen = Pen().attempt().settle(A).start(A).crash()
    assert pen.state.facts.due["call_a"].attempt == 1
    pen.start(A)
    assert pen.state.facts.due["call_a"].attempt == 2
    assert [type(item) for item in pen.finish(A).state.facts.items] == [Called, Returned]


def test_a_finish_without_a_start_is_illegal() -> None:
    """B3, E3."""
    for pen in (Pen().attempt().settle(A), Pen().attempt().settle(B).start(B)):
        with pytest.raises(IllegalEvent, match="without a start"):
            pen.finish(A)


def test_a_settled_call_cannot_start_again() -> None:
    """P5."""
    with pytest.raises(IllegalEvent, match="has a result already"):
        Pen().attempt().settle(A, B).start(A).finish(A).start(A)


def test_a_call_id_is_used_once() -> None:
    """E3: call ids are unique per run."""
    with pytest.raises(IllegalEvent, match="used twice"):
        Pen().attempt().settle(A, A)
    with pytest.raises(IllegalEvent, match="used twice"):
        Pen().attempt().settle(A).start(A).finish(A).settle(A)


def test_a_call_that_nobody_asked_for_may_start() -> None:
    """G14: adapters have no message that asks."""
    pen = Pen().attempt().start(A)
    assert pen.state.phase is Phase.ACTING and pen.state.facts.calls == 1
    assert pen.finish(A).state.phase is Phase.READY


def test_progress_of_a_call_that_is_not_due_is_illegal() -> None:
    """Nothing can be told about a settled call."""
    with pytest.raises(IllegalEvent, match="not due"):
        Pen().attempt().settle(A).start(A).write(e.ToolProgressed("call_b", "half"))


def test_calls_are_counted_once_over_all_attempts() -> None:
    """Their ids derive from the count."""
    pen = Pen().attempt().settle(A, B).start(A).crash().start(A)
    assert pen.state.facts.calls == 2


def test_the_end_leaves_nothing_due() -> None:
    """A run that ended will never carry out anything."""
    pen = Pen().attempt().settle(A).start(A).write(e.RunFailed(code="server_error", message="No"))
    assert pen.state.facts.due == {}


# strikes, usage, steps


def strikes(pen: Pen) -> int:
    return pen.state.facts.strikes


def test_an_unclean_end_without_a_new_fact_is_a_strike() -> None:
    """R7, G10."""
    pen = Pen().attempt()
    assert [strikes(pen.crash()) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_drafts_and_starts_are_no_new_facts() -> None:
    """G10: only attempts that settled no new fact count."""
    assert strikes(Pen().attempt().text("Hello").crash()) == 1
    pen = Pen().attempt().settle(A).crash()
    assert strikes(pen) == 0
    assert strikes(pen.start(A).crash()) == 1
    assert strikes(pen.start(A).write(e.ToolProgressed("call_a", "half")).crash()) == 2


@pytest.mark.parametrize(
    "new_fact",
    [
        lambda pen: pen.settle(),
        lambda pen: pen.start(A).finish(A),
        lambda pen: pen.start(A).finish(A).start(B).finish(B),
    ],
    ids=["a message", "a result", "two results"],
)
def test_any_new_fact_sets_the_strikes_to_zero(new_fact: Callable[[Pen], Pen]) -> None:
    """R7."""
    pen = Pen().attempt().crash().crash()
    assert strikes(pen) == 2
    assert strikes(new_fact(pen).crash()) == 0
    assert strikes(pen.crash()) == 1


def test_a_clean_end_costs_no_strike_and_forgives_none() -> None:
    """R7: drains and parking cost none."""
    pen = Pen().attempt().crash()
    assert strikes(pen.attempt()) == 1
    assert strikes(pen.attempt()) == 1
    assert strikes(Pen().attempt().attempt()) == 0


def test_an_answered_approval_is_a_new_fact() -> None:
    """D4: waiting for a person takes no retry budget."""
    pen = Pen().attempt().settle(B).write(question(B))
    pen.crash().write(e.ApprovalGiven(call_id="call_b", choice="once"))
    assert strikes(pen.crash()) == 0


def test_waiting_for_a_person_takes_no_retry_budget() -> None:
    """D4: however often the server dies while nobody has answered."""
    pen = Pen().attempt().crash().settle(B).write(question(B))
    assert [strikes(pen.crash()) for _ in range(6)] == [0] * 6


def test_an_answer_is_for_the_call_that_was_asked_about_and_a_start_uses_it_up() -> None:
    """D4: single-use."""
    pen = Pen().attempt().settle(A, B).write(question(B))
    assert pen.state.facts.asked == question(B) and waiting(pen.state)
    with pytest.raises(IllegalEvent, match="nobody asked"):
        pen.write(e.ApprovalGiven(call_id="call_a", choice="once"))
    pen.write(e.ApprovalGiven(call_id="call_b", choice="once"))
    assert pen.state.facts.asked is None and list(pen.state.facts.approvals) == ["call_b"]
    assert pen.start(B).state.facts.approvals == {}


@pytest.mark.parametrize(
    "pen",
    [
        lambda: Pen().attempt().settle(B, A).write(question(B), e.ApprovalGiven(call_id="call_b", choice="once")),
        lambda: Pen().attempt().settle(A, B).start(B).finish(B),
    ],
    ids=["answered already", "settled"],
)
def test_a_question_is_about_a_call_that_nobody_has_answered(pen: Callable[[], Pen]) -> None:
    """D4."""
    with pytest.raises(IllegalEvent, match="does not wait for an approval"):
        pen().write(question(B))


def test_a_question_about_a_call_of_the_agent_itself_makes_it_due() -> None:
    """No message asked for the call. A crash must not lose it."""
    state = Pen().attempt().write(question(B)).state
    assert list(state.facts.due) == ["call_b"] and state.facts.calls == 1


def test_a_call_that_waits_for_an_answer_cannot_finish() -> None:
    """Else nothing would be due when the answer comes."""
    with pytest.raises(IllegalEvent, match="waits for an approval"):
        Pen().attempt().settle(A).start(A).crash().write(question(A)).finish(A)


def test_the_end_closes_a_question() -> None:
    """A run that was cancelled asks nobody."""
    pen = Pen().attempt().settle(B).write(question(B), e.CancelRequested(), e.RunCancelled())
    assert pen.state.facts.asked is None and pen.state.facts.approvals == {}


def test_usage_is_the_sum_of_all_messages_of_all_attempts() -> None:
    """C11."""
    pen = Pen().attempt().settle(A, usage=e.Usage(10, 5, 2, 1)).crash().start(A).finish(A)
    pen.settle(usage=e.Usage(20, 7, 3, 2)).complete()
    assert pen.state.facts.usage == e.Usage(30, 12, 5, 3)
    assert pen.state.facts.usage_incomplete is False


@pytest.mark.parametrize(
    ("pen", "incomplete"),
    [
        (lambda: Pen().attempt().text("Hel").crash(), True),
        (lambda: Pen().attempt().think("Hm").crash(), True),
        (lambda: Pen().attempt().crash(), True),
        (lambda: Pen().attempt().settle(A).start(A).crash(), False),
        (lambda: Pen().attempt().attempt(), False),
        (lambda: Pen().write(e.AttemptStarted(clean=False)), False),
    ],
    ids=["draft", "thought", "asked the model", "in a tool", "parked", "before the first attempt"],
)
def test_usage_is_incomplete_where_a_crash_cut_a_model_call(pen: Callable[[], Pen], incomplete: bool) -> None:
    """C11."""
    made = pen()
    assert made.state.facts.usage_incomplete is incomplete
    if incomplete:
        made.settle().attempt().complete()
        assert made.state.facts.usage_incomplete is True, "what was not told stays untold"


def test_between_steps_is_where_nothing_is_under_way() -> None:
    """A9: no message and no tool in flight."""
    pen = Pen().attempt()
    stands = [between_steps(pen.state)]
    for step in (
        lambda: pen.text("Hel"),
        lambda: pen.settle(A, B),
        lambda: pen.start(A),
        lambda: pen.finish(A),
        lambda: pen.start(B),
        lambda: pen.crash(),
        lambda: pen.start(B),
        lambda: pen.finish(B),
    ):
        step()
        stands.append(between_steps(pen.state))
    assert stands == [True, False, True, False, True, False, True, False, True]


def test_completed_runs_and_those_that_a_limit_ended_chain() -> None:
    """C6."""
    assert chainable(Pen().attempt().complete().state)
    assert chainable(Pen().attempt().write(e.RunInterrupted("max_messages")).state)
    assert not chainable(Pen().attempt().state)
    assert not chainable(Pen().write(e.RunFailed(code="server_error", message="No")).state)
    assert not chainable(Pen().write(e.CancelRequested(), e.RunCancelled()).state)


def test_a_stop_is_seen_until_the_end() -> None:
    """After a crash the next attempt only has to end the run."""
    pen = Pen().attempt().write(e.CancelRequested())
    assert stopping(pen.state) and stopping(pen.crash().state)
    assert not stopping(pen.write(e.RunCancelled()).state)


def test_times_come_from_the_entries() -> None:
    """core is pure: time comes in as a value."""
    facts = Pen().attempt().complete().state.facts
    assert (facts.created_at, facts.updated_at) == (AT, AT + 2 * STEP_MS)


# properties


@quick
@given(journals(ended=False))
def test_each_call_has_at_most_one_item_of_each_kind_and_no_result_is_lost(entries: list[e.Entry]) -> None:
    """P5: one start, one finish."""
    state = fold(entries)
    called = [item.started.call.id for item in state.facts.items if isinstance(item, Called)]
    returned = [item.finished.call_id for item in state.facts.items if isinstance(item, Returned)]
    assert len(set(called)) == len(called) and len(set(returned)) == len(returned)
    assert set(returned) == set(state.facts.results) <= set(called)
    assert not set(state.facts.due) & set(state.facts.results)
    assert state.ended or (state.phase in (Phase.ACTING, Phase.WAITING, Phase.STOPPING) or not state.facts.due)


@quick
@given(journals(ended=False))
def test_old_states_are_never_changed_by_later_entries(entries: list[e.Entry]) -> None:
    """A reader may keep a state for as long as it likes."""
    states = [start(entries[0])]
    for entry in entries[1:]:
        states.append(apply(states[-1], entry))
        last = states[-1]
        assert last.ended == (last.phase in TERMINAL)
        assert last.drafting == (last.text_seq >= 0 or last.thought_seq >= 0 or bool(last.thoughts))
    for n, state in enumerate(states):
        again = fold(entries[: n + 1])
        assert again == state


def test_a_question_of_an_older_release_takes_only_answers_for_this_call() -> None:
    """It names no tool that a standing permission could be bound to (D4)."""
    old = codec.decode(
        b'{"type":"approval.requested","call":{"id":"c","name":"t","arguments":"{}"},"digest":"d","code":"C","expires_at":1}'
    )
    assert isinstance(old, e.ApprovalRequested)
    assert old.takes() == ("once", "deny") and old.choices == ("once", "session", "always", "deny")

"""A run over time, folded from its journal: what a crash did to each step, and what nobody knows."""

from __future__ import annotations

import pytest

from ninelives.core import events as e
from ninelives.core.spec import Resolved, Spec
from ninelives.dialects.inspector import timeline
from ninelives.dialects.inspector.markdown import tree
from ninelives.dialects.inspector.shapes import RunStep
from ninelives.dialects.inspector.timeline import KINDS, Timeline
from ninelives.dialects.inspector.words import search_of

SPEC = Spec(dialect="runs", model="m", input=({"role": "user", "content": "Plan the trip\nto Ulm"},))
ACCEPTED = e.RunAccepted(spec=SPEC, resolved=Resolved(session="s"), owner="alice")
READ, WRITE = e.Call("c1", "read_file", "{}"), e.Call("c2", "terminal", '{"command":"make"}')


def folded(*told: tuple[float, int, e.AnyEvent]) -> Timeline:
    """A timeline of (time in seconds, attempt, event)."""
    made = Timeline()
    for seq, (at, attempt, event) in enumerate(told):
        made.add(e.Entry("r" * 16, seq, int(at * 1000), attempt, event))
    return made


BEGIN = [(100.0, 0, ACCEPTED), (100.5, 1, e.AttemptStarted())]
TWO_CALLS = [
    *BEGIN,
    (101.0, 1, e.TextDelta("I ")),
    (101.2, 1, e.MessageCompleted("I ", calls=(READ, WRITE), usage=e.Usage(10, 3))),
    (101.2, 1, e.ToolStarted(call=READ, effect="read", label="a.txt")),
    (102.0, 1, e.ToolFinished(call_id="c1", output="hello")),
    (102.0, 1, e.ToolStarted(call=WRITE, effect="write")),
]


def tools(made: Timeline) -> list[RunStep]:
    return [step for step in made.steps if step.kind == "tool"]


def test_a_message_begins_when_nothing_else_was_due_and_has_a_first_word() -> None:
    queue, said = folded(*TWO_CALLS[:4]).steps
    assert (queue.kind, queue.started_at, queue.ended_at) == ("queued", 100.0, 100.5)
    assert (said.started_at, said.first_at, said.ended_at) == (100.5, 101.0, 101.2)
    assert (said.outcome, said.deltas, said.asks) == ("completed", 1, ["read_file", "terminal"])


def test_p5_after_a_crash_a_finished_call_is_reused_and_a_write_has_no_known_outcome() -> None:
    made = folded(
        *TWO_CALLS,
        (106.0, 2, e.AttemptStarted(clean=False, died_at=104_500)),
        (106.1, 2, e.ToolFinished(call_id="c2", output="?", is_error=True, outcome="unknown")),
    )
    read, write = tools(made)
    assert (read.outcome, read.reused_in) == ("completed", [2])
    assert (write.outcome, write.ended_at, write.reused_in) == ("unknown", 104.5, [])
    first, second = made.attempts
    assert (first.end, first.ended_at, second.clean, second.reused) == ("crash", 104.5, False, 1)
    line = made.line()
    assert (line.crashes, line.unknown, line.attempts, line.calls, line.title) == (1, 1, 2, 2, "Plan the trip to Ulm")


def test_p5_a_read_that_a_crash_cut_is_drawn_twice() -> None:
    made = folded(*TWO_CALLS[:5], (105.0, 2, e.AttemptStarted(False)), (105.0, 2, e.ToolStarted(call=READ)))
    cut, again = tools(made)
    assert (cut.outcome, cut.again, again.outcome, again.again) == ("interrupted", False, "open", True)
    assert made.line().calls == 1, "one call, begun twice"


def test_a_draft_that_a_crash_cut_is_told_and_asked_again() -> None:
    made = folded(*TWO_CALLS[:3], (103.0, 2, e.AttemptStarted(False, died_at=102_000)))
    (dropped,) = [step for step in made.steps if step.kind == "model"]
    assert (dropped.outcome, dropped.ended_at) == ("dropped", 102.0)
    unseen = made.body(104.0).steps[-1]
    assert (unseen.kind, unseen.started_at, unseen.outcome) == ("model", 103.0, "open"), "the model is asked now"


def test_a_model_that_had_said_nothing_at_a_crash_is_a_step_too() -> None:
    made = folded(*BEGIN, (103.0, 2, e.AttemptStarted(False, died_at=102_000)))
    (asked,) = [step for step in made.steps if step.kind == "model"]
    assert (asked.outcome, asked.started_at, asked.ended_at) == ("dropped", 100.5, 102.0)


def test_a_model_that_could_not_answer_is_a_step_that_failed() -> None:
    made = folded(*BEGIN, (102.0, 1, e.RunFailed(code="upstream_unreachable", message="It is away.")))
    asked = made.steps[-1]
    assert (asked.kind, asked.outcome, asked.started_at, asked.ended_at) == ("model", "failed", 100.5, 102.0)


def test_the_cost_of_messages_and_calls_is_that_of_the_run() -> None:
    paid = e.MessageCompleted("I ", calls=(READ,), usage=e.Usage(10, 3, cost=2_000_000))
    back = e.ToolFinished(call_id="c1", output="hello", usage=e.Usage(1, 1, cost=500_000))
    made = folded(*BEGIN, (101.2, 1, paid), (101.3, 1, e.ToolStarted(call=READ)), (102.0, 1, back))
    assert [step.cost for step in made.steps[1:]] == [0.002, 0.0005]
    line = made.line()
    assert (line.cost, line.input_tokens, line.output_tokens) == (0.0025, 11, 4)


def test_d4_a_wait_for_a_person_goes_on_through_a_parked_restart_and_is_no_crash() -> None:
    asked = e.ApprovalRequested(call=WRITE, digest="d", code="k", expires_at=999_000, tool_digest="t")
    said = (101.0, 1, e.MessageCompleted("", calls=(WRITE,)))
    waits = [*BEGIN, said, (101.0, 1, asked)]
    made = folded(*waits)
    assert made.line().approval is not None and made.line().status == "waiting_for_approval"
    given = e.ApprovalGiven(call_id="c2", choice="deny", by="me")
    made = folded(*waits, (500.0, 2, e.AttemptStarted()), (501.0, 2, given))
    (wait,) = [step for step in made.steps if step.kind == "waiting"]
    assert (wait.started_at, wait.ended_at, wait.outcome, wait.by) == (101.0, 501.0, "denied", "me")
    assert made.attempts[0].end == "parked" and made.line().crashes == 0 and made.line().approval is None


def test_steers_and_cancels_are_moments_and_the_end_closes_what_is_open() -> None:
    steer = e.SteerApplied(id="s1", messages=({"role": "user", "content": "in metres"},), by="key 1")
    ended = [(103.0, 1, e.CancelRequested()), (104.0, 1, e.RunCancelled())]
    made = folded(*BEGIN, (101.0, 1, steer), (102.0, 1, e.TextDelta("x")), *ended)
    assert [(mark.kind, mark.at, mark.text) for mark in made.body(0).marks] == [
        ("steer", 101.0, "in metres"),
        ("cancel", 103.0, "requested"),
    ]
    assert made.steps[-1].started_at == 101.0, "the model is asked again after a steer"
    assert made.steps[-1].outcome == "dropped" and made.ended and made.line().status == "cancelled"


def test_50000_deltas_cost_a_byte_each_and_are_found_by_their_kind() -> None:
    made = folded(*BEGIN, *((101.0, 1, e.TextDelta("x")) for _ in range(50_000)), (102.0, 1, e.RunCompleted()))
    assert len(made.kinds) == 50_003 and len(made.steps) == 2
    assert made.seqs(frozenset({"run.accepted", "run.completed"})) == [0, 50_002]
    assert made.body(0).kinds == {"run.accepted": 1, "attempt.started": 1, "text.delta": 50_000, "run.completed": 1}
    assert "steer.unused" in KINDS


def test_steps_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_STEPS", 2)
    made = folded(*TWO_CALLS)
    assert (len(made.steps), made.left_out) == (2, 2)


def test_a_search_has_words_with_names_and_words_without() -> None:
    line = folded(*TWO_CALLS).line()
    fitting = ("", "ulm TRIP", "tool:terminal", "status:running", "status:failed status:running", "is:active since:1h")
    for words in fitting:
        assert search_of(words, 110.0).fits(line), words
    for words in ("rome", "tool:patch", "status:failed", "is:crashed", "since:5s", "model:other ulm"):
        assert not search_of(words, 110.0).fits(line), words
    for words in ("since:soon", "is:odd"):
        with pytest.raises(Exception, match=r"must be"):
            search_of(words, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "![x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "<javascript:alert(1)>",
        "[a]: javascript:alert(1)\n[a]",
        "`<b>`",
        "<a href='javascript:x'>y</a>",
        "[x](//evil.example)",
        "[x](file:///etc/passwd)",
    ],
)
def test_markdown_becomes_no_element_and_no_link_that_could_act(text: str) -> None:
    def check(nodes: list[object]) -> None:
        for node in nodes:
            if isinstance(node, str):
                continue
            assert isinstance(node, list)
            name, attributes, children = node
            assert name in {"p", "a", "code", "em", "strong"} and attributes == {}
            check(children)

    check(tree(text))


def test_markdown_is_a_tree_of_known_elements() -> None:
    assert tree("**a** [b](https://x.example) `c`") == [
        ["p", {}, [["strong", {}, ["a"]], " ", ["a", {"href": "https://x.example"}, ["b"]], " ", ["code", {}, ["c"]]]]
    ]
    assert tree("3. x")[0] == ["ol", {"start": "3"}, [["li", {}, ["x"]]]]
    assert tree("```sh\nls\n```") == [["pre", {}, [["code", {}, ["ls\n"]]]]]
    assert tree("a|b\n-|-\n1|2")[0][0] == "table"
    long = "*" * 70_000
    assert tree(long) == [long]

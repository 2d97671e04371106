"""The receipt of a run (D1)."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from ninelives.core import events as e
from ninelives.core.state import fold
from ninelives.dialects.receipt import receipt
from ninelives.dialects.runs.body import STATUS
from ninelives.dialects.shared import hidden
from tests.dialects.transcript import json_of
from tests.journals import AT, Pen, journals, quick


def of(pen: Pen) -> Any:
    return json_of(receipt(pen.entries))


def test_a_receipt_tells_that_a_model_call_was_kept() -> None:
    made = of(Pen().attempt().text("Hel").keep().text("lo").settle().complete())
    assert made["attempts"][1]["kept_model_call"] is True
    assert (made["recoveries"], made["drafts_dropped"], made["usage_incomplete"]) == (1, 0, False)


def test_a_receipt_tells_what_recovery_reused_and_repeated() -> None:
    """D1: attempts, steps reused and repeated, unknown outcomes, tokens spent and saved."""
    pen = Pen().attempt()
    one, two = pen.call("read_file"), pen.call("terminal")
    pen.settle(one, two, usage=e.Usage(10, 5)).start(one, two).finish(one).crash()
    pen.write(e.ToolFinished(call_id=two.id, output="unknown", is_error=True, outcome="unknown"))
    pen.text("Hel").crash().text("Hello").settle(usage=e.Usage(20, 6)).complete()
    made = of(pen)
    assert (made["object"], made["run_id"], made["status"]) == (
        "hermes.run.receipt",
        "run_0123456789abcdef",
        "completed",
    )
    assert [(story["attempt"], story["clean"]) for story in made["attempts"]] == [(1, True), (2, False), (3, False)]
    assert [(s["reused_messages"], s["reused_results"]) for s in made["attempts"][1:]] == [(1, 1), (1, 2)]
    assert (made["recoveries"], made["drafts_dropped"], made["repeated"]) == (2, 1, [])
    assert made["unknown_outcomes"] == [two.id]
    assert made["usage"]["total_tokens"] == 41 and made["usage_incomplete"] is True
    assert made["usage_saved_by_recovery"]["total_tokens"] == 30
    assert made["error"] is None


def test_an_answered_question_and_a_restart_are_no_recoveries() -> None:
    """Only a crash is one, and only after a crash has the journal saved tokens."""
    pen = Pen().attempt()
    call = pen.call("terminal")
    pen.settle(call, usage=e.Usage(10, 5)).attempt().start(call).finish(call).attempt()
    made = of(pen.settle(usage=e.Usage(20, 6)).complete())
    assert [story["clean"] for story in made["attempts"]] == [True, True, True]
    assert [story["reused_messages"] for story in made["attempts"][1:]] == [1, 1]
    assert (made["recoveries"], made["usage_saved_by_recovery"]["total_tokens"]) == (0, 0)


def test_events_that_the_database_has_lost_are_on_the_receipt() -> None:
    """A failover to a standby that was behind: the last holder knows what it had shown."""
    pen = Pen().attempt().text("Hel")
    pen.crash(lost=3)
    assert [story.get("events_lost") for story in of(pen.text("Hello").settle().complete())["attempts"]] == [None, 3]


def test_a_call_that_was_started_again_is_repeated() -> None:
    """P5: only read and idempotent ones are."""
    pen = Pen().attempt()
    call = pen.call("read_file")
    made = of(pen.settle(call).start(call).crash().start(call).finish(call).complete())
    assert made["repeated"] == [call.id]
    (step,) = made["steps"]
    assert (step["starts"], step["attempt"], step["outcome"], step["effect"]) == (2, 2, "known", "read")


def test_approvals_are_on_the_receipt() -> None:
    """D1, D4: who answered what, and when."""
    pen = Pen().attempt()
    call = pen.call("terminal")
    pen.settle(call).write(e.ApprovalRequested(call=call, digest="d", code="K7QM2X", expires_at=AT))
    assert of(pen)["approvals"] == [{"call_id": call.id, "tool": "terminal", "asked_at": (AT + 750) / 1000}]
    (given,) = of(pen.write(e.ApprovalGiven(call_id=call.id, choice="deny", by="key 1")))["approvals"]
    assert (given["choice"], given["by"], given["answered_at"]) == ("deny", "key 1", (AT + 1000) / 1000)


def test_our_own_reason_of_a_failure_is_on_the_receipt() -> None:
    """C10."""
    failed = e.RunFailed(code="server_error", message="No", reason="recovery_attempts_exceeded")
    assert of(Pen().write(failed))["error"] == {
        "code": "server_error",
        "reason": "recovery_attempts_exceeded",
        "message": "No",
    }


@quick
@given(journals(ended=False))
def test_every_run_has_a_receipt_at_any_moment(entries: list[e.Entry]) -> None:
    """D1; hidden tools are on none (G9)."""
    made: Any = json_of(receipt(entries))
    state = fold(entries)
    assert made["status"] == STATUS[state.phase] and len(made["attempts"]) == state.facts.attempt
    assert not any(hidden(step["tool"]) for step in made["steps"])
    outcomes = {step["call_id"]: step["outcome"] for step in made["steps"]}
    for call_id, outcome in outcomes.items():
        settled = state.facts.results.get(call_id)
        assert outcome == (settled.outcome if settled else "open")

"""Golden transcripts: what a stream looks like, byte for byte, in each dialect.

A change that alters one of these files alters what clients have stored and counted: it is a new projection version
(R1), or a fix of something that was never right. NINELIVES_UPDATE_GOLDEN=1 rewrites the files; then read
the difference as a client would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninelives.core import events as e
from ninelives.dialects import DIALECTS
from tests.dialects.transcript import replay
from tests.journals import Pen, spec_of

GOLDEN = Path(__file__).parent / "golden"


def plain_text(pen: Pen) -> Pen:
    return pen.attempt().text("Hello", ", wörld ", "🦑").settle(usage=e.Usage(12, 4)).complete()


def reasoning_and_text(pen: Pen) -> Pen:
    pen.attempt().think("The user ", "greets.").text("Hel", "lo.")
    return pen.settle(usage=e.Usage(12, 9, 8, 5)).complete()


def two_tools_in_sequence(pen: Pen) -> Pen:
    ls, cat = pen.call("terminal", '{"command":"ls"}'), pen.call("read_file", '{"path":"a.txt"}')
    pen.attempt().text("I look.").settle(ls).start(ls).finish(ls, "a.txt\nb.txt")
    pen.settle(cat).start(cat).finish(cat, "No such file", is_error=True)
    return pen.text("It is ", "gone.").settle().complete()


def three_tools_in_parallel(pen: Pen) -> Pen:
    one = pen.call("web_search", '{"query":"holdfast"}')
    two, secret = pen.call("read_file", '{"path":"b.txt"}'), pen.call("_memory", '{"key":"x"}')
    pen.attempt().settle(one, two, secret).start(one, two, secret)
    pen.finish(two, "b").finish(secret, "hidden").finish(one, "kelp has one")
    return pen.text("Done.").settle().complete()


def crash_in_a_draft_then_recovery(pen: Pen) -> Pen:
    call = pen.call("read_file", '{"path":"a.txt"}')
    pen.attempt().text("First. ").settle(call).start(call).crash().start(call).finish(call, "a")
    pen.think("So").text("Hel", "lo").crash()
    return pen.text("Hello", " again.").settle().complete()


def cancel_in_a_draft(pen: Pen) -> Pen:
    call = pen.call("terminal", '{"command":"sleep 9"}')
    pen.attempt().text("First.").settle(call).start(call).finish(call, "")
    return pen.think("Then").text("Hel").write(e.CancelRequested(), e.RunCancelled())


def cancel_in_a_tool(pen: Pen) -> Pen:
    call = pen.call("terminal", '{"command":"sleep 9"}')
    return pen.attempt().settle(call).start(call).write(e.CancelRequested(), e.RunCancelled())


def upstream_failure(pen: Pen) -> Pen:
    failed = e.RunFailed(code="server_error", message="The model answered 500.", reason="upstream_error", status=502)
    return pen.attempt().text("Hel").write(failed)


def incomplete_by_length(pen: Pen) -> Pen:
    pen.attempt().text("Once upon").settle(finish="length", usage=e.Usage(9, 16))
    return pen.write(e.RunInterrupted("max_output_tokens"))


def client_tool(pen: Pen) -> Pen:
    theirs = pen.call("weather", '{"city":"Köln"}', client=True)
    return pen.attempt().text("Let me see.").settle(theirs).complete()


def refusal_after_text(pen: Pen) -> Pen:
    return pen.attempt().text("Well. ").decline("I cannot ", "do that.").settle().complete()


def calls_that_are_prepared(pen: Pen) -> Pen:
    ls, secret = pen.call("terminal", '{"command":"ls"}'), pen.call("_memory", "{}")
    pen.attempt().prepare(ls).crash().text("I look.").prepare(ls).prepare(secret)
    pen.settle(ls, secret).start(ls, secret).finish(ls, "a").finish(secret, "b")
    pen.think("Hm").prepare(pen.call("patch")).settle(finish="length")
    return pen.write(e.RunInterrupted("max_output_tokens"))


SCENARIOS: list[Callable[[Pen], Pen]] = [
    plain_text,
    reasoning_and_text,
    two_tools_in_sequence,
    three_tools_in_parallel,
    crash_in_a_draft_then_recovery,
    cancel_in_a_draft,
    cancel_in_a_tool,
    upstream_failure,
    incomplete_by_length,
    client_tool,
    refusal_after_text,
    calls_that_are_prepared,
]
SPECS: dict[str, dict[str, Any]] = {
    "chat": {"dialect": "chat", "include_usage": True},
    "completions": {"dialect": "completions", "tool_progress": "off", "include_usage": True},
    "messages": {"dialect": "messages", "echo": {"thinking": True}},
    "responses-function_call": {"dialect": "responses", "tool_items": "function_call"},
    "responses-mcp_call": {"dialect": "responses", "tool_items": "mcp_call"},
    "responses-2": {"dialect": "responses", "projection": 2},
    "responses-3": {"dialect": "responses", "tool_items": "mcp_call", "projection": 3},
    "messages-3": {"dialect": "messages", "echo": {"thinking": True}, "projection": 3},
    "runs": {"dialect": "runs", "background": True},
}


def transcript(scenario: Callable[[Pen], Pen], kind: str) -> bytes:
    fields = SPECS[kind]
    return b"".join(replay(DIALECTS[fields["dialect"]].projection(), scenario(Pen(spec_of(**fields))).entries))


@pytest.mark.parametrize("dialect", list(SPECS))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_transcript_is_byte_for_byte_what_it_was(scenario: Callable[[Pen], Pen], dialect: str) -> None:
    """G1: a replay is byte-equal after a restart and an upgrade."""
    path = GOLDEN / f"{scenario.__name__}.{dialect}.sse"
    shown = transcript(scenario, dialect)
    if os.environ.get("NINELIVES_UPDATE_GOLDEN") == "1":
        path.write_bytes(shown)
    assert path.read_bytes() == shown


def test_there_is_no_golden_file_without_its_scenario() -> None:
    """A scenario that was renamed takes its files along."""
    known = {f"{scenario.__name__}.{dialect}.sse" for scenario in SCENARIOS for dialect in SPECS}
    assert {path.name for path in GOLDEN.iterdir()} == known


def test_every_view_says_whether_its_stream_is_over() -> None:
    views = {row.name: row.projection().view0(-1) for row in DIALECTS.values() if row.renders}
    assert len(views) > 4
    assert {name: view.over for name, view in views.items()} == dict.fromkeys(views, False)

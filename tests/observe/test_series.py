"""Metrics of what an observer is told: nothing in them grows without a bound."""

from __future__ import annotations

from ninelives.core import events as e
from ninelives.observe.log import Log
from ninelives.observe.metrics import Metrics
from ninelives.observe.runs import MOST_TOOLS, RunCounts, RunObserver
from tests.journals import Pen
from tests.observe.scrape import samples


def test_names_that_a_model_makes_up_do_not_become_series_for_ever() -> None:
    counts = RunCounts()
    for n in range(3 * MOST_TOOLS):
        counts.tool_finished(f"tool-{n}", e.ToolFinished(call_id="c", output=""))
    names = {dict(labels)["tool"] for name, labels in samples(_text(counts)) if name == "ninelives_tool_calls_total"}
    assert len(names) == MOST_TOOLS + 1 and "other" in names


def test_an_observer_that_fails_is_logged_and_stops_nobody() -> None:
    class Broken(RunCounts):
        input_tokens: int

        def __getattribute__(self, name: str) -> object:
            if name == "input_tokens":
                raise RuntimeError("a bug")
            return super().__getattribute__(name)

    lines: list[str] = []
    log = Log(str, None)
    log.error = lambda name, **fields: lines.append(name)  # type: ignore[method-assign]
    pen = Pen().attempt().text("hi").settle().complete()
    RunObserver(Broken(), log).told(pen.state, pen.entries)
    assert lines == ["observer_failed"]


def _text(counts: RunCounts) -> str:
    return Metrics(counts).exposition({}, None).decode()

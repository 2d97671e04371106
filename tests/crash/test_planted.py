"""The checks of this folder are worth something: each planted bug makes the very same trial fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninelives.agents.loop_state import LoopState
from ninelives.drill.checks import Kind
from tests.crash.trial import BOOKS, trial
from tests.crash.world import EFFECTS, Crash, World, crashes
from tests.sim.planted import RunsFinishedToolsAgain, TellsBeforeItWrites


class TellsTheModelOfDrafts(LoopState):
    """A planted bug: a draft that was dropped goes to the model."""

    def request(self, *given: Any) -> Any:
        messages, *rest = super().request(*given)
        draft = {"role": "assistant", "content": "Hel"} if self.facts.dropped else None
        return (*messages, draft) if draft else messages, *rest


async def kinds_found(folder: Path, book: str, **planted: Any) -> set[Kind]:
    """What the trial says over all crash points of a run."""
    found: set[Kind] = set()
    for n, crash in enumerate(crashes()):
        (folder / str(n)).mkdir()
        wrong = await trial(World(folder / str(n), "memory", {"go": BOOKS[book]}, **planted), [crash], stride=50)
        if wrong is None:
            return found
        found |= {finding.kind for finding in wrong}
    raise AssertionError("there is no end of crash points")


async def test_a_run_without_a_planted_bug_has_no_findings(tmp_path: Path) -> None:
    assert await kinds_found(tmp_path, "three") == set()


@pytest.mark.parametrize("book", ["text", "three"])
async def test_P1_telling_before_the_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, book: str
) -> None:
    monkeypatch.setattr("ninelives.engine.engine.Writer", TellsBeforeItWrites)
    assert await kinds_found(tmp_path, book) & {"lost", "changed"}


async def test_P5_running_a_finished_tool_again_is_found(tmp_path: Path) -> None:
    assert "rerun" in await kinds_found(tmp_path, "three", make_agent=RunsFinishedToolsAgain)


async def test_P5_a_write_tool_that_is_declared_read_is_found(tmp_path: Path) -> None:
    lied = {**EFFECTS, "note": "read"}
    assert "rerun" in await kinds_found(tmp_path, "three", tool_effects=lied)


async def test_P5_a_finished_read_that_runs_again_is_found_too(tmp_path: Path) -> None:
    assert "rerun" in await kinds_found(tmp_path, "parallel", make_agent=RunsFinishedToolsAgain)


async def test_G3_a_dropped_draft_in_the_ask_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninelives.agents.loop.LoopState", TellsTheModelOfDrafts)
    world = World(tmp_path, "memory", {"go": [*BOOKS["text"], *BOOKS["text"]]})
    wrong = await trial(world, [Crash(3, "after")])
    assert wrong is not None and "ask" in {finding.kind for finding in wrong}

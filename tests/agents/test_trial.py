"""AgentTrial of ninelives.testing, with an example of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninelives.testing import AgentTrial
from ninelives.tools.decorator import imported

EXAMPLE = Path(__file__).parents[2] / "examples" / "function.py"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    return imported(f"{EXAMPLE}:agent")


async def test_a_finished_step_is_not_made_again(agent: object, tmp_path: Path) -> None:
    trial = AgentTrial(agent, "Book Oslo")
    await trial.crash_at("book", "finished")
    assert trial.status == "in_progress"
    await trial.run()
    assert trial.status == "completed" and "booked Oslo" in trial.text
    assert len((tmp_path / "bookings.txt").read_text().splitlines()) == 1


async def test_a_write_that_dies_is_unknown_and_a_read_is_made_again(agent: object, tmp_path: Path) -> None:
    trial = AgentTrial(agent, "Book Oslo")
    await trial.crash_at("weather")
    await trial.crash_at("book")
    await trial.run()
    assert (trial.status, trial.failure) == ("failed", "outcome_unknown")
    assert not (tmp_path / "bookings.txt").exists()


async def test_a_step_that_is_never_made_is_an_error_of_the_test(agent: object) -> None:
    with pytest.raises(AssertionError, match="did not come to pay"):
        await AgentTrial(agent, "Book Oslo").crash_at("pay")

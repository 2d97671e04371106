"""AgentTrial of ninelives.testing, with an example of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ninelives.testing import AgentTrial
from ninelives.tools.decorator import imported
from tests.documents.blocks import ROOT, blocks_of
from tests.story.server import KEY, start_server

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


def test_the_tests_that_the_page_shows_pass_with_the_agent_that_it_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/own-agent.md").read_text()
    for block in blocks_of("own-agent.md", page):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / named[1]).write_text(block.text)
    server = start_server(tmp_path, "", NINELIVES_AGENT_OBJECT=f"{tmp_path / 'my_agent.py'}:agent")
    try:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "URL": f"http://127.0.0.1:{server.port}", "KEY": KEY}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_agent.py"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    finally:
        server.kill()
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr

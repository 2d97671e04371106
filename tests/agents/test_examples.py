"""The examples in examples/ answer, each with its real package. What they keep over a crash: make test-agents."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from ninelives.cli.drill import _command, drill
from tests.frameworks.run import CASES, QUICKSTARTS, Case, counted

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_e5_every_example_streams_and_shows_its_tools_through_every_api(case: Case, tmp_path: Path) -> None:
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed: make test-agents runs this example")
    counts = await counted(case, tmp_path, kills=False)
    assert counts.wrong == []
    assert (tmp_path / "bookings.txt").exists() == case.books


@pytest.mark.long
@pytest.mark.parametrize("case", QUICKSTARTS, ids=lambda case: case.name)
async def test_e5_a_quick_start_is_served_without_a_change(case: Case, tmp_path: Path) -> None:
    if importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed: make test-agents serves this quick start")
    assert (await counted(case, tmp_path, kills=False)).wrong == []


def test_every_example_is_short_is_run_and_is_copied_in_the_documentation() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    files = sorted((ROOT / "examples").glob("*.py"))
    assert [file.stem for file in files] == sorted(case.name for case in CASES)
    for file in files:
        text = file.read_text()
        assert 15 <= len(text.splitlines()) <= 40 and ast.get_docstring(ast.parse(text))
        assert f"```python\n{text}```" in page, f"docs/examples.md has an older {file.name}: copy it"


def test_a_drill_of_an_agent_of_ones_own_needs_a_prompt_and_names_itself_to_be_repeated() -> None:
    said = CliRunner().invoke(drill, ["my_agent:agent"])
    assert said.exit_code == 2 and "need --prompt" in said.output
    given = {"config": None, "in_flight": 4, "boundaries": True, "shell": False, "real": True, "calls": (), "kills": 3}
    words = _command({**given, "agent": "my_agent:agent", "seed": 7, "prompts": ("Go",)})
    assert words == ["ninelives", "drill", "my_agent:agent", "--kills", "3", "--seed", "7", "--prompt", "Go"]

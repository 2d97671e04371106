"""NinelivesDurability: the program of docs/durability.md is killed and started again, and what it did is counted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pydantic_ai = pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, RunContext  # noqa: E402
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart  # noqa: E402
from pydantic_ai.models.function import AgentInfo, FunctionModel  # noqa: E402

from ninelives.agents.durability import NinelivesDurability  # noqa: E402
from ninelives.core.errors import AgentError  # noqa: E402
from tests.agents.replays import World  # noqa: E402
from tests.documents.blocks import ROOT, blocks_of  # noqa: E402
from tests.story.server import Upstream, start_upstream, wait_until  # noqa: E402

pytestmark = pytest.mark.xdist_group("processes")
PLAN = '[[tools=weather:{"city":"Oslo"}|book:{"city":"Oslo"}]] Plan a trip'


class Program:
    """The program of the page, in a folder of its own."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        self.folder = folder
        self.upstream = upstream
        page = (ROOT / "docs/durability.md").read_text()
        (code,) = [block.text for block in blocks_of("durability.md", page) if block.language == "python"]
        (folder / "trip.py").write_text(code)
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": upstream.url}

    def start(self, name: str, when: str = "never", n: int = 0) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.agents.dying", when, str(n), "trip.py", name, f"{name} {PLAN}"]
        return subprocess.Popen(words, cwd=self.folder, env=self._env, stdout=-1, stderr=-1, text=True)

    def run(self, name: str, when: str = "never", n: int = 0) -> tuple[int, str]:
        """Run it; its exit code and what it said."""
        child = self.start(name, when, n)
        out, err = child.communicate(timeout=90)
        assert child.returncode in (0, -9), err
        return child.returncode, out

    def booked(self) -> int:
        file = self.folder / "bookings.txt"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def asked(self, name: str) -> int:
        """How often the model was asked."""
        return len(self.upstream.asked(f"{name} "))


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    pytest.importorskip("openai")
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


@pytest.mark.long
def test_a_program_that_is_killed_while_it_books_does_not_book_twice(tmp_path: Path, upstream: Upstream) -> None:
    program = Program(tmp_path, upstream)
    child = program.start("kill-booking")
    try:
        wait_until(lambda: program.booked() == 1 or child.poll() is not None, "it books", 60)
    finally:
        child.kill()
        child.communicate()
    asked = program.asked("kill-booking")
    code, said = program.run("kill-booking")
    assert (code, program.booked(), program.asked("kill-booking")) == (0, 1, asked + 1) and said
    assert program.run("kill-booking") == (0, said), "complete: the recorded answer, for nothing"
    assert (program.booked(), program.asked("kill-booking")) == (1, asked + 1)


@pytest.mark.long
def test_a_program_that_is_killed_at_any_write_repeats_nothing_that_was_finished(
    tmp_path: Path, upstream: Upstream
) -> None:
    program = Program(tmp_path, upstream)
    assert program.run("whole")[0] == 0
    answers, kills, unknown = program.asked("whole"), 0, 0
    for n in range(1, 40):
        codes = []
        for when in ("before", "after"):
            name, booked = f"{when}-{n}", program.booked()
            code, _ = program.run(name, when, n)
            codes.append(code)
            at_death = program.asked(name)
            again, said = program.run(name)
            done = program.booked() - booked
            assert (again, done <= 1) == (0, True), (name, said)
            unknown += done == 0
            assert program.asked(name) - at_death <= answers - max(0, at_death - 1), "a finished answer was asked for"
            kills += code == -9
        if codes == [0, 0]:
            break
    assert kills >= 20 and unknown <= 1, "killed after the start of the booking was written: it never ran"


# In one process: what an error, a difference and a second user mean


def model_of(world: World, *answers: list[ToolCallPart] | str) -> FunctionModel:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        world.asked += 1
        turn = answers[sum(isinstance(message, ModelResponse) for message in messages)]
        return ModelResponse([TextPart(turn)] if isinstance(turn, str) else turn)

    return FunctionModel(answer)


class Broken(Exception):
    pass


def payer(folder: Path, world: World, fails: list[str]) -> tuple[Agent[None, str], NinelivesDurability]:
    """An agent that looks and pays. What is in `fails` raises."""
    durable = NinelivesDurability(folder)
    calls = [ToolCallPart("look", {}), ToolCallPart("pay", {"amount": 5})]
    agent = Agent(model_of(world, [calls[0]], [calls[1]], "Paid."), name="payer", capabilities=[durable])

    def act(what: str) -> str:
        world.calls.append(what)
        if what in fails:
            raise Broken(what)
        return f"{what} done"

    @agent.tool_plain(metadata={"effect": "read"})
    def look() -> str:
        return act("look")

    @agent.tool
    async def pay(ctx: RunContext[None], amount: int) -> str:
        return act("pay")

    return agent, durable


async def test_a_read_that_failed_is_tried_again_and_a_write_that_failed_is_not(tmp_path: Path) -> None:
    world, fails = World(), ["look"]
    agent, durable = payer(tmp_path, world, fails)
    with pytest.raises(Broken):
        async with durable.run("job"):
            await agent.run("Go")
    fails[:] = ["pay"]
    with pytest.raises(Broken):
        async with durable.run("job"):
            await agent.run("Go")
    assert world.calls == ["look", "look", "pay"] and world.asked == 2
    with pytest.raises(AgentError, match="Broken: pay"):
        async with durable.run("job"):
            await agent.run("Go")
    assert world.calls == ["look", "look", "pay"] and world.asked == 2


async def test_code_that_asks_for_something_else_is_told_and_nothing_is_repeated(tmp_path: Path) -> None:
    world, fails = World(), ["pay"]
    agent, durable = payer(tmp_path, world, fails)
    with pytest.raises(Broken):
        async with durable.run("job"):
            await agent.run("It is 12:00:01")
    with pytest.raises(AgentError) as told:
        async with durable.run("job"):
            await agent.run("It is 12:00:02")
    assert told.value.code == "replay_diverged"
    assert "12:00:01" in told.value.message and "12:00:02" in told.value.message
    assert world.calls == ["look", "pay"] and world.asked == 2


async def test_two_runs_at_once_and_one_run_twice_and_what_is_new_in_a_complete_run(tmp_path: Path) -> None:
    world = World()
    agent, durable = payer(tmp_path, world, [])

    async def once(name: str, question: str = "Go") -> str:
        async with durable.run(name):
            return (await agent.run(question)).output

    assert await asyncio.gather(once("one"), once("two")) == ["Paid.", "Paid."]
    assert (len(world.calls), world.asked) == (4, 6)
    async with durable.run("three"):
        with pytest.raises(AgentError, match="under way already"):
            await once("three")
        assert (await agent.run("Go")).output == "Paid."
    assert await once("one") == "Paid." and world.asked == 9
    with pytest.raises(AgentError, match="is complete"):
        async with durable.run("one"):
            await agent.run("Go")
            await agent.run("Something else")
    assert (await agent.run("Outside")).output == "Paid.", "as without the capability"


async def test_a_folder_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    one, two = (NinelivesDurability(tmp_path / "journal") for _ in range(2))
    async with one.run("job"):
        with pytest.raises(AgentError, match="in use by another process"):
            async with two.run("other"):
                pass

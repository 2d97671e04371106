"""What the built-in agent does differently by what is kept of a run, and what goes with a forgotten one (B6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ninelives.agents.approval import ApprovalPolicy, Approvals
from ninelives.agents.base import Agent, Turn
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.agents.rules import Mode
from ninelives.core import events as e
from ninelives.core.context import SHOWN, output_path
from ninelives.core.events import RunAccepted
from ninelives.core.history import output_messages
from ninelives.core.spec import Kept
from ninelives.core.state import RunState
from ninelives.engine.base import EngineLimits, EngineParts
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text
from ninelives.observe.log import Log
from ninelives.tools.base import HERE, Home, Place, Threads, Use
from ninelives.tools.decorator import tool_of
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox
from tests.journals import Pen, spec_of

LONG = "x" * (SHOWN + 1)


class Elsewhere:
    """The Home of a workspace on another machine."""

    async def refusal(self, use: Use) -> str:
        return "It is on another machine."


class CallsOnce:
    """A model that asks for one call, and is done when it has the result."""

    name = "m"

    async def stream(self, ask: Ask) -> AsyncIterator[Sequence[Part]]:
        if ask.messages[-1]["role"] == "tool":
            yield [Text("done"), Finished("stop", e.Usage())]
        else:
            yield [CallPiece(0, "note", "{}"), Finished("tool_calls", e.Usage())]


async def not_granted(owner: str, ids: Sequence[str]) -> bool:
    return False


def agent_at(
    workspace: Path, home: Home = HERE, made: list[str] | None = None, says: str = "noted", ask: Mode = "always"
) -> LoopAgent:
    """The loop with one tool, which needs a person unless `ask` is never."""

    def note() -> str:
        """Take a note."""
        (made if made is not None else []).append("made")
        return says

    def place(state: RunState, call_id: str) -> Place:
        return Place("alice", "s", call_id, workspace, home=home)

    unused: Any = None
    approvals = Approvals(ApprovalPolicy(ask), not_granted, lambda: "CODE", lambda: 0, 60.0)
    environment, toolbox = CallEnvironment(place, unused, OutputFiles()), Toolbox([tool_of(note, Threads())])
    return LoopAgent(CallsOnce(), toolbox, LoopSettings(), environment, approvals)  # type: ignore[arg-type]


async def finish(agent: LoopAgent, kept: Kept) -> Pen:
    """Run until the end, or until a person is asked."""
    pen = Pen(spec_of(kept=kept, store=kept == "stored")).attempt()
    async for event in agent.run(Turn(pen.state, ())):
        pen.write(event)
        if isinstance(event, e.ApprovalRequested):
            break
    return pen


async def test_b6_a_run_in_memory_refuses_a_call_that_needs_a_person_and_says_why(tmp_path: Path) -> None:
    made: list[str] = []
    pen = await finish(agent_at(tmp_path, made=made), "memory")
    (result,) = pen.state.facts.results.values()
    assert result.is_error and not made
    for words in ("needs the approval of a person", "was not made", 'store_false = "memory"', "store: true"):
        assert words in result.output
    assert pen.state.status == "completed", "the model reads it, and goes on"


@pytest.mark.parametrize("kept", ["stored", "hours", "delivery"])
async def test_b6_any_other_run_asks(tmp_path: Path, kept: Kept) -> None:
    made: list[str] = []
    pen = await finish(agent_at(tmp_path, made=made), kept)
    assert isinstance(pen.entries[-1].event, e.ApprovalRequested) and not made


@pytest.mark.parametrize(("kept", "written"), [("memory", 0), ("delivery", 1), ("hours", 1), ("stored", 1)])
async def test_b6_a_long_output_of_a_run_in_memory_is_not_written_to_the_disk(
    tmp_path: Path, kept: Kept, written: int
) -> None:
    pen = await finish(agent_at(tmp_path, says=LONG * 2, ask="never"), kept)
    (result,) = pen.state.facts.results.values()
    assert (tmp_path / output_path(result.call_id)).exists() is bool(written)
    assert (len(result.output) > SHOWN) is bool(written)
    messages = output_messages(pen.state.facts.messages, pen.state.facts.results)
    (shown,) = [message["content"] for message in messages if message["role"] == "tool"]
    assert ("read_file" in str(shown)) is bool(written), "the model is not sent to a file that is not there"


def ended(*outputs: str) -> tuple[RunState, list[str]]:
    """A run with these tool outputs, and the paths of their files."""
    pen = Pen().attempt()
    calls = [pen.call("note") for _ in outputs]
    pen.settle(*calls).start(*calls)
    for call, output in zip(calls, outputs, strict=True):
        pen.finish(call, output)
    return pen.text("Done.").settle().complete().state, [output_path(call.id) for call in calls]


async def test_b6_forgetting_a_run_deletes_the_files_of_its_long_outputs_and_no_others(tmp_path: Path) -> None:
    agent, (state, (short, one, two)) = agent_at(tmp_path), ended("short", LONG, LONG)
    for path in (short, one, two):
        await OutputFiles().keep(Place("alice", "s", "c", tmp_path), path, LONG)
    (tmp_path / "notes.txt").write_text("a file that a tool was asked to write")
    assert await agent.forget(state)
    assert [(tmp_path / path).exists() for path in (short, one, two, "notes.txt")] == [True, False, False, True]
    assert await agent.forget(state), "a second time does no harm"


async def test_b6_forgetting_looks_for_files_of_attempts_that_died_before_they_could_say_what_they_laid_down(
    tmp_path: Path,
) -> None:
    """The file is written before its result is committed, and a write is not made again (P5)."""
    pen = Pen().attempt()
    call = pen.call("note")
    pen.settle(call).start(call, effect="write").crash().finish(call, "its outcome is unknown", is_error=True)
    died, cut = pen.text("Done.").settle().complete().state, Pen().attempt()
    call = cut.call("note")
    cut.settle(call).start(call).write(e.CancelRequested("cancel")).finish(call, "stopped").write(e.RunCancelled())
    for state in (died, cut.state):
        (called,) = state.facts.results
        await OutputFiles().keep(Place("alice", "s", "c", tmp_path), output_path(called), LONG)
        assert await agent_at(tmp_path).forget(state)
        assert not (tmp_path / output_path(called)).exists()


async def test_b6_forgetting_is_left_to_the_machine_that_has_the_workspace(tmp_path: Path) -> None:
    state, (path,) = ended(LONG)
    await OutputFiles().keep(Place("alice", "s", "c", tmp_path), path, LONG)
    assert not await agent_at(tmp_path, Elsewhere()).forget(state)
    assert (tmp_path / path).exists()
    nothing, _ = ended("short")
    assert await agent_at(tmp_path, Elsewhere()).forget(nothing), "without a file any machine will do"


async def test_b6_what_a_tool_put_in_the_place_of_an_output_does_not_stop_the_forgetting(tmp_path: Path) -> None:
    agent, (state, (path,)) = agent_at(tmp_path), ended(LONG)
    (tmp_path / path).mkdir(parents=True)
    assert await agent.forget(state) and (tmp_path / path).is_dir()
    (tmp_path / path).rmdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / Path(path).name).write_text("another file")
    (tmp_path / path).parent.rmdir()
    (tmp_path / path).parent.symlink_to(outside)
    assert await agent.forget(state)
    assert (outside / Path(path).name).exists(), "no link is followed"


@pytest.mark.parametrize("relative", [False, True], ids=["through a link", "relative"])
async def test_long_outputs_work_wherever_the_data_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    workspace = Path("real") if relative else tmp_path / "link"
    state, (path,) = ended(LONG)
    await OutputFiles().keep(Place("alice", "s", "c", workspace), path, LONG)
    assert (tmp_path / "real" / path).read_text() == LONG
    assert await agent_at(workspace).forget(state)
    assert not (tmp_path / "real" / path).exists()


# Several agents behind one server


class Fixed:
    """An agent that says what it is asked to say of itself."""

    def __init__(self, *, resumable: bool) -> None:
        self.resumable = resumable

    async def end_leftovers(self, state: RunState) -> None:
        pass

    async def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        yield e.RunCompleted()


def accepted_of(model: str) -> RunAccepted:
    return Pen(spec_of(model=model)).state.facts.accepted


def test_g18_the_agent_of_a_run_says_whether_it_can_be_resumed() -> None:
    loop, own = Fixed(resumable=True), Fixed(resumable=False)
    parts = parts_with(loop, {"own": own})
    assert parts.agent_of(accepted_of("own")) is own
    assert parts.agent_of(accepted_of("hermes-agent")) is loop
    assert parts.agent_of(accepted_of("a profile that was removed")) is loop
    assert parts_with(own, {}).agent_of(accepted_of("hermes-agent")) is own, "a server with one agent"


def parts_with(agent: Agent, agents: dict[str, Agent]) -> EngineParts:
    """What an engine with these agents is made of."""
    memory = MemoryStore(lambda: 0.0)
    return EngineParts(
        memory, memory, LocalNotifier(), agent, EngineLimits(), Log(str, None), lambda: 1, str, agents=agents
    )

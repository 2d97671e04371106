"""Tools never outlive their claim (R8): whatever an attempt left running is ended by the next one, before
anything is settled, however the run then goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ninelives.core.events import Effect, Process
from ninelives.testing.playbook import asked, said
from ninelives.tools.base import Execution, Output, Place
from tests.crash.world import OWNER, Crash, Life, World, order


class Launched:
    """A tool that is a process, and that never ends by itself."""

    name = "launch"
    description = "launch"
    label = ""
    emoji = ""

    def __init__(self, effect: Effect) -> None:
        self.schema: dict[str, object] = {"type": "object", "properties": {}}
        self.effect: Effect = effect
        self.begun = asyncio.Event()

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        return self._Execution(self)

    class _Execution:
        def __init__(self, tool: Launched) -> None:
            self.process: Process | None = Process("boot", 1, 1)
            self._tool = tool

        async def run(self) -> Output:
            self._tool.begun.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("a future that nobody sets is done")

        async def abandon(self) -> None:
            return


async def in_mid_tool(folder: Path, effect: Effect, crash: Crash | None = None) -> tuple[World, Life, str]:
    """A run whose launched tool is running."""
    tool = Launched(effect)
    world = World(folder, "memory", {"go": [asked(("launch", "{}")), said("done")]}, tools=[tool])
    life = await world.begin(crash)
    run = await life.submit(order())
    assert run is not None
    async with asyncio.timeout(60):
        await tool.begun.wait()
    tool.begun.clear()
    return world, life, run


async def test_a_write_that_was_interrupted_is_ended_before_it_is_settled(tmp_path: Path) -> None:
    world, life, run = await in_mid_tool(tmp_path, "write")
    await life.end()
    life = await world.begin()
    assert await life.wait(run) == "completed"
    assert len(world.ended) == 1
    await life.end()


async def test_a_read_that_was_interrupted_is_ended_before_it_is_run_again(tmp_path: Path) -> None:
    world, life, _ = await in_mid_tool(tmp_path, "read")
    await life.end()
    life = await world.begin()
    async with asyncio.timeout(60):
        await world.tools[0].begun.wait()  # type: ignore[attr-defined]
    assert len(world.ended) == 1
    await life.end()


@pytest.mark.parametrize("steps", [1, 2], ids=["the wish is durable", "the wish is an entry"])
async def test_what_a_cancelled_run_left_running_is_ended_after_a_crash(tmp_path: Path, steps: int) -> None:
    # open, message, started, signal, cancel.requested: the server dies after one of the last two
    world, life, run = await in_mid_tool(tmp_path, "write", Crash(3 + steps, "after"))
    assert await life.unless_dead(life.engine.cancel(OWNER, run)) is None
    await life.end()
    life = await world.begin()
    assert await life.wait(run) == "cancelled"
    assert len(world.ended) == 1, "the process of the cancelled call is still there"
    await life.end()


async def test_a_run_whose_leftovers_cannot_be_ended_still_goes_on(tmp_path: Path) -> None:
    world, life, run = await in_mid_tool(tmp_path, "write")
    await life.end()

    async def fails(process: object, call: str) -> bool:
        raise OSError("no /proc here")

    world._end_leftover = fails  # type: ignore[method-assign]
    life = await world.begin()
    assert await life.wait(run) == "completed"
    await life.end()

"""What the tests of the tools share: a place to work in, a toolbox, and ways to look at processes."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import uvloop

from ninelives.tools.base import Output, Place, Threads
from ninelives.tools.registry import Toolbox, builtin_tools


@pytest.fixture
def place(tmp_path: Path) -> Place:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    # Unlike any other on the machine: leftovers are found by it.
    call_id = f"call_{uuid.uuid4().hex}"
    return Place(owner="o", session="s", call_id=call_id, workspace=workspace, timeout_s=20.0)


@pytest.fixture
def toolbox() -> Iterator[Toolbox]:
    threads = Threads()
    yield Toolbox(builtin_tools("off", threads))
    threads.close()


class Caller:
    """Calls tools as an agent does."""

    def __init__(self, toolbox: Toolbox, place: Place) -> None:
        self._toolbox = toolbox
        self._place = place

    async def __call__(self, name: str, place: Place | None = None, **arguments: object) -> Output:
        execution = await self._toolbox.prepare(name, json.dumps(arguments), place or self._place)
        return await execution.run()


@pytest.fixture
def call(toolbox: Toolbox, place: Place) -> Caller:
    return Caller(toolbox, place)


def both_loops(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """The test runs twice: on asyncio's own loop and on uvloop, which starts and reaps processes in its own way."""

    def run(loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**fixtures))

    wants = inspect.signature(test)
    first = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = wants.replace(parameters=[first, *wants.parameters.values()])  # type: ignore[attr-defined]
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__dict__.update(test.__dict__)
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop", loops, ids=["asyncio", "uvloop"])(run)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


async def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def number_in(path: Path) -> int:
    """A pid that a command wrote, 0 while it is not there yet."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    """Children of this process, dead ones too."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[stat.rindex(")") + 2 :].split()[1]) == os.getpid():
            found.add(int(name))
    return found

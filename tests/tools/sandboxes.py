"""What the tests of sandboxed tools share: the sandboxes of this machine, a loud skip where there is none, and looks at
the machine from outside."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ninelives.tools.base import Place, Threads
from ninelives.tools.builtin.process import Processes
from ninelives.tools.registry import Toolbox, shell_tools
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.kinds import choose


@functools.cache
def _chosen(setting: str) -> Sandbox:
    found = choose(setting)
    if found.kind == "refused":
        sys.__stderr__ and sys.__stderr__.write(f"\n!!! SANDBOX NOT TESTED: {found.says}\n")
    return found


def sandbox_of(kind: str) -> Sandbox:
    """The sandbox of that kind; the test is skipped, loudly, where this machine has none."""
    found = _chosen("auto" if kind == "bwrap" else kind)
    if found.kind == "refused":
        pytest.skip(f"SANDBOX NOT TESTED: {found.says}")
    return found


class Shop:
    """The shell tools over one sandbox, and a place for them: make it inside of a running loop, close it there."""

    def __init__(self, sandbox: Sandbox, **bounds: int) -> None:
        self.threads = Threads()
        self.processes = Processes(self.threads, **bounds)
        self.toolbox = Toolbox(shell_tools(sandbox, self.threads, self.processes))

    async def close(self) -> None:
        await self.processes.close()
        self.threads.close()


@asynccontextmanager
async def shop_of(sandbox: Sandbox, **bounds: int) -> AsyncIterator[Shop]:
    shop = Shop(sandbox, **bounds)
    try:
        yield shop
    finally:
        await shop.close()


def place_in(folder: Path, **fields: object) -> Place:
    """A place as the server makes them: below folders that are closed to others."""
    workspace, state = folder / "data" / "workspaces" / "one", folder / "data" / "tools" / "one"
    for each in (workspace, state):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "data").chmod(0o700)
    known: dict[str, object] = {"owner": "o", "session": "s", "call_id": f"call_{secrets.token_hex(16)}"}
    return Place(**known | {"workspace": workspace, "state": state, "timeout_s": 20.0} | fields)  # type: ignore[arg-type]


def new_mark() -> str:
    """A number of seconds to sleep, unlike any other on the machine: by it a process is found again."""
    return f"3{secrets.randbelow(10**9):09d}"


def having(mark: str) -> list[int]:
    """The processes of the whole machine that have the mark among their words and sleep by it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", mark.encode()]:
            found.append(int(name))
    return found


def score_of(pid: int) -> int:
    """How readily the kernel kills a process when memory is short."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@asynccontextmanager
async def responsive(seconds: float) -> AsyncIterator[None]:
    """In the meantime no step of the loop waits for longer than that."""
    worst = 0.0

    async def beat() -> None:
        nonlocal worst
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - began)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
    assert worst < seconds, f"the loop stood still for {worst:.2f} s"


_SERVER = """
import asyncio, json, os, sys
from pathlib import Path
from ninelives.tools.base import Place
from tests.tools.sandboxes import Shop, choose

async def main():
    setting, workspace, call_id, name, arguments, uid = sys.argv[1:]
    if uid != "0":
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    place = Place(owner="o", session="", call_id=call_id, workspace=Path(workspace))
    execution = await Shop(choose(setting)).toolbox.prepare(name, arguments, place)
    p = execution.process
    print(json.dumps([p.boot, p.pid, p.started]), flush=True)
    if sys.stdin.readline() == "go\\n":
        print(json.dumps((await execution.run()).text), flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


def server_with(sandbox: Sandbox, place: Place, name: str, arguments: str, uid: int = 0) -> subprocess.Popen[str]:
    """A process that prepares a call as a server does, tells the launcher's name, and runs it when it is told "go".
    It has a secret in its environment."""
    setting = "auto" if sandbox.kind == "bwrap" else sandbox.kind
    words = [setting, str(place.workspace), place.call_id, name, arguments, str(uid)]
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "NINELIVES_MODEL_API_KEY": "sk-in-the-environ"},
    )


def tell(server: subprocess.Popen[str], line: str) -> None:
    assert server.stdin is not None
    server.stdin.write(line)
    server.stdin.flush()


def heard(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline()

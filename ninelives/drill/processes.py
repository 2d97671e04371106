"""The two processes of a rig: a Ninelives server on a data directory, and the scripted upstream. Owns: starting them,
ending them, and reading what they print. Refuses to know: what is requested of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ninelives
from ninelives.drill.wire import KEY, get

ROOT = Path(ninelives.__file__).resolve().parents[1]
START_S = 60.0
LAST_LINES = 15
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
LONGEST_LINE = 1 << 26
"""A user's tools may print anything before the line that start() waits for."""


class Broken(AssertionError):
    """The server does not start or does not answer. The text has the end of its log."""


def signal_child(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child of this process. Nothing happens when it is gone.

    asyncio may have reaped the child in a thread without having told yet, so the pid alone may be a stranger's."""
    with suppress(ProcessLookupError, ChildProcessError):
        pidfd = os.pidfd_open(pid)
        try:
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # ChildProcessError: not our child
            signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


class Process:
    """A child process that prints where it listens."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.pid = child.pid
        self.port = 0

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is alive. (asyncio's send_signal would reap it as well.)"""
        if self._child.returncode is None:
            signal_child(self.pid, number)

    async def gone(self, seconds: float = 30.0) -> int:
        """Wait for the exit. Returns the exit code."""
        async with asyncio.timeout(seconds):
            return await self._child.wait()

    async def gone_by_signal(self) -> int:
        """Send SIGTERM and wait. Returns the exit code."""
        self.signal(signal.SIGTERM)
        return await self.gone()

    async def kill(self) -> None:
        """Send SIGKILL and wait."""
        self.signal(signal.SIGKILL)
        await self.gone()

    async def line(self) -> str:
        """The next line that it prints."""
        assert self._child.stdout is not None
        async with asyncio.timeout(START_S):
            return (await self._child.stdout.readline()).decode()


class Upstream(Process):
    """The fake upstream. Each request that it received is a line in `log`."""

    log: Path
    _read = 0

    @classmethod
    async def start(cls, folder: Path) -> Upstream:
        log = folder / "upstream.log"
        argv = (sys.executable, "-m", "ninelives.testing.fake_upstream", "--port", "0", "--log", str(log))
        up = cls(await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE))
        up.port = int(await up.line())
        up.log = log
        return up

    def news(self) -> list[dict[str, Any]]:
        """The requests since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        return [json.loads(line) for line in data[:end].splitlines()]


@dataclass(frozen=True)
class Launch:
    """How to start a server: everything but its port, data directory and model."""

    arguments: tuple[str, ...]
    """Arguments of `ninelives serve`."""
    environ: Mapping[str, str]
    """The whole environment."""
    cwd: Path
    under: tuple[str, ...] = ()
    """A program that traces the server or injects faults."""
    module: tuple[str, ...] = ("ninelives",)
    """What python -m runs, with arguments that come before `serve`."""


def launch_clean(**environ: str) -> Launch:
    """A server with the built-in tools, and without the caller's own settings."""
    ours = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    arguments = ("--sandbox", "off", "--approval", "never")
    return Launch(arguments, {**kept, "API_SERVER_KEY": KEY, **environ}, ROOT)


class Server(Process):
    """A Ninelives server on a data directory that outlives it."""

    started = 0.0
    errors: Path
    _emptying: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, folder: Path, upstream: int | None, launch: Launch) -> Server:
        """Start, and wait until it listens."""
        server = await cls.spawn(folder, upstream, launch)
        try:
            listens = await server.listens()
        except TimeoutError:
            listens = False
        except BaseException:
            await server.kill()
            raise
        if not listens:
            code = server.code
            await server.kill()
            why = f"ended with exit code {await server.gone()}" if code is not None else "did not say where it listens"
            raise Broken(f"the server did not start: it {why}. Its last lines:\n{server.last_lines()}")
        return server

    async def listens(self) -> bool:
        """Wait until it prints its port. False where it exits before that."""
        while line := await self.line():
            if found := LISTENING.search(line):
                self.port = int(found[1])
                self._emptying = asyncio.create_task(self._empty())
                return True
        await self.gone()
        return False

    async def _empty(self) -> None:
        """Discard later output, so that it does not fill the pipe: a user's tool may print a lot."""
        while await self._child.stdout.read(65_536):  # type: ignore[union-attr]
            continue

    async def shown(self, path: str) -> dict[str, Any]:
        """GET an object that must exist."""
        try:
            answer = await get(self.port, path)
        except TimeoutError:
            raise Broken(f"GET {path} took too long. The server's last lines:\n{self.last_lines()}") from None
        if answer.status != 200:
            how = f"was answered {answer.status}: {answer.data[:300]!r}" if answer.status else "had no answer"
            raise Broken(f"GET {path} {how}. The server's last lines:\n{self.last_lines()}")
        body: dict[str, Any] = answer.json()
        return body

    def last_lines(self) -> str:
        """The end of what it logged."""
        lines = self.errors.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line[:500]}" for line in lines) or "  (it logged nothing)"

    @classmethod
    async def spawn(cls, folder: Path, upstream: int | None, launch: Launch) -> Server:
        """Start without waiting."""
        argv = [*launch.under, sys.executable, "-m", *launch.module, "serve", "--port", "0", "--no-supervisor"]
        # never on the configured store: a drill kills its server
        argv += ["--data-dir", str(folder / "data"), "--store", "sqlite", *launch.arguments]
        if upstream is not None:
            argv += ["--model-url", f"http://127.0.0.1:{upstream}/v1", "--model", "m"]
        began = time.monotonic()
        errors = folder / "server.log"
        with errors.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *argv,
                cwd=launch.cwd,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(launch.environ),
                limit=LONGEST_LINE,
            )
        server = cls(child)
        server.started, server.errors = began, errors
        return server

"""The two processes of a rig. Owns: the start, the ways to end, and what they print: a Holdfast server over a data
directory, and the fake upstream. Refuses to know: what is asked of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast
from tests.crash.wire import KEY

ROOT = Path(holdfast.__file__).resolve().parents[1]
START_S = 20.0


class Process:
    """A child that says on its first line where it listens."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.pid = child.pid
        self.port = 0

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send it; nothing happens when the process is gone. (send_signal of asyncio would reap it on the side.)"""
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def gone(self, seconds: float = 30.0) -> int:
        """Wait for the end: the exit code."""
        async with asyncio.timeout(seconds):
            return await self._child.wait()

    async def gone_by_signal(self) -> int:
        """SIGTERM, and wait: the exit code."""
        self.signal(signal.SIGTERM)
        return await self.gone()

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        await self.gone()

    async def line(self) -> str:
        """The next line that it prints."""
        assert self._child.stdout is not None
        async with asyncio.timeout(START_S):
            return (await self._child.stdout.readline()).decode()


class Upstream(Process):
    """The fake upstream; every request that it got is a line in `log`."""

    log: Path
    _read = 0

    @classmethod
    async def start(cls, folder: Path) -> Upstream:
        log = folder / "upstream.log"
        argv = (sys.executable, "-m", "tests.fake_upstream", "--port", "0", "--log", str(log))
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


class Server(Process):
    """Holdfast, over a data directory that outlives it."""

    started = 0.0
    errors: Path

    @classmethod
    async def start(cls, folder: Path, upstream: int, under: Sequence[str] = (), **environ: str) -> Server:
        """Start, and wait until it listens."""
        server = await cls.spawn(folder, upstream, under, **environ)
        if not await server.listens():
            await server.kill()
            raise AssertionError(f"the server did not start: {server.errors.read_text()[-2000:]}")
        return server

    async def listens(self) -> bool:
        """Wait until it says where; False where it ended before that."""
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", await self.line())
        self.port = int(found[1]) if found else 0
        return found is not None

    @classmethod
    async def spawn(cls, folder: Path, upstream: int, under: Sequence[str] = (), **environ: str) -> Server:
        """Start, and do not wait."""
        argv = [*under, sys.executable, "-m", "holdfast", "serve", "--port", "0", "--data-dir", str(folder / "data")]
        argv += ["--model-url", f"http://127.0.0.1:{upstream}/v1", "--model", "m"]
        argv += ["--sandbox", "off", "--approval", "never"]
        began = time.monotonic()
        errors = folder / "server.log"
        with errors.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *argv,
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**_clean(), "API_SERVER_KEY": KEY, **environ},
            )
        server = cls(child)
        server.started, server.errors = began, errors
        return server


def _clean() -> dict[str, str]:
    """Our environment without settings of a server."""
    ours = ("HOLDFAST_", "API_SERVER_", "OPENAI_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}

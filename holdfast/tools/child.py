"""A child process whose output is collected within bounds. Owns: its pipe, its group and its end: however collect()
is left, the group is dead, the child reaped and the pipe closed. Refuses to know: what the child does.

Theory of operation. The child is started by the standard library and not by the event loop, because uvloop hands
every inheritable descriptor of the server (its listening sockets too) down to a child. Its exit is seen through a
pidfd: the callback first kills what is left of the group and then reaps, so the number is surely still the child's
when it is used, and nothing is left even if nobody waits any more. The output pipe is watched apart from that: the
exit never waits for the end of a pipe that a grandchild holds, and what does not fit is dropped as it comes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.tools.reaper import end_group

_END_S = 2.0
"""How long the end of a killed child, or of its output, is waited for."""
_CHUNK = 65_536


class Collected(Struct, frozen=True):
    """What came of a child. `code` is None where its time was over first."""

    kept: bytes
    total: int
    code: int | None


async def _nothing_more() -> None:
    return


class Child:
    """A process in a group of its own. Call collect() or end(), or it stays."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.pid = process.pid
        self._process = process
        self._output: int | None = output
        self._loop = asyncio.get_running_loop()
        self._exit = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    async def collect(
        self, keep: int, seconds: float, sweep: Callable[[], Awaitable[object]] = _nothing_more
    ) -> Collected:
        """Let it run for at most `seconds`; its first `keep` bytes of output. `sweep` ends what left the group."""
        if self._output is None:
            raise RuntimeError("a child is collected once")
        sink, self._output = _Sink(self._output, keep), None
        code: int | None = None
        try:
            async with asyncio.timeout(seconds) as clock:
                await self._exit.wait()
            code = self._process.returncode
        except TimeoutError:
            if not clock.expired():
                raise
        finally:
            self._kill()
            try:
                await self._ended()
                await sweep()
                await sink.drained()
            finally:
                sink.close()
        return Collected(bytes(sink.kept), sink.total, code)

    async def end(self) -> None:
        """It will not be collected. Nothing happens when it was."""
        if self._output is not None:
            os.close(self._output)
            self._output = None
            self._kill()
            await self._ended()

    def _kill(self) -> None:
        if not self._exit.is_set():
            end_group(self.pid)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        end_group(self.pid)
        self._process.wait()
        self._exit.set()

    async def _ended(self) -> None:
        try:
            async with asyncio.timeout(_END_S):
                await self._exit.wait()
        except TimeoutError:
            return  # held in the kernel; it is reaped when it comes back


def spawn(argv: Sequence[str], environ: Mapping[str, str], folder: Path, stdin: int) -> Child:
    """Start a child in a new session, with just this environment; both its outputs go into one pipe.

    It blocks as long as the event loop's own way would: until the program is loaded."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=writing,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        return Child(process, reading)
    except OSError:
        os.close(reading)
        process.kill()
        process.wait()
        raise


class _Sink:
    """The reading end: keeps the first bytes, counts all."""

    def __init__(self, fd: int, keep: int) -> None:
        self.kept = bytearray()
        self.total = 0
        self._keep = keep
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._take, fd)

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
        self.total += len(data)
        if (room := self._keep - len(self.kept)) > 0:
            self.kept += data[:room]

    async def drained(self) -> None:
        """All that was written is read; where somebody out of reach holds the pipe open, he is not waited for."""
        try:
            async with asyncio.timeout(_END_S):
                await self._done.wait()
        except TimeoutError:
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            self._done.set()

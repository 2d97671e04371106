"""A child process whose output is taken within bounds. Owns: its pipe, its group and its end: however collect() is
left, the group is dead, the child reaped and the pipe closed. Refuses to know: what the child does.

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


class Ring:
    """The last bytes of an output without end, and how many there were."""

    def __init__(self, keep: int) -> None:
        self.total = 0
        self._keep = keep
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """More of it."""
        self.total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._keep:  # not each time: moving the rest costs as much as the ring is long
            del self._kept[: -self._keep]

    def since(self, position: int) -> tuple[bytes, int]:
        """What came after `position` and is still here, and how many bytes between are not."""
        kept = bytes(self._kept[-self._keep :])
        wanted = self.total - position
        return (kept[len(kept) - wanted :], 0) if wanted <= len(kept) else (kept, wanted - len(kept))


async def _nothing_more() -> None:
    return


def _no_word() -> None:
    return


class Child:
    """A process in a group of its own. Call collect(), follow() or end(), or it stays."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.pid = process.pid
        self._process = process
        self._output: int | None = output
        self._reader: _Reader | None = None
        self._when_ended: Callable[[], None] = _no_word
        self._loop = asyncio.get_running_loop()
        self._exit = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    async def collect(
        self, keep: int, seconds: float, sweep: Callable[[], Awaitable[object]] = _nothing_more
    ) -> Collected:
        """Let it run for at most `seconds`; its first `keep` bytes of output. `sweep` ends what left the group."""
        kept = bytearray()

        def take(data: bytes) -> None:
            kept.extend(data[: max(0, keep - len(kept))])

        reader = self._read(take)
        code: int | None = None
        try:
            async with asyncio.timeout(seconds) as clock:
                await self._exit.wait()
            code = self._process.returncode
        except TimeoutError:
            if not clock.expired():
                raise
        finally:
            self.kill()
            try:
                await self._ended()
                await sweep()
                await reader.drained()
            finally:
                reader.close()
        return Collected(bytes(kept), reader.total, code)

    def follow(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Let it run on; `take` gets its output as it comes, `ended` is called when it is reaped."""
        self._reader = self._read(take)
        if self._exit.is_set():
            ended()
        else:
            self._when_ended = ended

    async def wait(self, seconds: float) -> bool:
        """Whether it ends, with all its output taken, in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._exit.wait()
                if self._reader is not None:
                    await self._reader.drained()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """It is not wanted any more. Nothing happens when it was collected."""
        if self._output is not None:
            os.close(self._output)
            self._output = None
        elif self._reader is None:
            return
        self.kill()
        await self._ended()
        if self._reader is not None:
            await self._reader.drained()

    def _read(self, take: Callable[[bytes], None]) -> _Reader:
        if self._output is None:
            raise RuntimeError("a child is collected once")
        reader, self._output = _Reader(self._output, take), None
        return reader

    def kill(self) -> None:
        """Kill its group, if it is still there."""
        if not self._exit.is_set():
            end_group(self.pid)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        end_group(self.pid)
        self._process.wait()
        self._exit.set()
        if self._reader is not None:
            self._loop.call_later(_END_S, self._reader.close)
        self._when_ended()

    async def _ended(self) -> None:
        try:
            async with asyncio.timeout(_END_S):
                await self._exit.wait()
        except TimeoutError:
            return  # held in the kernel; it is reaped when it comes back


def spawn(argv: Sequence[str], environ: Mapping[str, str], folder: Path, stdin: int, fds: Sequence[int] = ()) -> Child:
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
            pass_fds=fds,
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


class _Reader:
    """The reading end of an output: hands on what comes, counts it."""

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        self.total = 0
        self._hand_on = take
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
        self._hand_on(data)

    async def drained(self) -> None:
        """All that was written is read; where somebody out of reach holds the pipe open, he is not waited for."""
        try:
            async with asyncio.timeout(_END_S):
                await self._done.wait()
        except TimeoutError:
            self.close()

    def close(self) -> None:
        """Read no more."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            self._done.set()

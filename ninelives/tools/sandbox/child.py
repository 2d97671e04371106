"""Child processes that lead their own group. Owns: the exit of such a child, and its output within bounds: however
collect() is left, the group is dead, the child reaped and the pipe closed. Refuses to know: what the child does.

Theory of operation. The standard library starts the child and not the event loop, because uvloop hands every
inheritable descriptor of the server (its listening sockets too) down to a child. A pidfd reports the exit. Its
callback first kills what is left of the group and then reaps: the child still has its pid, and nothing is left even
if nobody waits any more. The output pipe is read independently of that. The exit never waits for a pipe that a
grandchild holds open, and output that does not fit is dropped as it arrives."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ninelives.tools.sandbox.reaper import end_group

_END_S = 2.0
"""How long to wait for a killed child, or for the end of its output."""
_CHUNK = 65_536


class GroupLeader:
    """A child that leads its own group. The group dies with it, and it is reaped as soon as it exits."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        """Its exit code, once it is reaped."""
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        self._loop.add_reader(self._pidfd, self.reap)

    def kill(self) -> None:
        """Kill its group, if it was not reaped yet."""
        if not self.exited.done():
            end_group(self._pidfd, self.pid)

    def reap(self) -> None:
        """Kill what is left of the group and reap the child. Nothing happens the second time."""
        if self.exited.done():
            return
        self._loop.remove_reader(self._pidfd)
        self.kill()
        code = self._process.wait()
        os.close(self._pidfd)
        self.exited.set_result(code)

    async def wait(self, seconds: float) -> bool:
        """Whether it is reaped within that time."""
        done, _ = await asyncio.wait({self.exited}, timeout=seconds)
        return bool(done)


class Collected(Struct, frozen=True):
    """The result of a child. `code` is None if it was still running when its time was over."""

    kept: bytes
    total: int
    code: int | None


class Ring:
    """The last bytes of an endless output, and how many bytes there were."""

    def __init__(self, keep: int) -> None:
        self.total = 0
        self._keep = keep
        self._kept = bytearray()

    def append(self, data: bytes) -> None:
        """Add output."""
        self.total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._keep:  # not every time: this moves all kept bytes
            del self._kept[: -self._keep]

    @property
    def kept_bytes(self) -> int:
        """How much memory it takes."""
        return len(self._kept)

    def since(self, position: int) -> tuple[bytes, int]:
        """The kept bytes after `position`, and how many bytes in between are lost."""
        kept = bytes(self._kept[-self._keep :])
        wanted = self.total - position
        return (kept[len(kept) - wanted :], 0) if wanted <= len(kept) else (kept, wanted - len(kept))


async def _nothing_more() -> None:
    return


class Child:
    """A process in a group of its own. Call collect(), follow() or end(), or it stays."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self._leader = GroupLeader(process)
        self.pid = process.pid
        self._output: int | None = output
        self._reader: _Reader | None = None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._leader.exited.result() if self._leader.exited.done() else None

    async def collect(
        self, keep: int, seconds: float, sweep: Callable[[], Awaitable[object]] = _nothing_more
    ) -> Collected:
        """Let it run for at most `seconds`, and keep the first `keep` bytes of its output. `sweep` runs after its end,
        to kill what left the group."""
        kept = bytearray()

        def on_output(data: bytes) -> None:
            kept.extend(data[: max(0, keep - len(kept))])

        reader = self._read(on_output)
        try:
            code = self.code if await self._leader.wait(seconds) else None
        finally:
            self.kill()
            try:
                await self._leader.wait(_END_S)
                await sweep()
                await reader.drained()
            finally:
                reader.close()
        return Collected(bytes(kept), reader.total, code)

    def follow(self, on_output: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Let it run on. `on_output` gets its output as it arrives, `ended` is called once it is reaped."""
        reader = self._reader = self._read(on_output)
        loop = asyncio.get_running_loop()

        def on_exit(_: asyncio.Future[int]) -> None:
            loop.call_later(_END_S, reader.close)
            ended()

        self._leader.exited.add_done_callback(on_exit)

    async def wait(self, seconds: float) -> bool:
        """Whether it ends within that time, with all its output read."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._leader.exited)
                if self._reader is not None:
                    await self._reader.drained()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """Kill it. Nothing happens if it was collected."""
        if self._output is not None:
            os.close(self._output)
            self._output = None
        elif self._reader is None:
            return
        self.kill()
        await self._leader.wait(_END_S)  # held in the kernel: it is reaped when it comes back
        if self._reader is not None:
            await self._reader.drained()

    def _read(self, on_output: Callable[[bytes], None]) -> _Reader:
        if self._output is None:
            raise RuntimeError("the output of a child is read once")
        reader, self._output = _Reader(self._output, on_output), None
        return reader

    def kill(self) -> None:
        """Kill its group, if it is still there."""
        self._leader.kill()


def spawn(argv: Sequence[str], environ: Mapping[str, str], folder: Path, stdin: int, fds: Sequence[int] = ()) -> Child:
    """Start a child in a new session, with exactly this environment. stdout and stderr go into one pipe.

    Blocks until the program is loaded, as the event loop's own subprocess call does."""
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
        raise


class _Reader:
    """Reads a pipe, counts the bytes and passes them on."""

    def __init__(self, fd: int, on_output: Callable[[bytes], None]) -> None:
        self.total = 0
        self._on_output = on_output
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable, fd)

    def _on_readable(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
        self.total += len(data)
        self._on_output(data)

    async def drained(self) -> None:
        """Wait until all output is read. A process out of reach may hold the pipe open: do not wait for it for long."""
        try:
            async with asyncio.timeout(_END_S):
                await self._done.wait()
        except TimeoutError:
            self.close()

    def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            self._done.set()

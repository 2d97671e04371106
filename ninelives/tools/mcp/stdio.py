"""An MCP server as a child process, over its stdin and stdout. Owns: the process from its start to its end, and the
conversion between lines and messages of the `mcp` package. Refuses to know: what the messages mean.

The package has such a transport too. It is not used for two reasons. It starts the child through the event loop, and
uvloop hands the server's listening sockets down to it (see sandbox/child.py). And it hands down a part of the server's
environment. Here the child gets the configured environment and a PATH. The end of its stdin tells the child to end,
also when this server is killed. If it does not end in time, its group is killed."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from ninelives.tools.mcp.incoming import MESSAGE_BYTES
from ninelives.tools.sandbox.child import GroupLeader

GRACE_S = 2.0
LAST_WORDS_BYTES = 2_000
LAST_WORDS_S = 0.5
"""How long to wait for the rest of a child's stderr."""
BASE_ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class Program(Struct, frozen=True):
    """The program to start."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    """Added to BASE_ENVIRON. The child gets nothing else."""
    folder: str | None = None


class Stdio:
    """One run of a program, from the start to the end of `streams()`."""

    def __init__(self, program: Program, lost: Callable[[str], None]) -> None:
        """`lost` is called with the reason why the program cannot be reached any more."""
        self._program = program
        self._lost = lost
        self._stderr_ended = asyncio.Event()
        self._exit_told = asyncio.Event()
        self._last_words = b""
        self.nonsense = ""
        """The first line of its output that was no message, shortened."""

    @property
    def last_words(self) -> str:
        """The end of its stderr."""
        return self._last_words.decode("utf-8", "replace").strip()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the program, yield the pair of streams for a session of the package, and end it in any case."""
        anyio: Any = importlib.import_module("anyio")
        process = self._start()
        leader = GroupLeader(process)
        pipes = _Pipes(process)
        incoming, read = anyio.create_memory_object_stream(0)
        write, outgoing = anyio.create_memory_object_stream(0)
        try:
            async with asyncio.TaskGroup() as group, incoming, read, write, outgoing:
                lines, words = await pipes.readers()
                writer = await pipes.writer()
                tasks = [
                    group.create_task(self._write(writer, outgoing)),
                    group.create_task(self._read(lines, incoming)),
                    group.create_task(self._listen(words)),
                    group.create_task(self._watch(leader)),
                ]
                try:
                    yield read, write
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            pipes.close()
            await _end(leader)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program. Blocks until it is loaded, as the event loop's own subprocess call does."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self._program.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**BASE_ENVIRON, **self._program.environ},
            cwd=self._program.folder,
            start_new_session=True,
            bufsize=0,
        )
        _lose_privilege(process.pid)
        return process

    async def _watch(self, leader: GroupLeader) -> None:
        """Report how it ended, with the end of its stderr."""
        code = await asyncio.shield(leader.exited)
        await _within(self._stderr_ended, LAST_WORDS_S / 2)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lost(f"it ended with {how}")
        self._exit_told.set()

    async def _read(self, lines: asyncio.StreamReader, incoming: Any) -> None:
        anyio: Any = importlib.import_module("anyio")
        message: Any = importlib.import_module("mcp.shared.message").SessionMessage
        parse = _parser()
        try:
            async with incoming:
                while line := await lines.readline():
                    if line.strip():
                        await incoming.send(self._parsed(parse, message, line))
                # An exit says more than a closed output, so report that first.
                await _within(self._exit_told, LAST_WORDS_S)
                self._lost("it closed its output")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the session is over
        except ValueError:
            self._lost(f"it sent a line of more than {MESSAGE_BYTES} bytes")

    def _parsed(self, parse: Callable[[bytes], object], message: Any, line: bytes) -> object:
        """The message in a line. If it is not one, the error itself, which the session reports."""
        try:
            return message(parse(line))
        except ValueError as error:
            self.nonsense = self.nonsense or line[:100].decode("utf-8", "replace").strip()
            return error

    async def _write(self, writer: asyncio.StreamWriter, outgoing: Any) -> None:
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()
        except (ConnectionError, RuntimeError):  # RuntimeError: uvloop, where its pipe is closed already
            await _within(self._exit_told, LAST_WORDS_S)
            self._lost("it closed its input")

    async def _listen(self, words: asyncio.StreamReader) -> None:
        while data := await words.read(65_536):
            self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]
        self._stderr_ended.set()


def _lose_privilege(pid: int) -> None:
    """The server may have an OOM score below zero. Its children have the usual one."""
    score = Path(f"/proc/{pid}/oom_score_adj")
    with suppress(OSError):  # it ended already, or this is not Linux
        if int(score.read_text()) < 0:
            score.write_text("0")


async def _end(leader: GroupLeader) -> None:
    """Wait for the end, because its stdin is closed now; kill it if it does not end."""
    try:
        if not await leader.wait(GRACE_S):
            leader.kill()
            await leader.wait(GRACE_S)
    finally:  # also if the wait is cancelled
        leader.reap()


class _Pipes:
    """The pipes of a child, connected to the loop one by one. Each is closed once: by its transport, or here."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._loose: list[Any] = [process.stdin, process.stdout, process.stderr]
        self._held: list[Any] = []
        self._writer: asyncio.StreamWriter | None = None

    async def readers(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        """Readers of its stdout and stderr."""
        return await self._reader(self._process.stdout), await self._reader(self._process.stderr)

    async def _reader(self, pipe: Any) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=MESSAGE_BYTES)
        self._loose.remove(pipe)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._held.append(transport)
        return reader

    async def writer(self) -> asyncio.StreamWriter:
        """A writer to its stdin."""
        self._loose.remove(self._process.stdin)
        mixin = asyncio.streams.FlowControlMixin
        transport, protocol = await self._loop.connect_write_pipe(mixin, self._process.stdin)
        self._held.append(transport)
        self._writer = asyncio.StreamWriter(transport, protocol, None, self._loop)
        return self._writer

    def close(self) -> None:
        """Close all pipes. The end of its stdin tells the child to end."""
        for pipe in self._loose:
            pipe.close()
        if self._writer is not None:
            self._writer.transport.abort()  # do not wait until the child has read the rest
        for transport in self._held:
            transport.close()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event happens within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _parser() -> Callable[[bytes], object]:
    """The function that parses a line, in mcp 1 and in mcp 2."""
    types: Any = importlib.import_module("mcp.types")
    adapter = getattr(types, "jsonrpc_message_adapter", None)
    parse: Callable[[bytes], object] = adapter.validate_json if adapter else types.JSONRPCMessage.model_validate_json
    return parse

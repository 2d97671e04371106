"""An MCP server as a child process, spoken to over its stdin and stdout. Owns: the process from its start to its end,
and the way between lines and messages of the `mcp` package. Refuses to know: what the messages mean.

The package has such a transport too. This one exists because that one starts the child through the event loop, and
uvloop hands the server's listening sockets down to it (see child.py), and because it hands down a part of the server's
environment. Here the child gets what the configuration gives it, and a PATH. It is told to end by the end of its
stdin, also when this server is killed; if it does not end in time, its group is killed."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from holdfast.tools.reaper import end_group

LINE_BYTES = 16 * 1_048_576
GRACE_S = 2.0
LAST_WORDS_BYTES = 2_000
LAST_WORDS_S = 0.5
"""How long the rest of what a child said is waited for."""
BASE_ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class Program(Struct, frozen=True):
    """What is started."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    """Besides BASE_ENVIRON; nothing else is handed down."""
    folder: str | None = None


class Stdio:
    """One run of a program. `streams()` is its whole life."""

    def __init__(self, program: Program, lost: Callable[[str, str], None]) -> None:
        """`lost` is told why the program cannot be spoken to any more, and what it said last on stderr."""
        self._program = program
        self._lost = lost
        self._ended = asyncio.Event()
        self._heard = asyncio.Event()
        self._told = asyncio.Event()
        self._last_words = b""
        self._exited: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it; the pair of streams that a session of the package takes; then end it, however it is left."""
        anyio: Any = importlib.import_module("anyio")
        process = self._start()
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
                    group.create_task(self._watch(process)),
                ]
                try:
                    yield read, write
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            pipes.close()
            await self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        """Blocks as long as the event loop's own way would: until the program is loaded."""
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
        pidfd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def exited() -> None:
            if self._ended.is_set():
                return
            loop.remove_reader(pidfd)
            os.close(pidfd)
            end_group(process.pid)  # before it is reaped, while the number is surely still its own
            process.wait()
            self._ended.set()

        loop.add_reader(pidfd, exited)
        self._exited = exited
        return process

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Tell how it ended, and what it said last."""
        await self._ended.wait()
        await _within(self._heard, LAST_WORDS_S / 2)
        code = process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lost(f"it ended with {how}", self._last_words.decode("utf-8", "replace").strip())
        self._told.set()

    async def _read(self, lines: asyncio.StreamReader, incoming: Any) -> None:
        anyio: Any = importlib.import_module("anyio")
        message: Any = importlib.import_module("mcp.shared.message").SessionMessage
        parse = _parser()
        try:
            async with incoming:
                while line := await lines.readline():
                    if line.strip():
                        await incoming.send(_parsed(parse, message, line))
                # How it ended says more than that it says no more, so that is told first.
                await _within(self._told, LAST_WORDS_S)
                self._lost("it closed its output", "")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the session is over
        except ValueError:
            self._lost(f"it sent a line of more than {LINE_BYTES} bytes", "")

    async def _write(self, writer: asyncio.StreamWriter, outgoing: Any) -> None:
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            await _within(self._told, LAST_WORDS_S)
            self._lost("it closed its input", "")

    async def _listen(self, words: asyncio.StreamReader) -> None:
        while data := await words.read(65_536):
            self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]
        self._heard.set()

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Its stdin is closed, so it should end by itself now."""
        try:
            if not await _within(self._ended, GRACE_S):
                end_group(process.pid)
                await _within(self._ended, GRACE_S)
        finally:  # whoever is cancelled while it waits leaves nothing behind either
            self._exited()


class _Pipes:
    """The pipes of a child, in the hands of the loop. A pipe is closed by whoever holds it, and once."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._loose: list[Any] = [process.stdin, process.stdout, process.stderr]
        self._held: list[Any] = []
        self._writer: asyncio.StreamWriter | None = None

    async def readers(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        """What comes out of the child: its stdout and its stderr."""
        return await self._reader(self._process.stdout), await self._reader(self._process.stderr)

    async def _reader(self, pipe: Any) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        self._loose.remove(pipe)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._held.append(transport)
        return reader

    async def writer(self) -> asyncio.StreamWriter:
        """What goes into its stdin."""
        self._loose.remove(self._process.stdin)
        mixin = asyncio.streams.FlowControlMixin
        transport, protocol = await self._loop.connect_write_pipe(mixin, self._process.stdin)
        self._held.append(transport)
        self._writer = asyncio.StreamWriter(transport, protocol, None, self._loop)
        return self._writer

    def close(self) -> None:
        """No more is read or written; the end of its stdin tells the child to end."""
        for pipe in self._loose:
            pipe.close()
        if self._writer is not None:
            self._writer.transport.abort()  # what the child has not taken by now is not waited for
        for transport in self._held:
            transport.close()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Has it happened by then?"""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _parser() -> Callable[[bytes], object]:
    """What makes a message of a line, in mcp 1 and in mcp 2."""
    types: Any = importlib.import_module("mcp.types")
    adapter = getattr(types, "jsonrpc_message_adapter", None)
    parse: Callable[[bytes], object] = adapter.validate_json if adapter else types.JSONRPCMessage.model_validate_json
    return parse


def _parsed(parse: Callable[[bytes], object], message: Any, line: bytes) -> object:
    """The message in a line; what is none is handed on as the error that it is, for the session to tell."""
    try:
        return message(parse(line))
    except ValueError as error:
        return error

"""The terminal: one shell command in the workspace. Owns: the launcher that waits for permission, the environment
that a command sees, and the words for how it ended. Refuses to know: who may use it; there is no sandbox here, so it
is offered only where the settings say so.

Theory of operation (house rule 6.8). prepare() starts the launcher: a shell that waits for one line on a pipe that
only this server holds. Its name (boot id, pid, start time) goes into ToolStarted, and when that is committed run()
writes the line and the launcher becomes the command. If the server dies before, the pipe closes and the launcher
exits having done nothing; if it dies after, the next attempt ends what is left by that name (reaper.py)."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.core.events import Effect, Process
from holdfast.tools.arguments import schema_of, taken
from holdfast.tools.base import Deed, Output, Place, ToolRefused
from holdfast.tools.child import Child, Collected, spawn
from holdfast.tools.reaper import CALL, LAUNCHER, end_leftover, identify
from holdfast.tools.text import bounded
from holdfast.tools.threads import Threads

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SHELL = "/bin/sh"
_LAUNCHER = f"""read -r go && [ "$go" = go ] || exit 125
export {LAUNCHER}=$$
exec {_SHELL} -c -- "$1" </dev/null"""
_COMMAND_BYTES = 100_000
"""Linux takes 128 KiB for one argument of a program."""


class _Arguments(Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="Shell command (POSIX sh).")]
    timeout_s: Annotated[float, Meta(ge=0.1, description="Seconds; the server's own limit stays.")] = float("inf")


class Terminal:
    """Runs a command; stdout and stderr come back as one text."""

    name = "terminal"
    description = (
        "Run a shell command in the workspace folder. No input, no terminal; each call starts in the workspace. "
        "Everything it started, also in the background, ends with the call."
    )
    schema = schema_of(_Arguments)
    effect: Effect = "write"
    label = "Running a command"
    emoji = "💻"

    def __init__(self, threads: Threads, search_path: str = SEARCH_PATH) -> None:
        self._threads = threads
        self._search_path = search_path

    async def prepare(self, arguments: dict[str, object], place: Place) -> Deed:
        """Start the launcher, which waits."""
        asked = taken(_Arguments, arguments)
        argv = (_SHELL, "-c", _LAUNCHER, "sh", _sendable(asked.command))
        reading, writing = os.pipe()
        try:
            child = spawn(argv, self._environ(place), place.workspace, reading)
        except OSError as error:
            os.close(writing)
            raise ToolRefused(f"The command could not be started: {error.strerror}.") from error
        finally:
            os.close(reading)
        deed = _TerminalDeed(child, writing, place, min(asked.timeout_s, place.timeout_s), self._threads)
        if deed.process is None:
            await deed.abandon()
            raise ToolRefused("The command could not be started: its shell ended at once.")
        return deed

    def _environ(self, place: Place) -> dict[str, str]:
        return {
            "PATH": self._search_path,
            "HOME": str(place.workspace),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            CALL: place.call_id,
        }


class _TerminalDeed:
    def __init__(self, child: Child, permission: int, place: Place, seconds: float, threads: Threads) -> None:
        self.process: Process | None = identify(child.pid)
        self._child = child
        self._permission: int | None = permission
        self._place = place
        self._seconds = seconds
        self._threads = threads

    async def run(self) -> Output:
        """Give permission and collect what comes."""
        if not self._permit():
            await self.abandon()
            return Output("[the command was not run: its launcher is gone]", is_error=True)
        keep = self._place.output_bytes
        result = await self._child.collect(keep, self._seconds, self._sweep)
        text = await self._threads.run(bounded, result.kept, keep, result.total)  # 100 ms for a megabyte of NULs
        if note := _ending(result, self._seconds):
            gap = "\n" if text and not text.endswith("\n") else ""
            return Output(f"{text}{gap}{note}", is_error=True)
        return Output(text)

    async def abandon(self) -> None:
        """The launcher ends without having done anything."""
        if self._permission is not None:
            os.close(self._permission)
            self._permission = None
        await self._child.end()

    def _permit(self) -> bool:
        if self._permission is None:
            raise RuntimeError("a deed is done once")
        try:
            os.write(self._permission, b"go\n")
        except BrokenPipeError:
            return False
        finally:
            os.close(self._permission)
            self._permission = None
        return True

    async def _sweep(self) -> None:
        if self.process is not None:
            await self._threads.run(end_leftover, self.process, self._place.call_id)


def _ending(result: Collected, seconds: float) -> str:
    """How it ended, where that is not well."""
    if result.code is None:
        return f"[killed: it was still running after {seconds:g} s]"
    if result.code < 0:
        return f"[ended by signal {-result.code}]"
    return f"[exit code {result.code}]" if result.code else ""


def _sendable(command: str) -> str:
    if not command.strip():
        raise ToolRefused("The command is empty.")
    try:
        data = command.encode()
    except UnicodeEncodeError as error:
        raise ToolRefused("The command is not valid text.") from error
    if b"\0" in data:
        raise ToolRefused("The command has a NUL in it, which no program can be given.")
    if len(data) > _COMMAND_BYTES:
        raise ToolRefused(
            f"The command is longer than {_COMMAND_BYTES} bytes. Write it to a file with write_file and run that."
        )
    return command

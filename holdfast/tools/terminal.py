"""The terminal: one shell command in the workspace. Owns: its arguments, and the way from what a session remembers to
a command and back. Refuses to know: how a launcher waits for permission (sandbox_launch.py), how the sandbox is made,
and what is believed of a shell's last words (terminal_session.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.core.events import Effect
from holdfast.tools.arguments import schema_of, taken
from holdfast.tools.base import Deed, Place, ToolRefused, Use
from holdfast.tools.child import Collected
from holdfast.tools.sandbox_base import Launch, Lent, Sandbox
from holdfast.tools.sandbox_launch import SHELL, LaunchDeed, base_environ, begin, cpu_seconds, ready_workspace
from holdfast.tools.terminal_session import TOLD_BYTES, Shell, heard, recall, remember, telling
from holdfast.tools.threads import Threads

_COMMAND_BYTES = 100_000
"""Linux takes 128 KiB for one argument of a program."""


class _Arguments(Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="Shell command (POSIX sh).")]
    timeout_s: Annotated[float, Meta(ge=0.1, description="Seconds; the server's own limit stays.")] = float("inf")


class Terminal:
    """Runs a command; stdout and stderr come back as one text."""

    name = "terminal"
    schema = schema_of(_Arguments)
    effect: Effect = "write"
    local: Use = "workspace"
    label = "Running a command"
    emoji = "💻"

    def __init__(self, sandbox: Sandbox, threads: Threads) -> None:
        self.description = (
            "Run a shell command in the workspace. Folder and exported variables are kept for the next call. "
            f"No input, no terminal{', no network' if sandbox.kind == 'bwrap' else ''}. Everything it started ends "
            "with the call; use process for the background."
        )
        self._sandbox = sandbox
        self._threads = threads

    async def prepare(self, arguments: dict[str, object], place: Place) -> Deed:
        """Start the launcher, which waits."""
        asked = taken(_Arguments, arguments)
        command = sendable(asked.command)
        known = await self._threads.run(remembered, self._sandbox, place)
        seconds = min(asked.timeout_s, place.timeout_s)
        told = Lent("told", uid=self._sandbox.uid)
        launch = Launch(
            argv=(SHELL, "-c", "--", telling(command, self._sandbox.seen(told))),
            environ=known.shell.environ_over(known.base),
            workspace=known.workspace,
            folder=known.folder,
            call_id=place.call_id,
            cpu_s=cpu_seconds(seconds),
            lent=(told,),
        )

        async def after(result: Collected) -> str:
            return await self._threads.run(_keep, result, told, known, place)

        try:
            waiting = begin(self._sandbox, launch)
        except BaseException:
            told.close()
            raise
        return LaunchDeed(waiting, place, seconds, self._threads, launch.lent, after)


class Known(Struct, frozen=True):
    """What the next command of a session begins with."""

    workspace: Path
    folder: Path
    shell: Shell
    base: dict[str, str]
    """The environment of a fresh shell."""


def remembered(sandbox: Sandbox, place: Place) -> Known:
    """The workspace, ready, and what the session remembers. Blocks."""
    workspace = ready_workspace(sandbox, place)
    shell = recall(place)
    return Known(workspace, shell.folder_in(workspace), shell, base_environ(sandbox, place))


def _keep(result: Collected, told: Lent, known: Known, place: Place) -> str:
    """Remember what the shell told, if it came to its end. Blocks."""
    if result.code is None:
        return ""
    shell, note = heard(told.read(TOLD_BYTES), known.shell, known.base, known.workspace)
    if shell != known.shell:
        remember(place, shell)
    return note


def sendable(command: str) -> str:
    """The command, if a shell can be given it; ToolRefused if not."""
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

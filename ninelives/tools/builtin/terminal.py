"""The terminal: one shell command in the workspace. Owns: the command's arguments, and what a session keeps from one
command to the next (folder and exported variables). Refuses to know: how a launcher waits for permission
(sandbox/launch.py) and how the sandbox is made.

Theory of operation. The shell itself reports its state, in its exit trap, into a file that the server made for this
call and holds open. What a command prints plays no part. A command may write into that file too, but it gains nothing
that cd and export would not give: the folder must be in the workspace, names must be valid, and the whole must be
small. env(1) sets the kept variables for the next command after permission was given, so a kept PATH or LD_PRELOAD
never reaches the launcher. A command that is killed reports nothing, and the state before it stays.

A run that is not stored must change nothing that outlasts it (B6, D2). Its first command begins with the state of the
session. What it leaves is kept for that run alone, in a file that goes with the run, or in memory."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ninelives.core.events import Effect
from ninelives.tools.arguments import as_struct, schema_of
from ninelives.tools.base import ApprovalClass, Execution, Place, Reach, Threads, ToolRefused, Use
from ninelives.tools.sandbox.base import SHELL, CallFile, Launch, Sandbox
from ninelives.tools.sandbox.child import Collected
from ninelives.tools.sandbox.launch import (
    LaunchExecution,
    base_environ,
    cpu_seconds,
    file_room,
    full_note,
    ready_workspace,
    start_launcher,
)
from ninelives.tools.workspace import inside

ENVIRON_BYTES = 65_536
REPORT_BYTES = ENVIRON_BYTES + 4096
MOST_NAMES = 512
MOST_SESSIONS = 1000

_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
_NINELIVES = "NINELIVES_"
_COMMAND_BYTES = 100_000
"""Linux accepts 128 KiB for one argument of a program."""


class _TerminalArguments(Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="Shell command (POSIX sh).")]
    timeout_s: Annotated[float, Meta(ge=0.1, description="Seconds; the server's own limit stays.")] = float("inf")


class Terminal:
    """Runs a command. stdout and stderr come back as one text."""

    name = "terminal"
    schema = schema_of(_TerminalArguments)
    effect: Effect = "write"
    approval: ApprovalClass = "exec"
    local: Use = "workspace"
    label = "Running a command"
    emoji = "💻"

    def __init__(self, sandbox: Sandbox, threads: Threads) -> None:
        self.description = (
            "Run a shell command in the workspace. Folder and exported variables are kept for the next call. "
            f"No input, no terminal{', no network' if not sandbox.holds.network else ''}. Everything it started ends "
            "with the call; use process for the background."
        )
        self._sandbox = sandbox
        self._threads = threads

    def reach(self, arguments: dict[str, object]) -> Reach:
        """See Tool."""
        return Reach(self.approval, command=as_struct(_TerminalArguments, arguments).command)

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Start the launcher, which waits for permission."""
        asked = as_struct(_TerminalArguments, arguments)
        command = checked_command(asked.command)
        known = await self._threads.run(session_start, self._sandbox, place)
        seconds = min(asked.timeout_s, place.timeout_s)
        room = file_room(await place.quota.room())
        report = CallFile("state", uid=self._sandbox.uid, folder=self._sandbox.call_folder(known.workspace))
        reported = reporting_state(command, self._sandbox.path_inside(report))
        launch = Launch(
            # A shell that can write no file would be killed for its report.
            argv=(SHELL, "-c", "--", command if room == 0 else reported),
            environ=known.shell.environ_over(known.base),
            workspace=known.workspace,
            folder=known.folder,
            call_id=place.call_id,
            cpu_s=cpu_seconds(seconds),
            files=(report,),
            file_bytes=room,
        )

        async def save(result: Collected) -> str:
            return await self._threads.run(_save_reported, result, report, known, place)

        after = full_note(place) if room == 0 else save

        try:
            waiting = start_launcher(self._sandbox, launch)
        except BaseException:
            report.close()
            raise
        return LaunchExecution(waiting, place, seconds, self._threads, launch.files, after)

    async def forget(self, place: Place) -> bool:
        """See ForgetfulTool.forget: the state of the run's shell goes."""
        if await place.home.refusal(self.local):
            return False
        await self._threads.run(forget_session, place)
        return True


class SessionStart(Struct, frozen=True):
    """The state in which the next command of a session begins."""

    workspace: Path
    folder: Path
    shell: Shell
    base: dict[str, str]
    """The environment of a fresh shell."""


def session_start(sandbox: Sandbox, place: Place) -> SessionStart:
    """Prepare the workspace and load the state of the session. Blocks."""
    workspace = ready_workspace(sandbox, place)
    shell = load_session(place)
    return SessionStart(workspace, shell.folder_in(workspace), shell, base_environ(sandbox, place))


def _save_reported(result: Collected, report: CallFile, known: SessionStart, place: Place) -> str:
    """Save the state that the shell reported, if the command came to its end. Blocks."""
    if result.code is None:
        return ""
    shell, note = state_after(report.read(REPORT_BYTES), known.shell, known.base, known.workspace)
    if shell != known.shell:
        save_session(place, shell)
    return note


def checked_command(command: str) -> str:
    """The command. Raises ToolRefused if a shell cannot be given it."""
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


class Shell(Struct, frozen=True):
    """How the state of a session's shell differs from a fresh one. `folder` is relative to the workspace."""

    folder: str = "."
    environ: dict[str, str] = {}
    unset: list[str] = []

    def environ_over(self, base: dict[str, str]) -> dict[str, str]:
        """The environment of the next command."""
        kept = {name: value for name, value in base.items() if name not in self.unset}
        return kept | self.environ

    def folder_in(self, workspace: Path) -> Path:
        """The folder of the next command: the workspace if the kept one is gone or leads out of it."""
        try:
            folder = inside(workspace, f"./{self.folder}")
        except ToolRefused:
            return workspace
        return folder if folder.is_dir() else workspace


def reporting_state(command: str, path: str) -> str:
    """The command, in a shell that reports its state at the end. The trap is on the command's own line, so that line
    numbers in error messages are right. A command that does not parse reports nothing."""
    tell = f"""{{ printf '%s\\0' "$(pwd -P)"; /usr/bin/env -0; }} >|{shlex.quote(path)} 2>/dev/null"""
    return f"trap {shlex.quote(tell)} EXIT; {command}"


def state_after(report: bytes, before: Shell, base: dict[str, str], workspace: Path) -> tuple[Shell, str]:
    """The state after a command with this report, and a note for the model if it is not what the command left."""
    first, end, rest = report.partition(b"\0")
    if not end:
        return before, ""
    folder = _folder(first, workspace)
    note = "" if folder is not None else f"[outside of the workspace: the next command starts in {before.folder}]"
    if not rest:
        return msgspec.structs.replace(before, folder=folder or before.folder), note
    environ = _environ(rest)
    if len(rest) > ENVIRON_BYTES or not rest.endswith(b"\0") or len(environ) > MOST_NAMES:
        note = f"{note}\n[the environment is too large to be kept: it stays as it was]".strip()
        return msgspec.structs.replace(before, folder=folder or before.folder), note
    changed = {name: value for name, value in environ.items() if base.get(name) != value}
    unset = [name for name in base if name not in environ and not name.startswith(_NINELIVES)]
    return Shell(folder or before.folder, changed, unset), note


def _folder(report: bytes, workspace: Path) -> str | None:
    try:
        path = Path(report.decode())
        return str(inside(workspace, str(path)).relative_to(workspace)) if path.is_absolute() else None
    except (UnicodeDecodeError, ToolRefused):
        return None


def _environ(report: bytes) -> dict[str, str]:
    """The accepted variables: valid name, valid text, and none of the shell's or the server's own."""
    environ = {}
    for pair in report.split(b"\0"):
        with suppress(UnicodeDecodeError):  # not text: skip it
            name, equals, value = pair.decode().partition("=")
            if equals and _NAME.match(name) and name not in _OWN and not name.startswith(_NINELIVES):
                environ[name] = value
    return environ


def load_session(place: Place) -> Shell:
    """The saved state of the session. Blocks."""
    if place.scratch is not None and (kept := place.scratch.get(Terminal.name)):
        return msgspec.json.decode(kept, type=Shell)
    own = _path(place, f"run {place.apart}") if place.apart else None
    for path in (own, _path(place, place.session) if place.session else None):
        if path is not None:
            with suppress(OSError, msgspec.DecodeError):  # none yet, or damaged: a fresh shell is always valid
                return msgspec.json.decode(path.read_bytes(), type=Shell)
    return Shell()


def save_session(place: Place, shell: Shell) -> None:
    """Save the state for the next command of the session, or of the run. Blocks."""
    data = msgspec.json.encode(shell)
    if place.scratch is not None:
        place.scratch[Terminal.name] = data
        return
    path = _path(place, f"run {place.apart}" if place.apart else place.session)
    if path is None:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        _make_room(path.parent)
    draft = _run_draft(path) if place.apart else path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    draft.rename(path)


def forget_session(place: Place) -> None:
    """Delete the state of the run's own shell. Blocks."""
    path = _path(place, f"run {place.apart}") if place.apart else None
    if path is not None:
        path.unlink(missing_ok=True)
        _run_draft(path).unlink(missing_ok=True)


def _run_draft(path: Path) -> Path:
    """The draft of a run's file. It has one name, as a run has one command at a time: so a crash leaves none that
    nobody finds."""
    return path.with_suffix(".tmp")


def _path(place: Place, name: str) -> Path | None:
    """The file of a session or a run; None if its state is not kept. No session has a name with a space."""
    if not name or not place.state.is_dir():
        return None
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return place.state / "sessions" / f"{digest[:32]}.json"


def _make_room(folder: Path) -> None:
    """Delete the sessions that were unused for longest, so that their number stays bounded."""
    files = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder))
    for _, path in files[: max(0, len(files) - MOST_SESSIONS + 1)]:
        with suppress(FileNotFoundError):  # another call deleted it meanwhile
            os.unlink(path)

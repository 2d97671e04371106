"""The execute_code tool: Python in the sandbox of the terminal. Owns: its arguments, and the choice of the Python.
Refuses to know: how a program is launched and confined."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ninelives.core.events import Effect
from ninelives.tools.arguments import as_struct, schema_of
from ninelives.tools.base import ApprovalClass, Execution, Place, Threads, ToolRefused, Use
from ninelives.tools.builtin.terminal import session_start
from ninelives.tools.sandbox.base import PYTHONS, CallFile, Launch, Sandbox
from ninelives.tools.sandbox.launch import LaunchExecution, cpu_seconds, file_room, full_note, no_note, start_launcher

CODE_BYTES = 1_048_576
_PYTHON = "python3"
"""In a container: the one of its image, wherever it is."""


class _ExecuteArguments(Struct, forbid_unknown_fields=True):
    code: str
    timeout_s: Annotated[float, Meta(ge=0.1, description="Seconds; the server's own limit stays.")] = float("inf")


class ExecuteCode:
    """Runs a Python program and returns what it prints."""

    name = "execute_code"
    description = (
        "Run Python 3 code as a program of its own, in the terminal's folder and environment. Gives what it prints; "
        "nothing else is kept. Standard library; sys.path has no workspace folder."
    )
    schema = schema_of(_ExecuteArguments)
    effect: Effect = "write"
    approval: ApprovalClass = "exec"
    local: Use = "workspace"
    label = "Running Python"
    emoji = "🐍"

    def __init__(self, sandbox: Sandbox, threads: Threads, pythons: tuple[Path, ...] = PYTHONS) -> None:
        self._sandbox = sandbox
        self._threads = threads
        self._pythons = pythons

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Start the launcher, which waits for permission."""
        asked = as_struct(_ExecuteArguments, arguments)
        data = _code(asked.code)
        python = _PYTHON if self._sandbox.kind == "docker" else self._found()
        if python is None:
            raise ToolRefused("There is no Python in the sandbox (install python3 on the server). Use terminal.")
        known = await self._threads.run(session_start, self._sandbox, place)
        seconds = min(asked.timeout_s, place.timeout_s)
        room = file_room(await place.quota.room())
        code = CallFile("code.py", data, self._sandbox.uid, self._sandbox.call_folder(known.workspace))
        launch = Launch(
            argv=(python, "-I", "-X", "utf8", self._sandbox.path_inside(code)),
            environ=known.shell.environ_over(known.base),
            workspace=known.workspace,
            folder=known.folder,
            call_id=place.call_id,
            cpu_s=cpu_seconds(seconds),
            files=(code,),
            file_bytes=room,
        )
        try:
            waiting = start_launcher(self._sandbox, launch)
        except BaseException:
            code.close()
            raise
        after = full_note(place) if launch.file_bytes == 0 else no_note
        return LaunchExecution(waiting, place, seconds, self._threads, launch.files, after)

    def _found(self) -> str | None:
        return next((str(path) for path in self._pythons if os.access(path, os.X_OK)), None)


def _code(code: str) -> bytes:
    if not code.strip():
        raise ToolRefused("The code is empty.")
    try:
        data = code.encode()
    except UnicodeEncodeError as error:
        raise ToolRefused("The code is not valid text.") from error
    if len(data) > CODE_BYTES:
        raise ToolRefused(f"The code is longer than {CODE_BYTES} bytes.")
    return data

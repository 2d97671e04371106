"""The execute_code tool: Python in the sandbox of the terminal. Owns: its arguments, and which Python it is. Refuses to
know: how a program is launched and fenced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.core.events import Effect
from holdfast.tools.arguments import schema_of, taken
from holdfast.tools.base import Deed, Place, ToolRefused, Use
from holdfast.tools.sandbox_base import Launch, Lent, Sandbox
from holdfast.tools.sandbox_launch import LaunchDeed, begin, cpu_seconds
from holdfast.tools.terminal import remembered
from holdfast.tools.threads import Threads

CODE_BYTES = 1_048_576
PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))
"""Below /usr, which is what every sandbox shows."""


class _Arguments(Struct, forbid_unknown_fields=True):
    code: str
    timeout_s: Annotated[float, Meta(ge=0.1, description="Seconds; the server's own limit stays.")] = float("inf")


class ExecuteCode:
    """Runs a program in Python; what it prints comes back."""

    name = "execute_code"
    description = (
        "Run Python 3 code as a program of its own, in the terminal's folder and environment. Gives what it prints; "
        "nothing else is kept. Standard library; sys.path has no workspace folder."
    )
    schema = schema_of(_Arguments)
    effect: Effect = "write"
    local: Use = "workspace"
    label = "Running Python"
    emoji = "🐍"

    def __init__(self, sandbox: Sandbox, threads: Threads, pythons: tuple[Path, ...] = PYTHONS) -> None:
        self._sandbox = sandbox
        self._threads = threads
        self._pythons = pythons

    async def prepare(self, arguments: dict[str, object], place: Place) -> Deed:
        """Start the launcher, which waits."""
        asked = taken(_Arguments, arguments)
        data = _code(asked.code)
        python = next((path for path in self._pythons if os.access(path, os.X_OK)), None)
        if python is None:
            raise ToolRefused("There is no Python in the sandbox (install python3 on the server). Use terminal.")
        known = await self._threads.run(remembered, self._sandbox, place)
        seconds = min(asked.timeout_s, place.timeout_s)
        code = Lent("code.py", data, self._sandbox.uid)
        launch = Launch(
            argv=(str(python), "-I", "-X", "utf8", self._sandbox.seen(code)),
            environ=known.shell.environ_over(known.base),
            workspace=known.workspace,
            folder=known.folder,
            call_id=place.call_id,
            cpu_s=cpu_seconds(seconds),
            lent=(code,),
        )
        try:
            waiting = begin(self._sandbox, launch)
        except BaseException:
            code.close()
            raise
        return LaunchDeed(waiting, place, seconds, self._threads, launch.lent)


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

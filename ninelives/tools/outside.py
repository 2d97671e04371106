"""What tools keep outside of the store: workspaces, long outputs, logs of background processes, and the state of shells
and notes. Owns: counting it for retention, and deleting what retention takes. Refuses to know: bounds and runs.

Workspaces and the state of tools are fixed: they count, and nobody but their owner deletes them. A folder is measured
again when a call used it since the last survey, or after ten minutes. A survey spends at most SURVEY_S on that."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ninelives.core.context import OUTPUTS
from ninelives.core.holding import Holding
from ninelives.tools.base import Threads, ToolRefused
from ninelives.tools.builtin.process import Processes
from ninelives.tools.quota import Quotas
from ninelives.tools.workspace import open_folder, owner_of, top_of

SURVEY_S = 2.0
MOST_OUTPUTS = 10_000
"""Files of one workspace that a survey looks at."""


class ToolHoldings:
    """See engine.base.Outside."""

    def __init__(
        self, data: Path, quotas: Quotas, processes: Processes, threads: Threads, now_ms: Callable[[], int]
    ) -> None:
        self._workspaces = data / "workspaces"
        self._states = data / "tools"
        self._quotas = quotas
        self._processes = processes
        self._threads = threads
        self._now_ms = now_ms

    async def survey(self) -> list[Holding]:
        """See Outside.survey."""
        deadline = time.monotonic() + SURVEY_S
        found = list(self._logs())
        outputs: dict[Path, int] = {}
        for folder in await self._threads.run(_folders, self._workspaces):
            files = await self._threads.run(_outputs, folder)
            outputs[folder] = sum(each.bytes for each in files)
            found += files
        folders = [*outputs, *await self._threads.run(_folders, self._states)]
        await self._measure([each for each in folders if self._quotas.is_changed(each)], deadline)
        fixed = [self._fixed(folder, outputs.get(folder, 0)) for folder in folders]
        self._quotas.note_fixed(fixed)
        return found + fixed

    async def _measure(self, folders: Iterable[Path], deadline: float) -> None:
        for folder in folders:
            if time.monotonic() > deadline:
                return
            await self._quotas.measure(folder)
            await asyncio.sleep(0)

    def _fixed(self, folder: Path, outputs: int) -> Holding:
        kind, name = ("workspace", folder.name) if folder.parent == self._workspaces else ("state", folder.name)
        size = max(0, self._quotas.last_bytes(folder) - outputs)
        return Holding(kind, owner_of(folder), name, size, fixed=True)  # type: ignore[arg-type]

    def _logs(self) -> Iterator[Holding]:
        now, now_ms = time.monotonic(), self._now_ms()
        for each in self._processes.all():
            used_at = now_ms - int((now - each.ended) * 1000) if each.ended is not None else now_ms
            yield Holding("log", each.owner, each.name, each.log.kept_bytes, used_at, fixed=each.ended is None)

    async def drop(self, holdings: Sequence[Holding]) -> None:
        """See Outside.drop."""
        for each in holdings:
            if each.kind == "log":
                self._processes.forget(each.name)
            elif each.kind == "output":
                await self._threads.run(_delete, self._workspaces, each.name)


def _folders(root: Path) -> list[Path]:
    """The folders of owners below a folder."""
    try:
        with os.scandir(root) as entries:
            return [root / each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _outputs(workspace: Path) -> list[Holding]:
    """The files of long outputs in a workspace. A command may have put anything in their place."""
    owner, found = owner_of(workspace), list[Holding]()
    try:
        top = top_of(workspace)
        fd = open_folder(top, top / OUTPUTS)
    except (OSError, ToolRefused):
        return found
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                with suppress(OSError):
                    seen = entry.stat(follow_symlinks=False)
                    ours = stat.S_ISREG(seen.st_mode) and entry.name.endswith(".txt") and _is_text(entry.name)
                    if ours and len(found) < MOST_OUTPUTS:
                        name = f"{workspace.name}/{entry.name}"
                        found.append(Holding("output", owner, name, seen.st_blocks * 512, int(seen.st_mtime * 1000)))
    finally:
        os.close(fd)
    return found


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8: all names that the server gives are. Others cannot be told to a store."""
    return name.encode("utf-8", "surrogateescape") == name.encode("utf-8", "replace")


def _delete(root: Path, name: str) -> None:
    folder, _, file = name.partition("/")
    with suppress(OSError, ToolRefused):  # gone meanwhile, or something else is in its place
        top = top_of(root / folder)
        fd = open_folder(top, top / OUTPUTS)
        try:
            os.unlink(file, dir_fd=fd)
        finally:
            os.close(fd)

"""Long outputs of tools. Owns: the file in the workspace that holds one whole. Refuses to know: which tool made it, and
how long is too long."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from ninelives.tools.base import Place, Threads, ToolRefused
from ninelives.tools.workspace import open_folder, put_file, top_of


class OutputFiles:
    """The files of long outputs. It has threads of its own: a disk that hangs holds up no other work of tools."""

    def __init__(self) -> None:
        self._threads = Threads(2)

    async def keep(self, place: Place, path: str, text: str) -> None:
        """Write an output to `path` in the workspace, where the model can read on, within the time of a call."""
        if refusal := await place.home.refusal("workspace"):
            raise ToolRefused(refusal)
        if refusal := await place.quota.refusal():
            raise ToolRefused(refusal)
        try:
            async with asyncio.timeout(place.timeout_s):
                await self._threads.run(_write, place, path, text)
        except TimeoutError as error:
            raise ToolRefused(f"the disk took longer than {place.timeout_s:g} s.") from error

    async def forget(self, place: Place, path: str) -> bool:
        """Delete that file. False if the workspace is on another machine."""
        if await place.home.refusal("workspace"):
            return False
        await self._threads.run(_delete, place, path)
        return True

    def close(self) -> None:
        """Accept no more work."""
        self._threads.close()


def _delete(place: Place, path: str) -> None:
    folder, _, name = path.rpartition("/")
    top = top_of(place.workspace)
    # A tool may have put a folder or a link there. That is a file of the workspace, and what we wrote is gone.
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        fd = open_folder(top, top / folder)
        try:
            os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)


def _write(place: Place, path: str, text: str) -> None:
    put_file(place, top_of(place.workspace) / path, text.encode("utf-8", "replace"))

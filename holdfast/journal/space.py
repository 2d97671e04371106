"""Room on the disk. Owns: the low-water mark, under which nothing new may be stored, and the ballast, a file that is
given back at that moment: on a full disk even deleting and checkpointing fail, so the room for them is kept from the
start. Refuses to know: what the room is used for. The calls of Space block: `mind` runs them in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SPACE_S = 1.0
SPACE_IDLE_S = 5.0
"""How often the disk is asked while nothing is written; as soon as something is, it is asked again."""


class Space:
    """The file system of one directory; 0 bytes turn either part off."""

    def __init__(self, directory: Path, low_bytes: int, ballast_bytes: int) -> None:
        self._directory = directory
        self._low = low_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = directory / "ballast"
        self._short = False

    def look(self) -> str | None:
        """Why nothing new may be stored; None where there is room. Back above the mark means: with the ballast in
        its place again, so that the answer does not flutter."""
        if not self._low:
            return None
        free = self._free()
        if self._short:
            self._short = not (free >= self._low + self._missing() and self._fill())
        elif free < self._low:
            self._short = True
            self._ballast.unlink(missing_ok=True)
        elif self._missing() and free >= self._low + self._ballast_bytes:
            self._fill()
        return f"{free >> 20} MiB are free on the disk, {self._low >> 20} are wanted" if self._short else None

    def _free(self) -> int:
        now = os.statvfs(self._directory)
        return now.f_bavail * now.f_frsize

    def _missing(self) -> int:
        """How much of the ballast is not there."""
        with suppress(FileNotFoundError):
            return max(0, self._ballast_bytes - self._ballast.stat().st_blocks * 512)
        return self._ballast_bytes

    def _fill(self) -> bool:
        """Put the ballast in its place; False where it does not fit."""
        if not self._ballast_bytes:
            return True
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._ballast_bytes)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)
        return True


async def mind(space: Space, told: Callable[[str | None], None], written: asyncio.Event) -> None:
    """Tell how the room is, until cancelled. `written` is set when something was."""
    while True:
        try:
            short = await asyncio.to_thread(space.look)
        except OSError as error:
            short = f"the disk does not say how much room there is: {error.strerror}"
        told(short)
        await asyncio.sleep(SPACE_S)
        if short is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(written.wait(), SPACE_IDLE_S - SPACE_S)
        written.clear()

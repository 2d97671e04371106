"""Free space on the disk. Owns: the low-water mark, below which nothing new may be stored, and the ballast file. On a
full disk even deleting and checkpointing fail, so the ballast reserves room for them and is deleted at that moment.
Refuses to know: what the space is used for. The methods of Space block; `watch_space` runs them in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SPACE_S = 1.0
SPACE_IDLE_S = 5.0
"""How often free space is checked while nothing is written. A write triggers a check at once."""


class Space:
    """The file system of one directory. 0 bytes turn the mark or the ballast off."""

    def __init__(self, directory: Path, low_bytes: int, ballast_bytes: int) -> None:
        self._directory = directory
        self._low = low_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = directory / "ballast"
        self._short = False

    def shortage(self) -> str | None:
        """Why nothing new may be stored; None if there is space. A shortage ends only when the ballast fits again, so
        that the answer does not flap."""
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
        return f"{free >> 20} MiB are free on the disk, {self._low >> 20} MiB are required" if self._short else None

    def _free(self) -> int:
        now = os.statvfs(self._directory)
        return now.f_bavail * now.f_frsize

    def _missing(self) -> int:
        """How many bytes of the ballast are not allocated."""
        with suppress(FileNotFoundError):
            return max(0, self._ballast_bytes - self._ballast.stat().st_blocks * 512)
        return self._ballast_bytes

    def _fill(self) -> bool:
        """Allocate the ballast; False if it does not fit."""
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


async def watch_space(space: Space, report: Callable[[str | None], None], written: asyncio.Event) -> None:
    """Report the shortage again and again, until cancelled. The store sets `written` after each write."""
    while True:
        try:
            shortage = await asyncio.to_thread(space.shortage)
        except OSError as error:
            shortage = f"the free space of the disk is unknown: {error.strerror}"
        report(shortage)
        await asyncio.sleep(SPACE_S)
        if shortage is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SPACE_IDLE_S - SPACE_S):
                    await written.wait()
        written.clear()

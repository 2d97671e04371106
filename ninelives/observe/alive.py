"""Whether the last process ended in order. Owns: a file in the data directory that is there while a process runs, and
the time of its last sign of life. Refuses to know: runs.

A process that is killed leaves the file behind. Its content is the time at which that process began, and its time of
change the last second in which it lived. A thread renews it, so a slow disk delays nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event, Thread

from msgspec import Struct

_FILE = "alive"
EVERY_S = 1.0


class BadExit(Struct, frozen=True):
    """A process that was killed. Times are in milliseconds."""

    began_at: int
    died_at: int
    """When it was last seen alive, to the second."""

    def death_of(self, touched_at: int) -> int:
        """When the holder of a run died that was last written at `touched_at`; 0 where another process held it."""
        return self.died_at if touched_at >= self.began_at else 0


class AliveMark:
    """The file of one data directory. Call read() once the directory is locked, begin() and end() around the life."""

    def __init__(self, data: Path) -> None:
        self._file = data / _FILE
        self._over = Event()
        self._thread: Thread | None = None

    def read(self) -> BadExit | None:
        """The process before this one, if it was killed."""
        try:
            text, seen = self._file.read_text("ascii"), self._file.stat().st_mtime
        except (OSError, UnicodeDecodeError):
            return None  # there is none: the last process ended in order, or this is the first
        began = int(text) if text.strip().isdigit() else 0
        return BadExit(began, max(began, int(seen * 1000)))

    def begin(self) -> None:
        """From now on a process lives here. Raises OSError."""
        self._file.write_text(str(int(time.time() * 1000)), "ascii")
        self._thread = Thread(target=self._renew, name="ninelives-alive", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                os.utime(self._file)
            except OSError:
                return  # the directory is gone, and nobody will ask

    def end(self) -> None:
        """The process ends in order."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(EVERY_S)
            self._file.unlink(missing_ok=True)

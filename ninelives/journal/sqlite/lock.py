"""One server per data directory. Owns: the lock file. Refuses to know: what is in the directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class DirectoryHeld(Exception):
    """Another process uses the directory."""


class DirectoryLock:
    """Held as long as this process lives. The kernel releases it, however the process ends."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DirectoryHeld(
                f"the data directory {directory} is in use by another ninelives (pid {holder}). "
                "Stop that process, or choose another directory with --data-dir."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)

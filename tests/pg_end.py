"""Ends a test PostgreSQL together with the process that uses it, however that ends: kill -9 too. Owns: a process beside
it that waits until its own standard input ends, then stops the server and removes its directory. It is nobody's child:
some tests count theirs. Refuses to know: how the server was started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STOP_S = 20.0


class Tie:
    """Ties the server in `home` / data to this process; cut() is its end in good order."""

    def __init__(self, home: Path) -> None:
        self._home = home
        reading, self._held = os.pipe()  # only this process holds it open
        try:
            subprocess.run([sys.executable, "-I", "-S", __file__, str(home)], stdin=reading, check=True)
        finally:
            os.close(reading)

    def cut(self) -> None:
        """Stop the server, as a crash would, and remove `home`."""
        if self._held < 0:
            return
        os.close(self._held)
        self._held = -1
        deadline = time.monotonic() + STOP_S * 2
        while self._home.exists():
            assert time.monotonic() < deadline, f"the PostgreSQL in {self._home} is still there"
            time.sleep(0.01)


def running(home: Path) -> int | None:
    """The postmaster's process, where there is one."""
    try:
        pid = int((home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, 0)
    except (OSError, ValueError, IndexError):
        return None
    return pid


def main(home: Path) -> None:
    """In a process of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    sys.stdin.buffer.read()
    deadline = time.monotonic() + STOP_S
    while (pid := running(home)) is not None and time.monotonic() < deadline:
        os.kill(pid, signal.SIGQUIT)  # an immediate stop: what it would write is thrown away
        time.sleep(0.02)
    shutil.rmtree(home, ignore_errors=True)  # one that was only just starting ends when it misses its files


if __name__ == "__main__":
    main(Path(sys.argv[1]))

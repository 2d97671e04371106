"""Ends a test PostgreSQL together with the process that uses it, also after kill -9. Owns: a helper process that waits
for the end of its standard input, then stops the server and removes its directory. The helper is detached, because some
tests count their children. Refuses to know: how the server was started."""

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
    """Ties the life of the server in `home` / data to this process. cut() ends it in order."""

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
    """The postmaster's pid, if it runs. A file that a crash left behind may name a stranger: a postmaster is in its
    data directory."""
    data = home / "data"
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        return pid if os.path.samefile(f"/proc/{pid}/cwd", data) else None
    except (OSError, ValueError, IndexError):
        return None


def stop(home: Path) -> bool:
    """Stop the postmaster at once, without a last write; False if there is none."""
    if (pid := running(home)) is None:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if running(home) == pid:  # again: now the signal goes to the process that was looked at, or to nobody
            signal.pidfd_send_signal(pidfd, signal.SIGQUIT)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def main(home: Path) -> None:
    """The helper process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    sys.stdin.buffer.read()
    deadline = time.monotonic() + STOP_S
    while stop(home) and time.monotonic() < deadline:
        time.sleep(0.02)
    shutil.rmtree(home, ignore_errors=True)  # a server that was just starting ends without its files


if __name__ == "__main__":
    main(Path(sys.argv[1]))

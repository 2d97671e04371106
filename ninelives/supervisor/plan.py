"""What a supervisor is started with. Owns: carrying it from the first process of `ninelives serve` into the supervisor,
which is a new program in the same process: secrets of the environment go through memory, not through /proc. Refuses to
know: what the command does."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NamedTuple

VARIABLE = "_NINELIVES_SUPERVISED"
"""Tells a server its supervisor, the descriptors of its control line, of the listening socket and of the shared memory,
and PROTOCOL."""
PROTOCOL = 2
"""What is said on the line about sockets that are held, and what is in the shared memory. After an upgrade, a server
may have a supervisor with another one: then nothing is kept."""
_KEPT = ("PATH", "HOME", "TZ", "LANG", "SYSTEMD_EXEC_PID", "INVOCATION_ID", "JOURNAL_STREAM")
_KEPT_BEGINNINGS = ("LC_", "PYTHON", "SSL_CERT_", "LD_", "ASAN_")


class SupervisorPlan(NamedTuple):
    """How to start servers, and the first one, which runs already."""

    argv: list[str]
    """The command, as the user gave it."""
    env: dict[str, str]
    """The whole environment of the command."""
    listener: int
    control: int
    first: int
    """Descriptors of the listening socket and of the control line to the first server, and its pid."""
    spare: bool
    """Keep an idle server."""
    terminal: bool
    """The command ends when its terminal closes."""
    memory: int
    """Descriptor of the memory that servers share (custody.py)."""

    @classmethod
    def read(cls, fd: int) -> SupervisorPlan:
        """The plan in a descriptor, which is closed."""
        with os.fdopen(fd, "rb") as file:
            return cls(**json.loads(file.read()))

    def become_supervisor(self) -> None:
        """Replace this program by the supervisor. Returns only by raising OSError."""
        fd = os.memfd_create("plan")
        os.write(fd, json.dumps(self._asdict()).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        for each in (fd, self.listener, self.control, self.memory):
            os.set_inheritable(each, True)
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
        env = {name: value for name, value in self.env.items() if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH", ""))))
        words = [sys.executable, "-S", "-P", "-m", "ninelives.supervisor", str(fd)]  # -S: nothing of site-packages
        os.execve(sys.executable, words, env)


def has_terminal() -> bool:
    """Is there a controlling terminal?"""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ends_with_terminal() -> bool:
    """Does this command end when its terminal closes? Not without a terminal, and not after nohup. Ask before the
    fork: the terminal may be gone by the time the supervisor runs."""
    return signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and has_terminal()


def command_line() -> list[str]:
    """The command of this process, such that it can be started again."""
    return [sys.executable, *sys.orig_argv[1:]]

"""python -m tests.supervisor.forked FD: a supervisor whose spares cost a fork. Owns: two processes that have imported
all that a server needs, and forks of them in place of new programs. The two have different hash seeds and take turns,
so each server has another order of sets than the one before. Restarts are not delayed. All else is the supervisor of
the package, and what it starts is the server of the package. Refuses to know: kills and clients.

A new spare takes 0.4 s of a core for its imports, which is most of what a kill costs. A fork takes some milliseconds.

Theory of operation. The supervisor is a subreaper. A fork of a fork whose parent has ended is therefore its child, as a
process that it started itself would be."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from ninelives.supervisor import process
from ninelives.supervisor.line import ControlLine, LineEnded
from ninelives.supervisor.plan import PROTOCOL, VARIABLE, SupervisorPlan

SEEDS = ("1", "2")
SET_NAME, SUBREAPER = 15, 36
SPARE_DELAY_S = 0.05
NEVER = 1 << 30
SOURCE = "source"
"""The name of the processes that are forked."""


class Source:
    """A process that has imported a server, and is forked."""

    def __init__(self, plan: SupervisorPlan, seed: str) -> None:
        self._line, theirs = ControlLine.pair()
        theirs.sock.set_inheritable(True)
        words = [sys.executable, "-m", "tests.supervisor.forked", "--source", str(theirs.sock.fileno())]
        env = {**plan.env, "PYTHONHASHSEED": seed}
        command = plan.argv[plan.argv.index("-m") + 1 :]
        os.posix_spawn(words[0], [*words, str(os.getpid()), *command], env, setsigmask=())
        theirs.close()

    def spawn(self, *fds: int) -> int:
        """The pid of a new process that has these descriptors."""
        self._line.send({}, *fds)
        message, _ = self._line.receive()
        return int(message["pid"])


class ForkingSupervisor(process.Supervisor):
    """See the head of this file."""

    def __init__(self, plan: SupervisorPlan, *rest: Any) -> None:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        self._sources = itertools.cycle([Source(plan, seed) for seed in SEEDS])
        super().__init__(plan, *rest)

    def _spawn(self) -> process.ServerProcess:
        ours, theirs = ControlLine.pair()
        pid = next(self._sources).spawn(theirs.sock.fileno(), self._plan.listener, self._plan.memory)
        theirs.close()
        return self._watched(process.ServerProcess(pid, ours))


def set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)


def serve_forks(line: ControlLine, supervisor: int, command: list[str]) -> None:
    """Import a server, and fork when asked. `command`: the module, and the words of its command."""
    from ninelives.app.serve import import_server
    from ninelives.cli import main
    from ninelives.supervisor.supervised import _die_with
    from tests.supervisor.planted import plant

    _die_with(supervisor)
    if command[0] == "tests.supervisor.planted":
        os.environ[VARIABLE] = "a successor"  # for bugs that the first server does not have
        plant(command[1])
        command = command[1:]
    import_server()
    assert threading.active_count() == 1, "a fork has one thread"
    gc.collect()
    gc.freeze()
    set_name(SOURCE)
    while True:
        try:
            _, fds = line.receive()
        except LineEnded:
            return
        if (middle := os.fork()) == 0:
            if (own := os.fork()) == 0:
                break
            line.send({"pid": own})
            os._exit(0)
        for fd in fds:
            os.close(fd)
        os.waitpid(middle, 0)
    line.close()
    set_name("server")
    while os.getppid() != supervisor:  # until the process between has ended
        time.sleep(0.0005)
    os.environ[VARIABLE] = ",".join(map(str, (supervisor, *fds, PROTOCOL)))
    main(command[1:])


def main() -> None:
    """Run a supervisor, or a process that is forked."""
    if sys.argv[1] == "--source":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        line = ControlLine(socket.socket(fileno=int(sys.argv[2])))
        return serve_forks(line, int(sys.argv[3]), sys.argv[4:])
    from ninelives.supervisor import __main__ as program

    process.SPARE_DELAY_S, process.QUICK = SPARE_DELAY_S, NEVER
    program.Supervisor = ForkingSupervisor  # type: ignore[misc]
    program.main()


if __name__ == "__main__":
    main()

"""A server that has a supervisor. Owns: the fork in which a command becomes both, the server's end of the control line,
and that a server never outlives its supervisor. Refuses to know: how a server starts.

Theory of operation. `ninelives serve` forks. The child goes on as the first server, with all that is imported by then.
The parent becomes the supervisor by exec: it keeps its pid, which service managers know, and gives back its memory.
Later servers are the same command again, with the descriptors of their line and of the listening socket in a
variable."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ninelives.supervisor import calls, custody
from ninelives.supervisor.line import ControlLine, LineEnded, Message
from ninelives.supervisor.plan import PROTOCOL, VARIABLE, SupervisorPlan, command_line, ends_with_terminal

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SCORE = "/proc/{}/oom_score_adj"
_PR_SET_PDEATHSIG = 1
_SUPERVISOR_SCORE, _SERVER_SCORE = -600, -500
_RAISED = 20
"""Added to the OOM score of a server where nobody may lower that of its supervisor."""


class Stoppable(Protocol):
    """What serves in this process."""

    @property
    def stopping(self) -> bool:
        """True once it was told to stop."""

    def stop_listening(self) -> None:
        """Accept no request any more: a successor takes them."""

    def stop(self) -> None:
        """Drain and end."""


class Supervised:
    """The server's end of the control line."""

    def __init__(self, line: ControlLine, listener: socket.socket, memory: int, protocol: int = PROTOCOL) -> None:
        self._line = line
        self.listener = listener
        self._memory = memory
        self.keeps = protocol == PROTOCOL
        """The supervisor and this server mean the same by what is held. False after some upgrades."""
        self.restarts = 0
        """How many servers of this supervisor came before."""
        self.before: tuple[str, ...] = ()
        """What the last of them called themselves: the last one that was ready, and those that died after it. All have
        ended."""
        self._left: list[tuple[Message, list[int]]] = []
        """What the server before gave to the supervisor."""

    def wait(self) -> None:
        """A spare waits here until it is needed. Ends the process where it is not."""
        self._line.send({"warm": os.getpid()})
        try:
            message, _ = self._line.receive()
        except LineEnded:
            os._exit(0)
        if "go" not in message:
            os._exit(0)
        self.restarts, self.before = message["go"], tuple(filter(None, message.get("before", "").split(",")))
        if self.keeps:
            self._take_left()
        signal.signal(signal.SIGHUP, lambda *_: None)  # it is for the supervisor, also where a terminal sends it to all

    def _take_left(self) -> None:
        """The sockets that the server before left. The supervisor keeps them too, until they are released."""
        while True:
            self._line.send({"take": len(self._left)})
            message, fds = self._line.receive()
            for given, count in message["left"]:
                own, fds = fds[:count], fds[count:]
                self._left.append((given, own))
            if not message["left"]:
                return

    def _named(self, name: str) -> list[tuple[Message, list[int]]]:
        return [each for each in self._left if each[0]["held"].startswith(name)]

    def custody(self) -> custody.ClientCustody:
        """Clients whose answers outlive this process, and those that the server before left. Call it once."""
        return custody.ClientCustody(self._line, self._memory, self._named(custody.NAME))

    def connections(self) -> calls.SupervisedConnections:
        """Connections to upstreams that outlive this process, and those that the server before left. Call it once."""
        return calls.SupervisedConnections(self._line, self._named(calls.NAME))

    def say_name(self, name: str) -> None:
        """Say how this server is called, before anything is done in that name."""
        with suppress(LineEnded):  # the watch ends this process
            self._line.send({"held": "mark", "mark": name})  # an older supervisor takes it for a release of nothing

    def ready(self, status: Path, name: str) -> None:
        """Say that requests are answered, which file the supervisor writes its status to, and how this server is
        called."""
        with suppress(LineEnded):  # the watch ends this process
            self._line.send({"ready": os.getpid(), "status": str(status), "mark": name})

    def ask_swap(self) -> None:
        """Ask for a server with the code of now, as `ninelives restart` does. Any thread may call it."""
        with suppress(LineEnded, BlockingIOError):
            self._line.send({"swap": True})

    def watch(self, server: Stoppable) -> None:
        """From now on obey the supervisor."""
        self._line.sock.setblocking(False)

        def read() -> None:
            try:
                message, _ = self._line.receive()
            except BlockingIOError:
                return
            except LineEnded:
                os._exit(1)
            if "now" in message:
                os._exit(1)
            if "leave" in message:
                server.stop_listening()
            if ("stop" in message or "leave" in message) and not server.stopping:
                server.stop()

        asyncio.get_running_loop().add_reader(self._line.sock, read)


def inherited() -> Supervised | None:
    """The line of a server that its supervisor started; None where a user did. Call it first: tools must not find the
    variable and the descriptors."""
    found = os.environ.pop(VARIABLE, "")
    if not found:
        return None
    parent, line, listener, memory, *protocol = map(int, found.split(","))
    for fd in (line, listener, memory):
        os.set_inheritable(fd, False)
    _die_with(parent)
    _rank_below(parent)
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))
    return Supervised(
        ControlLine(socket.socket(fileno=line)), socket.socket(fileno=listener), memory, *(protocol or [1])
    )


def supervise(listener: socket.socket, *, spare: bool) -> Supervised:
    """Fork. Returns in the server only; the parent becomes its supervisor."""
    ours, theirs = ControlLine.pair()
    memory = os.memfd_create("clients")
    os.ftruncate(memory, custody.SLOTS * custody.SLOT_BYTES)
    env, argv, parent = dict(os.environ), command_line(), os.getpid()
    terminal = ends_with_terminal()
    _be_killed_last()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _die_with(parent)
        _rank_below(parent)
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return Supervised(theirs, listener, memory)
    theirs.close()
    try:
        plan = SupervisorPlan(argv, env, listener.fileno(), ours.sock.fileno(), pid, spare, terminal, memory)
        plan.become_supervisor()
    finally:
        os._exit(70)  # the server ends with this process


def _die_with(parent: int) -> None:
    """The kernel ends this process when its parent ends. The end of the control line says the same, a little later."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _be_killed_last() -> None:
    """Lower the OOM score where this process may (mostly as root), unless somebody has set it."""
    score = Path(_SCORE.format("self"))
    with suppress(OSError):
        if score.read_text().strip() == "0":
            score.write_text(str(_SUPERVISOR_SCORE))


def _rank_below(parent: int) -> None:
    """When memory is short, the kernel ends the server before its supervisor. Commands of tools go first of all."""
    with suppress(OSError):
        above = int(Path(_SCORE.format(parent)).read_text())
        own = above + (_SERVER_SCORE - _SUPERVISOR_SCORE if above < 0 else _RAISED)
        Path(_SCORE.format("self")).write_text(str(min(own, 1000)))

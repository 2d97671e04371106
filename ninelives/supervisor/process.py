"""Starting, restarting and ending servers. Owns: which server serves and which is the spare, restarts and their delays,
swapping a server for the code that is installed now, and what signals do. Refuses to know: what a server does.

Theory of operation. Every server but the first is started as a spare: it imports its modules and waits. A message makes
it serve, also before it is warm. So a restart is one message where a spare is warm, and a cold start where none is."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ninelives.supervisor.held import HeldSockets
from ninelives.supervisor.line import ControlLine, LineEnded, Message
from ninelives.supervisor.loop import EventLoop
from ninelives.supervisor.plan import PROTOCOL, VARIABLE, SupervisorPlan
from ninelives.supervisor.relay import Relays

SETTLED_S = 1.0
"""A server that served this long is a good one: its end costs no delay."""
QUICK = 3
"""How many servers may end sooner than that before restarts are delayed."""
LONGEST_DELAY_S = 30.0
STARTS = 6
"""After so many starts in a row without a server that serves, the supervisor gives up."""
SPARE_DELAY_S = 0.5
"""The spare is made when a server serves: its start takes CPU."""
WARM_S = 60.0
"""How long the successor of a swap may take to import its modules."""
Say = Callable[..., None]
"""Writes a log line: level, name and fields."""


class ServerProcess:
    """A child process: a spare, or the server."""

    def __init__(self, pid: int, line: ControlLine) -> None:
        self.pid = pid
        self.line = line
        self.warm = False
        self.took = True
        """It has what the server before left."""
        self.ready_at: float | None = None

    def tell(self, message: Message, *fds: int) -> bool:
        """Send a message. False where the process is gone, or cannot take it."""
        try:
            self.line.send(message, *fds)
        except (LineEnded, OSError):
            return False
        return True

    def kill(self) -> None:
        """End it at once. Its pid is its own: only this process reaps it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd := os.pidfd_open(self.pid), signal.SIGKILL)
            os.close(pidfd)


class Supervisor:
    """One server at a time on one listening socket."""

    def __init__(self, plan: SupervisorPlan, loop: EventLoop, say: Say, hung_up: Callable[[], bool]) -> None:
        """`hung_up` says whether the terminal of the command is gone, which SIGHUP means too."""
        self._plan = plan
        self._loop = loop
        self._say = say
        self._hung_up = hung_up
        self._server: ServerProcess | None = None
        self._spare: ServerProcess | None = None
        self._next: ServerProcess | None = None
        """The successor of a swap, until it is warm."""
        self._stopping = self._swapping = self._serves = self._again = False
        """`_again`: one more swap was asked for during a swap, whose successor may have the code of before."""
        self._restarts = self._swaps = self._quick = self._failed = self._spares_failed = self._swaps_failed = 0
        self._began = 0.0
        """When the last server died, or was told to leave."""
        self._held = HeldSockets()
        self._relays = Relays()
        self._last = ""
        """How the last server or successor ended that was not told to."""
        self._names: list[str] = []
        """What servers called themselves: the last one that was ready, and those after it that died before."""
        self._status = ""
        """The path of the status file; empty until a server serves."""

    def run(self) -> int:
        """Supervise until the server is told to stop. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._stop)
        self._loop.on_signal(signal.SIGHUP, self._hang_up)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._server = self._watched(ServerProcess(self._plan.first, ControlLine.of(self._plan.control)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self._reap()
        try:
            return self._loop.run()
        finally:
            for each in (self._server, self._spare, self._next):
                if each is not None:
                    each.kill()
            with suppress(OSError):
                os.unlink(self._status)

    # Signals

    def _stop(self) -> None:
        if self._stopping:
            if self._server is not None:
                self._server.tell({"now": True})
            return
        self._stopping = True
        if self._server is None:
            self._end(0)
        else:
            self._server.tell({"stop": True})

    def _hang_up(self) -> None:
        if self._hung_up():
            self._stop()
        else:
            self._ask_swap()

    def _ask_swap(self) -> None:
        if self._next is not None or self._swapping:
            self._again = True
        elif not self._stopping:
            self._again = False
            self._say("info", "restart_asked", note="the server is swapped for the code that is installed now")
            self._next = self._spawn()
            self._loop.later(WARM_S, partial(self._give_up, self._next))

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)  # as pid 1 also processes that lost their parent
                if pid == 0:
                    return
                self._gone(pid, os.waitstatus_to_exitcode(status))

    # Servers

    def _spawn(self) -> ServerProcess:
        ours, theirs = ControlLine.pair()
        fds = (theirs.sock.fileno(), self._plan.listener, self._plan.memory)
        for fd in fds:
            os.set_inheritable(fd, True)
        env = {**self._plan.env, VARIABLE: ",".join(map(str, (os.getpid(), *fds, PROTOCOL)))}
        pid = os.posix_spawn(self._plan.argv[0], self._plan.argv, env, setsigmask=())
        for fd in fds[1:]:
            os.set_inheritable(fd, False)
        theirs.close()
        return self._watched(ServerProcess(pid, ours))

    def _watched(self, child: ServerProcess) -> ServerProcess:
        child.line.sock.setblocking(False)
        self._loop.on_readable(child.line.sock, partial(self._read_all, child))
        return child

    def _read_all(self, child: ServerProcess) -> None:
        """Obey all that a process has said so far."""
        while self._read(child):
            continue

    def _read(self, child: ServerProcess) -> bool:
        """Obey one message. False where there is none."""
        try:
            message, fds = child.line.receive()
        except BlockingIOError:
            return False
        except LineEnded:
            self._loop.forget(child.line.sock)
            return False
        self._obey(child, message, fds)
        return True

    def _obey(self, child: ServerProcess, message: Message, fds: list[int]) -> None:
        if "warm" in message:
            child.warm = True
            self._spares_failed = 0
            if child is self._next:
                self._swap()
        elif "ready" in message:
            self._is_ready(child, message)
        elif "mark" in message:
            self._names.append(message["mark"])
        elif "swap" in message:
            self._ask_swap()
        elif "take" in message:
            child.took = True
            left, sockets = self._held.page(message["take"])
            if not child.tell({"left": left}, *sockets):
                child.tell({"left": []})  # the rest is cut when it is released
        elif "dial" in message:
            self._relays.dial(message["dial"], fds[0])
        else:
            self._held.obey(message, fds)

    def _is_ready(self, server: ServerProcess, message: Message) -> None:
        server.ready_at = time.monotonic()
        self._status, self._names = message["status"], [message.get("mark", "")]
        self._serves, self._failed = True, 0
        self._swaps += self._swapping
        if not server.took:  # it has another PROTOCOL
            self._held.release_all()
        if self._restarts or self._swaps:
            took_ms = round((server.ready_at - self._began) * 1000)
            self._say("info", "server_back", pid=server.pid, restarts=self._restarts, after_ms=took_ms)
        self._swapping = False
        self._write_status()
        self._loop.later(SPARE_DELAY_S, self._make_spare)
        if self._again:
            self._ask_swap()

    def _make_spare(self) -> None:
        wanted = self._plan.spare and not self._stopping and self._spares_failed < STARTS
        if wanted and self._spare is None and self._next is None and self._server is not None:
            self._spare = self._spawn()

    def _promote(self) -> None:
        """Let the spare serve, or a server that starts now."""
        if self._stopping:
            return
        self._server, self._spare = self._spare or self._spawn(), None
        self._server.took = False
        self._server.tell({"go": self._restarts + self._swaps + self._swapping, "before": ",".join(self._names)})

    def _swap(self) -> None:
        """The successor is warm: it takes the place of the server."""
        if self._spare is not None:
            self._spare.kill()  # it has the old code
        self._spare, self._next = self._next, None
        self._swapping, self._began = True, time.monotonic()
        if self._server is not None:
            self._server.tell({"leave": True})

    def _give_up(self, successor: ServerProcess) -> None:
        if successor is self._next:
            successor.kill()

    # Ends

    def _gone(self, pid: int, code: int) -> None:
        for name in ("_server", "_spare", "_next"):
            child: ServerProcess | None = getattr(self, name)
            if child is not None and child.pid == pid:
                self._read_all(child)  # its last words: calls and clients that it gave or released
                self._loop.forget(child.line.sock)
                child.line.close()
                setattr(self, name, None)
                {"_server": self._server_gone, "_spare": self._spare_gone, "_next": self._next_gone}[name](child, code)

    def _server_gone(self, server: ServerProcess, code: int) -> None:
        if self._stopping or not self._serves or (code == 0 and not self._swapping):
            self._end(code)  # told to stop, or never started
        elif self._swapping and server.ready_at is not None:
            self._promote()
        else:
            self._restart(server, code)

    def _restart(self, server: ServerProcess, code: int) -> None:
        self._began = now = time.monotonic()
        self._restarts += 1
        self._failed += server.ready_at is None
        self._quick = 0 if server.ready_at is not None and now - server.ready_at > SETTLED_S else self._quick + 1
        if self._failed >= STARTS:
            self._say("error", "server_does_not_start", starts=self._failed, note="read the lines above")
            return self._end(code)
        delay_s = 0.0 if self._quick <= QUICK else min(LONGEST_DELAY_S, 0.25 * 2 ** (self._quick - QUICK))
        self._last = _ending(code)
        self._say("warning", "server_died", pid=server.pid, by=self._last, restarts_in_s=delay_s)
        if delay_s:
            self._loop.later(delay_s, self._promote)
        else:
            self._promote()

    def _spare_gone(self, spare: ServerProcess, code: int) -> None:
        self._spares_failed += 1
        if not self._stopping and not self._swapping:
            self._loop.later(min(LONGEST_DELAY_S, 2.0**self._spares_failed), self._make_spare)
            if not spare.warm:
                self._say("warning", "spare_failed", code=code, note="a restart will be slower")

    def _next_gone(self, successor: ServerProcess, code: int) -> None:
        self._swaps_failed += 1
        self._last = f"it ended with {_ending(code)} before it was ready. Its lines in the log of the server say why."
        self._say("error", "restart_failed", code=code, note="the server goes on as it was; read the lines above")
        self._write_status()
        if self._again:
            self._ask_swap()

    def _end(self, code: int) -> None:
        self._loop.end(128 - code if code < 0 else code)

    def _write_status(self) -> None:
        """Write the status file, for `ninelives restart`."""
        if not self._status or self._server is None:
            return
        own = {"pid": os.getpid(), "server": self._server.pid, "restarts": self._restarts, "last": self._last}
        draft = f"{self._status}.new"
        try:
            with open(draft, "w") as file:
                file.write(json.dumps({**own, "swaps": self._swaps, "failed": self._swaps_failed}) + "\n")
            os.replace(draft, self._status)
        except OSError as error:
            self._say("warning", "status_not_written", why=str(error), note="`ninelives restart` needs this file")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"

"""Processes: how the benchmark starts things, pins them, ends them. A `Fleet` owns every process that was started and
ends each by its pid when it closes, also after an error or Ctrl-C. Refuses to know: what is measured, and what it costs
(that is cost.py)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from ninelives import __version__

HERE = Path(__file__).parent
START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 5.0
LISTENING = re.compile(rb"listening on http://[\w.\-]+:(\d+)")


class NotStarted(Exception):
    """A process ended, or stayed silent, before it said where it listens."""


@dataclass(frozen=True)
class Cores:
    """Which core the server under test has, and which the load; the same when there is only one."""

    server: int
    load: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Whether nothing that is measured here says what the server alone could do."""
        return self.server in self.load

    @staticmethod
    def pick() -> Cores:
        """The first core that we may use for the server, all others for the load."""
        ours = sorted(os.sched_getaffinity(0))
        return Cores(ours[0], tuple(ours[1:] or ours))


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Children started inside inherit those cores from their first instruction, all their threads with them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Server:
    """A started process that said where it listens."""

    name: str
    pid: int
    port: int
    start_s: float

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Spawned:
    """A started process of which nothing is known yet."""

    name: str
    proc: subprocess.Popen[bytes]
    log: Path
    began: float

    def check(self) -> None:
        """Raise if it has ended already."""
        if ended(self.proc):
            end(self.proc)
            raise NotStarted(f"{self.name} ended with code {self.proc.returncode}: {last_line(self.log)}")

    def listening(self) -> Server:
        """Wait for its line `listening on http://HOST:PORT`."""
        while (took := time.monotonic() - self.began) < START_TIMEOUT_S:
            if found := LISTENING.search(self.log.read_bytes()):
                return Server(self.name, self.proc.pid, int(found[1]), took)
            self.check()
            time.sleep(0.002)
        raise NotStarted(
            f"{self.name} did not say where it listens within {START_TIMEOUT_S:.0f} s: {last_line(self.log)}"
        )


@dataclass
class Fleet:
    """Every process of one benchmark, ended in reverse order of their start; their logs are in `logs`."""

    logs: Path
    wrap: tuple[str, ...] = ()
    """Words before a command that make it die with us even when we are killed."""
    ahead: bool = False
    """Before all other work on the machine."""
    procs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them behind
        for proc in reversed(self.procs):
            end(proc)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def spawn(self, name: str, argv: Sequence[str], cores: Sequence[int], env: Mapping[str, str]) -> Spawned:
        """Start a server on its cores; it may not be listening yet."""
        log = self.logs / f"{name}.log"
        began = time.monotonic()
        with pinned(cores), log.open("wb") as out:
            proc = subprocess.Popen(
                [*self.wrap, *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._own(proc, go_ahead)
        return Spawned(name, proc, log, began)

    def start(
        self, name: str, argv: Sequence[str], cores: Sequence[int], env: Mapping[str, str] | None = None
    ) -> Server:
        """Start a server and wait for its line `listening on http://HOST:PORT`."""
        return self.spawn(name, argv, cores, env or {}).listening()

    def run(self, argv: Sequence[str], cores: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start a short-lived process whose output the caller reads."""
        with pinned(cores):
            proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self._own(proc, go_first)
        return proc

    def _own(self, proc: subprocess.Popen[bytes], prefer: Callable[[int], None]) -> None:
        self.procs.append(proc)
        if self.ahead:
            prefer(proc.pid)

    def stop(self, pid: int) -> None:
        """End one of them before its time."""
        for proc in [proc for proc in self.procs if proc.pid == pid]:
            end(proc)
            self.procs.remove(proc)


def go_ahead(pid: int) -> None:
    """Before other work, for a server: the best nice value, and for its session too where sessions are scheduled as
    groups (autogroup). Not real time: its threads would no longer be scheduled among each other as they are for users.
    Raises where we may not."""
    os.setpriority(os.PRIO_PROCESS, pid, -20)
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def go_first(pid: int) -> None:
    """Before all other work, for the load generator, which has one thread: a nice value lets others finish the slice
    that they have begun, so that its tokens would come milliseconds late. What it starts does not inherit it."""
    os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def end(proc: subprocess.Popen[bytes]) -> None:
    """SIGTERM, a deadline, then SIGKILL to its group with what it left. The child is reaped last: until then the pid
    and the number of its group are its own. One that was reaped before cannot be told from a stranger any more."""
    if proc.returncode is not None:
        return
    os.kill(proc.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_TIMEOUT_S
    while not ended(proc) and time.monotonic() < deadline:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGKILL)
    proc.wait()


def ended(proc: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended. Unlike poll(), this does not reap it."""
    if proc.returncode is not None:
        return True
    return os.waitid(os.P_PID, proc.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def last_line(log: Path) -> str:
    """Where a program usually says why it ended."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def describe(out: Path) -> dict[str, str]:
    """What a reader of the figures must know of the machine and the code."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False)
    disk = subprocess.run(["stat", "-f", "-c", "%T", str(out)], capture_output=True, text=True, check=False)
    return {
        "cpu": model[1] if model else "unknown",
        "cores": str(os.cpu_count()),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "version": __version__,
        "commit": commit.stdout.strip() or "unknown",
        "disk": disk.stdout.strip() or "unknown",
        "loadavg_before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }

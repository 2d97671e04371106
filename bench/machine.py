"""Processes, cores and /proc: how the benchmark starts things, pins them, ends them and reads their cost.

A `Fleet` owns every process that was started and ends each by its pid when it closes, also after an error or
Ctrl-C. CPU and memory are those of a process tree. It knows nothing of what is measured.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

HERE = Path(__file__).parent
OUT = HERE / "out"
LOAD_SOURCE = HERE / "load.c"
LOAD = OUT / "load"

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 5.0
LISTENING = re.compile(rb"listening on http://[\w.\-]+:(\d+)")


class NotStarted(Exception):
    """A process ended, or stayed silent, before it said where it listens."""


@dataclass(frozen=True)
class Cores:
    """Which core the server under test has, and which the load; the same when there is only one."""

    server: int
    load: int

    @property
    def shared(self) -> bool:
        return self.server == self.load

    @staticmethod
    def pick() -> "Cores":
        ours = sorted(os.sched_getaffinity(0))
        return Cores(ours[0], ours[min(1, len(ours) - 1)])


def build_load() -> None:
    """Compile the load generator unless the binary is newer than its source."""
    OUT.mkdir(exist_ok=True)
    if LOAD.exists() and LOAD.stat().st_mtime > LOAD_SOURCE.stat().st_mtime:
        return
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", str(LOAD), str(LOAD_SOURCE)], check=True)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Children started inside inherit that core from their first instruction, all their threads with them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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


@dataclass
class Fleet:
    """Every process of one benchmark, ended in reverse order of their start."""

    procs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them behind
        for proc in reversed(self.procs):
            end(proc)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, name: str, argv: Sequence[str], core: int, env: Mapping[str, str] | None = None) -> Server:
        """Start a server on a core and wait for its line `listening on http://HOST:PORT`."""
        log = OUT / f"{name}.log"
        began = time.monotonic()
        with pinned(core), log.open("wb") as out:
            proc = subprocess.Popen(
                [str(LOAD), "exec", *argv],  # so that it dies with us even when we are killed
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.procs.append(proc)
        while time.monotonic() - began < START_TIMEOUT_S:
            if found := LISTENING.search(log.read_bytes()):
                return Server(name, proc.pid, int(found[1]), time.monotonic() - began)
            if proc.poll() is not None:
                raise NotStarted(f"{name} ended with code {proc.returncode}: {last_line(log)}")
            time.sleep(0.01)
        raise NotStarted(f"{name} did not say where it listens within {START_TIMEOUT_S:.0f} s: {last_line(log)}")

    def run(self, argv: Sequence[str], core: int) -> subprocess.Popen[bytes]:
        """Start a short-lived process whose output the caller reads."""
        with pinned(core):
            proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.procs.append(proc)
        return proc

    def forget(self, proc: subprocess.Popen[bytes]) -> None:
        self.procs.remove(proc)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def end(proc: subprocess.Popen[bytes]) -> None:
    """SIGTERM, a deadline, then SIGKILL to its session (which is ours: start() made it) with what it left."""
    if proc.poll() is None:
        proc.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.wait(END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGKILL)
    proc.wait()


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, the name, may hold anything."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def tree(pid: int) -> list[int]:
    """That process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of these processes and of their children that have ended."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) * TICK


def rss_mb(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * PAGE / 1e6


def core_busy_s(core: int) -> float:
    """Time that a core did not idle since boot: all processes, interrupts, and what the host took (steal)."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            ticks = list(map(int, fields))
            return (sum(ticks[:8]) - ticks[3] - ticks[4]) * TICK
    return 0.0


def describe() -> dict[str, str]:
    """What a reader of the figures must know of the machine and the code."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False)
    disk = subprocess.run(["stat", "-f", "-c", "%T", str(OUT)], capture_output=True, text=True, check=False)
    return {
        "cpu": model[1] if model else "unknown",
        "cores": str(os.cpu_count()),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "commit": commit.stdout.strip() or "unknown",
        "disk": disk.stdout.strip() or "unknown",
        "loadavg_before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }

"""What processes cost: CPU time, memory and wake-ups of a process tree, read from /proc and from the kernel's clocks,
and how busy a core was with everything. Refuses to know: who started them and why."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SETTLE_S, REST_S, AT_REST = 30.0, 0.3, 0.05
"""How long to wait until processes are at rest, how long they must be, and the share of a core that counts as rest."""


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
    """User and system time of these processes, to the nanosecond, and of their children that have ended."""
    total = 0.0
    for pid in pids:
        if not (fields := _stat(pid)):
            continue
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)  # the clock id of another process: clock_getcpuclockid(3)
        total += sum(map(int, fields[13:15])) * TICK
    return total


def rested(pids: Sequence[int]) -> None:
    """Wait until these processes are at rest: what is durable goes on after its reader has left, and would be at work
    on the core that the next one is measured on."""
    give_up = time.monotonic() + SETTLE_S
    while time.monotonic() < give_up:
        before = cpu_s(pids)
        time.sleep(REST_S)
        if cpu_s(pids) - before < AT_REST * REST_S:
            return


def rss_mb(pids: Sequence[int]) -> float:
    """Memory that these processes have, in millions of bytes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * PAGE / 1e6


def wakeups(pids: Sequence[int]) -> int:
    """How often a thread of these processes has gone to sleep and so been woken."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
                total += int(found[1]) if found else 0
    return total


def cores_busy_s(cores: Sequence[int]) -> float:
    """Time that these cores did not idle since boot: all processes, interrupts, and what the host took (steal)."""
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.removeprefix("cpu") in map(str, cores):
            ticks = list(map(int, fields))
            total += sum(ticks[:8]) - ticks[3] - ticks[4]
    return total * TICK


def listener(port: int) -> int | None:
    """The process on this machine that listens on a port, or none that we can see."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in Path(f"/proc/{entry}/fd").iterdir()):
                return int(entry)
    return None

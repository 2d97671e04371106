"""The end of processes that a call left behind. Owns: how a process is named so that no other can be mistaken for it
(boot id, pid, start time), and how all that came of a launcher is found in /proc and killed. Refuses to know: why.

Theory of operation. A launcher leads a session and group of its own, so its pid is also the number of both. While it
is there with the right start time the group is surely ours and is killed as one. What is left is found one by one:
it must be younger than the launcher and carry the call's id in its environment, and be in the launcher's group or
session or carry the launcher's pid there too (a daemon that left the session). A process that changed group and wiped
its environment cannot be told from others, and is left alone: only a sandbox with its own process ids ends those.
All of this blocks, for two seconds at most: call it in a thread."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from msgspec import Struct

from holdfast.core.events import Process

CALL = "HOLDFAST_CALL_ID"
LAUNCHER = "HOLDFAST_LAUNCHER"

_PROC = Path("/proc")
_WAIT_S = 2.0
_POLL_S = 0.005


class _Stat(Struct, frozen=True):
    """What /proc/<pid>/stat says of a process."""

    state: str
    group: int
    session: int
    started: int

    @property
    def gone(self) -> bool:
        return self.state in "ZX"


def identify(pid: int) -> Process | None:
    """The full name of a process; None when there is none with that pid."""
    found = _stat(pid)
    return Process(_boot(), pid, found.started) if found else None


def end_group(pid: int) -> bool:
    """Kill a group that is known to be ours; False when nobody is in it whom we may kill."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_leftover(process: Process, call_id: str) -> bool:
    """Kill all that is left of the launcher `process` of a call, and wait until it is gone. True if there was any."""
    if process.boot != _boot():
        return False
    ended = False
    deadline = time.monotonic() + _WAIT_S
    while left := _left(process, call_id):
        ended = True
        if process.pid in left:
            end_group(process.pid)
        for pid in left:
            _kill(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return ended


def _left(process: Process, call_id: str) -> list[int]:
    """The pids that are alive and surely of that launcher, in one look at /proc."""
    leader = _stat(process.pid)
    ours = leader is not None and leader.started == process.started
    found = []
    for name in os.listdir(_PROC):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid = int(name)
        stat = _stat(pid)
        if stat is None or stat.gone or stat.started < process.started:
            continue
        if (ours and stat.group == process.pid) or _marked(pid, stat, process.pid, call_id):
            found.append(pid)
    return found


def _marked(pid: int, stat: _Stat, launcher: int, call_id: str) -> bool:
    environ = _environ(pid)
    if f"{CALL}={call_id}".encode() not in environ:
        return False
    return launcher in (stat.group, stat.session) or f"{LAUNCHER}={launcher}".encode() in environ


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it ended by itself, or became another user's (sudo)


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name of the program stands in parentheses and may hold any character: what counts begins after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(state=fields[0], group=int(fields[2]), session=int(fields[3]), started=int(fields[19]))


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # it is gone, or another user's and so not ours

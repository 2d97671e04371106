"""Ending the processes that a tool call left behind. Owns: the identity of a process, and the search in /proc for all
that came of a launcher. Refuses to know: why a call is ended.

Theory of operation. A pid or a group number is reused once it is free, so neither alone is ever signalled. A launcher
is identified by machine (boot id and pid namespace), pid and start time. It leads a session and a group of its own:
while it is there, every member of that group is ours. Any other process must be younger than the launcher and have the
call's id in its environment, and also be in the launcher's group or session or have the launcher's pid in its
environment (a daemon that left the session). A process that did all three cannot be told from others and stays alive:
only a sandbox with its own process ids ends those.

Signals go through pidfds. The pidfd is opened first and the process is judged afterwards, so the signal reaches the
process that was judged, or nobody. A group is signalled through the pidfd of its leader (Linux 6.9). On older kernels
members are killed one by one, and a whole group only while its leader is a child of this process that was not reaped:
until then nobody else can have its number.

All of this blocks, for two seconds at most: call it in a thread."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from msgspec import Struct

from ninelives.core.events import Process

CALL = "NINELIVES_CALL_ID"
LAUNCHER = "NINELIVES_LAUNCHER"

_PROC = Path("/proc")
_WAIT_S = 2.0
_POLL_S = 0.005
_TO_GROUP = 1 << 2
"""PIDFD_SIGNAL_PROCESS_GROUP, which the signal module does not name."""


class _Stat(Struct, frozen=True):
    """A process according to /proc/<pid>/stat."""

    state: str
    group: int
    session: int
    started: int

    @property
    def gone(self) -> bool:
        return self.state in "ZX"


def identify(pid: int) -> Process | None:
    """The identity of a process; None if there is none with that pid."""
    found = _stat(pid)
    return Process(_machine(), pid, found.started) if found else None


def end_group(pidfd: int, pid: int) -> bool:
    """Kill the group of a child that leads it and was not reaped yet. False if there was nobody to kill."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, _TO_GROUP)
    except (ProcessLookupError, PermissionError):
        return False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _end_group_by_number(pidfd, pid)
    return True


def _end_group_by_number(pidfd: int, pid: int) -> bool:
    """For kernels before 6.9. The number belongs to the child until it is reaped."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)
    except (ChildProcessError, ProcessLookupError, PermissionError):
        return False
    return True


def end_leftover(process: Process, call_id: str) -> bool:
    """Kill what is left of the launcher `process` of a call, and wait until it is gone. True if there was any."""
    if process.boot != _machine():
        return False
    ended = False
    deadline = time.monotonic() + _WAIT_S
    while left := _left(process, call_id):
        ended = True
        for pid in left:
            _end(pid, process, call_id)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return ended


def _left(launcher: Process, call_id: str) -> list[int]:
    """The pids that belong to that launcher, in one pass over /proc."""
    pids = (int(name) for name in os.listdir(_PROC) if name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _belongs(pid, launcher, call_id)]


def _end(pid: int, launcher: Process, call_id: str) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _belongs(pid, launcher, call_id):  # again: the pid may have changed hands since the pass over /proc
            _kill(pidfd, _TO_GROUP if pid == launcher.pid else 0)
    finally:
        os.close(pidfd)


def _belongs(pid: int, launcher: Process, call_id: str) -> bool:
    stat = _stat(pid)
    if stat is None or stat.gone or stat.started < launcher.started:
        return False
    # A group keeps its number while its leader is there: if it is there now, it was when `stat` was read.
    return (stat.group == launcher.pid and _leads(launcher)) or _marked(pid, stat, launcher.pid, call_id)


def _leads(launcher: Process) -> bool:
    """Whether the launcher still holds its pid, dead or alive, and with it the number of its group."""
    stat = _stat(launcher.pid)
    return stat is not None and (stat.started, stat.group, stat.session) == (
        launcher.started,
        launcher.pid,
        launcher.pid,
    )


def _marked(pid: int, stat: _Stat, launcher: int, call_id: str) -> bool:
    environ = _environ(pid)
    if f"{CALL}={call_id}".encode() not in environ:
        return False
    return launcher in (stat.group, stat.session) or f"{LAUNCHER}={launcher}".encode() in environ


def _kill(pidfd: int, flags: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, flags)
    except (ProcessLookupError, PermissionError):
        return  # it ended by itself, or became another user's (sudo)
    except OSError as error:
        if error.errno != errno.EINVAL or not flags:
            raise
        _kill(pidfd, 0)  # before Linux 6.9: the members of the group are in the list too


def _machine() -> str:
    """The boot, and the pid namespace: two containers of one machine have the same boot id, and pids of their own."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name of the program is in parentheses and may contain any character: the fields begin after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(state=fields[0], group=int(fields[2]), session=int(fields[3]), started=int(fields[19]))


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # it is gone, or another user's and so not ours

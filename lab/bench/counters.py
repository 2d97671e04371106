"""Counted instructions: what a process tree has executed, by the processor's own counter (perf_event_open), which a
busy machine does not move as it moves time. Many virtual machines have no such counter: then there is none, and why is
said. Refuses to know: what the number is compared with."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

_SYSCALL = {"x86_64": 298, "aarch64": 241}
HARDWARE, INSTRUCTIONS = 0, 1
_ATTR_SIZE = 112
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
_FLAG_CLOEXEC = 8


def _open(tid: int, kind: int, config: int) -> int:
    """A counter of one thread and of all that it starts from now on; its user code only, which needs no privilege."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known on {platform.machine()}")
    head = struct.pack("IIQQQQQ", kind, _ATTR_SIZE, config, 0, 0, 0, _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV)
    attr = ctypes.create_string_buffer(head, _ATTR_SIZE)
    call = ctypes.CDLL(None, use_errno=True).syscall
    fd: int = call(number, attr, tid, -1, -1, _FLAG_CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


class Counter:
    """Counts from its making until close(); `missing` says why it cannot."""

    def __init__(self, pids: Sequence[int], kind: int = HARDWARE, config: int = INSTRUCTIONS) -> None:
        self.missing = ""
        self._fds: list[int] = []
        for tid in [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")]:
            try:
                self._fds.append(_open(tid, kind, config))
            except OSError as error:
                if error.errno != errno.ESRCH:  # a thread that has just ended
                    self.missing = f"perf_event_open: {error.strerror}"
                    break

    def close(self) -> int | None:
        """What was counted, or nothing where it could not be."""
        total = 0
        for fd in self._fds:
            with contextlib.suppress(OSError):
                total += struct.unpack("Q", os.read(fd, 8))[0]
            os.close(fd)
        counted = bool(self._fds) and not self.missing
        self._fds = []
        return total if counted else None


def why_not() -> str:
    """Why instructions cannot be counted here; empty where they can."""
    counter = Counter([os.getpid()])
    counter.close()
    return counter.missing

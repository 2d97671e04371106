"""A clock and an alarm for waits of a few milliseconds. Owns: a timer of the kernel, and the event loop's where the
kernel has none. Refuses to know: what is waited for.

uvloop counts whole milliseconds, and looks at its clock once per turn: it makes 2 to 4 ms of a wait of 2.5. A timer of
the kernel (timerfd) keeps 0.1 ms. It costs two system calls."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

ABSOLUTE = 1
"""TFD_TIMER_ABSTIME."""


class Alarm(Protocol):
    """Rings once, at the time that was set last."""

    def now(self) -> float:
        """The time in seconds."""
        ...

    def open(self) -> None:
        """Called in the event loop, before the first `set`."""
        ...

    def set(self, when: float) -> None:
        """Ring at that time, and not at the time before."""
        ...

    def close(self) -> None:
        """It does not ring any more."""
        ...


class LoopAlarm:
    """By the clock of the event loop, which may be a simulated one."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """See Alarm."""
        return asyncio.get_running_loop().time()

    def open(self) -> None:
        """See Alarm."""

    def set(self, when: float) -> None:
        """See Alarm."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(when - self.now(), self._ring)

    def close(self) -> None:
        """See Alarm."""
        if self._timer is not None:
            self._timer.cancel()


class FineAlarm(LoopAlarm):
    """By the kernel's monotonic clock, to a tenth of a millisecond."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__(ring)
        self._libc: Any = None
        self._fd = -1
        self._spec = (ctypes.c_long * 4)()
        """A struct itimerspec: the interval, which stays 0, and the time."""

    now = staticmethod(time.monotonic)  # a function in C: it is asked for each delta

    def open(self) -> None:
        """See Alarm. Without a timer of the kernel (another system, no free descriptor) the loop's are used."""
        if sys.platform != "linux":
            return
        self._libc = ctypes.CDLL(None)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def set(self, when: float) -> None:
        """See Alarm."""
        if self._fd < 0:
            return super().set(when)
        self._spec[2], self._spec[3] = int(when), int(when % 1 * 1e9)
        self._libc.timerfd_settime(self._fd, ABSOLUTE, self._spec, None)

    def _read(self) -> None:
        with suppress(BlockingIOError):  # it was set anew, and has not rung since
            os.read(self._fd, 8)
            self._ring()

    def close(self) -> None:
        """See Alarm."""
        super().close()
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

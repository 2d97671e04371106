"""The event loop of the supervisor. Owns: waiting for sockets, signals and times, and one callback after the other.
Refuses to know: what the callbacks do.

asyncio would do, but it imports TLS: an idle supervisor has 13 MB instead of 22 without it."""

from __future__ import annotations

import heapq
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

Callback = Callable[[], object]
_SIGNALS_AT_ONCE = 4096


class EventLoop:
    """Runs callbacks in the thread that calls `run`, which is the main thread."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` is told what a callback raised. The loop goes on."""
        self._failed = failed
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = count()
        self._signals: dict[int, Callback] = {}
        self._result: int | None = None
        self._woken, self._wakes = socket.socketpair()
        for each in (self._woken, self._wakes):
            each.setblocking(False)

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call it after a signal of this number, between other callbacks."""
        if not self._signals:
            signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
            self.on_readable(self._woken, self._deliver)
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)  # Python then writes the number to the wake-up descriptor
        signal.siginterrupt(number, False)

    def on_readable(self, sock: socket.socket, callback: Callback) -> None:
        """Call it as long as the socket has something to read, or its other end is gone."""
        self._selector.register(sock, selectors.EVENT_READ, callback)

    def forget(self, sock: socket.socket) -> None:
        """No callback for this socket any more. Call it before the socket is closed."""
        with suppress(KeyError):
            self._selector.unregister(sock)

    def later(self, delay_s: float, callback: Callback) -> None:
        """Call it once, after so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), callback))

    def end(self, result: int) -> None:
        """Let `run` return. The first result counts."""
        if self._result is None:
            self._result = result

    def run(self) -> int:
        """Wait and call until `end`. Returns the result."""
        while self._result is None:
            for key, _ in self._selector.select(self._until_timer()):
                if self._selector.get_map().get(key.fd) is key:  # else a callback before it has forgotten the socket
                    self._call(key.data)
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._call(heapq.heappop(self._timers)[2])
        return self._result

    def _until_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _deliver(self) -> None:
        for number in self._woken.recv(_SIGNALS_AT_ONCE):
            if number in self._signals:
                self._call(self._signals[number])

    def _call(self, callback: Callback) -> None:
        if self._result is not None:
            return
        try:
            callback()
        except Exception as error:
            self._failed(error)

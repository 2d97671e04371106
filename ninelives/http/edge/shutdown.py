"""The end of a server process. Owns: the signals, the order of a shutdown (R14: drain, then stop the HTTP server) and
the two ways in which it ends at once: a second signal, and a deadline. Refuses to know: what is drained and what
serves."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable


class Shutdown:
    """The first signal drains, then stops the server. The second one ends the process at once, and so does a drain that
    takes longer than `longest_s` (P10)."""

    def __init__(
        self,
        drain: Callable[[], Awaitable[None]],
        stop_server: Callable[[], None],
        longest_s: float,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_begun` is called once, before anything is drained."""
        self._on_begun = on_begun
        self._drain = drain
        self._stop_server = stop_server
        self._longest_s = longest_s
        self._task: asyncio.Task[None] | None = None
        self._askers: set[str] = set()

    @property
    def begun(self) -> bool:
        """True from the first call of begin() on."""
        return self._task is not None

    def handle_signals(self) -> None:
        """Call begin() for SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.begin, "signal")

    def begin(self, asker: str) -> None:
        """Start to drain. Asked again by the same: end the process now. A terminal signals a server and its supervisor,
        which then asks too: that is one wish."""
        if asker in self._askers:
            os._exit(1)
        self._askers.add(asker)
        if self._task is not None:
            return
        # A thread, because a hanging event loop must not keep the process alive. What is committed is safe.
        deadline = threading.Timer(self._longest_s, os._exit, (1,))
        deadline.daemon = True
        deadline.start()
        self._on_begun()
        self._task = asyncio.get_running_loop().create_task(self._drain_and_stop())

    async def _drain_and_stop(self) -> None:
        try:
            await self._drain()
        finally:
            self._stop_server()

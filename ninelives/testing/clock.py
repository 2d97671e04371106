"""A clock for tests. Owns: the time, which only a test changes. Refuses to know: the machine's time."""

from __future__ import annotations


class VirtualClock:
    """Stands still until advance(). Call it for seconds (leases); `now_ms` gives the same moment for entries."""

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        """The time in seconds."""
        return self._now

    def now_ms(self) -> int:
        """The time in milliseconds."""
        return int(self._now * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass. It never goes back."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds

"""Notifications within one process. Owns: who listens for which run. Refuses to know: what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

DRIVES = "drives:"
"""The topic with which the process that drives a run says so, to one that has begun to read it. It is notified for that
reason only."""


class LocalNotifier:
    """A Notifier whose listeners are all in this event loop."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[int, Callable[[], None]]] = {}
        self._next = 0

    def ring(self, runs: Iterable[str]) -> None:
        """See Notifier.ring. Calls the listeners before it returns."""
        for run in runs:
            if run in self._listeners:
                for heard in list(self._listeners[run].values()):
                    heard()

    def has(self, topic: str) -> bool:
        """Does anybody listen for it?"""
        return topic in self._listeners

    def topics(self) -> list[str]:
        """All runs with a listener. Where notifications can be lost, all of them are notified from time to time."""
        return [topic for topic in self._listeners if not topic.startswith(DRIVES)]

    def listen(self, run: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See Notifier.listen."""
        self._next += 1
        token = self._next
        self._listeners.setdefault(run, {})[token] = heard

        def stop() -> None:
            listeners = self._listeners.get(run)
            if listeners is None:
                return
            listeners.pop(token, None)
            if not listeners:
                del self._listeners[run]

        return stop

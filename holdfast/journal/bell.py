"""The bell of one process. Owns: who listens for which run. Refuses to know: what the news is."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class LocalBell:
    """A Bell whose listeners are all in this event loop."""

    def __init__(self) -> None:
        self._ears: dict[str, dict[int, Callable[[], None]]] = {}
        self._next = 0

    def ring(self, runs: Iterable[str]) -> None:
        """Tell all listeners of these runs, at once."""
        for run in runs:
            if run in self._ears:
                for heard in list(self._ears[run].values()):
                    heard()

    def topics(self) -> list[str]:
        """All that somebody listens for now: where rings can be lost, all of them are rung from time to time."""
        return list(self._ears)

    def listen(self, run: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Begin to listen; the returned function ends it."""
        self._next += 1
        token = self._next
        self._ears.setdefault(run, {})[token] = heard

        def stop() -> None:
            ears = self._ears.get(run)
            if ears is None:
                return
            ears.pop(token, None)
            if not ears:
                del self._ears[run]

        return stop

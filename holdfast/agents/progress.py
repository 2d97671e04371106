"""What tools say while they run. Owns: the bounded line from a tool's `place.progress` to ToolProgressed. Refuses to
know: what is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.events import ToolProgressed

MOST, CHARS = 200, 1000


class Progress:
    """The news of all calls of one group. A tool that tells more than the bound is not heard any more."""

    def __init__(self) -> None:
        self._told: list[ToolProgressed] = []
        self._count: dict[str, int] = {}
        self.bell = asyncio.Event()

    def teller(self, call_id: str) -> Callable[[str], None]:
        """What a call's tool is given."""

        def tell(text: str) -> None:
            self._count[call_id] = self._count.get(call_id, 0) + 1
            if self._count[call_id] <= MOST:
                self._told.append(ToolProgressed(call_id, text[:CHARS]))
                self.bell.set()

        return tell

    def take(self) -> list[ToolProgressed]:
        """What was told since the last time."""
        self.bell.clear()
        told, self._told = self._told, []
        return told

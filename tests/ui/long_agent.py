"""An agent that says 50,000 words, each an event of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ninelives import Turn, events
from ninelives.core.events import AnyEvent
from ninelives.core.state import RunState

WORDS = 50_000


class Talker:
    resumable = True

    async def end_leftovers(self, state: RunState) -> None:
        """It starts none."""

    async def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        pieces = [f"word{n} " for n in range(WORDS)]
        for piece in pieces:
            yield events.TextDelta(piece)
        yield events.MessageCompleted("".join(pieces))
        yield events.RunCompleted()


agent = Talker()

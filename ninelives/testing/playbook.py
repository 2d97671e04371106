"""A model for tests. Owns: PlaybookModel, which says what a test wrote down, and short ways to write its messages.
Refuses to know: networks, how tools run, and runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from ninelives.core.errors import AgentError
from ninelives.core.events import Usage
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text
from ninelives.models.scripted import since_user

Step = Part | BaseException | float | asyncio.Event
"""One step of a message: a part to yield, an exception to raise, seconds to sleep, or an event to wait for."""
ONE = Usage(1, 1)


def said(*pieces: str, usage: Usage = ONE) -> list[Step]:
    """A message with text and no tool calls."""
    return [*(Text(piece) for piece in pieces), Finished("stop", usage)]


def asked(*calls: tuple[str, str], text: str = "", usage: Usage = ONE) -> list[Step]:
    """A message with tool calls. Each call is a name and its arguments as JSON."""
    pieces: list[Step] = [Text(text)] if text else []
    pieces += [CallPiece(number, name, arguments) for number, (name, arguments) in enumerate(calls)]
    return [*pieces, Finished("tool_calls", usage)]


class PlaybookModel:
    """A Model that says what a test wrote down. Message n of the playbook answers a request with n assistant messages
    after the last user message. The answer depends on the request alone, so it is right after a crash too."""

    def __init__(self, playbook: Sequence[Sequence[Step]], name: str = "playbook") -> None:
        self.name = name
        self.asks: list[Ask] = []
        self.open = 0
        """Streams that have begun and have neither ended nor been closed."""
        self._playbook = playbook

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream. Each part comes alone."""
        self.asks.append(ask)
        number = sum(message.get("role") == "assistant" for message in since_user(ask.messages))
        if number >= len(self._playbook):
            raise AgentError("playbook_over", f"The playbook has no message {number}: add one.")
        self.open += 1
        try:
            for step in self._playbook[number]:
                match step:
                    case BaseException():
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case float() | int():
                        await asyncio.sleep(step)
                    case _:
                        yield [step]
        finally:
            self.open -= 1

    async def probe(self) -> bool:
        """See Model.probe."""
        return True

    async def close(self) -> None:
        """See Model.close."""

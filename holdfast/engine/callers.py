"""Those who wait for the end of a run. Owns: waiting without a stream, and cutting all who wait when the server stops.
Refuses to know: who they are and what they do with the answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from holdfast.core.state import RunState
from holdfast.engine.hub import Hub
from holdfast.engine.live import Live
from holdfast.journal.base import Bell

Look = Callable[[str, str], Awaitable[RunState | None]]


class CutOff(Exception):
    """The server stops: whoever waits is cut without an answer, so that it comes back."""


class Callers:
    """Who waits for which run."""

    def __init__(self, hub_of: Callable[[str], Hub], look: Look, bell: Bell) -> None:
        self._hub_of = hub_of
        self._look = look
        self._bell = bell
        self._waiters: set[asyncio.Future[None]] = set()
        self._waiting: Counter[str] = Counter()

    def wait_for(self, run: str) -> bool:
        """Does anybody wait for the end of a run? Such a caller has not left (C4)."""
        return self._waiting[run] > 0

    def cut(self) -> None:
        """The server stops."""
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_exception(CutOff())

    async def wait(self, owner: str, run: str, answered: str) -> RunState | None:
        """The state of a run once it has ended or waits for a person (with a question other than the one just
        `answered`); None where the owner has none. CutOff when the server stops."""
        self._waiting[run] += 1
        try:
            return await self._wait(owner, run, answered)
        finally:
            self._waiting[run] -= 1
            if not self._waiting[run]:
                del self._waiting[run]

    async def _wait(self, owner: str, run: str, answered: str) -> RunState | None:
        while True:
            live = self._hub_of(run).live(run)
            if live is not None and live.committed.ended:
                return live.committed if live.owner == owner else None
            heard, unlisten = self._news_of(run, live)
            self._waiters.add(heard)
            try:
                state = await self._look(owner, run)
                asked = state.facts.asked if state is not None else None
                if state is None or state.ended or (asked is not None and asked.code != answered):
                    return state
                await heard
            finally:
                unlisten()
                self._waiters.discard(heard)
                if not heard.cancel() and not heard.cancelled():
                    heard.exception()  # a cut that came while the answer was found: nobody else asks for it

    def _news_of(self, run: str, live: Live | None) -> tuple[asyncio.Future[None], Callable[[], None]]:
        """A future for the end of a run that is driven here, else for the next ring of its bell."""
        if live is not None:
            return live.until_over(), lambda: None
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return heard, self._bell.listen(run, lambda: _done(heard))


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""Those who wait for the end of a run. Owns: waiting without a stream, and cutting all who wait when the server stops.
Refuses to know: who they are and what they do with the answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.core.state import RunState
from holdfast.engine.hub import Hub
from holdfast.engine.live import Live
from holdfast.engine.writer import RETRY_S
from holdfast.journal.base import Bell, StoreUnavailable


class Look(Protocol):
    """How the state of a run is found."""

    def __call__(self, owner: str, run: str, known: RunState | None = None) -> Awaitable[RunState | None]:
        """The state now; `known`: one that was seen before."""
        ...


class CutOff(Exception):
    """The server stops: whoever waits is cut without an answer, so that it comes back."""


class Callers:
    """Who waits for which run."""

    def __init__(self, hub_of: Callable[[str], Hub], look: Look, bell: Bell) -> None:
        self._hub_of = hub_of
        self._look = look
        self._bell = bell
        self.look_again_s: float | None = None
        """How long a ring is waited for where one may be lost."""
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
        state: RunState | None = None
        while True:
            live = self._hub_of(run).live(run)
            if live is not None and live.committed.ended:
                return live.committed if live.owner == owner else None
            heard, unlisten = self._news_of(run, live)
            self._waiters.add(heard)
            try:
                patience = self.look_again_s if live is None else None
                try:
                    state = await self._look(owner, run, state)
                except StoreUnavailable as error:
                    if not error.passing:
                        raise
                    patience = RETRY_S
                else:
                    asked = state.facts.asked if state is not None else None
                    if state is None or state.ended or (asked is not None and asked.code != answered):
                        return state
                await self._hear(heard, patience)
            finally:
                unlisten()
                self._waiters.discard(heard)
                if not heard.cancel() and not heard.cancelled():
                    heard.exception()  # a cut that came while the answer was found: nobody else asks for it

    async def _hear(self, heard: asyncio.Future[None], patience: float | None) -> None:
        if patience is None:
            await heard
        elif (await asyncio.wait([heard], timeout=patience))[0]:
            heard.result()

    def _news_of(self, run: str, live: Live | None) -> tuple[asyncio.Future[None], Callable[[], None]]:
        """A future for the end of a run that is driven here, else for the next ring of its bell."""
        if live is not None:
            return live.until_over(), lambda: None
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return heard, self._bell.listen(run, lambda: _done(heard))


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

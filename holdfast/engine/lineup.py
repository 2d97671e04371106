"""Whose turn it is among the runs that may have killed the server. Owns: their order and the length of a turn (house
rule 6.7). Refuses to know: what a run is and how one is tried.

Theory of operation. Suspects are tried one at a time, the one that was claimed last first: it is the likeliest culprit,
because the others had their turn before it and the server lived on. So from its second turn on a poison run dies before
anybody else is claimed, and no other run takes a strike for it, however long that one needs to settle something. A turn
ends with the first new fact or after a share of the time that all have together: a suspect that is merely slow must not
keep the others waiting (P4)."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush

TURN_S = 2.0
ALL_S = 20.0
"""Within this time every suspect has had its turn: well below the 30 s of P4."""


class Turn:
    """One suspect's time alone."""

    def __init__(self, lineup: Lineup, seconds: float) -> None:
        self._lineup = lineup
        self._running = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self.over)

    def over(self) -> None:
        """The next one may begin. Only the first call counts."""
        if self._running:
            self._running = False
            self._timer.cancel()
            self._lineup.done()


class Lineup:
    """Suspects in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[Turn]]] = []
        self._entered = 0
        self._unknown = 0
        self._busy = False

    def expect(self) -> None:
        """A run is about to be looked at and may turn out to be a suspect: nobody begins before `known()`."""
        self._unknown += 1

    def known(self) -> None:
        """That run was looked at; if it is a suspect it asks for its turn now."""
        self._unknown -= 1
        asyncio.get_running_loop().call_soon(self._next)

    async def turn(self, claimed_at: int) -> Turn:
        """Wait to be alone. Call `over()` on the result."""
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._entered += 1
        heappush(self._waiting, (-claimed_at, self._entered, future))
        self._next()
        return await future

    def done(self) -> None:
        """A turn is over."""
        self._busy = False
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._busy and not self._unknown:
            share = ALL_S / len(self._waiting)
            _, _, future = heappop(self._waiting)
            if not future.done():
                self._busy = True
                future.set_result(Turn(self, min(TURN_S, share)))

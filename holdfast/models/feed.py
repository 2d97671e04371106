"""The parts of one answer as they come. Owns: the wait for the next read with its deadline, and offering parts where
they are taken at once. Refuses to know: requests and retries.

Theory of operation. The generator that asks sleeps in `next()`. When bytes come, the line's ear parses them in the
callback of the socket and offers the parts to `take`; what is taken is gone, and nothing is woken. Only what is not
taken (the end, a failure, a taker that has no room) wakes the generator: that costs more than parsing. The deadline is
a time that each read moves on, with one timer that looks at it when it fires, instead of a timer per read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.models.base import Part
from holdfast.models.chunks import Answer, Lines, UpstreamFailed, Whole
from holdfast.models.line import Line

Take = Callable[[list[Part]], bool]
TICK_S = 0.001
"""The grain of the loop's clock: a timer may fire so much early."""


class Feed:
    """One answer's body."""

    __slots__ = (
        "_answer",
        "_failure",
        "_heard",
        "_intake",
        "_kept",
        "_last",
        "_limit_s",
        "_line",
        "_stall_s",
        "_take",
        "_time",
        "_timer",
        "_waiter",
        "offered",
    )

    def __init__(self, line: Line, intake: Lines | Whole, answer: Answer, take: Take | None) -> None:
        self._time = asyncio.get_running_loop().time
        self._line = line
        self._intake = intake
        self._answer = answer
        self._take = take
        self._kept: list[Part] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._last = self._limit_s = self._stall_s = 0.0
        self.offered = False
        """Parts were offered: taken or not, they have been told."""
        line.ear = self._news

    @property
    def done(self) -> bool:
        """Is the answer whole?"""
        return self._answer.done

    @property
    def patience_s(self) -> float:
        """How long the last wait was to be at most."""
        return self._due() - self._heard

    def _due(self) -> float:
        """A read that was taken has moved it."""
        return min(self._heard + self._limit_s, self._last)

    async def next(self, limit_s: float, stall_s: float, left_s: float) -> list[Part]:
        """The parts of one read, empty at most at the end. Raises UpstreamFailed, TimeoutError after `limit_s` (or
        `stall_s` after the last read that was taken), never later than `left_s`."""
        self._heard = now = self._time()
        self._limit_s, self._last, self._stall_s = limit_s, now + left_s, stall_s
        line = self._line
        while True:
            if self._kept:
                parts, self._kept = self._kept, []
                return parts
            if self._failure is not None:
                raise self._failure
            if self._answer.done:
                return []
            data = line.read()
            if data or line.ended:
                self._kept = self._parsed(data)
            elif line.failure is not None:
                raise line.failure
            else:
                await self._wait()

    def close(self) -> None:
        """Nobody listens any more. May be called twice."""
        if self._line.ear == self._news:
            self._line.ear = None
        if self._timer is not None:
            self._timer.cancel()

    def _parsed(self, data: bytes) -> list[Part]:
        parts: list[Part] = []
        try:
            self._intake.feed(data, parts)
        except UpstreamFailed as failure:
            self._failure = failure
        return parts

    def _news(self) -> None:
        """Called by the socket; what it raises would end the connection, so it is raised by `next()` instead."""
        waiter, line, take = self._waiter, self._line, self._take
        if waiter is None or waiter.done():
            return
        if take is not None and not line.ended and line.failure is None:
            data, parts = line.read(), list[Part]()
            if not data:
                return  # only the form of the body went on; b"" would be its end
            try:
                self._intake.feed(data, parts)
                self.offered = self.offered or bool(parts)
                if not parts or (not self._answer.done and take(parts)):
                    self._heard, self._limit_s = self._time(), self._stall_s
                    return
                self._kept = parts
            except UpstreamFailed as failure:
                self._kept, self._failure = parts, failure
            except Exception as error:
                self._failure = error
        waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        if self._timer is None or self._timer.when() > self._due():
            self._watch()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A read that is taken may move it nearer: the first may be waited for longer than the next.
        look_at = min(self._due(), self._time() + self._stall_s)
        self._timer = asyncio.get_running_loop().call_at(look_at, self._look)

    def _look(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return  # the next wait begins its own
        if self._time() + TICK_S < self._due():
            self._watch()
        else:
            waiter.set_exception(TimeoutError())

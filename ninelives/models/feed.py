"""The parts of one answer as they arrive. Owns: waiting for the next read, with its deadline, and offering parts to
whoever takes them at once. Refuses to know: requests and retries.

Theory of operation. The generator that asked sleeps in `next()`. When bytes arrive, `news` parses them in the callback
of the socket and offers the parts to `take_parts`. Where they are taken, nothing is woken. Only the rest (the end, a
failure, no room) wakes the generator, which costs more than parsing. Each read moves the deadline. One timer checks the
deadline when it fires, which is cheaper than a timer per read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ninelives.models.base import Part
from ninelives.models.chunks import AnswerReader, EventLines, UpstreamFailed, WholeBody
from ninelives.models.net.connection import UpstreamConnection

TakeParts = Callable[[list[Part]], bool]
TICK_S = 0.001
"""The resolution of the loop's clock. A timer may fire this much early."""


class Feed:
    """The body of one answer."""

    __slots__ = (
        "_answer",
        "_by",
        "_connection",
        "_failure",
        "_intake",
        "_kept",
        "_last_read",
        "_limit_s",
        "_stall_s",
        "_take_parts",
        "_time",
        "_timer",
        "_waiter",
        "offered",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        intake: EventLines | WholeBody,
        answer: AnswerReader,
        take_parts: TakeParts | None,
    ) -> None:
        self._time = asyncio.get_running_loop().time
        self._connection = connection
        self._intake = intake
        self._answer = answer
        self._take_parts = take_parts
        self._kept: list[Part] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_read = self._by = self._limit_s = self._stall_s = 0.0
        self.offered = False
        """True once parts were offered, taken or not. No retry may follow then."""

    @property
    def done(self) -> bool:
        """True once the answer is whole."""
        return self._answer.done

    @property
    def patience_s(self) -> float:
        """The limit of the last wait."""
        return self._due() - self._last_read

    def _due(self) -> float:
        """The deadline now. Each read that was taken moves it."""
        return min(self._last_read + self._limit_s, self._by)

    async def next(self, limit_s: float, stall_s: float, left_s: float) -> list[Part]:
        """The parts of one read; empty only at the end. Raises UpstreamFailed, and TimeoutError after `limit_s`. After
        a read that was taken the limit is `stall_s`. It is never later than `left_s`."""
        self._last_read = now = self._time()
        self._limit_s, self._by, self._stall_s = limit_s, now + left_s, stall_s
        connection = self._connection
        while True:
            if self._kept:
                parts, self._kept = self._kept, []
                return parts
            if self._failure is not None:
                raise self._failure
            if self._answer.done:
                return []
            data = connection.read()
            if data or connection.ended:
                self._kept = self._parsed(data)
            elif connection.failure is not None:
                raise connection.failure
            else:
                await self._wait()

    def close(self) -> None:
        """Stop the timer. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()

    def _parsed(self, data: bytes) -> list[Part]:
        parts: list[Part] = []
        try:
            self._intake.feed(data, parts)
        except UpstreamFailed as failure:
            self._failure = failure
        return parts

    def news(self) -> None:
        """See Waiter.news. It runs in the socket's callback, so what fails here is raised by `next()`."""
        waiter, connection, take_parts = self._waiter, self._connection, self._take_parts
        if waiter is None or waiter.done():
            return
        if take_parts is not None and not connection.ended and connection.failure is None:
            data, parts = connection.read(), list[Part]()
            if not data:
                return  # no byte of body came, and b"" would mean its end
            try:
                self._intake.feed(data, parts)
                self.offered = self.offered or bool(parts)
                if not parts or (not self._answer.done and take_parts(parts)):
                    self._last_read, self._limit_s = self._time(), self._stall_s
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
            self._start_timer()
        try:
            await self._connection.wait(self, self._waiter)
        finally:
            self._waiter = None

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A read that is taken may bring the deadline nearer, because the first read has a longer limit.
        check_at = min(self._due(), self._time() + self._stall_s)
        self._timer = asyncio.get_running_loop().call_at(check_at, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return  # the next wait starts its own timer
        if self._time() + TICK_S < self._due():
            self._start_timer()
        else:
            waiter.set_exception(TimeoutError())

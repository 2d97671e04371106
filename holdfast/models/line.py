"""The bytes of one answer as they come. Owns: aiohttp's connection with an ear on it, and the wait for the next read
with its deadline. Imports aiohttp, so it is imported at first use. Refuses to know: requests and retries.

Theory of operation. The generator that asks sleeps in `next()`. When bytes come, the ear parses them in the callback of
the socket and offers the parts to `take`; what is taken is gone, and nothing is woken. Only what is not taken (the end,
a failure, a taker that has no room) wakes the generator: that costs more than parsing. The deadline is a time that each
read moves on, with one timer that looks at it when it fires, instead of a timer per read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import ClientError, ClientResponse
from aiohttp.client_proto import ResponseHandler

from holdfast.models.base import Part
from holdfast.models.chunks import Answer, Lines, UpstreamFailed, Whole, cut

Take = Callable[[list[Part]], bool]
TICK_S = 0.001
"""The grain of the loop's clock: a timer may fire so much early."""


class Line(ResponseHandler):
    """A connection that says when there is news of its answer."""

    ear: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        """One read, parsed to its end."""
        super().data_received(data)
        if self.ear is not None:
            self.ear()

    def resume_reading(self, *args: bool, **named: bool) -> None:
        """aiohttp goes on with every chunk that is read, by parsing nothing once more: here only after a pause."""
        if getattr(self, "_reading_paused", True):
            super().resume_reading(*args, **named)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The answer ends here, whole or not."""
        super().connection_lost(exc)
        if self.ear is not None:
            self.ear()


class Feed:
    """One answer's body."""

    def __init__(self, response: ClientResponse, intake: Lines | Whole, answer: Answer, take: Take | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._content = response.content
        self._intake = intake
        self._answer = answer
        self._take = take
        self._kept: list[Part] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reading = False
        self._had = 0
        """Bytes that were read; aiohttp counts those that came."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._last = 0.0
        self._stall_s = 0.0
        self.patience_s = 0.0
        """How long the last wait was to be at most."""
        connection = response.connection
        line = connection.protocol if connection is not None else None
        self._line = line if isinstance(line, Line) else None
        if self._line is not None:
            self._line.ear = self._news

    @property
    def done(self) -> bool:
        """Is the answer whole?"""
        return self._answer.done

    async def next(self, limit_s: float, stall_s: float, left_s: float) -> list[Part]:
        """The parts of one read, empty at most at the end. Raises UpstreamFailed, TimeoutError after `limit_s` (or
        `stall_s` after the last read that was taken), never later than `left_s`."""
        now = self._loop.time()
        self._due, self._last, self._stall_s = now + limit_s, now + left_s, stall_s
        self.patience_s = limit_s
        while True:
            if self._kept:
                parts, self._kept = self._kept, []
                return parts
            if self._failure is not None:
                raise self._failure
            if self._answer.done:
                return []
            try:
                data = self._content.read_nowait()
            except (OSError, ClientError) as error:
                raise cut() from error
            self._had += len(data)
            if data or self._content.at_eof():
                self._kept = self._parsed(data)
            elif self._line is not None:
                await self._wait()
            else:
                self._kept = self._parsed(await self._read())

    def close(self) -> None:
        """Nobody listens any more. May be called twice."""
        if self._line is not None and self._line.ear == self._news:
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
        """Called by the socket; what it raises would end the connection, so it is raised by `next()` instead. Reading
        may make aiohttp go on with what it had held back, and so call this again in the middle: the outer call goes on
        with that, else later bytes would be parsed before earlier ones."""
        waiter = self._waiter
        if self._reading or waiter is None or waiter.done():
            return
        self._reading = True
        try:
            taken = self._take_all()
        except Exception as error:
            self._failure, taken = error, False
        finally:
            self._reading = False
        if not taken:
            waiter.set_result(None)

    def _take_all(self) -> bool:
        """Offer all that has come; False where the generator must look itself."""
        content = self._content
        if self._take is None:
            return False
        while content.exception() is None and not content.is_eof():
            data = content.read_nowait() if content.total_bytes > self._had else b""
            if not data:
                now = self._loop.time()
                self._due = min(now + self._stall_s, self._last)
                self.patience_s = self._due - now
                return True
            self._had += len(data)
            parts = self._parsed(data)
            if self._failure is not None or self._answer.done or (parts and not self._take(parts)):
                self._kept = parts
                return False
        return False

    async def _read(self) -> bytes:
        """A read on a connection without an ear: slower, never wrong."""
        try:
            async with asyncio.timeout_at(self._due):
                data = await self._content.readany()
                self._had += len(data)
                return data
        except ClientError as error:
            raise cut() from error

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self._timer is None or self._timer.when() > self._due:
            self._watch()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return  # the next wait begins its own
        if self._loop.time() + TICK_S < self._due:
            self._watch()
        else:
            waiter.set_exception(TimeoutError())

"""A model behind an OpenAI-compatible chat completions endpoint. Owns: the request, the deadlines, and the retries
before the first part. Refuses to know: what the bytes of an answer mean (chunks.py), HTTP (net/, imported at first
use), how tools run, runs, and where settings come from."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from ninelives import __version__
from ninelives.core.errors import Shortage, shortage_of
from ninelives.core.history import Transcript
from ninelives.core.rope import LARGE_BYTES, LARGE_WORK, alone
from ninelives.core.spec import Message, Piece
from ninelives.models.base import Ask, Part
from ninelives.models.chunks import (
    UNREADABLE,
    AnswerReader,
    EventLines,
    UpstreamFailed,
    WholeBody,
    excerpt,
    garbage_error,
)
from ninelives.models.modes import FIELDS, AnswerMode, ModeMemory, simpler

if TYPE_CHECKING:
    from ninelives.models.net.connection import Pool, UpstreamConnection
    from ninelives.models.net.kept import ConnectionHolder

TakeParts = Callable[[list[Part]], bool]
Intake = EventLines | WholeBody
TICK_S = 0.001
"""The resolution of the loop's clock. A timer may fire this much early."""

MANY_MESSAGES, LARGE_CHARS = 256, 262_144
"""A request with more is encoded in a thread."""
EXCERPT_BYTES = 4096
LIST_BYTES = 1_048_576
BACKOFF_CAP_S = 8.0
TAIL_S = 0.1
"""How long to wait for the end of the body after [DONE], so that the connection can be used again."""


class Upstream(Struct, frozen=True):
    """Where a model is, and how long to wait for it."""

    url: str
    """Base URL, without /chat/completions and /models."""
    name: str
    """The name of the model."""
    api_key: str = ""
    """Sent as a bearer token. Empty: no token is sent."""
    connect_s: float = 10.0
    """Seconds for name lookup, TCP and TLS."""
    first_byte_s: float = 120.0
    """Seconds from the start of a try to the first byte of the answer's body. An answer in one piece has `total_s`."""
    stall_s: float = 60.0
    """Seconds between two reads. Comments count as reads."""
    total_s: float = 1800.0
    """Seconds for one message, with all retries and waits."""
    retries: int = 2
    """Most retries after a failure before the first part."""
    backoff_s: float = 0.5
    """Seconds before the first retry. They double each time, up to 8, with jitter."""
    retry_after_s: float = 60.0
    """The longest Retry-After in seconds to wait for. A longer one is a failure."""
    line_bytes: int = 8_388_608
    """Most bytes of one line of a stream, and of an answer that is not streamed."""
    probe_s: float = 2.0
    """Seconds for GET /models, and for each read of the body of an error."""

    def __repr__(self) -> str:
        return f"Upstream(url={_host(self.url)!r}, name={self.name!r}, api_key={'set' if self.api_key else 'none'})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", _host(self.url)), ("name", self.name)]  # rich would show every field, with the key


class StreamRefused(UpstreamFailed):
    """The upstream does not answer in the way that was asked for. `instead`: the way to ask again."""

    def __init__(self, code: str, message: str, instead: AnswerMode) -> None:
        super().__init__(code, message)
        self.instead = instead


class HeadRefused(UpstreamFailed):
    """The status of an answer is an error. Its body says why."""

    def __init__(self) -> None:
        super().__init__("upstream_status", "The model's upstream refused the request.")


class Feed(Struct):
    """One answer, as it arrives.

    The generator that asked sleeps in `next()`. When bytes arrive, `news` parses them in the callback of the socket and
    offers the parts to `take_parts`. Where they are taken, nothing is woken. Only the rest (the end, a failure, no
    room) wakes the generator, which costs more than parsing. The head of the answer wakes nobody either. Each read
    moves the deadline. One timer checks the deadline when it fires, which is cheaper than a timer per read."""

    connection: UpstreamConnection
    answer: AnswerReader
    line_bytes: int
    take_parts: TakeParts | None
    offered: bool = False
    """True once parts were offered, taken or not. No retry may follow then."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _intake: Intake | None = None
    _kept: list[Part] = []
    _failure: Exception | None = None
    _waiter: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _last_read: float = 0.0
    _by: float = 0.0
    _limit_s: float = 0.0
    _stall_s: float = 0.0

    @property
    def patience_s(self) -> float:
        """The limit of the last wait."""
        return min(self._limit_s, self._by - self._last_read)

    async def next(self, limit_s: float, stall_s: float, left_s: float) -> list[Part]:
        """The parts of one read; empty only at the end. Raises UpstreamFailed, and TimeoutError after `limit_s`. After
        a read that was taken the limit is `stall_s`. It is never later than `left_s`."""
        self._last_read = now = self._loop.time()
        self._limit_s, self._by, self._stall_s = limit_s, now + left_s, stall_s
        connection = self.connection
        connection.news = self.news
        while not self._kept and self._failure is None and not self.answer.done:
            intake = self._intake or (self._open() if connection.begun else None)
            data = connection.read()  # after that: the body of an error is read by somebody else
            if intake is not None and (data or connection.ended):
                try:
                    intake.feed(data, self._kept)
                except UpstreamFailed as failure:
                    self._failure = failure
            elif connection.failure is not None:
                raise connection.failure
            else:
                waiter = self._waiter = self._loop.create_future()
                self._watch(waiter)
                try:
                    await waiter
                finally:
                    self._waiter = None
        if self._failure is not None and not self._kept:
            raise self._failure
        parts, self._kept = self._kept, []
        return parts

    def close(self) -> None:
        """Listen no more, and stop the timer. May be called twice."""
        self.connection.news = None
        if self._timer is not None:
            self._timer.cancel()

    def news(self) -> None:
        """A read was parsed, or the answer failed or ended. It runs in the socket's callback, so what fails here is
        raised by `next()`."""
        waiter, connection, take_parts = self._waiter, self.connection, self.take_parts
        if waiter is None or waiter.done():
            return
        if take_parts is not None and not connection.ended and connection.failure is None:
            parts: list[Part] = []
            try:
                intake, data = self._intake or self._open(), connection.read()
                if not data:
                    return  # no byte of body came, and b"" would mean its end
                intake.feed(data, parts)
                self.offered |= bool(parts)
                if not parts or (not self.answer.done and take_parts(parts)):
                    self._last_read, self._limit_s = self._loop.time(), self._stall_s
                    return
                self._kept = parts
            except UpstreamFailed as failure:
                self._kept, self._failure = parts, failure
            except Exception as error:
                self._failure = error
        waiter.set_result(None)

    def _open(self) -> Intake:
        """The head is there: begin to read the body. Raises UpstreamFailed where the head is an error."""
        connection = self.connection
        if not 200 <= connection.status < 300:
            raise HeadRefused
        kind = connection.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind == b"text/html":
            raise garbage_error("an HTML page")
        reader = WholeBody if kind == b"application/json" else EventLines
        self._intake = intake = reader(self.answer, self.line_bytes)
        return intake

    def _watch(self, waiter: asyncio.Future[None]) -> None:
        """End the wait if its deadline has passed. Otherwise there is a timer that fires no later than that. Each read
        that is taken moves the deadline."""
        now, due, timer = self._loop.time(), min(self._last_read + self._limit_s, self._by), self._timer
        if now + TICK_S >= due:
            waiter.set_exception(TimeoutError())
        elif timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            # A read that is taken may bring the deadline nearer, because the first read has a longer limit.
            self._timer = self._loop.call_at(min(due, now + self._stall_s), self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is not None and not self._waiter.done():  # the next wait starts its own timer
            self._watch(self._waiter)


class PendingAnswer(Struct):
    """An answer that streams in. `first_by` is the deadline of the first read, None after it; `by` of the whole."""

    pool: Pool
    connection: UpstreamConnection
    feed: Feed
    first_by: float | None
    by: float
    mode: AnswerMode


class OpenAIModel:
    """A Model over HTTP. Clock, sleep and chance are arguments for the tests."""

    def __init__(
        self,
        upstream: Upstream,
        holder: ConnectionHolder | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = upstream.name
        self._upstream = upstream
        self.keeper = holder
        """See KeptModel.keeper."""
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._pool: Pool | None = None
        self._modes = ModeMemory(clock)
        self._head = b""
        self._tools: tuple[tuple[dict[str, object], ...], msgspec.Raw] = ((), msgspec.Raw(b"[]"))

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream."""
        mode = first = self._modes.first(tools=bool(ask.tools)) if self._modes.accepted_modes else "usage"
        by = self._clock() + self._upstream.total_s
        tries = 0
        told = ask.told
        while True:
            reading: PendingAnswer | None = None
            try:
                reading = await self._begin(ask, by, mode)
                while parts := await self._next(reading):
                    if mode != first:
                        self._modes.accepted(mode, tools=bool(ask.tools))
                    told = True
                    yield parts
                return
            except StreamRefused as refused:
                mode = refused.instead  # at most two of three ways are refused, so this ends
                continue
            except UpstreamFailed as failure:
                told = told or (reading is not None and reading.feed.offered)
                wait = self._wait(failure, tries)
                if told or wait is None or self._clock() + wait >= by:
                    raise
            finally:
                if reading is not None:
                    reading.feed.close()
                    reading.pool.give_back(reading.connection)
            tries += 1
            await self._sleep(wait)

    async def probe(self) -> bool:
        """See Model.probe."""
        return 0 < (await self._models(self._upstream.probe_s))[0] < 500

    @property
    def upstream(self) -> Upstream:
        """Where the model is."""
        return self._upstream

    async def names(self, within_s: float) -> list[str]:
        """The models that the upstream lists; empty where it does not answer in time or does not answer with a list."""
        return (await self.listing(within_s))[1]

    async def listing(self, within_s: float) -> tuple[int, list[str]]:
        """The HTTP status of the list of models, 0 where there is no answer in time, and the models in it."""
        status, body = await self._models(within_s)
        try:
            listed = msgspec.json.decode(body, type=dict[str, object]).get("data") if status == 200 else None
        except UNREADABLE:
            return status, []
        models = listed if isinstance(listed, list) else []
        return status, [each["id"] for each in models if isinstance(each, dict) and isinstance(each.get("id"), str)]

    async def close(self) -> None:
        """See Model.close."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _begin(self, ask: Ask, by: float, mode: AnswerMode) -> PendingAnswer:
        """Send a request. Its answer has not begun."""
        first_by = by if mode == "whole" else min(by, self._clock() + self._upstream.first_byte_s)
        pool = self._pool or self._connections()
        if self.keeper is not None and self.keeper.held(ask.call):
            connection = await self._answered_again(pool, ask.call)
        else:
            body = await self._encoded(ask, mode) if _is_large(ask.messages) else self._body(ask, mode)
            size = sum(map(len, body))
            if not self._head:
                self._head = self._request("POST", "/chat/completions")
            head = b"%bContent-Length: %d\r\n\r\n" % (self._head, size)
            connection = await self._sent(pool, (head, *body), by, ask.call)
        answer = AnswerReader(self._upstream.api_key)
        feed = Feed(connection, answer, self._upstream.line_bytes, ask.take_parts)
        return PendingAnswer(pool, connection, feed, first_by, by, mode)

    async def _next(self, reading: PendingAnswer) -> list[Part]:
        """The parts of the next read; empty at the end of the answer."""
        upstream, feed = self._upstream, reading.feed
        while not feed.answer.done:
            now = self._clock()
            limit = min(upstream.stall_s, reading.by - now) if reading.first_by is None else reading.first_by - now
            try:
                parts = await feed.next(limit, upstream.stall_s, reading.by - now)
            except TimeoutError as error:
                raise self._stalled(reading) from error
            except HeadRefused as refused:
                raise await self._refused(reading) from refused
            reading.first_by = None
            if parts:
                return parts
        if not reading.connection.ended:
            feed.close()
            await self._finish(reading.connection)
        return []

    def _stalled(self, reading: PendingAnswer) -> UpstreamFailed:
        if not reading.connection.begun:
            return _timed_out(f"at {_host(self._upstream.url)} did not begin to answer in time")
        return _timed_out(f"sent nothing more for {max(reading.feed.patience_s, 0):.3g} s")

    async def _answered_again(self, pool: Pool, call: str) -> UpstreamConnection:
        """The answer of a held call. Raises Shortage where it is gone: the run is tried again, and asks anew."""
        try:
            return await pool.again(call)
        except OSError as error:
            raise Shortage(error) from error

    async def _sent(self, pool: Pool, request: tuple[Piece, ...], by: float, call: str = "") -> UpstreamConnection:
        """Send a request, in pieces. Returns the connection on which its answer comes."""
        connection = pool.idle() or await self._connect(pool, by - self._clock())
        if self.keeper is not None:
            pool.begin(connection, call, sum(map(len, request)))
        connection.ask(*request)
        return connection

    async def _connect(self, pool: Pool, limit_s: float) -> UpstreamConnection:
        try:
            return await pool.connection(limit_s)
        except TimeoutError as error:
            failure = _timed_out(f"at {_host(self._upstream.url)} could not be connected to in time")
            failure.again = True
            raise failure from error
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError for some of them
            raise shortage_of(error) or _unreachable(_host(self._upstream.url), error, again=True) from error

    async def _finish(self, connection: UpstreamConnection) -> None:
        """Wait a moment for the end of the body, so that the connection can be used again."""
        try:
            await connection.more(TAIL_S)
        except (TimeoutError, UpstreamFailed):
            return  # the answer is whole: only the connection is lost

    async def _refused(self, reading: PendingAnswer) -> UpstreamFailed:
        """Why an upstream refused a request."""
        connection, mode = reading.connection, reading.mode
        reading.feed.close()
        status = connection.status
        body = await self._first_bytes(connection, EXCERPT_BYTES, reading.by)
        code, advice = _STATUS.get(status, ("upstream_status", "Try again later."))
        text = f"The model's upstream answered {status}{excerpt(body, self._upstream.api_key)}. {advice}"
        if (instead := simpler(mode, status, body)) is not None:
            return StreamRefused(code, text, instead)
        again = status in (408, 409, 429) or status >= 500
        return UpstreamFailed(
            code,
            text,
            status=429 if status == 429 else 502,
            again=again and connection.header(b"x-should-retry") != "false",
            wait_s=_retry_after(connection.header(b"retry-after"), connection.header(b"date")),
        )

    async def _models(self, within_s: float) -> tuple[int, bytes]:
        """Status and body of GET /models. Status 0: no answer."""
        try:
            async with asyncio.timeout(within_s):
                by = self._clock() + within_s
                pool = self._connections()
                connection = await self._sent(pool, (self._request("GET", "/models"), b"\r\n"), by)
                try:
                    await connection.head(within_s)
                    return connection.status, await self._first_bytes(connection, LIST_BYTES, by)
                finally:
                    pool.give_back(connection)
        except (TimeoutError, UpstreamFailed, Shortage):
            return 0, b""

    async def _first_bytes(self, connection: UpstreamConnection, limit: int, by: float) -> bytes:
        """The beginning of a body; empty where it fails."""
        body = bytearray()
        try:
            while len(body) < limit:
                data = await connection.more(min(self._upstream.probe_s, by - self._clock()))
                if not data:
                    break
                body += data
        except (TimeoutError, UpstreamFailed):
            return b""
        return bytes(body[:limit])

    def _wait(self, failure: UpstreamFailed, tries: int) -> float | None:
        """Seconds until the next try; None where there is none."""
        upstream = self._upstream
        if not failure.again or tries >= upstream.retries:
            return None
        if failure.wait_s:
            return failure.wait_s if failure.wait_s <= upstream.retry_after_s else None
        backoff = min(BACKOFF_CAP_S, upstream.backoff_s * 2.0**tries)
        return backoff * (0.5 + self._chance() / 2)

    async def _encoded(self, ask: Ask, mode: AnswerMode) -> list[Piece]:
        """A body that takes a while to encode."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(LARGE_WORK, alone, LARGE_BYTES, self._body, ask, mode)

    def _body(self, ask: Ask, mode: AnswerMode) -> list[Piece]:
        """The body, in pieces: a long conversation that is JSON already is not copied."""
        body: dict[str, object] = {**ask.options, "model": self.name}
        if ask.tools:
            kept = self._tools
            if ask.tools != kept[0]:  # cached: nearly every request has the same, and they are most of its bytes
                self._tools = kept = (ask.tools, msgspec.Raw(msgspec.json.encode(ask.tools)))
            body["tools"] = kept[1]
        messages = ask.messages.json() if isinstance(ask.messages, Transcript) else [msgspec.json.encode(ask.messages)]
        fields = msgspec.json.encode({**body, **FIELDS[mode]})
        body_pieces = [fields[:-1], b',"messages":', *messages, b"}"]
        return body_pieces if len(messages) > 1 else [b"".join(body_pieces)]

    def _request(self, method: str, place: str) -> bytes:
        """The head of a request without its empty line."""
        headers = {
            "User-Agent": f"ninelives/{__version__}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # a compressed stream is held back by proxies, and may unpack to anything
        }
        if key := self._upstream.api_key.strip():
            headers["Authorization"] = f"Bearer {key}"
        try:
            return self._connections().origin.request(method, place, headers)
        except ValueError as error:
            raise UpstreamFailed("upstream_auth", f"{error}. Check [model] api_key.") from error

    def _connections(self) -> Pool:
        if self._pool is None:
            from ninelives.models.net.connection import Origin, Pool

            try:
                self._pool = Pool(Origin.of(self._upstream.url), self._upstream.connect_s, self.keeper)
            except ValueError as error:
                raise _unreachable(_host(self._upstream.url), error, again=False) from error
        return self._pool


_STATUS = {
    400: ("upstream_rejected", "Change the request, or check [model] name and url."),
    401: ("upstream_auth", "Check [model] api_key."),
    403: ("upstream_auth", "Check [model] api_key and what it may use."),
    404: ("upstream_rejected", "Check [model] name and url."),
    422: ("upstream_rejected", "Change the request, or check [model] name and url."),
    429: ("rate_limit_exceeded", "Wait, then try again."),
}


def _is_large(messages: Sequence[Message]) -> bool:
    """Whether to encode these messages may take more than a moment. A picture is a long text in a part."""
    if isinstance(messages, Transcript):
        messages = (*messages.before, *messages.after)
    if len(messages) > MANY_MESSAGES:
        return True
    size = 0
    for message in messages:
        text = message.get("content") or ""
        size += len(text) if isinstance(text, str) else LARGE_CHARS
    return size >= LARGE_CHARS


def _host(url: str) -> str:
    """The host of a URL: the part that may be shown."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "an address that is no URL"


def _timed_out(how: str) -> UpstreamFailed:
    return UpstreamFailed("upstream_timeout", f"The model's upstream {how}. Try again later.", status=504)


def _unreachable(host: str, error: Exception, *, again: bool) -> UpstreamFailed:
    kind = type(error).__name__
    message = f"The model's upstream at {host} cannot be reached ({kind}). Check that it runs, and [model] url."
    return UpstreamFailed("upstream_unreachable", message, again=again)


def _retry_after(value: str | None, date: str | None) -> float | None:
    """Seconds to wait, as the upstream asks. A date is compared with the upstream's own clock."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), 86_400.0) if math.isfinite(seconds) else None

"""A model behind any OpenAI-compatible chat completions endpoint. Owns: the request, the deadlines, and the retries
before the first part. Refuses to know: what an answer's bytes mean (chunks.py), tools as things that run, runs, and
where settings come from. aiohttp is imported at first use: it costs more than the rest of the start."""

from __future__ import annotations

import asyncio
import functools
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from holdfast.models.base import Ask, Part
from holdfast.models.chunks import UNREADABLE, Answer, Lines, UpstreamFailed, Whole, cut, excerpt, garbage

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

    from holdfast.models.line import Feed, Take

EXCERPT_BYTES = 4096
LIST_BYTES = 1_048_576
BACKOFF_CAP_S = 8.0
TAIL_S = 0.1
"""How long we wait for the end of the body after [DONE], so that the connection can be used again."""


class Upstream(Struct, frozen=True):
    """Where a model lives and how long we wait for it."""

    url: str
    """Base URL; /chat/completions and /models are added to it."""
    name: str
    """The model to ask for."""
    api_key: str = ""
    """Sent as a bearer token; empty: none is sent."""
    connect_s: float = 10.0
    """Seconds for name lookup, TCP and TLS."""
    first_byte_s: float = 120.0
    """Seconds from the start of a try to the first byte of the answer's body."""
    stall_s: float = 60.0
    """Seconds between two reads; comments count as life."""
    total_s: float = 1800.0
    """Seconds for one message, all tries and waits included."""
    retries: int = 2
    """Further tries after a failure that came before the first part."""
    backoff_s: float = 0.5
    """Seconds before the first retry; doubled each time up to 8, with jitter."""
    retry_after_s: float = 60.0
    """The longest Retry-After in seconds that is waited for; a longer one is a failure."""
    line_bytes: int = 8_388_608
    """Bytes of one line of the stream, and of a whole answer that is not streamed."""
    probe_s: float = 2.0
    """Seconds for a look at /models, and for each read of an error's body."""

    def __repr__(self) -> str:
        return f"Upstream(url={_host(self.url)!r}, name={self.name!r}, api_key={'set' if self.api_key else 'none'})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", _host(self.url)), ("name", self.name)]  # else rich shows every field, the key too


class Reading:
    """One answer on its way. `first_by`: when the first read must be there, until it is; `by`: all of it."""

    __slots__ = ("by", "feed", "first_by", "response")

    def __init__(self, response: ClientResponse, feed: Feed, first_by: float, by: float) -> None:
        self.response, self.feed, self.by = response, feed, by
        self.first_by: float | None = first_by


class OpenAIModel:
    """A Model over HTTP. Time, waiting and chance are arguments, so that tests need none of them."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = upstream.name
        self._upstream = upstream
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._session: ClientSession | None = None
        self._tools: tuple[tuple[dict[str, object], ...], msgspec.Raw] = ((), msgspec.Raw(b"[]"))

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream."""
        body = self._body(ask)
        by = self._clock() + self._upstream.total_s
        tries = 0
        told = False

        def offered(parts: list[Part]) -> bool:
            nonlocal told
            told = True  # taken or not: what is not taken is yielded
            return ask.take is not None and ask.take(parts)

        while True:
            reading: Reading | None = None
            try:
                reading = await self._begin(body, by, offered if ask.take is not None else None)
                while parts := await self._next(reading):
                    told = True
                    yield parts
                return
            except UpstreamFailed as failure:
                wait = self._wait(failure, tries)
                if told or wait is None or self._clock() + wait >= by:
                    raise
            finally:
                if reading is not None:
                    reading.feed.close()
                    # Not release(): an answer that nobody reads any more must cost the upstream nothing.
                    reading.response.close()
            tries += 1
            await self._sleep(wait)

    async def probe(self) -> bool:
        """See Model.probe."""
        return 0 < (await self._models(self._upstream.probe_s))[0] < 500

    async def names(self, within_s: float) -> list[str]:
        """The models that the upstream lists; none where it does not answer in time or with something else."""
        status, body = await self._models(within_s)
        try:
            listed = msgspec.json.decode(body, type=dict[str, object]).get("data") if status == 200 else None
        except UNREADABLE:
            return []
        models = listed if isinstance(listed, list) else []
        return [model["id"] for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def close(self) -> None:
        """See Model.close."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _begin(self, body: bytes, by: float, take: Take | None) -> Reading:
        from holdfast.models.line import Feed

        first_by = min(by, self._clock() + self._upstream.first_byte_s)
        response = await self._post(body, first_by - self._clock())
        try:
            answer = Answer(self._upstream.api_key)
            intake = await self._intake(response, answer)
            return Reading(response, Feed(response, intake, answer, take), first_by, by)
        except BaseException:
            response.close()
            raise

    async def _next(self, reading: Reading) -> list[Part]:
        """The parts of one more read; none at the end of the answer."""
        upstream, feed = self._upstream, reading.feed
        while not feed.done:
            now = self._clock()
            limit = min(upstream.stall_s, reading.by - now) if reading.first_by is None else reading.first_by - now
            try:
                parts = await feed.next(limit, upstream.stall_s, reading.by - now)
            except TimeoutError as error:
                raise _timed_out(f"sent nothing more for {max(feed.patience_s, 0):.3g} s") from error
            reading.first_by = None
            if parts:
                return parts
        feed.close()
        await self._finish(reading.response)
        return []

    async def _post(self, body: bytes, limit: float) -> ClientResponse:
        session = self._connections()
        try:
            async with asyncio.timeout(limit):
                url = f"{self._upstream.url.rstrip('/')}/chat/completions"
                return await session.post(url, data=body, headers=self._headers(), allow_redirects=False)
        except (OSError, _client_error()) as error:
            raise _unanswered(error, _host(self._upstream.url)) from error

    async def _read(self, response: ClientResponse, limit: float) -> bytes:
        try:
            async with asyncio.timeout(limit):
                return await response.content.readany()
        except TimeoutError as error:
            raise _timed_out(f"sent nothing more for {max(limit, 0):.3g} s") from error
        except (OSError, _client_error()) as error:
            raise cut() from error

    async def _finish(self, response: ClientResponse) -> None:
        """Read up to the end of the body, where it is near, so that the connection is used again."""
        if not response.content.at_eof():
            try:
                await self._read(response, TAIL_S)
            except UpstreamFailed:
                return  # the answer is whole: what is wrong with its last bytes only costs the connection

    async def _intake(self, response: ClientResponse, answer: Answer) -> Lines | Whole:
        if not 200 <= response.status < 300:
            raise await self._refused(response)
        if response.content_type == "text/html":
            raise garbage("an HTML page")
        if response.content_type == "application/json":
            return Whole(answer, self._upstream.line_bytes)
        return Lines(answer, self._upstream.line_bytes)

    async def _refused(self, response: ClientResponse) -> UpstreamFailed:
        status, headers = response.status, response.headers
        try:
            body = await self._first_bytes(response, EXCERPT_BYTES)
        except UpstreamFailed:
            body = b""
        code, advice = _STATUS.get(status, ("upstream_status", "Try again later."))
        again = status in (408, 409, 429) or status >= 500
        return UpstreamFailed(
            code,
            f"The model's upstream answered {status}{excerpt(body, self._upstream.api_key)}. {advice}",
            status=429 if status == 429 else 502,
            again=again and headers.get("x-should-retry") != "false",
            wait_s=_retry_after(headers.get("Retry-After"), headers.get("Date")),
        )

    async def _models(self, within_s: float) -> tuple[int, bytes]:
        """Status and body of GET /models; status 0 where there was no answer."""
        session = self._connections()
        try:
            async with asyncio.timeout(within_s):
                url = f"{self._upstream.url.rstrip('/')}/models"
                async with session.get(url, headers=self._headers(), allow_redirects=False) as response:
                    return response.status, await self._first_bytes(response, LIST_BYTES)
        except (OSError, _client_error(), UpstreamFailed):
            return 0, b""

    async def _first_bytes(self, response: ClientResponse, limit: int) -> bytes:
        body = bytearray()
        while len(body) < limit and (data := await self._read(response, self._upstream.probe_s)):
            body += data
        return bytes(body[:limit])

    def _wait(self, failure: UpstreamFailed, tries: int) -> float | None:
        """Seconds until the next try; nothing where there is none."""
        upstream = self._upstream
        if not failure.again or tries >= upstream.retries:
            return None
        if failure.wait_s:
            return failure.wait_s if failure.wait_s <= upstream.retry_after_s else None
        backoff = min(BACKOFF_CAP_S, upstream.backoff_s * 2.0**tries)
        return backoff * (0.5 + self._chance() / 2)

    def _body(self, ask: Ask) -> bytes:
        body: dict[str, object] = {**ask.options, "model": self.name, "messages": ask.messages}
        if ask.tools:
            body["tools"] = self._encoded(ask.tools)
        return msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})

    def _encoded(self, tools: tuple[dict[str, object], ...]) -> msgspec.Raw:
        """Nearly every ask has the same tools, and they are most of its bytes."""
        if tools != self._tools[0]:
            self._tools = (tools, msgspec.Raw(msgspec.json.encode(tools)))
        return self._tools[1]

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # a compressed stream is held back by proxies, and may unpack to anything
        }
        if key := self._upstream.api_key.strip():
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _connections(self) -> ClientSession:
        if self._session is None:
            import aiohttp

            from holdfast.models.line import Line

            connector = aiohttp.TCPConnector(limit=0)
            # aiohttp has no public way to hear of a read without a task that waits for it. Where this one is gone, Feed
            # finds no Line on the connection and reads as others do.
            connector._factory = functools.partial(Line, loop=asyncio.get_running_loop())  # type: ignore[assignment]
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._upstream.connect_s),
                trust_env=False,
            )
        return self._session


_STATUS = {
    400: ("upstream_rejected", "Change the request, or check [model] name and url."),
    401: ("upstream_auth", "Check [model] api_key."),
    403: ("upstream_auth", "Check [model] api_key and what it may use."),
    404: ("upstream_rejected", "Check [model] name and url."),
    422: ("upstream_rejected", "Change the request, or check [model] name and url."),
    429: ("rate_limit_exceeded", "Wait, then try again."),
}


def _client_error() -> type[Exception]:
    from aiohttp import ClientError

    return ClientError


def _host(url: str) -> str:
    """The part of a URL that is no secret."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "an address that is no URL"


def _timed_out(how: str) -> UpstreamFailed:
    return UpstreamFailed("upstream_timeout", f"The model's upstream {how}. Try again later.", status=504)


def _unanswered(error: Exception, host: str) -> UpstreamFailed:
    """Why there was no answer to a request at all."""
    import aiohttp

    if isinstance(error, aiohttp.ConnectionTimeoutError):
        failure = _timed_out(f"at {host} could not be connected to in time")
        failure.again = True
        return failure
    if isinstance(error, TimeoutError):
        return _timed_out(f"at {host} did not begin to answer in time")
    if isinstance(error, aiohttp.ClientResponseError):
        return garbage("something that is not HTTP")
    connecting = isinstance(error, aiohttp.ClientConnectorError)
    if isinstance(error, aiohttp.ServerDisconnectedError | OSError) and not connecting:
        return cut()
    kind = type(error).__name__
    message = f"The model's upstream at {host} cannot be reached ({kind}). Check that it runs, and [model] url."
    return UpstreamFailed("upstream_unreachable", message, again=connecting)


def _retry_after(value: str | None, date: str | None) -> float | None:
    """Seconds that the upstream asks us to wait. A date is held against the upstream's own clock, not ours."""
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

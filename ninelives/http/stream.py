"""Streams a subscription as an HTTP response; the one place that does so. Owns: sending whole frames, keepalives, big
frames in slices (R13), noticing a disconnect, and aborting without a final chunk when the server stops (A9). Refuses
to know: what is in a frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from starlette.types import Receive, Scope, Send

from ninelives.dialects.shared import broken_frame
from ninelives.dialects.sse import KEEPALIVE
from ninelives.engine.base import Broken, Chunk, Cut, CutOff, Idle, News, StreamEnded
from ninelives.engine.subscription import Subscription
from ninelives.http.edge.connection import PIECE
from ninelives.http.edge.disconnect import Left, unless_gone, watch

SLICE = PIECE
FRAME_END = b"\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class OnEnd(Protocol):
    """What is done when a response is over."""

    def __call__(self, *, whole: bool) -> Awaitable[None]:
        """`whole`: the client was sent all of it."""
        ...


class StreamLine:
    """See engine.subscription.Line: the connection of one request."""

    def __init__(self, scope: Scope) -> None:
        extensions = scope.get("extensions", {})
        self._write: Callable[[bytes], bool] = extensions.get("ninelives.write", _not_now)
        self._scope = scope

    def write(self, data: bytes) -> bool:
        """Send frames without waking the task of this response."""
        return self._write(data)

    def abort(self) -> None:
        """See abort()."""
        abort(self._scope)


def _not_now(data: bytes) -> bool:
    """Other HTTP servers have no such way."""
    return False


class RunStream:
    """An ASGI response that streams one subscription."""

    def __init__(
        self,
        subscription: Subscription,
        headers: list[tuple[bytes, bytes]],
        left: OnEnd,
        first: News | None = None,
        broken: Callable[[str], bytes] = broken_frame,
    ) -> None:
        """`left` is called when the response is over. `broken` makes the frame for a stream that cannot go on."""
        self._subscription = subscription
        self._headers = headers
        self._left = left
        self._first = first
        self._sending = False
        self._early = False
        """The client disconnected before the last frame was handed to the transport. Many do so right after it."""
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the run ends, the client disconnects or the server stops."""
        unwatch = watch(scope, receive, self._gone)
        whole = False
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers})
            self._subscription.connect(StreamLine(scope))
            whole = await self._pump(scope, send) and not self._early
        finally:
            unwatch()
            self._subscription.close()
            await self._left(whole=whole)

    def _gone(self) -> None:
        self._early = self._sending or not self._subscription.told
        self._subscription.cut()

    async def _pump(self, scope: Scope, send: Send) -> bool:
        """Send until there is nothing more. True where the stream came to its end."""
        news = self._first or await self._subscription.next()
        while True:
            match news:
                case Chunk(data):
                    self._sending, last = True, self._subscription.told
                    await _send(send, data, last=last)
                    self._sending = False
                    if last:
                        return True
                case Idle():
                    await _send(send, KEEPALIVE)
                case StreamEnded():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return True
                case Broken(reason):
                    await _send(send, self._broken(reason))
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return False
                case Cut():
                    abort(scope)
                    return False
            news = await self._subscription.next()


async def _send(send: Send, data: bytes, *, last: bool = False) -> None:
    """Send a chunk of frames. `last`: nothing follows, so the end of the body goes with it."""
    left = len(data)
    for piece in pieces(data):
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0 or not last})


def pieces(data: bytes) -> Iterator[bytes]:
    """Split into pieces of whole frames, each at most one slice. Only a frame larger than a slice is split (G6)."""
    start = 0
    while len(data) - start > SLICE:
        last = data.rfind(FRAME_END, start, start + SLICE)
        if last >= 0:
            stop = last + len(FRAME_END)
            yield data[start:stop]
        else:
            stop = data.find(FRAME_END, start + SLICE - len(FRAME_END) + 1) + len(FRAME_END)
            yield from (data[place : min(place + SLICE, stop)] for place in range(start, stop, SLICE))
        start = stop
    if start < len(data):
        yield data[start:]


def abort(scope: Scope) -> None:
    """Abort the connection. Without a final chunk, the client knows that it should come back (A9)."""
    abort_connection = scope.get("extensions", {}).get("ninelives.abort")
    if abort_connection is not None:
        abort_connection()


class Broke:
    """An ASGI response that aborts the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See abort()."""
        abort(scope)


__all__ = ["Broke", "CutOff", "Left", "RunStream", "unless_gone"]

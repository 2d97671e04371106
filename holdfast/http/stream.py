"""From a subscription to an HTTP body: the one place that does it. Owns: sending whole frames, keepalives, big frames
in slices, noticing that the reader has gone, and breaking off without an end when the server stops. Refuses to know:
what is in a frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from starlette.types import Receive, Scope, Send

from holdfast.dialects.shared import broken_frame
from holdfast.dialects.sse import KEEPALIVE
from holdfast.engine.base import Broken, Chunk, Cut, Ended, Idle, News
from holdfast.engine.callers import CutOff
from holdfast.engine.subscription import Subscription
from holdfast.http.connection import PIECE
from holdfast.http.leaving import Left, unless_gone, watch

SLICE = PIECE
FRAME_END = b"\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class RunStream:
    """An ASGI response that streams one subscription."""

    def __init__(
        self,
        subscription: Subscription,
        headers: list[tuple[bytes, bytes]],
        left: Callable[[bool], Awaitable[None]],
        first: News | None = None,
        broken: Callable[[str], bytes] = broken_frame,
    ) -> None:
        """`left` is told, once the caller is gone, whether it had the whole answer."""
        self._subscription = subscription
        self._headers = headers
        self._left = left
        self._first = first
        self._sending = False
        self._early = False
        """The caller left before the last frame was handed to the transport. Many leave right after it."""
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the run ends, the reader leaves or the server stops."""
        unwatch = watch(scope, receive, self._gone)
        self._subscription.on_cut = lambda: abort(scope)
        whole = False
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers})
            self._subscription.sink = at_once(scope)
            whole = await self._pump(scope, send) and not self._early
        finally:
            unwatch()
            self._subscription.close()
            await self._left(whole)

    def _gone(self) -> None:
        self._early = self._sending or not self._subscription.told
        self._subscription.cut()

    async def _pump(self, scope: Scope, send: Send) -> bool:
        """Send until there is nothing more; True where that was the end."""
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
                case Ended():
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
    """`last`: nothing follows, so the end of the body goes with it."""
    left = len(data)
    for piece in pieces(data):
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0 or not last})


def pieces(data: bytes) -> Iterator[bytes]:
    """Whole frames, as many as fit into a slice; only a frame that is larger than one goes out in several (G6)."""
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


def at_once(scope: Scope) -> Callable[[bytes], bool] | None:
    """Sends frames without waking this response's task, as long as they go in one piece and the line takes them."""
    write: Callable[[bytes], bool] | None = scope.get("extensions", {}).get("holdfast.write")
    return write


def abort(scope: Scope) -> None:
    """Break the connection: no final chunk, so that the caller knows to come back (A9)."""
    breaking = scope.get("extensions", {}).get("holdfast.abort")
    if breaking is not None:
        breaking()


class Broke:
    """An ASGI response that is none: the connection is broken off."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See abort()."""
        abort(scope)


__all__ = ["Broke", "CutOff", "Left", "RunStream", "unless_gone"]

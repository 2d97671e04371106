"""Streams a subscription as an HTTP response; the one place that does so. Owns: sending whole frames, keepalives, big
frames in slices (R13), aborting without a final chunk when the server stops (A9), and the one way in which a request
learns that its client has disconnected while it awaits something else. A connection of our own (connection.py) calls
back, which costs no task and no memory per request. On any other server a task awaits ASGI's receive(). Refuses to
know: what is in a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from ninelives.dialects.shared import broken_frame
from ninelives.dialects.sse import KEEPALIVE
from ninelives.engine.base import Broken, Chunk, Cut, Idle, News, StreamEnded
from ninelives.engine.subscription import Subscription
from ninelives.http.edge.kept import PIECE, KeptStream, pieces

T = TypeVar("T")
OnDisconnect = Callable[[], None]
_WITH_BODY = frozenset({b"content-length", b"transfer-encoding"})
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class Left(Exception):
    """The client has disconnected."""


def watch(scope: Scope, receive: Receive, on_disconnect: OnDisconnect) -> Callable[[], object]:
    """Call `on_disconnect` when the client disconnects. The returned function ends the watch."""
    subscribe = scope.get("extensions", {}).get("ninelives.disconnect")
    # An unread body stops the connection from reading, so it would not notice a disconnect; receive() discards such a
    # body. The body of a POST was read.
    if subscribe is not None and (
        scope["method"] == "POST" or not any(name in _WITH_BODY for name, _ in scope["headers"])
    ):
        return subscribe(on_disconnect)  # type: ignore[no-any-return]
    return asyncio.create_task(_ask(receive, on_disconnect)).cancel


async def _ask(receive: Receive, on_disconnect: OnDisconnect) -> None:
    await gone(receive)
    on_disconnect()


async def gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def unless_gone(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the client disconnects first, cancel it and raise Left. `work` runs in this task, as under
    asyncio.timeout: two tasks and a wait for both would cost 60 us of a request that takes 1,000."""
    task = asyncio.current_task()
    left: list[bool] = []

    def on_disconnect() -> None:
        left.append(True)
        if task is not None and asyncio.current_task() is not task:  # else `work` is running, and `left` is read after
            task.cancel()

    unwatch = watch(scope, receive, on_disconnect)
    if left:  # the client was gone before
        unwatch()
        work.close()
        raise Left
    try:
        result = await work
    except asyncio.CancelledError:
        if left and task is not None and task.uncancel() == 0:
            raise Left from None
        raise
    finally:
        unwatch()
    if left:
        raise Left
    return result


class OnEnd(Protocol):
    """What is done when a response is over."""

    def __call__(self, *, whole: bool, cut: bool = False) -> Awaitable[None]:
        """`whole`: the client was sent all of it. `cut`: it was not, and it was the server that ended the stream."""
        ...


class StreamLine(Struct, frozen=True):
    """See engine.subscription.Line: the connection of one request."""

    write: Callable[[bytes], bool]
    """Send frames without waking the task of this response."""
    abort: Callable[[], None]


class StreamBody(Protocol):
    """How a stream writes to its client."""

    def write(self, data: bytes) -> bool:
        """Write frames at once. Returns False where only send() can do it."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Write frames when the socket takes them. `last`: nothing follows."""

    async def end(self) -> None:
        """The stream is over."""

    async def beat(self) -> None:
        """Write a keepalive."""


def _not_now(data: bytes) -> bool:
    """Other HTTP servers have no such way."""
    return False


class AsgiBody(Struct, frozen=True):
    """The body of a response by ASGI. A client that outlives this process has another (edge/kept.py)."""

    asgi: Send
    write: Callable[[bytes], bool]
    """See StreamBody."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """See StreamBody. The end of the body goes with its last piece."""
        left = len(data)
        for piece in pieces(data) if left > PIECE else (data,):
            left -= len(piece)
            await self.asgi({"type": "http.response.body", "body": piece, "more_body": left > 0 or not last})

    async def end(self) -> None:
        """See StreamBody."""
        await self.asgi({"type": "http.response.body", "body": b"", "more_body": False})

    async def beat(self) -> None:
        """See StreamBody."""
        await self.asgi({"type": "http.response.body", "body": KEEPALIVE, "more_body": True})


class RunStream(Struct):
    """An ASGI response that streams one subscription."""

    subscription: Subscription
    headers: list[tuple[bytes, bytes]]
    left: OnEnd
    """Called when the response is over."""
    first: News | None = None
    broken: Callable[[str], bytes] = broken_frame
    """Makes the frame for a stream that cannot go on."""
    sending: bool = False
    early: bool = False
    """The client disconnected before the last frame was handed to the transport. Many do so right after it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the run ends, the client disconnects or the server stops."""
        unwatch = watch(scope, receive, self._gone)
        whole, extensions = False, scope.get("extensions", {})
        kept: KeptStream | None = extensions.get("ninelives.kept")
        body: StreamBody = kept or AsgiBody(send, extensions.get("ninelives.write", _not_now))
        try:
            if kept is not None:
                kept.begin()
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + self.headers})
            self.subscription.connect(StreamLine(body.write, partial(abort, scope)))
            whole = await self._pump(scope, body) and not self.early and not self.subscription.restarted
        finally:
            unwatch()
            self.subscription.close()
            await self.left(whole=whole, cut=self.subscription.restarted)

    def _gone(self) -> None:
        self.early = self.sending or not self.subscription.told
        self.subscription.cut()

    async def _pump(self, scope: Scope, body: StreamBody) -> bool:
        """Send until there is nothing more. True where the stream came to its end."""
        news = await self.subscription.next() if self.first is None else self.first
        self.first = None
        while True:
            match news:
                case Chunk():
                    self.sending, last = True, self.subscription.told
                    await body.send(news.data, last=last)
                    self.sending = False
                    if last:
                        return True
                case Idle():
                    await body.beat()
                case StreamEnded():
                    await body.end()
                    return True
                case Broken(reason):
                    await body.send(self.broken(reason), last=True)
                    return False
                case Cut():
                    abort(scope)
                    return False
            del news  # it may be large, and the next may come in an hour
            news = await self.subscription.next()


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

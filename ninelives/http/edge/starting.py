"""The application while the server starts. Owns: the probes from the first moment (A1: /livez is 200, /readyz and
/health are 503), holding every other request until the server has started, and handing over to the real application.
Imports nothing heavy. Refuses to know: what the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from ninelives.http.edge.early import FIXED, Headers, new_request_id

Message = MutableMapping[str, Any]  # Any: ASGI messages have values of every kind
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HOLD_S = 10.0
"""How long a request waits for the start; then 503."""
_ALIVE = b'{"status":"ok","platform":"hermes-agent","server":"ninelives"}'
_NOT_READY = b'{"status":"starting","reason":"The server is starting."}'
_STARTING = (
    b'{"error":{"message":"The server is starting. Try again in a moment.","type":"server_error","param":null,'
    b'"code":"starting"}}'
)
_PROBES = {
    "/livez": (200, _ALIVE),
    "/readyz": (503, _NOT_READY),
    "/health": (503, _NOT_READY),
    "/v1/health": (503, _NOT_READY),
}


class StartingApp:
    """An ASGI application that becomes another one."""

    def __init__(self) -> None:
        self.current: App = self
        """What answers now: this object, or the application. A connection calls it directly."""
        self._started = asyncio.Event()

    def hand_over(self, app: App) -> None:
        """Let `app` answer from now on, also those that wait."""
        self.current = app
        self._started.set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on to the application, when it is there."""
        if self.current is self and scope["type"] in ("http", "websocket"):
            if scope["type"] == "http" and scope["path"] in _PROBES and scope["method"] in ("GET", "HEAD"):
                return await _answer(scope, send, *_PROBES[scope["path"]])
            with suppress(TimeoutError):
                async with asyncio.timeout(HOLD_S):
                    await self._started.wait()
        if self.current is not self:
            await self.current(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(scope, send, 503, _STARTING)
        elif scope["type"] == "websocket":
            await _refuse_websocket(send)


async def _refuse_websocket(send: Send) -> None:
    """Answer 503 instead of the upgrade. Our HTTP server supports the extension that this needs."""
    await send({"type": "websocket.http.response.start", "status": 503, "headers": _headers(503, _STARTING)})
    await send({"type": "websocket.http.response.body", "body": _STARTING})


async def _answer(scope: Message, send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _headers(status, body)})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _headers(status: int, body: bytes) -> Headers:
    about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    about.append((b"x-request-id", new_request_id().encode()))
    return [*about, *FIXED, *([(b"retry-after", b"1")] if status == 503 else [])]

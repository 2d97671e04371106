"""What stands at the door. Owns: answering /health from the first moment, while the rest of the server is still being
put together, and handing over to the application when it is there. Imports nothing heavy. Refuses to know: what the
server does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]  # Any: ASGI messages have values of every kind
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_HEADERS = [
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_HEALTHY = b'{"status":"ok","platform":"holdfast"}'
_STARTING = (
    b'{"error":{"message":"The server is starting. Try again in a moment.","type":"server_error","param":null,'
    b'"code":"starting"}}'
)


class Front:
    """An ASGI application that becomes another one. `early`: it calls itself healthy before that: nothing but this
    process is needed, and nobody else could take its requests."""

    def __init__(self, *, early: bool = True) -> None:
        self._early = early
        self._app: App | None = None

    def hand_over(self, app: App) -> None:
        """The application is there."""
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._alone(scope, send)
        elif scope["type"] == "websocket":
            await self._not_yet(send)

    async def _not_yet(self, send: Send) -> None:
        """A websocket that comes too early gets the same answer; the server below can send one."""
        headers = [*_HEADERS, (b"retry-after", b"1"), (b"content-length", b"%d" % len(_STARTING))]
        await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": _STARTING})

    async def _alone(self, scope: Message, send: Send) -> None:
        healthy = self._early and scope["path"] in ("/health", "/v1/health") and scope["method"] in ("GET", "HEAD")
        status, body = (200, _HEALTHY) if healthy else (503, _STARTING)
        headers = _HEADERS if healthy else [*_HEADERS, (b"retry-after", b"1")]
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

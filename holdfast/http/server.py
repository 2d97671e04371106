"""uvicorn, owned. Owns: the listening socket and the order of a shutdown: refuse, park, flush, cut, then uvicorn (which
otherwise waits for open streams before it calls anybody). Refuses to know: what the application does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from holdfast.http.connection import protocol_of


def listen(host: str, port: int, user_timeout_s: float) -> socket.socket:
    """A bound and listening socket: half-open clients are noticed within `user_timeout_s` (P9)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout_s * 1000))
    sock.bind((host, port))
    sock.listen(2048)
    return sock


class _Quiet(logging.Filter):
    """uvicorn calls it an error when a stream is broken off on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returned without" not in record.getMessage()


def _protocol(head_s: float) -> type[Any]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return protocol_of(H11Protocol, head_s)
    return protocol_of(HttpToolsProtocol, head_s)


def _websocket(*args: Any, **kwargs: Any) -> Any:
    """The protocol of a connection that is upgraded. Its library is imported by the first one: not every server is
    asked for a websocket, and /health does not wait for it (F3)."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(*args, **kwargs)


class _State(ServerState):
    """What connections share. The date is looked up when it is asked for, at most once a second."""

    def __init__(self) -> None:
        self._second = 0
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that every answer has."""
        now = int(time.time())
        if now != self._second:
            self._second, self._date = now, [(b"date", formatdate(now, usegmt=True).encode())]
        return self._date

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._date = headers


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _State()
        self._leaving = asyncio.Event()

    async def main_loop(self) -> None:
        """Until told to leave. uvicorn's own wakes ten times a second to look at a clock and a flag: an idle server
        sleeps."""
        await self._leaving.wait()

    def leave(self) -> None:
        """End the main loop."""
        self.should_exit = True
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again at the end."""
        yield


class Serving:
    """Serves until a signal; the first drains, the second ends at once, and so do `longest_s` after the first (P10)."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        drain: Callable[[], Awaitable[None]],
        longest_s: float,
        head_s: float = 20.0,
        frame_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        logging.getLogger("uvicorn.error").addFilter(_Quiet())
        config = uvicorn.Config(
            app,
            http=_protocol(head_s),
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # nobody here asks who the caller is or how it came: keys say whose a request is
            ws=_websocket,  # type: ignore[arg-type]  # uvicorn only calls it
            ws_max_size=frame_bytes,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            ws_per_message_deflate=False,  # 64 KiB and more for each connection, and CPU for each frame
        )
        self._server = _Server(config)
        self._sock = sock
        self._drain = drain
        self._longest_s = longest_s
        self._draining: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    @property
    def stopping(self) -> bool:
        """Was it told to stop?"""
        return self._draining is not None

    async def run(self) -> None:
        """Serve until told to stop and drained."""
        await self._server.serve(sockets=[self._sock])

    def stop(self) -> None:
        """Begin to drain; called again: end the process now."""
        if self._draining is not None:
            os._exit(1)
        # Whatever hangs, in a loop or in a thread: the process is over by then. What is committed is safe.
        last_resort = threading.Timer(self._longest_s, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        self._draining = asyncio.get_running_loop().create_task(self._wind_down())

    async def _wind_down(self) -> None:
        try:
            await self._drain()
        finally:
            self._server.leave()

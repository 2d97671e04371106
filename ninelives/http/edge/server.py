"""The HTTP server: uvicorn, with its main loop, signals and date header replaced. Owns: the listening socket, uvicorn's
settings, and when uvicorn stops. Refuses to know: what the application does, and what happens before uvicorn stops
(shutdown.py)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ninelives.http.edge.connection import ClientConnection, ConnectionState
from ninelives.http.edge.shutdown import Shutdown
from ninelives.http.edge.whole import LONG_ANSWER
from ninelives.supervisor.custody import LeftClient

# Parts of uvicorn that are not its public API, and are used or replaced here, in connection.py and in whole.py. Each
# version in the range of pyproject.toml must pass tests/http/test_uvicorn.py and tests/story/test_websocket_ends.py.
# Before 0.52.1, a refused websocket upgrade had two Content-Length headers. A drain with open websockets lost close
# codes (1006 instead of 1012) or ended with exit code 1.
# - uvicorn.server.Server: serve() calls capture_signals(), startup(), main_loop(), shutdown(), in this order.
#   capture_signals and main_loop are overridden; should_exit and server_state are set; servers is read.
# - uvicorn.server.ServerState.default_headers: read once per request, so it may be a property.
# - uvicorn.Config: `http` may be a protocol class, `ws` any callable that makes a protocol. `ssl` is set after load().
# - uvicorn.server.ServerState.connections: all open connections, websockets included.
# - uvicorn.protocols.http.httptools_impl.HttpToolsProtocol: __init__ sets app and loop; connection_made, data_received,
#   connection_lost, send_400_response, on_response_complete and handle_websocket_upgrade are overridden; transport,
#   flow, url and cycle are read. Its parser takes a head of any length.
# - Its request cycle, which is `send.__self__` of an ASGI call: transport is replaced until the head has gone out, or
#   until the end where the body is not complete; body, chunked_encoding, response_started, response_complete,
#   more_body and flow.write_paused are read; disconnected and message_event are set where the connection answers by
#   itself. whole.py does for a whole answer what its send() does, and tests/http/test_whole.py compares both.
# - uvicorn.protocols.http.httptools_impl.RequestResponseCycle: made here for an answer that another process has begun;
#   more_body is set, run_asgi is called. on_message_begin of the protocol makes its scope.
# - uvicorn.protocols.websockets.websockets_sansio_impl.WebSocketsSansIOProtocol: __init__, send and connection_lost are
#   overridden; transport is read.
# - The text "returned without" in the log lines for an incomplete response.

FRAME_COPIES = 3


def listen(host: str, port: int, user_timeout_s: float) -> socket.socket:
    """A bound and listening socket. A peer that stops acknowledging is dropped after `user_timeout_s` (P9)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout_s * 1000))
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    return sock


def listen_unix(path: str) -> socket.socket:
    """A listening Unix socket, for the user and the group of this process. One that nobody listens on is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket():
            _remove_stale(path)
        mask = os.umask(0o117)
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that is gone. Raises OSError where one listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class _NoIncompleteResponses(logging.Filter):
    """Drops the error that uvicorn logs for a response without an end: streams are aborted on purpose (A9)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returned without" not in record.getMessage()


def _websocket(*args: Any, **kwargs: Any) -> Any:
    """The protocol of an upgraded connection. Imported on first use, so that the start does not wait for it (F3)."""
    return _websocket_class()(*args, **kwargs)


@cache
def _websocket_class() -> type[Any]:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class WebsocketConnection(WebSocketsSansIOProtocol):
        """Counts what its client has not read, as other connections do."""

        def __init__(self, config: uvicorn.Config, server_state: ConnectionState, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, server_state, *args, **kwargs)
            self._state = server_state

        async def send(self, message: Any) -> None:
            """See uvicorn."""
            await super().send(message)
            if self.unread() > LONG_ANSWER:
                self._state.note_unread(self)

        def unread(self) -> int:
            """Bytes that the client has not taken, and that are kept for it: a frame, its text and what is sent."""
            return FRAME_COPIES * int(self.transport.get_write_buffer_size())

        def connection_lost(self, exc: Exception | None) -> None:
            """See asyncio.Protocol."""
            self._state.unread.pop(self, None)
            super().connection_lost(exc)

    return WebsocketConnection


def _same(made: ClientConnection) -> ClientConnection:
    return made


class _Server(uvicorn.Server):
    server_state: ConnectionState

    def __init__(self, config: uvicorn.Config, unread_bytes: int) -> None:
        super().__init__(config)
        self.server_state = ConnectionState(unread_bytes)
        self._stopped = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait for stop(). uvicorn's own loop polls ten times a second; this one sleeps (R19)."""
        await self._stopped.wait()

    def stop(self) -> None:
        """End the main loop."""
        self.should_exit = True
        self._stopped.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: shutdown.py handles signals, and uvicorn would raise them again at the end."""
        yield


class Serving:
    """Serves an application on a socket until a signal or stop(). `longest_s` is the deadline of the shutdown (P10),
    `frame_bytes` is the size limit of a websocket message."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        drain: Callable[[], Awaitable[None]],
        longest_s: float,
        connection: type[ClientConnection],
        frame_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        logging.getLogger("uvicorn.error").addFilter(_NoIncompleteResponses())
        self._connection = connection
        config = uvicorn.Config(
            app,
            http=self._connection,
            lifespan="off",
            access_log=False,
            log_config=None,  # its lines go to the log of this process
            log_level="warning",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # the gate reads them, from trusted proxies only
            ws=_websocket,  # type: ignore[arg-type]  # uvicorn only calls it
            ws_max_size=frame_bytes,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            ws_per_message_deflate=False,  # it costs at least 64 KiB per connection, and CPU per frame
        )
        self._server = _Server(config, connection.limits.unread_bytes)
        self._sock = sock
        self._notice_s: float | None = None
        self.handed_on = False
        """A successor listens on the same socket."""
        self._shutdown = Shutdown(drain, self._server.stop, longest_s, self._give_notice)
        self._shutdown.handle_signals()

    @property
    def stopping(self) -> bool:
        """True once the shutdown has begun."""
        return self._shutdown.begun

    async def run(self) -> None:
        """Serve until the shutdown is complete."""
        await self._server.serve(sockets=[self._sock])

    def stop_listening(self) -> None:
        """Accept no connection any more: a successor does. Those that are open go on to the end of their request."""
        self.handed_on = True
        self._close_servers()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.shutdown()

    def _close_servers(self) -> None:
        for each in getattr(self._server, "servers", ()):  # absent before uvicorn's startup
            each.close()

    async def adopt(self, clients: Iterable[LeftClient], app: ASGIApp) -> None:
        """Go on with the answers of clients that an earlier process left. `app` answers them."""
        for left in clients:
            (await self._adopted(left.sock, left.slot)).resume(left, app)

    async def adopt_idle(self, clients: Iterable[tuple[socket.socket, int]]) -> None:
        """The same for connections that wait for their next request, with their slots."""
        for sock, slot in clients:
            await self._adopted(sock, slot)

    async def _adopted(self, sock: socket.socket, slot: int) -> ClientConnection:
        made = self._connection(config=self._server.config, server_state=self._server.server_state, app_state={})
        made.adopt(slot, sock.fileno())
        await asyncio.get_running_loop().connect_accepted_socket(partial(_same, made), sock)
        return made

    def _give_notice(self) -> None:
        """Say to balancers that this server stops. Each response closes its connection, so that their pools of open
        connections run dry. Where connections are refused, they send a request elsewhere at once."""
        self._server.server_state.closes = True
        if self._notice_s is not None:
            asyncio.get_running_loop().call_later(self._notice_s, self._close_listener)

    def _close_listener(self) -> None:
        """Refuse connections. A supervisor has the socket too, so closing it here is not enough: new connections would
        wait there, and be reset at the end."""
        if self.handed_on or self._sock.fileno() < 0:
            return
        with socket.socket(fileno=os.dup(self._sock.fileno())) as listener:  # closing the servers closes the socket
            self._close_servers()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Speak TLS. Call it before run()."""
        self._server.config.load()
        self._server.config.ssl = context

    def close_early(self, notice_s: float | None) -> None:
        """Close the listener so long after the shutdown has begun, not at its end."""
        self._notice_s = notice_s

    def stop(self) -> None:
        """Begin the shutdown. Called again: end the process now."""
        self._shutdown.begin("program")

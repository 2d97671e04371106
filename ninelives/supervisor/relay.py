"""Connections with TLS that outlive the server: their keys must not die with it. Owns: dialling an upstream with TLS,
passing bytes on between it and a socket of the server, and the thread in which that is done. Refuses to know: HTTP, and
what is asked.

The thread has an event loop of asyncio. It is imported for the first such connection, because it takes 9 MB. All else
is imported at the start: an upgrade may replace the files of this package at any time."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import asyncio
    from asyncio import Protocol
else:
    Protocol = object  # asyncio wants the methods only

NEXT_ADDRESS_S = 0.25
NAME_ERROR, TLS_ERROR = 10_001, 10_002
"""Codes in place of an errno: the name is not known, TLS failed."""
ANSWER = struct.Struct("!i")
"""The first bytes for the server: 0, or why there is no connection."""


class RelayEnd(Protocol):
    """One end of a relay. What comes here, the other end writes."""

    other: RelayEnd
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()  # until both ends are there

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """See asyncio."""
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def eof_received(self) -> None:
        """See asyncio. The connection is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. What was read is still passed on."""
        if hasattr(self, "other"):
            self.other.transport.close()


class Relays:
    """All relays of a supervisor."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: Any = None  # ssl.SSLContext: imported where it is used

    def dial(self, wish: dict[str, Any], fd: int) -> None:
        """Connect to what a server asks for, and join it to a socket."""
        sock = socket.socket(fileno=fd)
        try:
            self._loop = self._loop or _start_loop()
        except BaseException:
            sock.close()  # the server sees at once that there is no connection
            raise
        self._loop.call_soon_threadsafe(self._begin, self._loop, wish, sock)

    def _begin(self, loop: asyncio.AbstractEventLoop, wish: dict[str, Any], sock: socket.socket) -> None:
        task = loop.create_task(self._dial(loop, wish, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, loop: asyncio.AbstractEventLoop, wish: dict[str, Any], sock: socket.socket) -> None:
        from asyncio import timeout

        try:
            async with timeout(wish["limit_s"]):
                transport, upstream = await loop.create_connection(
                    RelayEnd,
                    wish["host"],
                    wish["port"],
                    ssl=self._context(),
                    server_hostname=wish["tls_name"],
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                )
        except (OSError, TimeoutError) as error:
            with sock, suppress(OSError):
                sock.send(ANSWER.pack(_code(error)))
            return
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _, server = await loop.connect_accepted_socket(RelayEnd, sock)
        upstream.other, server.other = server, upstream
        server.transport.write(ANSWER.pack(0))
        for end in (upstream, server):
            if end.transport.is_closing():
                end.other.transport.close()
            else:
                end.transport.resume_reading()

    def _context(self) -> Any:
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
        return self._tls


def _start_loop() -> asyncio.AbstractEventLoop:
    from asyncio import new_event_loop

    loop = new_event_loop()
    Thread(target=loop.run_forever, name="relays", daemon=True).start()
    return loop


def _code(error: OSError | TimeoutError) -> int:
    if isinstance(error, TimeoutError):
        return 110
    if isinstance(error, socket.gaierror):
        return NAME_ERROR
    return TLS_ERROR if type(error).__module__ == "ssl" else error.errno or 5

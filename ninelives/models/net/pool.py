"""Connections to one upstream. Owns: its address, connecting (name lookup, the fastest of several addresses, TLS), and
idle connections. Refuses to know: what is sent over them."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from contextlib import suppress
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection
from msgspec import Struct

from ninelives.models.net.connection import UpstreamConnection

KEEP_S = 15.0
"""How long an idle connection is kept."""
NAMES_S = 10.0
"""How long the addresses of a name are cached."""
NEXT_ADDRESS_S = 0.25
"""How long one address is tried alone before the next is tried too (RFC 8305)."""
SAFE = "/%:@!$&'()*+,;=~"


class Origin(Struct, frozen=True):
    """The address of an upstream."""

    tls: bool
    host: str
    port: int
    authority: str
    """The value of the Host header."""
    path: str
    query: str
    login: str
    """Basic credentials from the URL; empty where there are none."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError if it is not an HTTP URL."""
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("not an HTTP URL")
        tls = parts.scheme == "https"
        host = host.encode("idna").decode()  # raises where getaddrinfo would
        shown = f"[{host}]" if ":" in host else host
        port = parts.port or (443 if tls else 80)
        authority = shown if parts.port is None else f"{shown}:{port}"
        path = quote(parts.path.rstrip("/"), SAFE)
        query = f"?{quote(parts.query, SAFE + '?')}" if parts.query else ""
        user = unquote(parts.netloc.rpartition("@")[0])
        login = base64.b64encode((user if ":" in user or not user else f"{user}:").encode()).decode()
        return cls(tls, host, port, authority, path, query, login)

    def request(self, method: str, place: str, headers: dict[str, str]) -> bytes:
        """The head of a request without its empty line. Raises ValueError where a header has a line break."""
        lines = [f"{method} {self.path}{place}{self.query} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.login and "Authorization" not in headers:
            lines.append(f"Authorization: Basic {self.login}")
        if any("\r" in line or "\n" in line or "\0" in line for line in lines):
            raise ValueError("a header of more than one line")
        return "".join(f"{line}\r\n" for line in lines).encode()


class Pool:
    """Connections to one origin. Their number has no limit here, because runs are limited."""

    def __init__(self, origin: Origin, connect_s: float) -> None:
        self.origin = origin
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if origin.tls else None
        self._open: set[UpstreamConnection] = set()
        self._idle: list[tuple[UpstreamConnection, float]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._looking = asyncio.Lock()
        self._found: list[AddrInfoType] = []
        self._found_at = 0.0

    async def connection(self, limit_s: float) -> UpstreamConnection:
        """An idle connection, or a new one. Raises OSError (TimeoutError is one)."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.reusable and now - since < KEEP_S:
                return connection
            connection.hang_up()
        return await self._dial(min(limit_s, self._connect_s))

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request, or close it where it cannot be used again."""
        if not connection.reusable or connection not in self._open:
            connection.hang_up()
            return
        connection.read()  # unread bytes would stop the socket, and with it the next answer
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_S, self._sweep)

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.hang_up()
        await asyncio.sleep(0)  # the event loop closes sockets in its next turn

    async def _dial(self, limit_s: float) -> UpstreamConnection:
        async with asyncio.timeout(limit_s):
            dialled = await start_connection(await self._addresses(), happy_eyeballs_delay=NEXT_ADDRESS_S)
            connection = await self._greeted(dialled)
        self._open.add(connection)
        return connection

    async def _greeted(self, dialled: socket.socket) -> UpstreamConnection:
        name = self.origin.host.rstrip(".") if self._tls is not None else None
        connect = asyncio.get_running_loop().create_connection
        try:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return (
                await connect(lambda: UpstreamConnection(self._lost), sock=dialled, ssl=self._tls, server_hostname=name)
            )[1]
        except BaseException:
            # The loop owns the socket and closes it. Closing it here would leave its number registered for another.
            with suppress(OSError):
                dialled.shutdown(socket.SHUT_RDWR)
            raise

    async def _addresses(self) -> list[AddrInfoType]:
        """The addresses of the name. Concurrent callers share one lookup."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if not self._found or loop.time() - self._found_at > NAMES_S:
                host, port = self.origin.host, self.origin.port
                self._found = list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
                self._found_at = loop.time()
            return self._found

    def _lost(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)

    def _sweep(self) -> None:
        """Close connections that were idle too long."""
        loop = asyncio.get_running_loop()
        old = loop.time() - KEEP_S
        for connection, since in self._idle:
            if since <= old:
                connection.hang_up()
        self._idle = [(connection, since) for connection, since in self._idle if since > old and connection.reusable]
        self._sweeping = loop.call_at(self._idle[0][1] + KEEP_S, self._sweep) if self._idle else None

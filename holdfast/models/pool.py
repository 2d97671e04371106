"""Connections to one upstream. Owns: its address, dialling (names, the faster of several addresses, TLS) and lines that
wait to be used again. Refuses to know: what is said on them."""

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

from holdfast.models.line import Line

KEEP_S = 15.0
"""How long a line waits to be used again."""
NAMES_S = 10.0
"""How long the addresses of a name are believed."""
NEXT_ADDRESS_S = 0.25
"""How long one address is tried before the next is tried beside it (RFC 8305)."""
SAFE = "/%:@!$&'()*+,;=~"


class Origin(Struct, frozen=True):
    """Where an upstream lives."""

    tls: bool
    host: str
    port: int
    authority: str
    """As the Host header has it."""
    path: str
    query: str
    login: str
    """Basic credentials from the URL; empty where it has none."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises ValueError for what is no URL of HTTP."""
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("not a URL of HTTP")
        tls = parts.scheme == "https"
        host = host.encode("idna").decode()  # raises for what getaddrinfo would raise for
        shown = f"[{host}]" if ":" in host else host
        port = parts.port or (443 if tls else 80)
        authority = shown if parts.port is None else f"{shown}:{port}"
        path = quote(parts.path.rstrip("/"), SAFE)
        query = f"?{quote(parts.query, SAFE + '?')}" if parts.query else ""
        user = unquote(parts.netloc.rpartition("@")[0])
        login = base64.b64encode((user if ":" in user or not user else f"{user}:").encode()).decode()
        return cls(tls, host, port, authority, path, query, login)

    def request(self, method: str, place: str, headers: dict[str, str]) -> bytes:
        """The head of a request, but for its last line. Raises ValueError where a header would become two."""
        lines = [f"{method} {self.path}{place}{self.query} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.login and "Authorization" not in headers:
            lines.append(f"Authorization: Basic {self.login}")
        if any("\r" in line or "\n" in line or "\0" in line for line in lines):
            raise ValueError("a header of more than one line")
        return "".join(f"{line}\r\n" for line in lines).encode()


class Pool:
    """Lines to one origin. There is no limit to them: runs are limited."""

    def __init__(self, origin: Origin, connect_s: float) -> None:
        self.origin = origin
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if origin.tls else None
        self._lines: set[Line] = set()
        self._idle: list[tuple[Line, float]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._looking = asyncio.Lock()
        self._found: list[AddrInfoType] = []
        self._found_at = 0.0

    async def line(self, limit_s: float) -> Line:
        """One that waits, or a new one. Raises OSError, TimeoutError among them."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            line, since = self._idle.pop()
            if line.keeps and now - since < KEEP_S:
                return line
            line.hang_up()
        return await self._dial(min(limit_s, self._connect_s))

    def give_back(self, line: Line) -> None:
        """It is not needed now."""
        if not line.keeps or line not in self._lines:
            line.hang_up()
            return
        line.ear = None
        line.read()  # what nobody wanted would keep its end, and the next answer, from being heard
        loop = asyncio.get_running_loop()
        self._idle.append((line, loop.time()))
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_S, self._sweep)

    async def close(self) -> None:
        """Hang up all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for line in list(self._lines):
            line.hang_up()
        await asyncio.sleep(0)  # sockets are closed by the loop

    async def _dial(self, limit_s: float) -> Line:
        async with asyncio.timeout(limit_s):
            dialled = await start_connection(await self._addresses(), happy_eyeballs_delay=NEXT_ADDRESS_S)
            line = await self._greeted(dialled)
        self._lines.add(line)
        return line

    async def _greeted(self, dialled: socket.socket) -> Line:
        name = self.origin.host.rstrip(".") if self._tls is not None else None
        connect = asyncio.get_running_loop().create_connection
        try:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return (await connect(lambda: Line(self._lost), sock=dialled, ssl=self._tls, server_hostname=name))[1]
        except BaseException:
            # It is the loop's, which closes it; to close it here would leave its number to be watched for another.
            with suppress(OSError):
                dialled.shutdown(socket.SHUT_RDWR)
            raise

    async def _addresses(self) -> list[AddrInfoType]:
        """Those of the name; many that dial at once ask once."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if not self._found or loop.time() - self._found_at > NAMES_S:
                host, port = self.origin.host, self.origin.port
                self._found = list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
                self._found_at = loop.time()
            return self._found

    def _lost(self, line: Line) -> None:
        self._lines.discard(line)

    def _sweep(self) -> None:
        """Hang up what waited too long."""
        loop = asyncio.get_running_loop()
        old = loop.time() - KEEP_S
        for line, since in self._idle:
            if since <= old:
                line.hang_up()
        self._idle = [(line, since) for line, since in self._idle if since > old and line.keeps]
        self._sweeping = loop.call_at(self._idle[0][1] + KEEP_S, self._sweep) if self._idle else None

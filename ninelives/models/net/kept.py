"""Connections that a supervisor holds for this process. Owns: what a pool needs of it. Refuses to know: who the
supervisor is, and what it does with an answer."""

from __future__ import annotations

import socket
from typing import Protocol


class ConnectionHolder(Protocol):
    """Dials for this process, passes bytes on, and keeps the answers of calls that have a name until they are settled.
    So an answer outlives this process."""

    async def dial(self, host: str, port: int, tls_name: str, limit_s: float) -> tuple[socket.socket, int]:
        """A connected socket, and the number of the connection. `tls_name` is empty without TLS. Raises OSError."""
        ...

    def begin(self, number: int, call: str, size: int) -> None:
        """The next request on this connection, of `size` bytes, is this call. An empty name is not kept. Raises
        OSError."""
        ...

    async def again(self, call: str) -> tuple[socket.socket, int]:
        """A socket that gives the answer of a held call from its first byte. Raises OSError where it is gone."""
        ...

    def drop(self, number: int) -> None:
        """The connection is closed, and what was asked on it is not wanted."""
        ...

    def held(self, call: str) -> bool:
        """True where an earlier process made the call and its answer is kept."""
        ...

    def settle(self, call: str) -> None:
        """The answer is not needed any more."""
        ...

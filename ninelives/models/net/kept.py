"""Connections that outlive this process. Owns: what a pool needs of who holds them, and of the memory that their bytes
are read into. Refuses to know: who holds them."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from ninelives.models.base import CallKeeper


class KeptMemory(Protocol):
    """Where the bytes of one connection are read into. It outlives this process."""

    @property
    def call(self) -> str:
        """The call whose answer is kept, until it is settled. Empty: none."""
        ...

    def room(self) -> memoryview:
        """Where the next bytes belong."""
        ...

    def filled(self, size: int) -> memoryview:
        """So many bytes are there now. Returns them; they are valid until the next read."""
        ...

    def kept(self) -> memoryview:
        """All that is kept of the answer."""
        ...


class ConnectionHolder(CallKeeper, Protocol):
    """Keeps connections, and the answers of calls that have a name until they are settled. So an answer outlives this
    process."""

    async def dial(self, host: str, port: int, tls_name: str, limit_s: float) -> socket.socket:
        """A socket that leads to a connection with TLS. Raises OSError."""
        ...

    def keep(self, sock: socket.socket) -> Any:
        """Keep a connection from now on. Returns its KeptMemory; None where it cannot be kept."""
        ...

    def begin(self, memory: Any, call: str, size: int) -> None:
        """The next request on the connection of this memory, of `size` bytes, is this call. An empty name is not
        kept."""
        ...

    def again(self, call: str) -> tuple[socket.socket, Any]:
        """The connection of a held call, and its memory. Raises OSError where it is gone."""
        ...

    def closed(self, memory: Any, *, whole: bool) -> None:
        """The connection is closed. What was asked on it is not wanted, unless its answer is whole."""
        ...

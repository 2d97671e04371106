"""The server's side of kept model calls. Owns: asking the supervisor for connections, and which calls it holds. Refuses
to know: what is asked on them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ninelives.supervisor.calls import ANSWER, NAME_ERROR, TLS_ERROR
from ninelives.supervisor.line import ControlLine, LineEnded

EXITING = 4
"""The flag of the kernel for a process that ends, in /proc/PID/stat."""


class SupervisedConnections:
    """Connections to upstreams that live in the supervisor."""

    def __init__(self, line: ControlLine, held: Iterable[str]) -> None:
        self._line = line
        self._held = set(held)
        self._numbers = count(1)
        self._leaving = False

    async def dial(self, host: str, port: int, tls_name: str, limit_s: float) -> tuple[socket.socket, int]:
        """A connected socket, and the number of the connection. Raises OSError."""
        wish = {"host": host, "port": port, "tls_name": tls_name, "limit_s": limit_s}
        return await self._asked("dial", wish)

    async def again(self, call: str) -> tuple[socket.socket, int]:
        """A socket that gives the answer of a held call from its first byte. Raises OSError where it is gone."""
        self._held.discard(call)
        return await self._asked("again", {"call": call})

    def begin(self, number: int, call: str, size: int) -> None:
        """The next request on this connection, of `size` bytes, is this call. Raises OSError."""
        self._send({"begin": number, "call": call, "size": size})

    def drop(self, number: int) -> None:
        """The connection is closed, and what was asked on it is not wanted."""
        _die_with_parent()
        if self._leaving:
            return
        with suppress(OSError):  # the answer waits for nobody, and goes after a while
            self._send({"drop": number})

    def leave(self) -> None:
        """A successor takes over: what is closed from now on is wanted."""
        self._leaving = True

    def held(self, call: str) -> bool:
        """True where an earlier process made the call and its answer is kept."""
        return call in self._held

    def settle(self, call: str) -> None:
        """The answer is not needed any more."""
        with suppress(OSError):  # its bytes go when the connection is used again
            self._send({"settle": call})

    async def _asked(self, what: str, wish: dict[str, Any]) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = next(self._numbers)
        try:
            with theirs:
                self._send({what: {**wish, "number": number}}, theirs.fileno())
            answer = await asyncio.get_running_loop().sock_recv(ours, ANSWER.size)
            code = ANSWER.unpack(answer)[0] if len(answer) == ANSWER.size else 104
            if code:
                raise _error(code)
        except BaseException:
            ours.close()
            _die_with_parent()
            raise
        return ours, number

    def _send(self, message: dict[str, Any], *fds: int) -> None:
        try:
            self._line.send(message, *fds)
        except LineEnded as error:
            raise BrokenPipeError("the supervisor is gone") from error


def _die_with_parent() -> None:
    """A supervisor that is killed closes its sockets before the kernel ends this process. In between all model calls
    seem to be cut, and runs must not fail for that."""
    try:
        flags = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        flags = EXITING
    if flags & EXITING:
        os._exit(1)


def _error(code: int) -> OSError:
    if code == NAME_ERROR:
        return socket.gaierror("the name is not known")
    if code == TLS_ERROR:
        return ConnectionError("TLS failed")
    return OSError(code, "the connection was not made")

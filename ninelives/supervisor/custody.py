"""The server's side of kept clients. Owns: slots, handing duplicates of sockets to the supervisor, and the clients that
the server before left behind. Refuses to know: HTTP, and what a note says."""

from __future__ import annotations

import asyncio
import mmap
import socket
from dataclasses import dataclass
from typing import Any

from ninelives.supervisor.clients import SLOT_BYTES, SLOTS
from ninelives.supervisor.line import ControlLine, LineEnded

AGAIN_S = 0.05
"""When a release is sent again that found the line full."""


@dataclass(frozen=True)
class LeftClient:
    """A client of a server that is gone."""

    sock: socket.socket
    slot: int
    note: str
    base: int
    """What the kernel had taken for this connection before the answer."""
    keep_alive: bool
    head: str
    """The head of the answer, if it had begun; as latin-1."""
    beats: tuple[int, ...]
    """Where in the answer keepalives are, in bytes."""
    told: int
    """The word of its slot: see ClientCustody.words."""


class ClientCustody:
    """Clients whose answers outlive this process."""

    def __init__(self, line: ControlLine, memory: int, left: list[tuple[dict[str, Any], int]]) -> None:
        """`memory`: the descriptor of the slots. `left`: the notes and sockets of the clients that were left."""
        self._line = line
        self.words = memoryview(mmap.mmap(memory, SLOTS * SLOT_BYTES)).cast("Q")
        """One word for each slot: how many bytes of the answer were handed to the socket, and their CRC32. It is
        written before each write, in one instruction, so a kill leaves the old one or the new one."""
        self.left = [self._left(note, fd) for note, fd in left]
        used = {client.slot for client in self.left}
        self._free = [slot for slot in range(SLOTS - 1, -1, -1) if slot not in used]
        self._leaving = False

    def _left(self, note: dict[str, Any], fd: int) -> LeftClient:
        slot = note["client"]
        sock = socket.socket(fileno=fd)
        own = (note["note"], note["base"], note["alive"], note["head"], tuple(note["beats"]))
        return LeftClient(sock, slot, *own, self.words[slot])

    def take(self, fd: int, note: str, base: int, *, keep_alive: bool) -> int | None:
        """Give the supervisor a duplicate of a client's socket. Returns its slot; None where that cannot be done."""
        if not self._free or self._leaving:
            return None
        slot = self._free.pop()
        self.words[slot] = 0
        if not self._send({"client": slot, "note": note, "base": base, "alive": keep_alive}, fd):
            self._free.append(slot)
            return None
        return slot

    def head(self, slot: int, head: str) -> bool:
        """The answer begins with this head. False where that could not be noted: a crash now cuts the client."""
        return self._send({"slot": slot, "head": head})

    def beat(self, slot: int, place: int) -> bool:
        """A keepalive is written next, after `place` bytes of the answer. False: not now."""
        return self._send({"slot": slot, "beat": place})

    def release(self, slot: int) -> None:
        """The client has all of its answer, or is gone."""
        if self._leaving:
            return
        if self._send({"release": slot}):
            self._free.append(slot)
        else:
            asyncio.get_running_loop().call_later(AGAIN_S, self.release, slot)

    def drop(self) -> None:
        """Cut the clients that were left: this process does not answer them."""
        for client in self.left:
            client.sock.close()
            self.release(client.slot)
        self.left = []

    def leave(self) -> None:
        """A successor takes over. What this process closes from now on stays open for that one."""
        self._leaving = True

    def _send(self, message: dict[str, Any], *fds: int) -> bool:
        try:
            self._line.send(message, *fds)
        except (LineEnded, OSError):  # the line is full, or the supervisor is gone and this process ends
            return False
        return True

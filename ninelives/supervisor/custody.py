"""Clients that outlive the server. Owns: the memory in which each answer notes how far it is, handing duplicates of
sockets to the supervisor, and the clients that the server before left behind. Refuses to know: HTTP, and what a note
says.

Theory of operation. Each connection has a slot, from its first answer that is kept to its end. The supervisor gets a
duplicate of the socket once. All else stands in the slot, in memory that outlives this process, so an answer says
nothing to the supervisor. A connection that waits for its next request goes on too, if the kernel says that none of it
was read. The next server closes all others: a request that was read is lost, and its client must know that."""

from __future__ import annotations

import asyncio
import mmap
import socket
import struct
from dataclasses import dataclass
from typing import Any

from ninelives.supervisor.kernel import consumed
from ninelives.supervisor.line import ControlLine, LineEnded, Message

NAME = "client "
SLOTS = 16_384
"""Most clients. Pages of a slot that nobody has written take no memory."""
SLOT_BYTES = 16 * 1024
AGAIN_S = 0.05
"""When a release is sent again that found the line full."""
_WORDS = SLOT_BYTES // 8
_HEAD = struct.Struct("=QIII?")
"""Follows the word of a slot: `base`, the lengths of note and head, the number of keepalives, and `keep_alive`."""
_NOTE_LENGTH = struct.Struct("=I")
_NOTE_LENGTH_AT = 16
_IDLE = struct.Struct("=Q")
_IDLE_AT = 40
"""How much was read from the connection when its last answer was over, and 1; 0 before that."""
_NOTE_AT, _HEAD_AT, _BEATS_AT = 64, 6 * 1024, 8 * 1024
_BEAT = struct.Struct("=Q")
_MOST_BEATS = (SLOT_BYTES - _BEATS_AT) // _BEAT.size


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

    def __init__(self, line: ControlLine, memory: int, left: list[tuple[Message, list[int]]]) -> None:
        """`memory`: the descriptor of the slots. `left`: what the server before gave to the supervisor."""
        self._line = line
        self._map = mmap.mmap(memory, SLOTS * SLOT_BYTES)
        self.words = memoryview(self._map).cast("Q")
        """At word(slot): how many bytes of the answer were handed to the socket, and their CRC32. It is written before
        each write, in one instruction, so a kill leaves the old one or the new one."""
        self._leaving = False
        used = {message["slot"] for message, _ in left}
        self._unused = (slot for slot in range(SLOTS) if slot not in used)
        self._released: list[int] = []
        self.idle: list[tuple[socket.socket, int]] = []
        """Those that wait for their next request, with their slots."""
        found = [self._left(message["slot"], socket.socket(fileno=fd)) for message, (fd,) in left]
        self.left = [client for client in found if client is not None]
        """Those that were being answered."""

    def word(self, slot: int) -> int:
        """Where `words` has that of a slot."""
        return slot * _WORDS

    def _left(self, slot: int, sock: socket.socket) -> LeftClient | None:
        """The answer in a slot. None where there is none: its connection is idle, or is closed."""
        at = slot * SLOT_BYTES
        base, note, head, beats, keep_alive = _HEAD.unpack_from(self._map, at + 8)
        if not note:
            if self._is_idle(slot, sock):
                self.idle.append((sock, slot))
            else:
                sock.close()
                self.release(slot)
            return None
        return LeftClient(
            sock,
            slot,
            self._map[at + _NOTE_AT : at + _NOTE_AT + note].decode(),
            base,
            keep_alive,
            self._map[at + _HEAD_AT : at + _HEAD_AT + head].decode("latin-1"),
            tuple(place for (place,) in _BEAT.iter_unpack(self._map[at + _BEATS_AT : at + _BEATS_AT + beats * 8])),
            self.words[self.word(slot)],
        )

    def _is_idle(self, slot: int, sock: socket.socket) -> bool:
        (read,) = _IDLE.unpack_from(self._map, slot * SLOT_BYTES + _IDLE_AT)
        try:
            return bool(read == consumed(sock.fileno()) + 1)
        except OSError:
            return False

    def open(self, fd: int) -> int | None:
        """Give the supervisor a duplicate of a client's socket. Returns its slot; None where that cannot be done."""
        slot = None if self._leaving else self._free_slot()
        if slot is None:
            return None
        self.over(slot)
        _IDLE.pack_into(self._map, slot * SLOT_BYTES + _IDLE_AT, 0)
        if not self._send(slot, {"slot": slot}, fd):
            self._released.append(slot)
            return None
        return slot

    def _free_slot(self) -> int | None:
        """Prefer one whose pages have memory already."""
        return self._released.pop() if self._released else next(self._unused, None)

    def begin(self, slot: int, note: bytes, base: int, *, keep_alive: bool) -> bool:
        """An answer begins, of which nothing was written. False where it cannot be kept."""
        self.over(slot)
        if len(note) > _HEAD_AT - _NOTE_AT or self._leaving:
            return False
        at = slot * SLOT_BYTES
        self.words[self.word(slot)] = 0
        self._map[at + _NOTE_AT : at + _NOTE_AT + len(note)] = note
        _IDLE.pack_into(self._map, at + _IDLE_AT, 0)
        _HEAD.pack_into(self._map, at + 8, base, 0, 0, 0, keep_alive)
        _NOTE_LENGTH.pack_into(self._map, at + _NOTE_LENGTH_AT, len(note))
        return True

    def head(self, slot: int, head: bytes) -> bool:
        """The answer begins with this head. False where it is too long."""
        at = slot * SLOT_BYTES
        if len(head) > _BEATS_AT - _HEAD_AT:
            return False
        self._map[at + _HEAD_AT : at + _HEAD_AT + len(head)] = head
        _NOTE_LENGTH.pack_into(self._map, at + _NOTE_LENGTH_AT + 4, len(head))
        return True

    def beat(self, slot: int, place: int) -> bool:
        """A keepalive is written next, after `place` bytes of the answer. False where there are too many."""
        at = slot * SLOT_BYTES
        (count,) = _NOTE_LENGTH.unpack_from(self._map, at + _NOTE_LENGTH_AT + 8)
        if count == _MOST_BEATS:
            return False
        _BEAT.pack_into(self._map, at + _BEATS_AT + count * _BEAT.size, place)
        _NOTE_LENGTH.pack_into(self._map, at + _NOTE_LENGTH_AT + 8, count + 1)
        return True

    def over(self, slot: int) -> None:
        """The client has all of its answer, or cannot be kept any more."""
        if not self._leaving:
            _NOTE_LENGTH.pack_into(self._map, slot * SLOT_BYTES + _NOTE_LENGTH_AT, 0)

    def wait(self, slot: int, read: int) -> None:
        """The client has its answer, and may ask again. `read`: how much was read from its connection so far."""
        _IDLE.pack_into(self._map, slot * SLOT_BYTES + _IDLE_AT, read + 1)

    def release(self, slot: int) -> None:
        """The connection is closed."""
        self.over(slot)
        if self._leaving:
            return
        if self._send(slot, {"release": True}):
            self._released.append(slot)
        else:
            asyncio.get_running_loop().call_later(AGAIN_S, self.release, slot)

    def drop(self) -> None:
        """Cut the clients that were left: this process does not answer them."""
        for sock, slot in [*((client.sock, client.slot) for client in self.left), *self.idle]:
            sock.close()
            self.release(slot)
        self.left, self.idle = [], []

    def leave(self) -> None:
        """A successor takes over. What this process closes from now on stays open for that one."""
        self._leaving = True

    def _send(self, slot: int, message: dict[str, Any], *fds: int) -> bool:
        try:
            self._line.send({"held": f"{NAME}{slot}", **message}, *fds)
        except (LineEnded, OSError):  # the line is full, or the supervisor is gone and this process ends
            return False
        return True

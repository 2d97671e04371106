"""Model calls that outlive the server. Owns: the bytes of their answers, in memory that outlives this process, which
call each connection carries, and the calls that the server before left behind. Refuses to know: what is asked.

Theory of operation. The supervisor has a duplicate of each connection to an upstream, and of the memory into which the
answers on it are read. Name and place of the call stand in the memory too, so nothing is said to the supervisor while a
model answers. When the server dies, the connection stays open, and what the upstream sends waits in the kernel. The
next server asks the kernel how much was read: so much is in the memory, whatever the dead process had noted. It parses
that from the first byte, skips what was told, and reads on. A server that lives and closes a connection releases it:
that cancels the call. A connection with TLS ends in the supervisor (relay.py), and a plain one leads here."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
import struct
from itertools import count
from pathlib import Path
from typing import Any

from ninelives.supervisor.kernel import consumed, tcp_pair, written
from ninelives.supervisor.line import ControlLine, LineEnded, Message
from ninelives.supervisor.relay import ANSWER, NAME_ERROR, TLS_ERROR

CALL_BYTES = 8 * 1024 * 1024
"""Most bytes of one answer that are kept."""
ALL_BYTES = 64 * 1024 * 1024
"""Most bytes of all answers. Beyond it the oldest are not kept any more."""
READ_BYTES = 256 * 1024
RESIDENT_BYTES = 512 * 1024
"""What a connection keeps of its memory when an answer is over."""
UNCLAIMED_S = 60.0
"""How long the answer of a call waits for the run that made it, after a crash or once its connection is closed."""
AGAIN_S = 0.05
"""When a release is sent again that found the line full."""
EXITING = 4
"""The flag of the kernel for a process that ends, in /proc/PID/stat."""
_HEAD = struct.Struct("=QQI")
"""How much was read from the connection before the answer, how much is written to it when the request is complete, and
the length of the name that follows. 0: nothing is kept."""
_HEAD_BYTES = mmap.PAGESIZE
NAME = "call "


class AnswerMemory:
    """The memory of one connection: see models/net/kept.py."""

    def __init__(self, owner: SupervisedConnections, number: int, memory: int, sock: socket.socket) -> None:
        self._owner = owner
        self.number = number
        self._map = mmap.mmap(memory, _HEAD_BYTES + CALL_BYTES)
        self._data = memoryview(self._map)[_HEAD_BYTES:]
        self._at = 0
        self._read = consumed(sock.fileno())
        self._written = written(sock.fileno())
        self.call = ""
        self.lost = False
        """The connection is closed."""

    @property
    def size(self) -> int:
        """How much of an answer is kept."""
        return self._at

    def room(self) -> memoryview:
        """Where the next bytes of the connection belong."""
        if self._at > CALL_BYTES - READ_BYTES:
            self.forget()
        return self._data[self._at : self._at + READ_BYTES]

    def filled(self, size: int) -> memoryview:
        """So many bytes are there now. Returns them; they are valid until the next read."""
        start, self._read = self._at, self._read + size
        if self.call:
            self._at += size
            self._owner.grew(size)
        return self._data[start : start + size]

    def begin(self, call: str, size: int) -> None:
        """The next request, of `size` bytes, is this call."""
        if self._at > RESIDENT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, _HEAD_BYTES, CALL_BYTES)
        self.forget()
        name, self._written = call.encode(), self._written + size
        if 0 < len(name) <= _HEAD_BYTES - _HEAD.size:
            self._map[_HEAD.size : _HEAD.size + len(name)] = name
            _HEAD.pack_into(self._map, 0, self._read, self._written, 0)
            _HEAD.pack_into(self._map, 0, self._read, self._written, len(name))
            self.call = call

    def forget(self) -> None:
        """Keep nothing of the answer."""
        _HEAD.pack_into(self._map, 0, 0, 0, 0)
        self._owner.grew(-self._at)
        self._at, self.call = 0, ""

    def recover(self) -> bool:
        """Find the call of the process before. False where there is none, or where its request was not sent whole."""
        base, due, length = _HEAD.unpack_from(self._map)
        kept = self._read - base
        if not length or self._written < due or not 0 <= kept <= CALL_BYTES:
            return False
        self.call = self._map[_HEAD.size : _HEAD.size + length].decode()
        self._at = kept
        self._owner.grew(kept)
        return True

    def kept(self) -> memoryview:
        """All that is kept of the answer."""
        return self._data[: self._at]


class SupervisedConnections:
    """Connections to upstreams that outlive this process."""

    def __init__(self, line: ControlLine, left: list[tuple[Message, list[int]]]) -> None:
        """`left`: what the server before gave to the supervisor, with the descriptors of socket and memory."""
        self._line = line
        self._bytes = 0
        self._named: dict[str, AnswerMemory] = {}
        self._left: dict[str, tuple[socket.socket, AnswerMemory]] = {}
        self._leaving = False
        first = 0
        for given, fds in left:
            first = max(first, given["number"])
            self._recover(given["number"], fds)
        self._numbers = count(first + 1)
        if self._left:
            asyncio.get_running_loop().call_later(UNCLAIMED_S, self.drop_left)

    def _recover(self, number: int, fds: list[int]) -> None:
        sock, memory = socket.socket(fileno=fds[0]), fds[1:]
        try:
            found = AnswerMemory(self, number, memory[0], sock)
            is_call = found.recover() and found.call not in self._left
        except (OSError, IndexError):  # the connection was reset, or the supervisor was short of descriptors
            is_call = False
        finally:
            for fd in memory:
                os.close(fd)
        if is_call:
            self._named[found.call] = found
            self._left[found.call] = sock, found
        else:
            sock.close()
            self._release(number)

    def drop_left(self) -> None:
        """Close the calls of the server before that nobody has asked for."""
        left, self._left = self._left, {}
        for sock, memory in left.values():
            sock.close()
            self.closed(memory, whole=False)

    async def dial(self, host: str, port: int, tls_name: str, limit_s: float) -> socket.socket:
        """A socket that leads to a connection with TLS. Raises OSError."""
        ours, theirs = tcp_pair()
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours.setblocking(False)
        wish = {"host": host, "port": port, "tls_name": tls_name, "limit_s": limit_s}
        try:
            with theirs:
                self._send({"dial": wish}, theirs.fileno())
            answer = await asyncio.get_running_loop().sock_recv(ours, ANSWER.size)
            code = ANSWER.unpack(answer)[0] if len(answer) == ANSWER.size else 104
            if code:
                raise _error(code)
        except BaseException:
            ours.close()
            _die_with_parent()
            raise
        return ours

    def keep(self, sock: socket.socket) -> AnswerMemory | None:
        """Memory for the answers on a connection, which outlives this process from now on. None where it does not."""
        number = next(self._numbers)
        try:
            memory = os.memfd_create("answers")
        except OSError:
            return None
        try:
            os.ftruncate(memory, _HEAD_BYTES + CALL_BYTES)
            made = AnswerMemory(self, number, memory, sock)
            self._send({"held": f"{NAME}{number}", "number": number}, sock.fileno(), memory)
        except OSError:
            return None
        finally:
            os.close(memory)
        return made

    def begin(self, memory: AnswerMemory, call: str, size: int) -> None:
        """The next request on the connection of this memory, of `size` bytes, is this call."""
        self.settle(call)  # it is made anew: the first answer is void
        memory.begin(call, size)
        if memory.call:
            self._named[call] = memory

    def again(self, call: str) -> tuple[socket.socket, AnswerMemory]:
        """The connection of a call that an earlier process made. Its memory has what was read. Raises OSError."""
        if call not in self._left:
            raise OSError(errno.ENOENT, "the call is not held")
        return self._left.pop(call)

    def held(self, call: str) -> bool:
        """True where an earlier process made the call and its answer is kept."""
        return call in self._left

    def settle(self, call: str) -> None:
        """The answer is not needed any more."""
        memory, left = self._named.pop(call, None), self._left.pop(call, None)
        if memory is not None:
            memory.forget()
            if left is not None:
                left[0].close()
            if left is not None or memory.lost:
                self._release(memory.number)

    def closed(self, memory: AnswerMemory, *, whole: bool) -> None:
        """The connection is closed. An answer that is whole stays until it is settled; any other is not wanted."""
        memory.lost = True
        if self._leaving:
            return
        if whole and memory.call:
            asyncio.get_running_loop().call_later(UNCLAIMED_S, self._expire, memory, memory.call)
            return
        if self._named.get(memory.call) is memory:
            del self._named[memory.call]
        memory.forget()
        _die_with_parent()
        self._release(memory.number)

    def _expire(self, memory: AnswerMemory, call: str) -> None:
        """Nobody settled a call: its run has ended in some other way."""
        if memory.call == call:
            self.settle(call)

    def leave(self) -> None:
        """A successor takes over: what is closed from now on is wanted."""
        self._leaving = True

    def grew(self, size: int) -> None:
        """Keep within the bound. A call that is not kept any more is one that a crash repeats."""
        self._bytes += size
        while size > 0 and self._bytes > ALL_BYTES and self._named:
            self.settle(next(iter(self._named)))

    def _release(self, number: int) -> None:
        if self._leaving:
            return
        try:
            self._send({"held": f"{NAME}{number}", "release": True})
        except BrokenPipeError:  # the supervisor is gone, and this process ends
            return
        except OSError:
            asyncio.get_running_loop().call_later(AGAIN_S, self._release, number)

    def _send(self, message: dict[str, Any], *fds: int) -> None:
        try:
            self._line.send(message, *fds)
        except LineEnded as error:
            raise BrokenPipeError("the supervisor is gone") from error


def _die_with_parent() -> None:
    """A supervisor that is killed closes its sockets before the kernel ends this process. In between model calls with
    TLS seem to be cut, and runs must not fail for that."""
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

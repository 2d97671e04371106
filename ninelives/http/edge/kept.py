"""Answers that outlive the process that began them. Owns: what was handed to the socket of a kept client (how much, and
its checksum), keepalives, and going on with an answer after a crash without a wrong byte. Refuses to know: what is in
an answer, and who keeps the sockets.

Theory of operation. Before a piece of an answer is written, its end and the checksum of all up to there are put into
memory that outlives this process (Custody.words). The next process asks the kernel how many bytes it took of the
answer. It renders the answer again from its first byte and checks that what was handed over has the same checksum. Then
it writes what the kernel did not take, and goes on. Where the checksum is another, the connection is cut.

To give the same bytes, each frame is one HTTP chunk, however frames were grouped when they were sent. Keepalives come
by the clock: before one is written, its place is noted. An answer that is no stream goes out in one piece. It is
written anew if the kernel took nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol
from zlib import crc32

import msgspec
from msgspec import Struct

from ninelives.http.edge.early import Headers
from ninelives.supervisor.custody import LeftClient

PIECE = 64 * 1024
"""The longest piece of a body that goes into one write (R13)."""
FRAME_END = b"\n\n"
KEEPALIVE = b": keepalive\n\n"
_SUM_BITS = 32
_STREAM = 1 << 63
"""Set in the word of a stream."""
MOST_BYTES = (1 << 31) - 1
"""Of an answer that is kept. A longer one is released."""


class KeptRequest(Struct, frozen=True, array_like=True):
    """What a process must know to go on with an answer that another one has begun: the note of a client."""

    how: str
    """The name of the Answering."""
    run: str
    owner: str
    session: str
    attached: bool
    waited: bool
    watches: bool
    after: int
    stream: bool
    projection: int
    """PROJECTION of the process that began."""
    key: str
    request_id: str
    trace: str
    remote: str
    path: str
    headers: tuple[tuple[str, str], ...]
    """Headers of the gate that not every answer has."""

    @classmethod
    def read(cls, note: str) -> KeptRequest:
        """The note of a client."""
        return msgspec.json.decode(note, type=cls)

    def more_headers(self, known: Headers) -> Headers:
        """Its headers without these. Earlier releases noted all of them."""
        noted = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers)
        return [pair for pair in noted if pair not in known]

    def note(self) -> bytes:
        """As a note."""
        return msgspec.json.encode(self)


class Custody(Protocol):
    """Who keeps the sockets of clients: see supervisor/custody.py."""

    @property
    def words(self) -> memoryview:
        """What was handed to each socket, at word(slot)."""

    def word(self, slot: int) -> int:
        """Where `words` has that of a slot."""

    def open(self, fd: int) -> int | None:
        """Keep the socket of a client to the end of its connection. Returns its slot."""

    def begin(self, slot: int, note: bytes, base: int, *, keep_alive: bool) -> bool:
        """An answer begins, of which nothing was written. False: it cannot be kept."""

    def head(self, slot: int, head: bytes) -> bool:
        """The answer begins with this head. False: it cannot be kept."""

    def beat(self, slot: int, place: int) -> bool:
        """A keepalive is written next, after `place` bytes of the answer. False: it cannot be kept any more."""

    def over(self, slot: int) -> None:
        """The client has all of its answer, or cannot be kept any more."""

    def wait(self, slot: int, read: int) -> None:
        """The client has its answer, and may ask again. `read`: how much was read from its connection so far."""

    def release(self, slot: int) -> None:
        """The connection is closed."""


def chunked(data: bytes) -> bytes:
    """Whole frames as HTTP chunks, one for each frame."""
    if data.find(FRAME_END) == len(data) - len(FRAME_END):
        return b"%x\r\n%b\r\n" % (len(data), data)
    *frames, rest = data.split(FRAME_END)
    chunks = [b"%x\r\n%b\n\n\r\n" % (len(frame) + len(FRAME_END), frame) for frame in frames]
    if rest:
        chunks.append(b"%x\r\n%b\r\n" % (len(rest), rest))
    return b"".join(chunks)


KEEPALIVE_CHUNK = chunked(KEEPALIVE)


def spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Where to divide frames: start and end of whole frames, each time at most PIECE bytes, or of one longer frame."""
    start = 0
    while len(data) - start > PIECE:
        last = data.rfind(FRAME_END, start, start + PIECE)
        if last < 0:
            last = data.find(FRAME_END, start + PIECE - len(FRAME_END) + 1)
        stop = last + len(FRAME_END) if last >= 0 else len(data)
        yield start, stop
        start = stop
    if start < len(data):
        yield start, len(data)


def pieces(data: bytes) -> Iterator[bytes]:
    """Split into pieces of whole frames, each at most PIECE bytes. Only a frame that is longer is split (G6)."""
    for start, stop in spans(data):
        yield from (data[place : min(place + PIECE, stop)] for place in range(start, stop, PIECE))


def chunked_pieces(data: bytes) -> Iterator[bytes]:
    """The same as HTTP chunks, one for each frame."""
    for start, stop in spans(data):
        if stop - start <= PIECE:
            yield chunked(data[start:stop])
        else:
            yield b"%x\r\n" % (stop - start)
            yield from pieces(data[start:stop])
            yield b"\r\n"


def bytes_of(word: int) -> int:
    """How many bytes were handed over, by the word of a slot."""
    return (word & ~_STREAM) >> _SUM_BITS


class KeptTransport:
    """Stands in for the transport of an answer whose client is kept."""

    fault = ""
    """Why this client was cut: see AdoptedTransport."""

    def __init__(self, transport: Any, custody: Custody, slot: int) -> None:
        self.transport = transport
        self.is_closing: Callable[[], bool] = transport.is_closing  # asked before each write: faster than __getattr__
        self._custody = custody
        self._slot: int | None = slot
        self._words, self._word, self._kind = custody.words, custody.word(slot), 0
        self._send: Callable[[bytes], None] = transport.write
        self._total = 0
        self._ahead = 0
        """The length of a head that waits for the first piece (HeadFirst in whole.py)."""
        self._sum = 0
        self._streams = False
        self._answer: list[bytes] = []
        """The pieces of an answer that is no stream."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    @property
    def proven(self) -> bool:
        """Whether new bytes may be written."""
        return True

    def stream(self) -> None:
        """The answer is a stream: its pieces go out as they come."""
        self._streams, self._kind = True, _STREAM

    def begin(self, head: bytes) -> None:
        """The head of the answer, before it is written."""
        self._ahead = len(head)
        if self._streams and self._slot is not None and not self._custody.head(self._slot, head):
            self.release()

    def write(self, data: bytes) -> None:
        """Write a piece of the answer."""
        if not self._streams and self._slot is not None:
            self._answer.append(data)
        else:
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        self._ahead = 0
        if self._slot is not None:
            self._total = total = self._total + len(data)
            self._sum = checksum = crc32(data, self._sum)
            if total > MOST_BYTES:
                self.release()
            else:
                self._words[self._word] = self._kind | total << _SUM_BITS | checksum
        self._send(data)

    def beat(self, write: Callable[[bytes], None]) -> None:
        """Write a keepalive by `write`, which leads here."""
        if self._slot is not None and not self._custody.beat(self._slot, self._total + self._ahead):
            self.release()
        write(KEEPALIVE_CHUNK)

    def end(self) -> None:
        """The answer is complete."""
        if self._answer:
            answer, self._answer = b"".join(self._answer), []
            self._hand_over(answer)

    def close(self) -> None:
        """See asyncio."""
        self.end()
        self.transport.close()

    def release(self) -> None:
        """The client has all of it, or cannot be kept any more."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._custody.over(slot)
            if self._answer and not self.transport.is_closing():
                self.end()


class AdoptedTransport(KeptTransport):
    """The same for an answer that an earlier process has begun to stream."""

    def __init__(self, transport: Any, custody: Custody, left: LeftClient, taken: int) -> None:
        """`taken`: how many bytes of the answer the kernel took."""
        super().__init__(transport, custody, left.slot)
        self.stream()
        self._head = left.head.encode("latin-1")
        self._told, self._told_sum = bytes_of(left.told), left.told & (1 << _SUM_BITS) - 1
        self._skip = taken
        self._beats = list(left.beats)
        self._rest = bytearray()
        """What was handed over, and the kernel did not take."""
        self._proven = False
        self.fault = ""
        if taken > self._told:
            self._fail()
        elif not self._told:
            self._prove()

    @property
    def proven(self) -> bool:
        """See KeptTransport."""
        return self._proven

    def begin(self, head: bytes) -> None:
        """See KeptTransport: the head is known."""

    def write(self, data: bytes) -> None:
        """Take a piece of the answer, as it is rendered again."""
        if self._head:  # that of this process has another date
            data, self._head = self._head, b""
        while data and not self._proven:
            if self._beats and self._beats[0] == self._total:
                del self._beats[0]
                self._check(KEEPALIVE_CHUNK)
                continue
            size = min(len(data), self._told - self._total, *(each - self._total for each in self._beats[:1]))
            if size <= 0:
                return self._fail()
            piece, data = data[:size], data[size:]
            self._check(piece)
        if data:
            super().write(data)

    def _check(self, piece: bytes) -> None:
        start = max(0, self._skip - self._total)
        self._rest += piece[start:]
        self._total += len(piece)
        self._sum = crc32(piece, self._sum)
        if self._total == self._told:
            self._prove()
        elif self._total > self._told:
            self._fail()

    def _prove(self) -> None:
        if self._sum != self._told_sum:
            return self._fail()
        self._proven = True
        if self._rest:
            self.transport.write(bytes(self._rest))
            self._rest.clear()
        if self._beats:  # it was noted, and not written: a place that is noted has a keepalive
            self._beats.clear()
            super().write(KEEPALIVE_CHUNK)

    def _fail(self) -> None:
        """The answer is another than the one that was begun: the client must not see a byte of it."""
        self.fault = self.fault or f"{self._skip} of {self._told} bytes were sent; another answer at byte {self._total}"
        self._rest.clear()
        self._told = -1
        self.transport.abort()

    def beat(self, write: Callable[[bytes], None]) -> None:
        """See KeptTransport."""
        if self._proven:
            super().beat(write)

    def end(self) -> None:
        """See KeptTransport."""
        if not self._proven:
            self._fail()


Standing = Literal["anew", "begun", "whole", "broken"]
"""How an answer was left: nothing of it was sent, some of a stream, all, or some of what cannot be rendered again."""


def standing(left: LeftClient, taken: int) -> Standing:
    """How the answer of a client was left, of which the kernel took so many bytes."""
    if left.head:
        return "begun"
    if taken == 0:
        return "anew"
    return "whole" if taken == bytes_of(left.told) and left.told < _STREAM else "broken"


class KeptStream:
    """How a stream writes to a kept client: an extension of the ASGI scope, "ninelives.kept"."""

    def __init__(
        self,
        cycle_of: Callable[[], Any],
        transport: KeptTransport,
        write: Callable[[bytes], bool],
        standing: Standing = "anew",
    ) -> None:
        """`cycle_of` is a weak reference to the request cycle of uvicorn: the cycle has the scope, and that has this
        object. `write` writes frames at once, and returns False where only send() can do it."""
        self._cycle_of = cycle_of
        self._transport = transport
        self.write = write
        self.standing = standing

    @property
    def fault(self) -> str:
        """Why the client was cut, if the answer is not the one that was begun."""
        return self._transport.fault

    def begin(self) -> None:
        """The answer is a stream. Call it before its head is sent."""
        self._transport.stream()

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Write frames when the socket takes them. `last`: nothing follows."""
        cycle = self._cycle_of()
        for piece in chunked_pieces(data):
            if cycle.flow.write_paused and not cycle.disconnected:
                await cycle.flow.drain()
            if cycle.disconnected or cycle.transport.is_closing():
                return
            cycle.transport.write(piece)
        if last:
            await self.end()

    async def end(self) -> None:
        """The stream is over."""
        cycle = self._cycle_of()
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def beat(self) -> None:
        """Write a keepalive."""
        cycle = self._cycle_of()
        if not cycle.disconnected and not cycle.transport.is_closing():
            self._transport.beat(lambda data: cycle.transport.write(data))

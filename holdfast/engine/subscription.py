"""One reader's place in one run. Owns: a bounded buffer of frames, and the three ways a reader gets them: catching up
from the journal, live from its lane, or following the bell where no worker of this process drives the run.

Theory of operation. A subscription always begins by folding the journal from entry 0 with its projection; frames up
to the position it asked for are dropped on the way. When its place equals the committed seq of a Live, it joins that
lane in the same tick: no entry can come between, so there is no gap and no duplicate. When its buffer is full the lane
lets it go with the view and place it had; it sends what it has and catches up again. Nothing here can slow the run.
Refuses to know: sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from holdfast.core import codec
from holdfast.core.errors import Damaged
from holdfast.core.events import Entry, Terminal
from holdfast.engine.base import Broken, Chunk, Cut, Ended, Idle, News, Patient, Projection
from holdfast.engine.live import Live
from holdfast.journal.base import Bell, Journal

SLICE_S = 0.002
"""Any loop over entries lets others run this often (house rule 6.12)."""


class Source(Protocol):
    """Where a subscription finds its run."""

    journal: Journal
    bell: Bell

    def live(self, run: str) -> Live | None:
        """The run, if a worker of this process drives it."""
        ...

    def forget(self, subscription: Subscription) -> None:
        """It is closed."""
        ...


class Reading(Struct, frozen=True):
    """How a run is to be read: in which dialect, from where on."""

    projection: Projection
    after: int = -1


class Subscription:
    """Ask `next()` until Ended, Cut or Broken; then, or when the reader is gone, `close()`."""

    def __init__(self, source: Source, owner: str, run: str, reading: Reading, bound: int) -> None:
        projection = reading.projection
        self.owner = owner
        self.run = run
        self.on_cut: Callable[[], None] = lambda: None
        self.sink: Callable[[bytes], bool] | None = None
        """Sends frames on at once, or says that it cannot now. It is asked only while the reader waits in `next()` with
        nothing before them, so the order holds; the reader's task, which costs more than the frame, sleeps on."""
        self.active = True
        """Set whenever something is sent; the hub's ticker clears it."""
        self._source = source
        self._projection = projection
        self._bound = bound
        self._view: Any = projection.view0(reading.after)
        self._seq = -1
        self._buffer: list[bytes] = []
        self._size = 0
        self._lane_of: Live | None = None
        self._ended = False
        self._cut = False
        self._gone = ""
        self._idle = False
        self._rang = False
        self._waiter: asyncio.Future[None] | None = None
        self._unlisten: Callable[[], None] | None = None

    # the lane's side

    def push(self, data: bytes) -> bool:
        """See Reader.push. A buffer that is empty takes anything: one frame may be larger than the bound. The one
        reader of an owned run is never let go: its worker waits for it (Worker._reader_drained)."""
        if self._size and self._size + len(data) > self._bound and not self._owns():
            return False
        if self.sink is not None and self._waiting() and self.sink(data):
            self.active = True
            return True
        self._buffer.append(data)
        self._size += len(data)
        self._wake()
        return True

    def _owns(self) -> bool:
        return self._lane_of is not None and self._lane_of.owned

    def _waiting(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def detach(self, view: Any, seq: int) -> None:
        """See Reader.detach."""
        self._lane_of, self._view, self._seq = None, view, seq
        self._wake()

    def finish(self) -> None:
        """See Reader.finish."""
        self._ended = True
        self._wake()

    def backlog(self) -> int:
        """See Reader.backlog."""
        return self._size

    # the engine's side

    def cut(self) -> None:
        """Break the stream off without an end, also where its reader is stuck in the middle of a send."""
        self._cut = True
        self._wake()
        self.on_cut()

    def move(self, source: Source) -> None:
        """The run is kept elsewhere from now on."""
        self._source = source

    def vanish(self, reason: str) -> None:
        """There is nothing left to read."""
        self._gone = reason
        self._wake()

    def tick(self) -> None:
        """Nothing came for a keepalive interval."""
        self._idle = True
        self._wake()

    @property
    def told(self) -> bool:
        """True when the reader was given everything, to the end."""
        return self._ended and not self._buffer

    # the reader's side

    async def next(self) -> News:
        """What to do next."""
        while True:
            if self._buffer:
                return self._take()
            if self._ended:
                return Ended()
            if self._cut:
                return Cut()
            if self._gone:
                return Broken(self._gone)
            if self._idle:
                self._idle = False
                return Idle()
            if self._lane_of is not None:
                await self._news()
                continue
            try:
                await self._catch_up()
            except Damaged as error:
                return Broken(str(error))

    def close(self) -> None:
        """The reader is gone, or has everything."""
        self.sink = None
        if self._lane_of is not None:
            self._lane_of.leave(self._projection, self)
            self._lane_of = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._source.forget(self)

    def _take(self) -> Chunk:
        data = b"".join(self._buffer) if len(self._buffer) > 1 else self._buffer[0]
        self._buffer.clear()
        self._size = 0
        self._idle = False
        self.active = True
        if self._lane_of is not None and self._lane_of.owned:
            self._lane_of.wake()
        return Chunk(data)

    def _wake(self) -> None:
        self._rang = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def _catch_up(self) -> None:
        """One page from the journal; join the lane at the edge; else wait for the bell."""
        if self._unlisten is None:
            self._unlisten = self._source.bell.listen(self.run, self._wake)
        self._rang = False
        if self._join():
            return
        records = await self._source.journal.read(self.owner, self.run, self._seq)
        if not records:
            if not self._join():
                if not isinstance(self._projection, Patient):
                    self._at_edge()
                await self._follow()
            return
        pause = asyncio.get_running_loop().time() + SLICE_S
        for record in records:
            self._step(Entry(self.run, record.seq, record.at, record.attempt, codec.decode(record.data)))
            if self._ended:
                return
            if asyncio.get_running_loop().time() > pause:
                await asyncio.sleep(0)
                pause = asyncio.get_running_loop().time() + SLICE_S

    async def _follow(self) -> None:
        if self._source.live(self.run) is None and self._seq < 0:
            raise Damaged(f"run {self.run} is gone")
        if not self._rang and not self._buffer:
            await self._news()

    def _at_edge(self) -> None:
        self._view, held = self._projection.live(self._view)
        self._add(held)

    def _join(self) -> bool:
        live = self._source.live(self.run)
        if live is None or live.committed.seq != self._seq or live.lost:
            return False
        self._at_edge()
        live.join(self._projection, self._view, self)
        self._view = None
        self._lane_of = live
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        return True

    def _step(self, entry: Entry) -> None:
        self._view, frames = self._projection.step(self._view, entry)
        self._seq = entry.seq
        self._ended = isinstance(entry.event, Terminal) or self._projection.over(self._view)
        self._add(frames)

    def _add(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._buffer.append(frame)
            self._size += len(frame)

"""One reader's place in one run. Owns: a bounded buffer of frames, and the three ways a reader gets them: catching up
from the journal, live from its lane, or following the bell where no worker of this process drives the run.

Theory of operation. A subscription always begins by folding the journal from entry 0 with its projection; frames up
to the position it asked for are dropped on the way. When its place equals the committed seq of a Live, it joins that
lane in the same tick: no entry can come between, so there is no gap and no duplicate. When its buffer is full the lane
lets it go with the view and place it had; it sends what it has and catches up again. Nothing here can slow the run.
Refuses to know: sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import Struct

from holdfast.core.errors import Damaged
from holdfast.core.events import Terminal
from holdfast.engine.base import Broken, Chunk, Cut, Ended, Idle, News, Patient, Projection
from holdfast.engine.live import Live
from holdfast.engine.replay import LONG, alike, entries_of, render
from holdfast.engine.replay import Ended as Kept
from holdfast.journal.base import Bell, Record, Store, StoreUnavailable

SLICE = 512
"""Any loop over entries lets others run after so many, about 2 ms of work (house rule 6.12)."""
RETRY_S = 0.25
CHECK_S = 5.0
"""A reader at the end of a run that is driven elsewhere looks this often whether it is still there."""


class Source(Protocol):
    """Where a subscription finds its run."""

    journal: Store
    bell: Bell
    kept: Kept
    shared: bool
    """A run may be deleted by another process, which nobody tells us."""

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
        self._name = alike(projection) if reading.after < 0 else None
        """Under which all frames of this run can be kept."""
        self._pages: list[bytes] | None = [] if self._name else None
        """All frames so far, where none came by another way than this."""
        self._ready: Iterator[bytes] | None = None
        """All frames of a run that was read before."""
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
        self._check_at = 0.0
        self._followed = False
        self._driven = False
        """Entries came while it waited at the end: another process drives the run, so the draft stands."""

    # the lane's side

    def push(self, data: bytes, *, last: bool = False) -> bool:
        """See Reader.push. A buffer that is empty takes anything: one frame may be larger than the bound. The one
        reader of an owned run is never let go: its worker waits for it (Worker._reader_drained). The last frames are
        left to the reader, who must wake for the end anyway and then sends both in one go."""
        if self._size and self._size + len(data) > self._bound and not self._owns():
            return False
        if self.sink is not None and not last and self._waiting() and self.sink(data):
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
            if (news := self._at_hand()) is not None:
                return news
            if self._lane_of is not None:
                await self._news()
                continue
            try:
                await self._catch_up()
            except Damaged as error:
                return Broken(str(error))
            except StoreUnavailable as error:
                await self._until_back(error)

    def _at_hand(self) -> News | None:
        """What can be said without waiting."""
        if self._buffer:
            return self._take()
        if (page := self._kept_page()) is not None:
            return Chunk(page)
        if self._ended:
            return Ended()
        if self._cut:
            return Cut()
        if self._gone:
            return Broken(self._gone)
        if self._idle:
            self._idle = False
            return Idle()
        return None

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

    def _kept_page(self) -> bytes | None:
        if self._ready is None or self._cut or self._gone:
            return None
        self.active = True
        page = next(self._ready, None)
        if page is None:
            self._ready, self._ended = None, True
        return page

    def _wake(self) -> None:
        self._rang = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def _until_back(self, error: StoreUnavailable) -> None:
        """The store cannot be read. Where that passes the reader waits, and its line is kept alive (P15)."""
        if not error.passing:
            self._gone = str(error)
            return
        asyncio.get_running_loop().call_later(RETRY_S, self._wake)
        await self._news()

    async def _catch_up(self) -> None:
        """One page from the journal; join the lane at the edge; else wait for the bell."""
        if self._unlisten is None:
            self._unlisten = self._source.bell.listen(self.run, self._wake)
        self._rang = False
        if self._join():
            return
        if self._seq < 0 and await self._read_before():
            return
        records = await self._source.journal.read(self.owner, self.run, self._seq)
        if not records:
            await self._no_more()
            return
        self._driven = self._followed and self._source.shared
        for start in range(0, len(records), SLICE):
            if start:
                await asyncio.sleep(0)
            self._step(records[start : start + SLICE])
            if self._ended:
                return

    async def _no_more(self) -> None:
        """The end of what is committed: go live, or wait for the bell."""
        if self._join():
            return
        if self._source.shared:
            await self._still_there()
        if self._driven or not isinstance(self._projection, Patient):
            self._at_edge()
        await self._follow()

    async def _read_before(self) -> bool:
        """Have all frames been kept, of a run that is still there and this owner's?"""
        kept, name = self._source.kept, self._name
        pages = kept.frames(self.run, name) if name else None
        if name is None or pages is None:
            return False
        if await self._source.journal.find(self.owner, self.run) is None:
            kept.forget_frames(self.run, name)
            return False
        self._ready, self._pages = iter(pages), None
        return True

    async def _still_there(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._seq < 0 or now < self._check_at:
            return
        self._check_at = now + CHECK_S
        if not await self._source.journal.read(self.owner, self.run, self._seq - 1):
            raise Damaged("the run was deleted")

    async def _follow(self) -> None:
        if self._source.live(self.run) is None and self._seq < 0:
            raise Damaged(f"run {self.run} is gone")
        if not self._rang and not self._buffer:
            await self._news()
        self._followed = True

    def _at_edge(self) -> None:
        self._pages = None
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

    def _step(self, records: list[Record]) -> None:
        """Fold and render some records."""
        self._view, frames, last = render(self._projection, self._view, entries_of(self.run, records))
        self._seq = last.seq
        over = isinstance(last.event, Terminal)
        self._ended = over or self._projection.over(self._view)
        self._add(frames)
        if self._pages is not None and self._name and over and self._seq >= LONG:
            self._source.kept.record(self.run, self._name, self._pages)

    def _add(self, frames: list[bytes]) -> None:
        if not frames:
            return
        data = b"".join(frames) if len(frames) > 1 else frames[0]
        self._buffer.append(data)
        self._size += len(data)
        if self._pages is not None:
            self._pages.append(data)

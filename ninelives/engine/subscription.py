"""One reader's place in one run, and runs that have ended, read again. Owns: a bounded buffer of frames, the three ways
a reader gets them (catching up from the journal, live from its audience, or following notifications where no worker of
this process drives the run), rendering pages of a journal in bulk, and what is kept of ended runs so that reading them
again is cheap.

Theory of operation. A subscription always begins by folding the journal from entry 0 with its projection; frames up
to the position it asked for are dropped on the way. When its place equals the committed seq of a ClaimedRun, it joins
that audience in the same tick: no entry can come between, so there is no gap and no duplicate. When its buffer is full
the audience lets it go with the view and place it had; it sends what it has and catches up again. Nothing here can slow
the run.

States and frames of ended runs are kept in memory, both bounded in bytes, the longest unused going first. Nothing kept
is the truth, and nothing is shown from there before the store has said that the run is still there and its owner's: a
deleted run is gone at once, whoever deleted it. Refuses to know: sockets, and what is in a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from ninelives.core import codec
from ninelives.core.errors import Damaged
from ninelives.core.events import Entry, Terminal
from ninelives.core.state import RunState
from ninelives.engine.base import (
    RETRY_S,
    BoundedCache,
    Broken,
    Chunk,
    Cut,
    Idle,
    News,
    Patient,
    Projection,
    Resumable,
    StreamEnded,
)
from ninelives.engine.run import ClaimedRun
from ninelives.journal.base import Notifier, Store, Unlisten
from ninelives.journal.values import Record, RunRow, StoreUnavailable

SLICE = 512
"""Any loop over entries lets others run after so many, about 2 ms of work (R12)."""
CHECK_S = 5.0
"""A reader at the end of a run that is not driven here looks this often whether it is still there."""


LONG = 256
"""Shorter runs are not kept: to fold or render them again costs less than to look after them."""
MANY = 16
"""Fewer entries are rendered one by one: to ask whether there is a faster way costs 20 us."""
STATE_BYTES = 16 * 1024 * 1024
FRAME_BYTES = 32 * 1024 * 1024


@runtime_checkable
class Bulk(Protocol):
    """A projection that has a faster way to render many entries, and is never over before the run is."""

    def steps(self, view: Any, entries: Sequence[Entry]) -> tuple[Any, list[bytes]]:
        """The same as `step` for each of them."""
        ...


def entries_of(run: str, records: Sequence[Record]) -> list[Entry]:
    """Records with their meaning."""
    events = codec.decode_all([record.data for record in records])
    return [
        Entry(run, record.seq, record.at, record.attempt, event) for record, event in zip(records, events, strict=True)
    ]


def render(projection: Projection, view: Any, entries: Sequence[Entry]) -> tuple[Any, list[bytes], Entry]:
    """The view after some entries, their frames, and the last entry that was looked at: a dialect may be over."""
    if len(entries) >= MANY and isinstance(projection, Bulk):
        return *projection.steps(view, entries), entries[-1]
    frames: list[bytes] = []
    for entry in entries:
        view, more = projection.step(view, entry)
        frames += more
        if projection.over(view):
            return view, frames, entry
    return view, frames, entries[-1]


def alike(projection: Projection) -> str | None:
    """The name under which a projection's frames can be kept: where every reader who begins at the beginning gets the
    same. A class says so for itself, not for those that are derived from it."""
    kind = type(projection)
    return kind.__qualname__ if kind.__dict__.get("replays_alike") else None


class EndedRuns:
    """What one process keeps of ended runs of one store."""

    def __init__(self) -> None:
        self._states: BoundedCache[str, RunState] = BoundedCache(STATE_BYTES)
        self._frames: BoundedCache[tuple[str, str], tuple[bytes, ...]] = BoundedCache(FRAME_BYTES)

    def note(self, state: RunState) -> None:
        """A run has ended, or was found to have."""
        if state.ended and state.seq >= LONG:
            self._states.put(state.facts.run, state, weight(state))

    def has(self, run: str) -> bool:
        """Is its state kept?"""
        return self._states.get(run) is not None

    def state(self, row: RunRow | None, run: str) -> RunState | None:
        """Its state, if it is kept and is still that of the store's row."""
        state = self._states.get(run)
        if state is None or row is None or not row.ended or row.last_seq != state.seq:
            self._states.drop(run)
            return None
        return state

    def record(self, run: str, name: str, pages: Sequence[bytes]) -> None:
        """All frames of a run that has ended."""
        self._frames.put((run, name), tuple(pages), sum(map(len, pages)))

    def frames(self, run: str, name: str) -> tuple[bytes, ...] | None:
        """All frames of a run, if they are kept. Ask the store for the run before any is shown."""
        return self._frames.get((run, name))

    def forget(self, run: str) -> None:
        """The run is gone."""
        self._states.drop(run)
        for key in self._frames.names():
            if key[0] == run:
                self._frames.drop(key)


def weight(state: RunState) -> int:
    """About how many bytes a state of an ended run holds."""
    facts = state.facts
    said = sum(len(m.text) + len(m.reasoning) + len(m.refusal) for m in facts.messages)
    called = sum(len(call.arguments) for message in facts.messages for call in message.calls)
    given = len(codec.encode(facts.accepted))
    return 2 * (said + called + given + sum(len(result.output) for result in facts.results.values())) + 4096


class Source(Protocol):
    """Where a subscription finds its run."""

    notifier: Notifier
    kept: EndedRuns
    lives: dict[str, ClaimedRun]
    """The runs that workers of this process drive."""

    def store_of(self, run: str) -> Store:
        """The store that has it."""
        ...

    def forget(self, subscription: Subscription) -> None:
        """It is closed."""
        ...


class Line(Protocol):
    """The connection of a reader."""

    def write(self, data: bytes) -> bool:
        """Send frames on at once; False where that cannot be done now. It is asked only while the reader waits in
        `next()` with nothing before them, so the order holds; the reader's task, which costs more than the frame,
        sleeps on."""
        ...

    def abort(self) -> None:
        """Break it off, also where its reader is stuck in the middle of a send."""
        ...


class ReadRequest(Struct, frozen=True):
    """How a run is to be read: in which dialect, from where on."""

    projection: Projection
    after: int = -1


class Subscription:
    """Ask `next()` until Ended, Cut or Broken; then, or when the reader is gone, `close()`."""

    def __init__(self, source: Source, owner: str, run: str, reading: ReadRequest, bound: int) -> None:
        projection = reading.projection
        self.owner = owner
        self.run = run
        self._line: Line | None = None
        self.active = True
        """Set whenever something is sent; the ticker of Readers clears it."""
        self._source = source
        self._projection = projection
        self._bound = bound
        self._view: Any = projection.view0(reading.after)
        self._seq = -1
        self._ahead = reading.after >= 0 and isinstance(projection, Resumable)
        """The reader names a position that may be beyond what was told."""
        self._name = alike(projection) if reading.after < 0 else None
        """Under which all frames of this run can be kept."""
        self._pages: list[bytes] | None = [] if self._name else None
        """All frames so far, where none came by another way than this."""
        self._ready: Iterator[bytes] | None = None
        """All frames of a run that was read before."""
        self._buffer: list[bytes] = []
        self._size = 0
        self._joined: ClaimedRun | None = None
        self._ended = False
        self._cut = False
        self._gone = ""
        self._idle = False
        self._rang = False
        self._waiter: asyncio.Future[None] | None = None
        self._unlisten: Unlisten | None = None
        self._check_at = 0.0
        self._followed = False
        self._driven = False
        """Entries came while it waited at the end: another process drives the run, so the draft stands."""

    # the audience's side

    def push(self, data: bytes, *, last: bool = False) -> bool:
        """See LiveReader.push. A buffer that is empty takes anything: one frame may be larger than the bound. The one
        reader of a run in memory is never let go: its worker waits for it (Worker._reader_drained). The last frames are
        left to the reader, who must wake for the end anyway and then sends both in one go."""
        if self._size and self._size + len(data) > self._bound and not self._owns():
            return False
        if self._line is not None and not last and self._waiting() and self._line.write(data):
            self.active = True
            return True
        self._buffer.append(data)
        self._size += len(data)
        self._wake()
        return True

    def _owns(self) -> bool:
        return self._joined is not None and self._joined.in_memory

    def _waiting(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def detach(self, view: Any, seq: int) -> None:
        """See LiveReader.detach."""
        self._joined, self._view, self._seq = None, view, seq
        self._wake()

    def finish(self) -> None:
        """See LiveReader.finish."""
        self._ended = True
        self._wake()

    def backlog(self) -> int:
        """See LiveReader.backlog."""
        return self._size

    # the engine's side

    def cut(self) -> None:
        """Break the stream off without an end, also where its reader is stuck in the middle of a send."""
        self._cut = True
        self._wake()
        if self._line is not None:
            self._line.abort()

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

    def connect(self, line: Line) -> None:
        """From now on frames may go to this connection directly."""
        self._line = line

    async def next(self) -> News:
        """What to do next."""
        while True:
            if (news := self._at_hand()) is not None:
                return news
            if self._joined is not None:
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
            return StreamEnded()
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
        self._line = None
        if self._joined is not None:
            self._joined.leave(self._projection, self)
            self._joined = None
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
        if self._joined is not None and self._joined.in_memory:
            self._joined.wake()
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
        """One page from the journal; join the audience at the edge; else wait for a notification."""
        live = self._source.lives.get(self.run)
        if self._seq < 0 and live is not None and live.opened_with and live.owner == self.owner:
            self._step(live.opened_with)
        if self._join():
            return
        if self._unlisten is None:
            self._unlisten = self._source.notifier.listen(self.run, self._wake)
        self._rang = False
        if self._seq < 0 and await self._read_before():
            return
        records = await self._source.store_of(self.run).read(self.owner, self.run, self._seq)
        if not records:
            await self._no_more()
            return
        self._driven = self._followed
        for start in range(0, len(records), SLICE):
            if start:
                await asyncio.sleep(0)
            self._step(entries_of(self.run, records[start : start + SLICE]))
            if self._ended:
                return

    async def _no_more(self) -> None:
        """The end of what is committed: go live, or wait for a notification."""
        if self._join():
            return
        await self._still_there()
        if self._is_ahead():
            asyncio.get_running_loop().call_later(RETRY_S, self._wake)
        elif self._driven or not isinstance(self._projection, Patient):
            self._at_edge()
        await self._follow()

    async def _read_before(self) -> bool:
        """Have all frames been kept, of a run that is still there and this owner's?"""
        kept, name = self._source.kept, self._name
        pages = kept.frames(self.run, name) if name else None
        if name is None or pages is None:
            return False
        if await self._source.store_of(self.run).find(self.owner, self.run) is None:
            kept.forget(self.run)
            return False
        self._ready, self._pages = iter(pages), None
        return True

    async def _still_there(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._seq < 0 or now < self._check_at:
            return
        self._check_at = now + CHECK_S
        if not await self._source.store_of(self.run).read(self.owner, self.run, self._seq - 1):
            raise Damaged("the run was deleted")

    async def _follow(self) -> None:
        if self.run not in self._source.lives and self._seq < 0:
            raise Damaged(f"run {self.run} is gone")
        if not self._rang and not self._buffer:
            await self._news()
        self._followed = True

    def _at_edge(self) -> None:
        self._pages = None
        self._view, held = self._projection.live(self._view)
        self._add(held)

    def _join(self) -> bool:
        live = self._source.lives.get(self.run)
        if live is None or live.committed.seq != self._seq or live.gone or self._is_ahead():
            return False
        self._at_edge()
        live.join(self._projection, self._view, self)
        self._view = None
        self._joined = live
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        return True

    def _is_ahead(self) -> bool:
        """Has the reader named a position that the run has not reached? The audience cannot wait for it."""
        if self._ahead and isinstance(self._projection, Resumable):
            self._ahead = not self._projection.reached(self._view, self._seq)
        return self._ahead

    def _step(self, entries: Sequence[Entry]) -> None:
        """Fold and render some entries."""
        self._view, frames, last = render(self._projection, self._view, entries)
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

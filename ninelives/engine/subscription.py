"""One reader's place in one run. Owns: a bounded buffer of frames, and the three ways a reader gets them (catching up
from the journal, live from its audience, or following notifications where no worker of this process drives the run).

Theory of operation. A subscription always begins by folding the journal from entry 0 with its projection; frames up
to the position it asked for are dropped on the way. When its place equals the committed seq of a ClaimedRun, it joins
that audience in the same tick: no entry can come between, so there is no gap and no duplicate. When its buffer is full
the audience lets it go with the view and place it had; it sends what it has and catches up again. Nothing here can slow
the run.

A reader who catches up renders some entries, and the next ones when those have gone. So one who reads nothing costs a
page of records and a few frames. What is big it shares with others (replay.py). Refuses to know: sockets, and what is
in a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ninelives.core.errors import Damaged, WentBack
from ninelives.core.events import AttemptStarted, Entry, Terminal
from ninelives.core.rope import BIG, BigFrame, Frame, packed
from ninelives.engine.base import (
    RETRY_S,
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
from ninelives.engine.replay import LONG, Page, Recording, Standing
from ninelives.engine.run import ClaimedRun
from ninelives.journal.base import Store, Unlisten
from ninelives.journal.notifier import DRIVES
from ninelives.journal.values import StoreUnavailable

if TYPE_CHECKING:
    from ninelives.engine.readers import Readers

CHECK_S = 5.0
"""A reader at the end of a run that is not driven here looks this often whether it is still there."""
MANY = 16
"""Fewer entries are rendered one by one: to ask whether there is a faster way costs 20 us."""
ENDED, CUT = StreamEnded(), Cut()


@runtime_checkable
class Bulk(Protocol):
    """A projection that has a faster way to render many entries, and is never over before the run is."""

    def steps(self, view: Any, entries: Sequence[Entry]) -> tuple[Any, Sequence[Frame]]:
        """The same as `step` for each of them."""
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


class Subscription:
    """Ask `next()` until StreamEnded, Cut or Broken; then, or when the reader is gone, `close()`."""

    def __init__(self, source: Readers, owner: str, run: str, projection: Projection, after: int, bound: int) -> None:
        """`after` is the position that the reader names; -1 for all. `bound`: how many bytes its buffer may hold."""
        self.owner = owner
        self.run = run
        self._line: Line | None = None
        self.active = True
        """Set whenever something is sent; the ticker of Readers clears it."""
        self._source = source
        self._projection = projection
        self._bound = bound
        self._view: Any = projection.view0(after)
        self._seq = -1
        self._attempt = -1
        """Of the entry `_seq`."""
        self._ahead = after >= 0 and isinstance(projection, Resumable)
        """The reader names a position that may be beyond what was told."""
        kind = type(projection)  # a class says so for itself, not for those that are derived from it
        self._alike = kind.__qualname__ if kind.__dict__.get("replays_alike") else None
        """The name under which the frames of this projection can be kept: where every reader who begins at the
        beginning gets the same, and every reader has the same view once its position is reached, that of a live
        reader."""
        self._name = self._alike if after < 0 else None
        """Under which all frames of this run can be kept."""
        self._recording: Recording | None = None
        """All frames so far, where none came by another way than this."""
        self._ready: Iterator[bytes] | None = None
        """All frames of a run that was read before."""
        self._page: Page | None = None
        self._at = 0
        """What is next of this page."""
        self._standing: Standing | None = None
        """Where this page begins."""
        self._passed: list[Page] = []
        """Big pages before it: the view has their texts, so that the next reader shares them."""
        self._unsure = isinstance(projection, Patient)
        """Which drafts stand is not known yet."""
        self._buffer: list[Frame | Chunk] = []
        self._size = 0
        self._joined: ClaimedRun | None = None
        self._over: StreamEnded | Cut | Broken | None = None
        """What is said when the buffer is empty, and nothing after it."""
        self.restarted = False
        """The stream ended because another attempt began: what was sent cannot be recalled. It lacks the answer."""
        self._idle = False
        self._rang = False
        self._waiter: asyncio.Future[None] | None = None
        self._unlisten: Unlisten | None = None
        self._check_at = 0.0
        self._followed = False
        self._driven = False
        """Another process drives the run, so the draft stands: it says so, or entries came while this one waited at the
        end."""

    # the audience's side

    def push(self, parts: Sequence[Frame], size: int, *, last: bool = False) -> bool:
        """Take all these frames, or none: False when the buffer is full. One that is empty takes anything: a frame may
        be larger than the bound. The one reader of a run in memory is never let go: its worker waits for it
        (Worker._reader_drained). The last frames are left to the reader, who must wake for the end anyway and then
        sends both in one go."""
        if self._size and self._size + size > self._bound and not (self._joined and self._joined.in_memory):
            return False
        waits = self._waiter is not None and not self._waiter.done()
        if waits and self._line is not None and not last:
            only = parts[0] if len(parts) == 1 else None
            if isinstance(only, bytes) and self._line.write(only):
                self.active = True
                return True
        self._buffer += parts
        self._size += size
        self._wake()
        return True

    def detach(self, view: Any, seq: int) -> None:
        """Leave the audience: read on from the journal, after `seq`, with this view."""
        if self._joined is not None:
            self._attempt = self._joined.attempt
        self._joined, self._view, self._seq = None, view, seq
        self._wake()

    def finish(self) -> None:
        """The run has ended and everything was pushed."""
        self._over = ENDED
        self._wake()

    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        return self._size

    # the engine's side

    def cut(self) -> None:
        """Break the stream off without an end, also where its reader is stuck in the middle of a send."""
        if self._over is not ENDED:
            self._over = CUT
        self._wake()
        if self._line is not None:
            self._line.abort()

    def vanish(self, reason: str) -> None:
        """There is nothing left to read."""
        self._over = self._over or Broken(reason)
        self._wake()

    def tick(self) -> None:
        """Nothing came for a keepalive interval."""
        self._idle = True
        self._wake()

    @property
    def told(self) -> bool:
        """True when the reader was given everything, to the end."""
        return self._over is ENDED and not self._buffer

    # the reader's side

    def connect(self, line: Line) -> None:
        """From now on frames may go to this connection directly."""
        self._line = line

    async def next(self) -> News:
        """What to do next."""
        while True:
            if self._buffer:
                return self._take()
            if self._ready is not None and self._over is None and (page := self._kept_page(self._ready)) is not None:
                return Chunk(page)
            if self._over is not None:
                return self._over
            if self._idle:
                self._idle = False
                return Idle()
            try:
                if self._joined is None and not await self._catch_up():
                    continue
            except Damaged as error:
                return Broken(str(error))
            except StoreUnavailable as error:
                if not error.passing:
                    self.vanish(str(error))
                    continue
                asyncio.get_running_loop().call_later(RETRY_S, self._wake)  # its line is kept alive (P15)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def close(self) -> None:
        """The reader is gone, or has everything."""
        self._line = None
        if self._recording is not None:
            self._end_recording(self._recording)
        if self._joined is not None:
            self._joined.leave(self._projection, self)
            self._joined = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._source.forget(self)

    def _take(self) -> Chunk:
        """The next frames that wait: small ones together, a big one alone."""
        buffer, count, size = self._buffer, 1, len(self._buffer[0])
        while count < len(buffer) and size + len(buffer[count]) <= BIG:
            size += len(buffer[count])
            count += 1
        parts = buffer[:count]
        del buffer[:count]
        self._size -= size
        self._idle = False
        self.active = True
        if self._joined is not None and self._joined.in_memory:
            self._joined.wake()
        first = parts[0]
        if isinstance(first, Chunk):
            return first
        if isinstance(first, BigFrame):
            return self._source.shared.encoded(self.run, self._projection.name, first)
        return Chunk(first if len(parts) == 1 else b"".join(part for part in parts if isinstance(part, bytes)))

    def _kept_page(self, ready: Iterator[bytes]) -> bytes | None:
        self.active = True
        page = next(ready, None)
        if page is None:
            self._ready, self._over = None, ENDED
        return page

    def _wake(self) -> None:
        self._rang = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _catch_up(self) -> bool:
        """One page from the journal; join the audience at the edge. True: there is nothing more before a
        notification."""
        live = self._source.lives.get(self.run)
        if self._seq < 0 and live is not None and live.opened_with and live.owner == self.owner:
            self._step(live.opened_with)
        if self._join():
            return False
        if self._unlisten is None:
            self._unlisten = self._listen()
        self._rang = False
        if self._page is not None:
            await asyncio.sleep(0)  # others have their turn between two slices
        elif self._seq < 0 and await self._read_before():
            return False
        elif not await self._load():
            return await self._no_more()
        if self._page is not None:
            self._step(self._next_entries(self._page))
        return False

    def _listen(self) -> Unlisten:
        notifier = self._source.notifier
        unlisten = notifier.listen(self.run, self._wake)
        if not isinstance(self._projection, Patient):
            return unlisten
        also = notifier.listen(DRIVES + self.run, self._note_driver)

        def stop() -> None:
            unlisten()
            also()

        return stop

    def _note_driver(self) -> None:
        self._driven = True
        self._wake()

    def _next_entries(self, page: Page) -> Sequence[Entry]:
        entries = page.entries(self._at)
        self._at += len(entries)
        if self._at == len(page):
            self._page = None
            if page.big:
                self._passed.append(page)
        return entries

    async def _load(self) -> bool:
        """The next page from the journal, if there is one."""
        store = self._source.store_of(self.run)
        place = self._seq, self._attempt
        page = await self._source.shared.page(store, self.owner, self.run, place)
        if page is None:
            return False
        self._driven = self._driven or self._followed
        if self._unsure and self._seq >= 0:
            await self._look_at_attempts(store)
        self._page, self._at = page, 0
        if self._alike is not None and self._seq >= 0 and not (self._ahead and self._is_behind()):
            view, _ = self._projection.live(self._view)
            self._standing = self._source.shared.standing(self.run, self._alike, place, view)
            self._view = self._standing.view
        return True

    async def _look_at_attempts(self, store: Store) -> None:
        """Text of the last attempt need not wait for the end of its message. A run of one page is not worth this."""
        if not isinstance(self._projection, Patient):
            return
        live = self._source.lives.get(self.run)
        attempt = live.attempt if live is not None and not live.gone else await self._last_attempt(store)
        self._unsure = False
        if attempt:
            self._view = self._projection.stand(self._view, attempt)

    async def _last_attempt(self, store: Store) -> int:
        """The attempt that ended the run; 0 where it goes on."""
        row = await store.find(self.owner, self.run)
        last = await store.read(self.owner, self.run, row.last_seq - 1) if row is not None and row.ended else []
        return last[-1].attempt if last else 0

    async def _no_more(self) -> bool:
        """The end of what is committed: go live, or wait for a notification (True)."""
        if self._join():
            return False
        await self._still_there()
        if self._ahead and self._is_behind():
            asyncio.get_running_loop().call_later(RETRY_S, self._wake)
        elif self._driven or not isinstance(self._projection, Patient):
            self._at_edge()
        if self.run not in self._source.lives and self._seq < 0:
            raise Damaged(f"run {self.run} is gone")
        self._followed = True
        return not self._rang and not self._buffer

    async def _read_before(self) -> bool:
        """Have all frames been kept, of a run that is still there and this owner's?"""
        kept, name = self._source.kept, self._name
        if name is None:
            return False
        pages = kept.frames(self.run, name)
        if pages is None:
            self._recording = self._recording or kept.start(self.run, name)
            return False
        if await self._source.store_of(self.run).find(self.owner, self.run) is None:
            kept.forget(self.run)
            return False
        self._ready = iter(pages)
        return True

    async def _still_there(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._seq < 0 or now < self._check_at:
            return
        self._check_at = now + CHECK_S
        if not await self._source.store_of(self.run).read(self.owner, self.run, self._seq - 1):
            raise Damaged("the run was deleted")

    def _at_edge(self) -> None:
        if self._recording is not None:
            self._end_recording(self._recording)
        self._view, held = self._projection.live(self._view)
        self._add(held)

    def _join(self) -> bool:
        live = self._source.lives.get(self.run)
        if live is None or live.committed.seq != self._seq or live.gone or (self._ahead and self._is_behind()):
            return False
        self._at_edge()
        live.join(self._projection, self._view, self)
        self._view = None
        self._passed.clear()
        self._standing = None
        self._joined = live
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        return True

    def _is_behind(self) -> bool:
        """Has the run not reached the position that the reader named? The audience cannot wait for it."""
        if isinstance(self._projection, Resumable):
            self._ahead = not self._projection.reached(self._view, self._seq)
        return self._ahead

    def _check_loss(self, entries: Sequence[Entry]) -> None:
        """Raise WentBack where the reader was shown more than was left when the database lost events. Others may have
        these numbers now."""
        for n, entry in enumerate(entries):
            if not isinstance(entry.event, AttemptStarted) or not entry.event.lost:
                continue
            view, seq = self._view, entry.seq - 1
            for before in entries[:n]:
                view, _ = self._projection.step(view, before)
            if isinstance(self._projection, Resumable) and not self._projection.reached(view, seq):
                raise WentBack(self.run, entry.seq)

    def _step(self, entries: Sequence[Entry]) -> None:
        """Fold and render some entries."""
        if self._ahead:
            self._check_loss(entries)
        projection, view, last = self._projection, self._view, entries[-1]
        frames: Sequence[Frame]
        if len(entries) >= MANY and isinstance(projection, Bulk):
            view, frames = projection.steps(view, entries)
        else:
            frames = many = list[Frame]()
            for entry in entries:
                view, more = projection.step(view, entry)
                many += more
                if view.over:
                    last = entry
                    break
        self._view, self._seq, self._attempt = view, last.seq, last.attempt
        self._add(frames)
        over = isinstance(last.event, Terminal)
        if over or view.over:
            self._over, self._page = ENDED, None
            self.restarted = isinstance(last.event, AttemptStarted)
            if self._recording is not None:
                if over and self._seq >= LONG:
                    self._recording.done()
                self._end_recording(self._recording)

    def _add(self, frames: Sequence[Frame]) -> None:
        """Frames of the entry `_seq`, and of some before it."""
        if not frames:
            return
        parts = packed(frames)
        for place, part in enumerate(parts, -len(parts)):
            if self._recording is not None and not self._recording.has_room(len(part)):
                self._end_recording(self._recording)
            kept = self._shared_part((self._seq, place), part)
            if self._recording is not None:
                self._recording.add(kept)
            self._buffer.append(kept)
            self._size += len(part)

    def _shared_part(self, place: tuple[int, int], part: Frame) -> Frame | Chunk:
        """Big frames, once for all readers. The place counts from the end: a reader may have seen the first ones. A
        frame that is not encoded stays so, unless it is kept for later readers."""
        shared, name = self._source.shared, self._projection.name
        if isinstance(part, BigFrame):
            return part if self._recording is None else shared.encoded(self.run, name, part)
        return shared.same(self.run, name, place, part) if len(part) > BIG else part

    def _end_recording(self, recording: Recording) -> None:
        recording.stop()
        self._recording = None

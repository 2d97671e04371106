"""A run that this process drives. Owns: its two states, staged (what the worker has produced; only the writer sees
it) and committed (what a reader can reach), the entries between them, and the lanes on which its readers wait.

Theory of operation. The writer stages events: legality is decided by the fold, at once. After the commit it calls
`tell` with the entries and the state after them; only then do they exist for anybody else. `tell` is synchronous: it
steps each lane's view once, encodes once, and hands the same bytes to every subscription of that lane. A
subscription whose buffer is full is not waited for: it is given the view and place it had, leaves the lane, and goes
on from the journal by itself. Refuses to know: journals and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.core.events import AnyEvent, Entry
from holdfast.core.state import RunState
from holdfast.core.writing import Place, Writing, at
from holdfast.engine.base import Projection
from holdfast.journal.base import Mark, Record, Slice


class Reader(Protocol):
    """What a lane needs of a subscription."""

    def push(self, data: bytes, *, last: bool = False) -> bool:
        """Take frames; False when the buffer is full. `last`: the run ends with them, so finish() follows."""
        ...

    def detach(self, view: Any, seq: int) -> None:
        """Leave the lane: read on from the journal, after `seq`, with this view."""
        ...

    def finish(self) -> None:
        """The run has ended and everything was pushed."""
        ...

    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        ...

    def vanish(self, reason: str) -> None:
        """There is nothing left that could be read."""
        ...


class Lane:
    """All readers of one run in one dialect."""

    def __init__(self, projection: Projection, view: Any) -> None:
        self.projection = projection
        self.view = view
        self.readers: list[Reader] = []

    def tell(self, entries: list[Entry], *, last: bool = False) -> None:
        """Render once, push to all. `last`: the run ends with these."""
        before, view, step = self.view, self.view, self.projection.step
        if len(entries) == 1:
            view, frames = step(view, entries[0])
        else:
            frames = []
            for entry in entries:
                view, more = step(view, entry)
                frames += more
        self.view = view
        if not frames:
            return
        data = b"".join(frames) if len(frames) > 1 else frames[0]
        full: list[Reader] = []
        for reader in self.readers:
            if not reader.push(data, last=last):
                full.append(reader)
        for reader in full:
            self.readers.remove(reader)
            reader.detach(before, entries[0].seq - 1)
        if self.projection.over(view):
            for reader in self.readers:
                reader.finish()


class Live:
    """One run under one claim."""

    def __init__(self, state: RunState, attempt: int, *, owned: bool) -> None:
        self.owner = state.facts.accepted.owner
        self.run = state.facts.run
        self.attempt = attempt
        self.owned = owned
        """True where the connection owns the run: it has one reader, whose leaving ends it."""
        self.staging = Writing(state)
        self._committed: Place = (state, 0)
        self.lanes: dict[str, Lane] = {}
        self.lost = False
        self.lapsed = False
        """It was lost because the lease was over, or nobody drives it: it may still be held in our name."""
        self.held: Callable[[], bool] = lambda: True
        """Has the lease held since it was claimed (Lease.span)?"""
        self.let_go: Callable[[], None] = lambda: None
        """Called when it is lost: whatever its worker does must end."""
        self.poke: Callable[[], None] = lambda: None
        """Called when somebody left a signal for the holder."""
        self.progressed: Callable[[], None] | None = None
        """Called when entries of this attempt are committed."""
        self.waiter: asyncio.Future[None] | None = None
        self.pending_bytes = 0
        self.flushing = False
        self.queued = False
        self._watchers: list[asyncio.Future[None]] = []
        self._entries: list[Entry] = []
        self._records: list[Record] = []
        self._mark: Mark | None = None

    @property
    def staged(self) -> RunState:
        """What the worker has produced."""
        return self.staging.state

    @property
    def committed(self) -> RunState:
        """What a reader can reach."""
        if self._committed[1]:
            self._committed = (at(self._committed), 0)
        return self._committed[0]

    def stage(self, event: AnyEvent, data: bytes, at: int) -> None:
        """Add an event; IllegalEvent where the table has no cell for it."""
        staging, attempt = self.staging, self.attempt
        seq = staging.seq + 1
        entry = Entry(self.run, seq, at, attempt, event)
        staging.add(entry)
        self._entries.append(entry)
        self._records.append(Record(seq, attempt, at, data))
        self.pending_bytes += len(data)

    @property
    def pending(self) -> bool:
        """True while something staged is not committed."""
        return bool(self._mark or self._entries) or self.flushing

    def stage_mark(self, mark: Mark) -> None:
        """What is to change beside the log with the entries that are staged."""
        self._mark = mark

    def take(self) -> tuple[Slice, list[Entry], Place]:
        """All that is staged, for the writer."""
        part = Slice(self.run, self.attempt, self._records, self._mark)
        entries, self._entries, self._records, self._mark = self._entries, [], [], None
        self.pending_bytes = 0
        self.flushing = True
        self.queued = False
        return part, entries, self.staging.place

    def tell(self, entries: list[Entry], after: Place) -> None:
        """These entries are committed."""
        self._committed, ended = after, after[0].ended
        self.flushing = False
        if self.progressed is not None:
            self.progressed()
        if entries:
            for lane in tuple(self.lanes.values()):
                lane.tell(entries, last=ended)
        if ended:
            for lane in self.lanes.values():
                for reader in lane.readers:
                    reader.finish()
            self._over()
        self.wake()

    def lose(self) -> None:
        """Somebody else holds the run now: what was staged never happened, readers go back to the journal."""
        self.lost = True
        self.staging = Writing(self.committed)
        for lane in self.lanes.values():
            for reader in lane.readers:
                reader.detach(lane.view, self.committed.seq)
        self.lanes.clear()
        self._over()
        self.wake()
        self.let_go()

    def lapse(self) -> None:
        """It may be somebody else's now; if it is not, it is given back when its worker has ended."""
        self.lapsed = True
        self.lose()

    def break_off(self, reason: str) -> None:
        """A dialect could not render what is committed: its readers end with an error, the run goes on."""
        for lane in self.lanes.values():
            for reader in lane.readers:
                reader.vanish(reason)
        self.lanes.clear()

    def until_over(self) -> asyncio.Future[None]:
        """Done when the run has ended, or is not driven here any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(future)
        return future

    def _over(self) -> None:
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    def wake(self) -> None:
        """Let the worker look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def news(self) -> None:
        """Wait for the next commit, loss or drained reader. One waiter: the run's own worker."""
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter

    def join(self, projection: Projection, view: Any, reader: Reader) -> Lane:
        """A reader that has caught up to the committed state goes live."""
        lane = self.lanes.get(projection.name)
        if lane is None:
            lane = self.lanes[projection.name] = Lane(projection, view)
        lane.readers.append(reader)
        return lane

    def leave(self, projection: Projection, reader: Reader) -> None:
        """A reader goes; an empty lane goes with it."""
        lane = self.lanes.get(projection.name)
        if lane is not None and reader in lane.readers:
            lane.readers.remove(reader)
            if not lane.readers:
                del self.lanes[projection.name]

    def readers(self) -> int:
        """How many are live."""
        return sum(len(lane.readers) for lane in self.lanes.values())

    def backlog(self) -> int:
        """The longest queue of a reader, in bytes."""
        longest = 0
        for lane in self.lanes.values():
            for reader in lane.readers:
                longest = max(longest, reader.backlog())
        return longest

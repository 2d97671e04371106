"""Runs that are read from the journal. Owns: reading the state of a run, what readers of the same run share while they
read it, and what is kept of ended runs so that reading them again is cheap. Refuses to know: sockets, and who reads.

What is big is shared: a page with a big record, what it decodes to, the bytes of a big frame, and the view with its
texts. Each is there once for all readers who stand at the same place, and only while one of them needs it (R13).

States and frames of ended runs are kept in memory, both bounded in bytes, the longest unused going first. Nothing kept
is the truth, and nothing is shown from there before the store has said that the run is still there and its owner's: a
deleted run is gone at once, whoever deleted it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from ninelives.core import codec
from ninelives.core.events import Entry
from ninelives.core.rope import BIG, LARGE_BYTES, LARGE_WORK, BigFrame, Frame, alone
from ninelives.core.state import RunState, apply
from ninelives.core.state import start as start_state
from ninelives.engine.base import Chunk
from ninelives.journal.base import Store
from ninelives.journal.cache import BoundedCache
from ninelives.journal.values import Record, RunRow

SLICE = 512
"""Any loop over entries lets others run after so many, about 2 ms of work (R12)."""
LONG = 256
"""Shorter runs are not kept: to fold or render them again costs less than to look after them."""
STATE_BYTES = 16 * 1024 * 1024
FRAME_BYTES = 32 * 1024 * 1024


def entries_of(run: str, records: Sequence[Record]) -> list[Entry]:
    """Records with their meaning."""
    events = codec.decode_all([record.data for record in records])
    return [
        Entry(run, record.seq, record.at, record.attempt, event) for record, event in zip(records, events, strict=True)
    ]


class Page:
    """Some records of a run, in order."""

    def __init__(self, run: str, records: list[Record]) -> None:
        self._run = run
        self._records = records
        self._decoded: dict[int, Entry] = {}
        """Entries of big records."""
        self.big = any(len(record.data) > BIG for record in records)

    def __len__(self) -> int:
        return len(self._records)

    def entries(self, start: int) -> list[Entry]:
        """The next entries: a slice of small ones, or one that is big."""
        records = self._records
        if not self.big:
            return entries_of(self._run, records[start : start + SLICE])
        stop, end = start, min(start + SLICE, len(records))
        while stop < end and stop not in self._decoded and len(records[stop].data) <= BIG:
            stop += 1
        return entries_of(self._run, records[start:stop]) if stop > start else [self._big_entry(start)]

    def _big_entry(self, place: int) -> Entry:
        if place not in self._decoded:
            record = self._records[place]
            (self._decoded[place],) = entries_of(self._run, [record])
            self._records[place] = Record(record.seq, record.attempt, record.at, b"")
        return self._decoded[place]


class Standing:
    """The view of readers who stand at the same place."""

    def __init__(self, view: Any) -> None:
        self.view = view


class SharedReading:
    """What readers of the same run need at the same time. Only they keep it in memory."""

    def __init__(self) -> None:
        self._standings: WeakValueDictionary[tuple[str, str, tuple[int, int]], Standing] = WeakValueDictionary()
        self._pages: WeakValueDictionary[tuple[str, int, int], Page] = WeakValueDictionary()
        self._chunks: WeakValueDictionary[tuple[str, str, object], Chunk] = WeakValueDictionary()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def page(self, store: Store, owner: str, run: str, place: tuple[int, int]) -> Page | None:
        """The records after a place, which is an entry and its attempt; None where there are none. Readers of a run ask
        one after the other, so that a big page is read once."""
        lock = self._locks.get(run)
        if lock is None:
            lock = self._locks[run] = asyncio.Lock()
        async with lock:
            page = self._pages.get((run, *place))
            if page is not None and await store.find(owner, run) is not None:
                return page
            records = await store.read(owner, run, *place)
        if not records:
            return None
        page = Page(run, records)
        if page.big:
            self._pages[(run, *place)] = page
        return page

    def standing(self, run: str, name: str, place: tuple[int, int], view: Any) -> Standing:
        """A place in a run: readers who come there get the view of the first, with its texts."""
        found = self._standings.get((run, name, place))
        if found is None:
            found = self._standings[run, name, place] = Standing(view)
        return found

    def encoded(self, run: str, name: str, frame: BigFrame) -> Chunk:
        """A big frame."""
        chunk = self._chunks.get((run, name, frame.key))
        if chunk is None:
            chunk = self._chunks[run, name, frame.key] = Chunk(frame.encode())
        return chunk

    def same(self, run: str, name: str, place: tuple[int, int], data: bytes) -> Chunk:
        """Big frames that were rendered before, if another reader has them still."""
        chunk = self._chunks.get((run, name, place))
        if chunk is None or chunk.data != data:
            chunk = self._chunks[run, name, place] = Chunk(data)
        return chunk


class Recording:
    """All frames of an ended run, while its first reader gets them."""

    def __init__(self, kept: EndedRuns, run: str, name: str) -> None:
        self._kept = kept
        self.place = run, name
        self.pages: list[bytes] = []
        self.size = 0

    def has_room(self, size: int) -> bool:
        """May so many bytes more be kept?"""
        return self._kept.has_room(self, size)

    def add(self, part: Frame | Chunk) -> None:
        """Some more, for which there is room."""
        data = part.data if isinstance(part, Chunk) else part
        if isinstance(data, bytes):
            self.pages.append(data)

    def done(self) -> None:
        """That was all."""
        self._kept.record(*self.place, self.pages)

    def stop(self) -> None:
        """Nothing more comes."""
        self._kept.stop(self)


class EndedRuns:
    """What one process keeps of ended runs of one store."""

    def __init__(self) -> None:
        self._states: BoundedCache[str, RunState] = BoundedCache(STATE_BYTES)
        self._frames: BoundedCache[tuple[str, str], tuple[bytes, ...]] = BoundedCache(FRAME_BYTES)
        self._recordings: dict[tuple[str, str], Recording] = {}
        self._recorded = 0
        """Bytes of all recordings."""

    def start(self, run: str, name: str) -> Recording | None:
        """Keep the frames that a reader gets, unless another reader's are."""
        if (run, name) in self._recordings:
            return None
        made = self._recordings[run, name] = Recording(self, run, name)
        return made

    def has_room(self, recording: Recording, size: int) -> bool:
        """Room for so many bytes more?"""
        if recording.size + size > FRAME_BYTES // 2 or self._recorded + size > FRAME_BYTES:
            return False
        recording.size += size
        self._recorded += size
        return True

    def stop(self, recording: Recording) -> None:
        """It is over, or given up."""
        if self._recordings.pop(recording.place, None) is not None:
            self._recorded -= recording.size

    def note(self, state: RunState) -> None:
        """A run of some length has ended, or was found to have."""
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


def entry_of(run: str, record: Record) -> Entry:
    """A record with its meaning."""
    return Entry(run, record.seq, record.at, record.attempt, codec.decode(record.data))


async def decoded(run: str, records: Sequence[Record]) -> list[Entry]:
    """The same as entries_of(), in a thread where it would take long: a request can have ten megabytes."""
    size = sum(len(record.data) for record in records)
    if size <= LARGE_BYTES:
        return entries_of(run, records) if records else []
    return await asyncio.get_running_loop().run_in_executor(LARGE_WORK, alone, size, entries_of, run, records)


async def read_state(store: Store, owner: str, run: str) -> RunState | None:
    """Fold a run from the store, letting others run in between; None where the owner has no such run."""
    state: RunState | None = None
    after = -1
    while records := await store.read(owner, run, after):
        after = records[-1].seq
        for first in range(0, len(records), SLICE):
            for entry in await decoded(run, records[first : first + SLICE]):
                state = start_state(entry) if state is None else apply(state, entry)
            if len(records) > SLICE:
                await asyncio.sleep(0)
    return state


async def read_kept(store: Store, kept: EndedRuns, owner: str, run: str) -> RunState | None:
    """The same for a run that may have been folded before; the store says whether it is still there."""
    if kept.has(run) and (state := kept.state(await store.find(owner, run), run)) is not None:
        return state
    state = await read_state(store, owner, run)
    if state is not None and state.ended and state.seq >= LONG:
        kept.note(state)
    return state

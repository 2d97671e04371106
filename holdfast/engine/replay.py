"""Runs that have ended, read again. Owns: rendering pages of a journal in bulk, and what is kept of ended runs so that
reading them again is cheap: their states and their rendered frames, both bounded in bytes, the longest unused going
first. Nothing here is the truth, and nothing is shown from here before the store has said that the run is still there
and its owner's: a deleted run is gone at once, whoever deleted it. Refuses to know: what is in a frame."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from holdfast.core import codec
from holdfast.core.events import Entry
from holdfast.core.state import RunState
from holdfast.engine.base import Projection
from holdfast.journal.base import Record, Row

K = TypeVar("K")
V = TypeVar("V")
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


class Kept(Generic[K, V]):
    """Things in memory, bounded in bytes."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._things: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0

    def put(self, key: K, thing: V, size: int) -> None:
        """Keep it; what is larger than half the bound is not kept."""
        self.drop(key)
        if size > self._bound // 2:
            return
        self._things[key] = thing, size
        self.size += size
        while self.size > self._bound:
            self.size -= self._things.popitem(last=False)[1][1]

    def get(self, key: K) -> V | None:
        """What is kept under this key."""
        found = self._things.get(key)
        if found is None:
            return None
        self._things.move_to_end(key)
        return found[0]

    def drop(self, key: K) -> None:
        """Forget it."""
        found = self._things.pop(key, None)
        if found is not None:
            self.size -= found[1]


class Ended:
    """What one process keeps of ended runs of one store."""

    def __init__(self) -> None:
        self._states: Kept[str, RunState] = Kept(STATE_BYTES)
        self._frames: Kept[tuple[str, str], tuple[bytes, ...]] = Kept(FRAME_BYTES)

    def note(self, state: RunState) -> None:
        """A run has ended, or was found to have."""
        if state.ended and state.seq >= LONG:
            self._states.put(state.facts.run, state, weight(state))

    def has(self, run: str) -> bool:
        """Is its state kept?"""
        return self._states.get(run) is not None

    def state(self, row: Row | None, run: str) -> RunState | None:
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

    def forget_frames(self, run: str, name: str) -> None:
        """The run is gone."""
        self._frames.drop((run, name))


def weight(state: RunState) -> int:
    """About how many bytes a state of an ended run holds."""
    facts = state.facts
    said = sum(len(m.text) + len(m.reasoning) + len(m.refusal) for m in facts.messages)
    called = sum(len(call.arguments) for message in facts.messages for call in message.calls)
    given = len(codec.encode(facts.accepted))
    return 2 * (said + called + given + sum(len(result.output) for result in facts.results.values())) + 4096

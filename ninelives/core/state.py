"""The state of a run: the fold of its journal. Owns: RunState and the pure functions `apply` and `fold`; Writing, the
state of a run while text streams in. Refuses to know: time, ids, stores, and how any of this looks on the wire.

Theory of operation. Deltas are provisional, completions are facts. So a RunState has two halves. `facts` is replaced
only when a fact arrives. The draft (a rope of text and one of reasoning) grows by one piece per delta, in constant
time. Everything is immutable. A staged state and a committed one (engine/run.py) share most of their pieces, and a
reader may keep an old state.

A crash becomes visible at AttemptStarted. The draft is dropped (unless its model call was kept), the facts stay. Calls
that were started and not finished stay due, with the attempt that started them. TABLE decides which event may come
when. The few rules that need more than the phase (which call is open, whether a text equals its deltas) are in the
function of that event.

Once a text has begun, a further delta changes two fields of a RunState: its number and the length of its rope, whose
list all these states share. So Writing keeps one state and counts the deltas since. The state at any point is built on
demand, and it equals what `apply` gives (a test compares them). A delta that changes more (after reasoning, of a
refusal, with a full list) goes through `apply`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.errors import Damaged, IllegalEvent
from ninelives.core.rope import FULL, Rope, grow, join
from ninelives.core.table import STATUS, TABLE, Next, Phase, Status


class Thought(Struct, frozen=True):
    """Reasoning. `kept` is False where a crash cut it off; the text is then empty."""

    seq: int
    text: str
    kept: bool = True


class Said(Struct, frozen=True):
    """A message of the assistant. dropped: a crash cut the draft (G3). cut: a limit or the end of the run did."""

    seq: int
    text: str
    standing: Literal["whole", "cut", "dropped"] = "whole"
    refusal: str = ""


class Called(Struct, frozen=True):
    """A tool call as it was first started."""

    seq: int
    started: e.ToolStarted


class Handed(Struct, frozen=True):
    """A call that the caller must execute."""

    seq: int
    call: e.Call


class Returned(Struct, frozen=True):
    """The result of a tool call."""

    seq: int
    finished: e.ToolFinished


class Steered(Struct, frozen=True):
    """A steer, and how many messages of the assistant came before it."""

    after: int
    applied: e.SteerApplied


Item = Thought | Said | Called | Handed | Returned


class Due(Struct, frozen=True):
    """A call without a result. `attempt` is the last one that started it; 0: none has."""

    call: e.Call
    attempt: int = 0
    started: e.ToolStarted | None = None


class Facts(Struct, frozen=True):
    """The half of a state that only facts change."""

    accepted: e.RunAccepted
    run: str
    created_at: int
    updated_at: int
    attempt: int = 0
    attempt_seq: int = -1
    """Where the attempt began."""
    recoveries: int = 0
    """How often the run went on after a crash. A restart and an answered question do not count."""
    strikes: int = 0
    fresh: bool = False
    """True once this attempt wrote MessageCompleted, ToolFinished, ApprovalRequested or ApprovalGiven. Its death is no
    strike then, and earlier strikes are forgotten (R7). Other facts do not count as progress."""
    messages: tuple[e.MessageCompleted, ...] = ()
    items: tuple[Item, ...] = ()
    results: dict[str, e.ToolFinished] = {}
    due: dict[str, Due] = {}
    asked: e.ApprovalRequested | None = None
    """The open question to a person, if there is one."""
    approvals: dict[str, e.ApprovalGiven] = {}
    """Answers by call id, until the call starts."""
    calls: int = 0
    usage: e.Usage = e.Usage()
    usage_incomplete: bool = False
    dropped: tuple[tuple[int, int], ...] = ()
    """First and last number of each draft that a crash dropped."""
    steers: tuple[Steered, ...] = ()
    """What was written to the run while it worked, in order."""
    unused: tuple[str, ...] = ()
    """Ids of steers that came too late."""
    end: e.Terminal | None = None

    @property
    def steered(self) -> frozenset[str]:
        """Ids of the steers that were applied."""
        return frozenset(known.applied.id for known in self.steers)


class RunState(Struct, frozen=True):
    """A run after an entry of its journal. Only `start`, `apply` and `fold` (and Writing) build one."""

    facts: Facts
    phase: Phase
    seq: int
    drafting: bool = False
    """True while a message is provisional."""
    text: Rope | None = None
    text_seq: int = -1
    thought: Rope | None = None
    thought_seq: int = -1
    thoughts: tuple[Thought, ...] = ()
    refusal: Rope | None = None
    """The refusal of the message, which comes after its text."""
    ended: bool = False
    """True when nothing can follow."""

    @property
    def status(self) -> Status:
        """The status, as the Responses API names it."""
        return STATUS[self.phase]

    @property
    def draft_items(self) -> tuple[Item, ...]:
        """The items of the draft, as if the run ended here. They are shown while a run goes on."""
        return _pieces(self, "cut", kept=True)


def chainable(state: RunState) -> bool:
    """True for runs that another run may follow: completed ones, and those that a limit ended (C6)."""
    return state.phase in (Phase.COMPLETED, Phase.INTERRUPTED)


def hands_back(state: RunState) -> bool:
    """True where the last message calls functions of the caller: nothing but their results can follow it."""
    said = state.facts.messages
    return bool(said) and any(call.client for call in said[-1].calls)


def stopping(state: RunState) -> bool:
    """True where a cancel was written and only the end is missing."""
    return state.phase is Phase.STOPPING


def waiting(state: RunState) -> bool:
    """True where a person must answer first."""
    return state.phase is Phase.WAITING


def in_flight(state: RunState) -> list[str]:
    """Ids of calls that were started and have no result."""
    return [call_id for call_id, due in state.facts.due.items() if due.attempt > 0]


def between_steps(state: RunState) -> bool:
    """True where a worker may park the run and nothing will be repeated: no draft, no call in flight."""
    running = any(due.attempt == state.facts.attempt for due in state.facts.due.values())
    return not state.drafting and not running


def start(entry: e.Entry) -> RunState:
    """The state after the first entry of a run. Raises Damaged if it is not RunAccepted."""
    if entry.seq != 0 or not isinstance(entry.event, e.RunAccepted):
        raise Damaged(f"run {entry.run} does not begin with its acceptance")
    facts = Facts(accepted=entry.event, run=entry.run, created_at=entry.at, updated_at=entry.at)
    return RunState(facts=facts, phase=Phase.QUEUED, seq=0)


def apply(state: RunState, entry: e.Entry) -> RunState:
    """The state after `entry`. Raises IllegalEvent where the table has no cell, Damaged where a number is missing."""
    if entry.seq != state.seq + 1:
        raise Damaged(f"run {state.facts.run}: entry {entry.seq} follows {state.seq}")
    kind = type(entry.event)
    cell = TABLE[state.phase].get(kind)
    if cell is None:
        raise IllegalEvent(f"{kind.__name__} cannot come in phase {state.phase.name}")
    return _FOLD[kind](state, entry, entry.event, cell)


def fold(entries: Iterable[e.Entry]) -> RunState:
    """The state after all entries."""
    walk = iter(entries)
    state = start(next(walk))
    for entry in walk:
        state = apply(state, entry)
    return state


# One function per kind. Deltas are a thousand times as frequent as facts: they change six fields and no Facts.


def _text(state: RunState, entry: e.Entry, event: e.TextDelta, cell: Phase) -> RunState:
    if state.thought_seq >= 0:
        state = _close_thought(state)
    first = state.text_seq if state.text_seq >= 0 else entry.seq
    if event.refusal or state.refusal is not None:
        return _refusal(state, entry, event, first)
    text = grow(state.text, event.text)
    return RunState(state.facts, cell, entry.seq, True, text, first, None, -1, state.thoughts)


def _refusal(state: RunState, entry: e.Entry, event: e.TextDelta, first: int) -> RunState:
    if not event.refusal:
        raise IllegalEvent("text cannot follow a refusal in one message")
    if state.refusal is None and (not event.text or (state.text is not None and not join(state.text))):
        raise IllegalEvent("a refusal is not empty, and does not follow empty text")
    refusal = grow(state.refusal, event.text)
    return replace(state, phase=Phase.DRAFTING, seq=entry.seq, drafting=True, text_seq=first, refusal=refusal)


def _reasoning(state: RunState, entry: e.Entry, event: e.ReasoningDelta, cell: Phase) -> RunState:
    first = state.thought_seq if state.thought_seq >= 0 else entry.seq
    return RunState(
        state.facts,
        cell,
        entry.seq,
        True,
        state.text,
        state.text_seq,
        grow(state.thought, event.text),
        first,
        state.thoughts,
        state.refusal,
    )


def _begun(state: RunState, entry: e.Entry, event: e.CallBegun, cell: Phase) -> RunState:
    return replace(state, phase=cell, seq=entry.seq)


def _close_thought(state: RunState) -> RunState:
    closed = Thought(state.thought_seq, join(state.thought))
    return replace(state, thought=None, thought_seq=-1, thoughts=(*state.thoughts, closed))


def _pieces(state: RunState, standing: Literal["whole", "cut", "dropped"], *, kept: bool) -> tuple[Item, ...]:
    """The items of the draft, in the order in which they began."""
    items: list[Item] = list(state.thoughts)
    if state.thought_seq >= 0:
        items.append(Thought(state.thought_seq, join(state.thought) if kept else "", kept))
    if state.text_seq >= 0:
        text, refusal = (join(state.text), join(state.refusal)) if kept else ("", "")
        items.append(Said(state.text_seq, text, standing, refusal))
    return tuple(sorted(items, key=lambda item: item.seq))


def _draft_start(state: RunState) -> int:
    seqs = [state.text_seq, state.thought_seq, *(thought.seq for thought in state.thoughts)]
    return min(seq for seq in seqs if seq >= 0)


def _message(state: RunState, entry: e.Entry, event: e.MessageCompleted, cell: Next) -> RunState:
    facts = state.facts
    due = dict(facts.due)
    for call in event.calls:
        if call.id in due or call.id in facts.results:
            raise IllegalEvent(f"call id {call.id} is used twice")
        if not call.client:
            due[call.id] = Due(call)
    handed = tuple([Handed(entry.seq, call) for call in event.calls if call.client])
    facts = replace(
        facts,
        messages=(*facts.messages, event),
        items=facts.items + _message_items(state, entry.seq, event) + handed,
        due=due,
        calls=facts.calls + len(event.calls),
        usage=facts.usage.plus(event.usage),
        fresh=True,
        updated_at=entry.at,
    )
    return RunState(facts, Phase.ACTING if due else Phase.READY, entry.seq)


_CUT: dict[str, Literal["whole", "cut"]] = {"length": "cut", "content_filter": "cut"}


def _message_items(state: RunState, seq: int, event: e.MessageCompleted) -> tuple[Item, ...]:
    """The reasoning and the text of a message as items: those that its deltas began, else new ones at `seq`. Raises
    IllegalEvent where the message is not the sum of its deltas."""
    begun = state.text_seq >= 0
    thoughts = state.thoughts if state.thought_seq < 0 else _close_thought(state).thoughts
    if begun and (join(state.text), join(state.refusal)) != (event.text, event.refusal):
        raise IllegalEvent("a message must be the sum of its deltas")
    if thoughts and "".join([thought.text for thought in thoughts]) != event.reasoning:
        raise IllegalEvent("a message must be the sum of its deltas")
    items: list[Item] = [*thoughts]
    if event.reasoning and not thoughts:
        items.append(Thought(seq, event.reasoning))
    if begun or event.text or event.refusal:
        # The text of the event itself, not a copy: a run of many big messages would have each of them twice.
        standing = _CUT.get(event.finish, "whole")
        items.append(Said(state.text_seq if begun else seq, event.text, standing, event.refusal))
    return tuple(sorted(items, key=lambda item: item.seq))


def _attempt(state: RunState, entry: e.Entry, event: e.AttemptStarted, cell: Phase) -> RunState:
    facts = state.facts
    strike = not event.clean and state.phase is not Phase.WAITING  # waiting for a person costs no strike (D4)
    grew = event.keeps and state.drafting and state.seq > facts.attempt_seq  # text that stays is progress
    facts = replace(
        facts,
        attempt=entry.attempt,
        attempt_seq=entry.seq,
        recoveries=facts.recoveries + (not event.clean and facts.attempt > 0),
        strikes=0 if facts.fresh or grew else facts.strikes + strike,
        fresh=False,
        updated_at=entry.at,
    )
    if event.keeps:
        return replace(state, facts=facts, phase=state.phase if state.drafting else cell, seq=entry.seq)
    if state.drafting or (not event.clean and state.phase is Phase.READY):
        facts = replace(facts, usage_incomplete=True)
    if state.drafting:
        items = facts.items + _pieces(state, "dropped", kept=False)
        facts = replace(facts, items=items, dropped=(*facts.dropped, (_draft_start(state), state.seq)))
    return RunState(facts, cell, entry.seq)


def _started(state: RunState, entry: e.Entry, event: e.ToolStarted, cell: Phase) -> RunState:
    facts = state.facts
    call = event.call
    known = facts.due.get(call.id)
    if call.id in facts.results:
        raise IllegalEvent(f"call {call.id} has a result already")
    if known and known.attempt == entry.attempt:
        raise IllegalEvent(f"call {call.id} was started twice in one attempt")
    again = known is not None and known.attempt > 0
    items = facts.items if again else (*facts.items, Called(entry.seq, event))
    due = {**facts.due, call.id: Due(call, entry.attempt, event)}
    calls = facts.calls + (known is None)
    used = {key: given for key, given in facts.approvals.items() if key != call.id}
    facts = replace(facts, due=due, items=items, calls=calls, approvals=used, updated_at=entry.at)
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _finished(state: RunState, entry: e.Entry, event: e.ToolFinished, cell: Phase | Next) -> RunState:
    facts = state.facts
    known = facts.due.get(event.call_id)
    if known is None or known.attempt == 0:
        raise IllegalEvent(f"call {event.call_id} finished without a start")
    asked = facts.asked is not None and facts.asked.call.id == event.call_id
    if asked and state.phase is not Phase.STOPPING:  # after a cancel nobody answers: the call ends with the run
        raise IllegalEvent(f"call {event.call_id} waits for an approval")
    due = {key: value for key, value in facts.due.items() if key != event.call_id}
    facts = replace(
        facts,
        due=due,
        results={**facts.results, event.call_id: event},
        items=(*facts.items, Returned(entry.seq, event)),
        usage=facts.usage.plus(event.usage),
        fresh=True,
        updated_at=entry.at,
    )
    if isinstance(cell, Next):
        cell = Phase.ACTING if due else Phase.READY
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _progressed(state: RunState, entry: e.Entry, event: e.ToolProgressed, cell: Phase) -> RunState:
    if event.call_id not in state.facts.due:
        raise IllegalEvent(f"call {event.call_id} is not due")
    return _noted(state, entry, event, cell)


def _asked(state: RunState, entry: e.Entry, event: e.ApprovalRequested, cell: Phase) -> RunState:
    facts, call = state.facts, event.call
    if call.id in facts.results or call.id in facts.approvals:
        raise IllegalEvent(f"call {call.id} does not wait for an approval")
    due = facts.due if call.id in facts.due else {**facts.due, call.id: Due(call)}  # an agent may make calls by itself
    calls = facts.calls + (call.id not in facts.due)
    facts = replace(facts, asked=event, due=due, calls=calls, fresh=True, updated_at=entry.at)
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _given(state: RunState, entry: e.Entry, event: e.ApprovalGiven, cell: Phase) -> RunState:
    facts = state.facts
    if facts.asked is None or facts.asked.call.id != event.call_id:
        raise IllegalEvent(f"nobody asked about call {event.call_id}")
    approvals = {**facts.approvals, event.call_id: event}
    facts = replace(facts, asked=None, approvals=approvals, fresh=True, updated_at=entry.at)
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _steered(state: RunState, entry: e.Entry, event: e.SteerApplied, cell: Phase) -> RunState:
    facts = state.facts
    _check_steer(facts, event.id)
    steered = Steered(len(facts.messages), event)
    facts = replace(facts, steers=(*facts.steers, steered), updated_at=entry.at)
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _unused(state: RunState, entry: e.Entry, event: e.SteerUnused, cell: Phase) -> RunState:
    facts = state.facts
    _check_steer(facts, event.id)
    facts = replace(facts, unused=(*facts.unused, event.id), updated_at=entry.at)
    return replace(state, facts=facts, phase=cell, seq=entry.seq)


def _check_steer(facts: Facts, steer: str) -> None:
    if steer in facts.unused or steer in facts.steered:
        raise IllegalEvent(f"steer {steer} was settled before")


def _noted(state: RunState, entry: e.Entry, event: e.Event, cell: Phase) -> RunState:
    return replace(state, facts=replace(state.facts, updated_at=entry.at), phase=cell, seq=entry.seq)


def _end(state: RunState, entry: e.Entry, event: e.Terminal, cell: Phase) -> RunState:
    items = state.facts.items + _pieces(state, "cut", kept=True) if state.drafting else state.facts.items
    facts = replace(state.facts, items=items, end=event, due={}, asked=None, approvals={}, updated_at=entry.at)
    return RunState(facts, cell, entry.seq, ended=True)


_FOLD: dict[type[e.Event], Callable[[RunState, e.Entry, Any, Any], RunState]] = {
    e.AttemptStarted: _attempt,
    e.TextDelta: _text,
    e.ReasoningDelta: _reasoning,
    e.CallBegun: _begun,
    e.MessageCompleted: _message,
    e.ToolStarted: _started,
    e.ToolProgressed: _progressed,
    e.ToolFinished: _finished,
    e.ApprovalRequested: _asked,
    e.ApprovalGiven: _given,
    e.SteerApplied: _steered,
    e.SteerUnused: _unused,
    e.CancelRequested: _noted,
    e.RunCompleted: _end,
    e.RunFailed: _end,
    e.RunCancelled: _end,
    e.RunInterrupted: _end,
}


Place = tuple[RunState, int]
"""A state, and how many text deltas came after it."""


def at(place: Place) -> RunState:
    """The state at a place."""
    state, later = place
    if not later:
        return state
    rope = state.text
    assert rope is not None  # only Writing makes a place with later deltas
    text = Rope(rope.rest, rope.pieces, rope.count + later)
    return RunState(state.facts, state.phase, state.seq + later, True, text, state.text_seq, None, -1, state.thoughts)


class Writing:
    """A run at its newest event."""

    __slots__ = ("_length", "_pieces", "base", "drafting", "seq")

    def __init__(self, state: RunState) -> None:
        self.base = state
        """After it came text deltas only."""
        self.seq = state.seq
        self.drafting = state.drafting
        """True while a message is provisional."""
        self._pieces: list[str] | None = None
        rope = state.text
        if rope is None or state.refusal is not None or state.thought_seq >= 0 or len(rope.pieces) != rope.count:
            return
        if TABLE[state.phase].get(e.TextDelta) is state.phase:
            self._pieces, self._length = rope.pieces, rope.count

    @property
    def state(self) -> RunState:
        """The newest state."""
        if self.seq != self.base.seq:
            self.base = at((self.base, self.seq - self.base.seq))
        return self.base

    def add(self, entry: e.Entry) -> Writing:
        """The run with one entry more; this one is not used any more. Raises IllegalEvent where the table has no cell
        for it."""
        event, pieces = entry.event, self._pieces
        if (
            pieces is not None
            and type(event) is e.TextDelta
            and entry.seq == self.seq + 1
            and len(pieces) == self._length < FULL  # else the list is shared and longer, or it is full
            and not event.refusal
        ):
            pieces.append(event.text)
            self._length += 1
            self.seq += 1
            return self
        return Writing(apply(self.state, entry))

"""A run that this process holds. Owns: ClaimedRun, its two states (staged: what the worker has produced, which only the
writer sees; committed: what a reader can reach), its phase (claim.py) and its live readers; PendingOpening, a run on
its way into the store; Audience, all live readers of a run in one dialect; and the marks that go with an end or a
parking. Refuses to know: journals and agents.

Theory of operation. The writer stages events: legality is decided by the fold, at once. After the commit it calls
`tell` with the entries and the state after them; only then do they exist for anybody else. `tell` is synchronous: it
steps each audience's view once, encodes once, and hands the same bytes to every subscription. A subscription whose
buffer is full is not waited for: it is given the view and place it had, leaves the audience, and goes on from the
journal by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ninelives.core.errors import NinelivesError, store_not_asked
from ninelives.core.events import AnyEvent, ApprovalRequested, Entry, SteerApplied
from ninelives.core.history import new_messages
from ninelives.core.rope import Frame, packed
from ninelives.core.spec import json_list
from ninelives.core.state import Place, RunState, Writing, at, chainable, waiting
from ninelives.engine.base import LeaseSpan, Projection
from ninelives.engine.claim import LIFE, ClaimEvent, ClaimPhase, IllegalStep
from ninelives.journal.accounts.base import AuditEntry
from ninelives.journal.values import Mark, Record, Slice

if TYPE_CHECKING:
    from ninelives.engine.subscription import Subscription
    from ninelives.engine.work import QuarantineTurn

LAPSED, LOST = ClaimPhase.LAPSED, ClaimPhase.LOST
_HALTS = frozenset({ClaimEvent.ASK, ClaimEvent.CANCEL, ClaimEvent.FAIL, ClaimEvent.LAPSE, ClaimEvent.FENCE})
"""Events that stop the agent at once. Others wait for a safe point, or come from the agent itself."""


class ClaimLost(Exception):
    """Another holder has the run: stop at once, write nothing."""


class Audience(msgspec.Struct, eq=False):
    """All live readers of one run in one dialect."""

    projection: Projection
    view: Any
    readers: list[Subscription] = []

    def tell(self, entries: list[Entry], *, last: bool = False) -> None:
        """Render once, push to all. `last`: the run ends with these."""
        before, view, step = self.view, self.view, self.projection.step
        frames: Sequence[Frame]
        if len(entries) == 1:
            view, frames = step(view, entries[0])
        else:
            many: list[Frame] = []
            frames = many
            for entry in entries:
                view, more = step(view, entry)
                many += more
        self.view = view
        if not frames:
            return
        parts = packed(frames)
        size = sum(map(len, parts))
        full: list[Subscription] = []
        for reader in self.readers:
            if not reader.push(parts, size, last=last):
                full.append(reader)
        for reader in full:
            self.readers.remove(reader)
            reader.detach(before, entries[0].seq - 1)
        if view.over:
            for reader in self.readers:
                reader.finish()


class PendingOpening(msgspec.Struct, eq=False):
    """A run on its way into the store, with its first records. Nobody but its caller knows of it."""

    run: str
    part: Slice
    queued: bool = False
    """It is in the writer's next batch."""
    apart: ClassVar[bool] = False
    """See ClaimedRun.apart."""
    told_notable: bool = False
    """See ClaimedRun.told_notable."""
    is_open: bool = False
    gone: bool = False
    """The store did not take it: it never was."""
    refusal: NinelivesError | None = None
    """What its caller is told then."""
    waiter: asyncio.Future[None] | None = None

    def take(self) -> tuple[Slice, list[Entry], Any]:
        """What the writer writes."""
        self.queued = False
        return self.part, [], None

    def tell(self, entries: list[Entry], after: object) -> None:
        """The run is in the store."""
        self.is_open = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def lose(self, answer: NinelivesError | None = None) -> None:
        """The store did not take the run. `answer`: what its caller is told."""
        self.gone, self.refusal = True, answer or store_not_asked("the run was not stored")
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def opened(self) -> None:
        """Wait until the store has the run. Raises the answer for its caller where the store does not take it. If a
        caller is cancelled here, another may wait."""
        while not self.is_open:
            if self.refusal is not None:
                raise self.refusal
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter


class ClaimedRun:
    """One run under one claim."""

    def __init__(
        self,
        state: RunState,
        attempt: int,
        phase: ClaimPhase,
        lease: LeaseSpan,
        alone: QuarantineTurn | None = None,
        opened_with: Sequence[Entry] = (),
    ) -> None:
        """`alone`: the time that the run has alone, because it may be the one that kills the server (work.py)."""
        self.owner = state.facts.accepted.owner
        self.run = state.facts.run
        self.attempt = attempt
        self.phase = phase
        self.lease = lease
        self.opened_with = opened_with
        """All entries up to the claim, of a run that was opened here: its first readers need not ask the store."""
        self.in_memory = state.facts.accepted.spec.kept == "memory"
        """True where the run is in memory only: it has one reader, whose leaving ends it."""
        self.detached = state.facts.accepted.spec.on_disconnect == "detach"
        """True where the run goes on without its caller."""
        self.accepted = state.facts.accepted
        self.gone = False
        """True where the run may be somebody else's."""
        self.happened: set[ClaimEvent] = set()
        """What has happened to this claim so far."""
        self.halt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the agent must stop."""
        self.staging = Writing(state)
        """What the worker has produced."""
        self._committed: Place = (state, 0)
        self.audiences: dict[str, Audience] = {}
        self.pending_bytes = 0
        self.flushing = False
        self.queued = False
        """It is in the writer's next batch."""
        self._notable = False
        self.told_notable = False
        """There is something in what was taken last that the observer is told."""
        self._alone = alone
        self._waiter: asyncio.Future[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._entries: list[Entry] = []
        self._records: list[Record] = []
        self._mark: Mark | None = None
        self._audit: tuple[AuditEntry, ...] = ()
        self._steers: dict[str, SteerApplied] = {}

    # the claim

    def advance(self, event: ClaimEvent) -> None:
        """Something happened to the claim (claim.py). IllegalStep: it cannot, in this phase."""
        before = self.phase
        try:
            self.phase = LIFE[before][event]
        except KeyError:
            raise IllegalStep(f"{event.value} cannot happen to a claim that is {before.value}") from None
        self.happened.add(event)
        self.gone = self.phase is LOST or self.phase is LAPSED
        if self.gone and before is not self.phase:  # what was staged never happened
            self.staging = Writing(self.committed)
            self.dismiss()
        if event in _HALTS and self.phase is not ClaimPhase.RELEASED:
            self.stop()

    def stop(self) -> None:
        """The agent must stop now."""
        if not self.halt.done():
            self.halt.set_result(None)

    def lose(self) -> None:
        """The store refused a write: the run is somebody else's, or was deleted."""
        self.advance(ClaimEvent.FENCE)

    # steers

    def steer(self, steers: Iterable[SteerApplied]) -> bool:
        """What was written to the run, in order; True where something is new. What is known already changes nothing."""
        known = len(self._steers)
        for steer in steers:
            self._steers.setdefault(steer.id, steer)
        return len(self._steers) > known

    def pending(self) -> list[SteerApplied]:
        """See Steering.pending: the steers that the journal does not settle."""
        if not self._steers:
            return []
        facts = self.staging.state.facts
        settled = facts.steered.union(facts.unused)
        return [steer for steer in self._steers.values() if steer.id not in settled]

    # readers and writer

    def dismiss(self) -> None:
        """Nobody drives it here any more: readers go on from the journal."""
        for audience in self.audiences.values():
            for reader in audience.readers:
                reader.detach(audience.view, self.committed.seq)
        self.audiences.clear()
        self._tell_watchers()
        self.wake()

    # staged and committed

    @property
    def committed(self) -> RunState:
        """What a reader can reach."""
        if self._committed[1]:
            self._committed = (at(self._committed), 0)
        return self._committed[0]

    def stage(
        self, event: AnyEvent, data: bytes, at: int, *, notable: bool = False, audit: AuditEntry | None = None
    ) -> None:
        """Add an event; IllegalEvent where the table has no cell for it. `notable`: the observer is told. With an end
        or a question goes what they change beside the log; `audit` is what the audit log says of it."""
        attempt, seq = self.attempt, self.staging.seq + 1
        entry = Entry(self.run, seq, at, attempt, event)
        self.staging = self.staging.add(entry)
        self._entries.append(entry)
        self._records.append(Record(seq, attempt, at, data))
        self.pending_bytes += len(data)
        if notable:
            self._notable = True
            if self.staging.state.ended:
                self._mark = end_mark(self.staging.state)
            elif isinstance(event, ApprovalRequested):
                self._mark = _asking(at, event, parked=False)  # it must be found, also where the server dies before
        if audit is not None:
            self._audit += (msgspec.structs.replace(audit, at=at),)

    @property
    def unwritten(self) -> bool:
        """True while something staged is not committed."""
        return bool(self._mark or self._entries) or self.flushing

    @property
    def apart(self) -> bool:
        """True where what is staged must not hold the deltas of other runs: a slice with a mark takes longer. What
        follows a slice that is on its way takes the same way. The writer asks between two flushes of deltas."""
        return self._mark is not None or self.flushing

    def stage_mark(self, mark: Mark) -> None:
        """What is to change beside the log with the entries that are staged."""
        self._mark = mark

    def take(self) -> tuple[Slice, list[Entry], Place]:
        """All that is staged, for the writer."""
        part = Slice(self.run, self.attempt, self._records, self._mark, None, self._audit)
        entries, self._entries, self._records, self._mark, self._audit = self._entries, [], [], None, ()
        self.told_notable, self._notable = self._notable, False
        self.pending_bytes = 0
        self.flushing = True
        self.queued = False
        base = self.staging.base
        return part, entries, (base, self.staging.seq - base.seq)

    def tell(self, entries: list[Entry], after: Place) -> None:
        """These entries are committed."""
        self._committed, ended = after, after[0].ended
        self.flushing = False
        if self._alone is not None and self.committed.facts.fresh:
            self._alone.over()
        if entries:
            for audience in tuple(self.audiences.values()):
                audience.tell(entries, last=ended)
        if ended:
            for audience in self.audiences.values():
                for reader in audience.readers:
                    reader.finish()
            if self._watchers:
                self._tell_watchers()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # those who wait

    def break_off(self, reason: str) -> None:
        """A dialect could not render what is committed: its readers end with an error, the run goes on."""
        for audience in self.audiences.values():
            for reader in audience.readers:
                reader.vanish(reason)
        self.audiences.clear()

    def until_over(self) -> asyncio.Future[None]:
        """Done when the run has ended, or is not driven here any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(future)
        return future

    def _tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    def wake(self) -> None:
        """Let the worker look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until_committed(self, seq: int) -> None:
        """Wait until the run is committed up to `seq`. Only its worker may. ClaimLost: it never will be."""
        while self._committed[0].seq + self._committed[1] < seq:
            if self.gone:
                raise ClaimLost(self.run)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def news(self) -> None:
        """Wait for the next commit, loss or drained reader. One waiter: the run's own worker."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def join(self, projection: Projection, view: Any, reader: Subscription) -> Audience:
        """A reader that has caught up to the committed state goes live."""
        audience = self.audiences.get(projection.name)
        if audience is None:
            audience = self.audiences[projection.name] = Audience(projection, view)
        audience.readers.append(reader)
        return audience

    def leave(self, projection: Projection, reader: Subscription) -> None:
        """A reader goes; an empty audience goes with it."""
        audience = self.audiences.get(projection.name)
        if audience is not None and reader in audience.readers:
            audience.readers.remove(reader)
            if not audience.readers:
                del self.audiences[projection.name]

    def backlog(self) -> int:
        """The longest queue of a reader, in bytes."""
        longest = 0
        for audience in self.audiences.values():
            for reader in audience.readers:
                longest = max(longest, reader.backlog())
        return longest


# what changes beside the log


def end_mark(state: RunState) -> Mark:
    """The mark of a terminal state. A run that is not stored leaves a turn to its session only."""
    facts = state.facts
    resolved, stored = facts.accepted.resolved, facts.accepted.spec.kept == "stored"
    whole = chainable(state)
    remembers = resolved.remember and whole
    chains = whole and stored
    return Mark(
        status=state.status,
        at=facts.updated_at,
        ended=True,
        chains=chains,
        session=(resolved.session or "") if remembers else "",
        void=not whole,
        turns=partial(_turns, state, remembers=remembers) if chains or remembers else None,
    )


def _turns(state: RunState, *, remembers: bool) -> tuple[bytes, bytes]:
    """The whole turn, and the turn for its session if that is another one. A request that brought its own history into
    a session does not add that to what the session has (D1)."""
    accepted = state.facts.accepted
    resolved, said = accepted.resolved, msgspec.json.encode(new_messages(state))
    if not accepted.spec.has_history:
        return said, b""
    brought = remembers and resolved.session_turns is None and resolved.previous is None
    return b"".join(json_list(accepted.spec.history_json, said)), said if brought else b""


def parked_mark(at: int, state: RunState, *, left_at: int = 0) -> Mark:
    """The run waits for the next holder, for a person's answer until that expires, or for its caller. `left_at`: when
    that one was seen to have left, by the clock by which things expire."""
    if waiting(state):
        return _asking(at, state.facts.asked, parked=True)
    return Mark(status="queued", at=at, parked=True, left=left_at > 0, wake_at=left_at)


def _asking(at: int, asked: ApprovalRequested | None, *, parked: bool) -> Mark:
    if asked is None:
        raise ValueError("a run that waits for a person has a question")
    return Mark(status="waiting_for_approval", at=at, parked=parked, wake_at=asked.expires_at, asks=asked.code)

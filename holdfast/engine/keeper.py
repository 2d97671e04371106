"""Finds runs that nobody drives and drives them. Owns: the queue of claimable runs, slots, recovery after a crash, and
the strikes rule. Refuses to know: how a run is driven.

Theory of operation. At start every run that has not ended is claimable: the process that held them is gone. Each is
folded, then claimed with attempt + 1 (AttemptStarted is committed with the claim: the draft is dropped, facts stay),
then driven like any other. In a store that several processes share only those are claimable that nobody holds, and the
scout finds them, a few at a time. A run that has died without a new fact twice or more may be the one that kills the
server: such runs are tried one at a time (lineup.py), so that a poison run is found alone; after `strikes` such deaths
it is sealed as failed. A signal makes a run claimable out of turn, whatever the slots say."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.core import codec
from holdfast.core.errors import Damaged
from holdfast.core.events import AttemptStarted, Entry, RunFailed
from holdfast.core.state import RunState, apply, fold, start, waiting
from holdfast.engine.approvals import Waiting, concerns
from holdfast.engine.base import Limits, Log
from holdfast.engine.lease import Lease
from holdfast.engine.lineup import Lineup
from holdfast.engine.live import Live
from holdfast.engine.replay import Ended, entries_of
from holdfast.engine.scout import Scout
from holdfast.engine.writer import RETRY_S, ClaimLost, Writer
from holdfast.journal.base import Claim, Opened, Record, Store, StoreUnavailable

Drive = Callable[[Live], Awaitable[None]]
Work = Callable[[], Awaitable[None]]
EXPIRY_S = 1.0
UNREADABLE_S = 60.0
"""A run in a shared store that cannot be read here is left to others for so long: they may know more kinds of event."""


def entry_of(run: str, record: Record) -> Entry:
    """A record with its meaning."""
    return Entry(run, record.seq, record.at, record.attempt, codec.decode(record.data))


def live_of(opened: Opened, *, owned: bool) -> Live:
    """A run that was just opened and claimed."""
    return Live(fold(entry_of(opened.run, record) for record in opened.records), 1, owned=owned)


async def read_state(store: Store, owner: str, run: str, known: RunState | None = None) -> RunState | None:
    """Fold a run from the store, letting others run in between; None where the owner has no such run. With a `known`
    state only what came after it is folded; its last entry is read again, to see that the run is still there."""
    state: RunState | None = None
    after = known.seq - 1 if known is not None else -1
    while records := await store.read(owner, run, after):
        after = records[-1].seq
        for first in range(0, len(records), 512):
            for entry in entries_of(run, records[first : first + 512]):
                if known is not None and entry.seq <= known.seq:
                    state = known
                else:
                    state = start(entry) if state is None else apply(state, entry)
            if len(records) > 512:
                await asyncio.sleep(0)
    return state


async def read_kept(store: Store, kept: Ended, owner: str, run: str, known: RunState | None = None) -> RunState | None:
    """The same for a run that may have been folded before; the store says whether it is still there."""
    if kept.has(run) and (state := kept.state(await store.find(owner, run), run)) is not None:
        return state
    state = await read_state(store, owner, run, known)
    if state is not None:
        kept.note(state)
    return state


class Keeper:
    """Claims and recovery for the durable store."""

    def __init__(self, store: Store, writer: Writer, drive: Drive, limits: Limits, log: Log, lease: Lease) -> None:
        # Six parts meet here, as in a worker: who claims needs to know who writes, who drives and for how long.
        self._store = store
        self.lease = lease
        self._writer = writer
        self._drive = drive
        self._limits = limits
        self._log = log
        self._queue: deque[tuple[str, str, Work]] = deque()
        self._kick = asyncio.Event()
        self._lineup = Lineup()
        self._taken: set[str] = set()
        self.scout: Scout | None = None
        """Finds the runs that nobody holds, where other processes use the store too."""
        self.holder = ""
        self.now_ms: Callable[[], int] = lambda: 0
        self.spawn: Callable[[Awaitable[None]], None] = lambda work: None
        self.active = 0
        self.recovered = 0
        self.taken_over = 0
        self.sealed = 0
        self.stopping = False
        self.paused: str | None = None
        """Why no run is begun or gone on with now, though the server runs: the disk is short of room."""
        self.park: Callable[[], None] = lambda: None
        self.waiting = Waiting(self._wake)

    def _wake(self, owner: str, run: str) -> None:
        self.active += 1
        self.spawn(self._taking(owner, run))

    def join(self, scout: Scout) -> None:
        """Other processes use the store too: `scout` finds what can be claimed."""
        self.scout = scout
        scout.free = lambda: self._limits.concurrent_runs - self.active
        scout.may = lambda: not (self.stopping or self.paused or self.lease.over or self._writer.broken)
        self.lease.willing = lambda: not self._writer.broken
        scout.take = self._wake

    @property
    def queued(self) -> int:
        """How many wait for a slot."""
        return len(self._queue) + (self.scout.queued if self.scout is not None else 0)

    def in_line(self, *, stored: bool) -> int:
        """Behind how many a run would wait."""
        if self.scout is None:
            return len(self._queue)
        return self.scout.queued if stored else len(self._queue)

    def has_slot(self, *, stored: bool) -> bool:
        """True when a run may begin at once: nobody waits before it, and it is for us to drive it."""
        if stored and self.scout is not None and (self.scout.backlog or not self._limits.works or self.lease.over):
            return False
        return self.active < self._limits.concurrent_runs and not self._queue

    def takes(self, run: str) -> bool:
        """Is it being claimed, or driven after that?"""
        return run in self._taken

    def enqueue(self, owner: str, run: str, work: Work | None = None) -> None:
        """A run waits for a slot, in a shared store for whoever has one; `work` where it is claimed already."""
        if self.scout is not None and work is None:
            self.scout.opened()
            return
        self._queue.append((owner, run, work or (lambda: self._taking(owner, run))))
        self._kick.set()

    def release(self) -> None:
        """A slot is free."""
        self.active -= 1
        self._kick.set()
        if self.scout is not None:
            self.scout.released()

    def queues(self, run: str) -> bool:
        """True while the run waits for a slot."""
        return any(queued[1] == run for queued in self._queue)

    def urgent(self, owner: str, run: str) -> None:
        """A signal waits for a run that nobody drives: claim it out of turn."""
        if self.waiting.wake(run):
            return
        for queued in self._queue:
            if queued[:2] == (owner, run):
                self._queue.remove(queued)
                self.active += 1
                self.spawn(queued[2]())
                return
        if self.scout is not None:
            self.scout.seek_urgent()

    def answered(self, run: str) -> None:
        """A person has answered."""
        self.waiting.wake(run)
        if self.scout is not None:
            self.scout.seek_urgent()

    async def recover(self) -> None:
        """Queue every run that the last process left behind."""
        if self.scout is not None:
            self.scout.seek_urgent()
            return
        queued = {run for _, run, _ in self._queue}
        for owner, run in await self._store.claimable(1_000_000):
            if run not in queued:
                self.enqueue(owner, run)
        if self._queue:
            self._log.info("recovery_started", runs=len(self._queue))
        for owner, run, _ in list(self._queue)[max(0, self._limits.concurrent_runs - self.active) :]:
            if await self._store.signals(run):  # a wish waits for no slot, after a restart either
                self.urgent(owner, run)

    async def run(self) -> None:
        """Give slots to the queue, until cancelled."""
        while True:
            await self._kick.wait()
            self._kick.clear()
            while self._queue and self.active < self._limits.concurrent_runs and not (self.stopping or self.paused):
                _owner, _run, work = self._queue.popleft()
                self.active += 1
                self.spawn(work())

    async def watch_clock(self) -> None:
        """Let questions expire, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_S)
            if not self.stopping:
                self.waiting.expire(self.now_ms())
                await self._mind_room()

    async def _mind_room(self) -> None:
        """Park what runs while room is short; go on with it when there is room again."""
        short = self._store.upkeep.short()
        if short is not None and self.paused is None:
            self._log.error("storage_short", reason=short)
            self.park()
        elif short is None and self.paused is not None:
            self._log.info("storage_back")
            self.paused = None
            await self.recover()
        self.paused = short
        if short is None:
            self._kick.set()

    def _taking(self, owner: str, run: str) -> Awaitable[None]:
        self._lineup.expect()
        self._taken.add(run)
        return self._take(owner, run)

    async def _take(self, owner: str, run: str) -> None:
        try:
            await self._try(owner, run)
        except StoreUnavailable as error:
            self._log.error("run_not_recovered", run=run, reason=str(error), retried=error.passing)
            again = error.passing
        else:
            again = False
        finally:
            self._taken.discard(run)
            self.release()
        if again and self.scout is None:  # space may come back, and then the run must not wait for a restart (P13)
            await asyncio.sleep(RETRY_S)
            self.enqueue(owner, run)

    async def _try(self, owner: str, run: str) -> None:
        try:
            state = await self._look(owner, run)
            if state is not None and not state.ended and not await self.must_wait(owner, state):
                struck = state.facts.attempt > 0 and not state.facts.fresh and state.facts.strikes >= 1
                if struck:
                    await self._take_alone(owner, state)
                else:
                    await self._claim_and_drive(owner, state)
        except Damaged as error:
            self._log.error("run_not_recovered", run=run, reason=str(error))
            if self.scout is not None:
                self.scout.rest(run, UNREADABLE_S)

    async def _look(self, owner: str, run: str) -> RunState | None:
        try:
            return await read_state(self._store, owner, run)
        finally:
            self._lineup.known()

    async def must_wait(self, owner: str, state: RunState) -> bool:
        """True where a person has not answered yet: the run is left alone until a signal or the clock wakes it."""
        asked, run = state.facts.asked, state.facts.run
        if not waiting(state) or asked is None:
            return False
        if self.scout is not None:
            wished = concerns(state, await self._store.signals(run))
            return not wished and self.now_ms() < asked.expires_at and not self.scout.parks(run, asked.code)
        self.waiting.add(owner, run, asked.expires_at)
        wished = concerns(state, await self._store.signals(run))
        if wished or self.now_ms() >= asked.expires_at:
            return not self.waiting.forget(run)
        return True

    async def _take_alone(self, owner: str, state: RunState) -> None:
        """One suspect at a time, until its first new fact."""
        turn = await self._lineup.turn(state.facts.updated_at)
        try:
            live = None if self.stopping else await self._claim(owner, state)
            if live is not None:
                live.progressed = lambda: turn.over() if live.committed.facts.fresh else None
                await self._drive(live)
        finally:
            turn.over()

    async def _claim_and_drive(self, owner: str, state: RunState) -> None:
        live = await self._claim(owner, state)
        if live is not None:
            await self._drive(live)

    async def _claim(self, owner: str, state: RunState) -> Live | None:
        held = self.lease.span()
        if not held():  # the scout looked a while ago: nothing is begun without a lease
            return None
        run, cleanly = state.facts.run, True

        def first(attempt: int, clean: bool) -> bytes:
            nonlocal cleanly
            cleanly = clean
            return codec.encode(AttemptStarted(clean))

        claim = await self._store.claim(run, self.holder, first, self.now_ms())
        if claim is None:
            return None
        self.taken_over += not cleanly
        known = await self._after(owner, state, claim)
        if known is None or not held():
            self._writer.give_back(run, claim.attempt, known)
            return None
        live = Live(known, claim.attempt, owned=False)
        live.held = held
        if claim.attempt > 1:
            self.recovered += 1
            self._log.info("run_recovered", run=run, attempt=claim.attempt, strikes=known.facts.strikes)
        if known.facts.strikes >= self._limits.strikes:
            await self._seal(live)
            return None
        return live

    async def _after(self, owner: str, state: RunState, claim: Claim) -> RunState | None:
        """The state with the claim; None where it is gone. Where it cannot be read the claim is given back: nobody
        drives it, and our beats would keep it from all others (P4)."""
        try:
            if claim.record.seq == state.seq + 1:
                return apply(state, entry_of(claim.run, claim.record))
            return await read_state(self._store, owner, claim.run)
        except BaseException:
            self._writer.give_back(claim.run, claim.attempt, None)
            raise

    async def _seal(self, live: Live) -> None:
        """The run has killed the server too often: it is given up (G10)."""
        self.sealed += 1
        self._log.error("run_sealed", run=live.run, strikes=live.staged.facts.strikes)
        message = f"The run was given up: {self._limits.strikes} attempts ended without any progress."
        try:
            await self._writer.fact(
                live, RunFailed(code="server_error", message=message, reason="recovery_attempts_exceeded")
            )
        except ClaimLost:
            self._log.warning("claim_lost", run=live.run)

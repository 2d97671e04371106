"""Finds runs that nobody drives, claims them and has them driven. Owns: slots, when the store is asked for work and for
how much, a claim and the strikes rule (WorkFinder); who has slots and was served (Turns); how many wait, and whether
one more may (Queue); whose turn it is among the runs that may have killed the server (Quarantine). Refuses to know: how
a run is driven.

Theory of operation. Nothing waits in a process: a run that was taken in without a slot, was parked or lost its holder
is unclaimed in its store, and whoever has a slot takes it. SQLite is a cluster of one: there the only process finds
its own. A race for a run is decided by the claim. A notification ("work") says that there is some; a lost one costs one
round of polling. A run with a signal waits for no slot. Rounds never ask for more than could be begun, so a backlog of
any length costs nobody memory.

A place in the queue is taken before the store is asked to open a run, so requests that come at once cannot all get the
last one. Each round the finder asks the store what waits, because runs also come and go in other ways: a restart,
another replica, a deletion. What was opened or begun while the store was asked counts as it is known here.

A run that is found is folded, then claimed with attempt + 1 (AttemptStarted is committed with the claim: the draft is
dropped, facts stay), then driven like any other. A run that has died without a new fact twice or more may be the one
that kills the server: such runs are tried one at a time, so that a poison run is found alone; after `strikes` such
deaths it is given up as failed.

Suspects are tried in the order of their claims, the one that was claimed last first: it is the likeliest culprit,
because the others had their turn before it and the server lived on. So from its second turn on a poison run dies before
anybody else is claimed, and no other run takes a strike for it, however long that one needs to settle something. A turn
ends with the first new fact or after a share of the time that all have together: a suspect that is merely slow must not
keep the others waiting (P4)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from heapq import heappop, heappush

from msgspec import Struct

from ninelives.agents.base import DraftKeeper
from ninelives.core import codec
from ninelives.core.errors import ClientError, Damaged
from ninelives.core.events import AttemptStarted, RunFailed
from ninelives.core.state import RunState, apply
from ninelives.engine.base import WORK, CutOff, EngineLimits, EngineParts, LeaseSpan
from ninelives.engine.claim import ClaimEvent, ClaimPhase
from ninelives.engine.replay import entries_of, read_state
from ninelives.engine.run import ClaimedRun, ClaimLost
from ninelives.engine.workers import Claimed, Workers
from ninelives.engine.writer import Writer
from ninelives.journal.base import Store
from ninelives.journal.fair import Fairness
from ninelives.journal.values import Gone, StoreUnavailable

POLL_S = 0.7
URGENT_ROUNDS = 4
"""Every so many rounds a process without a slot looks for runs that a signal waits for."""
URGENT = 16
MOST_SURVIVORS = 1_000
MOST = 256
"""A round asks for at most so many runs."""
SERVED = 4096
"""Owners whose debts are remembered."""
UNREADABLE_S = 60.0
"""A run that cannot be read here is left alone for so long. In a shared store others may know more kinds of event."""
SHARED = 0.75
"""The part of the slots that one of several owners may fill."""
TURN_S = 2.0
ALL_S = 20.0
"""Within this time every suspect has had its turn: well below the 30 s of P4."""


class WorkFinder:
    """Gives the slots of one process to runs that wait for one."""

    def __init__(self, parts: EngineParts, holder: str, workers: Workers) -> None:
        self._parts = parts
        self._limits = parts.limits
        self._log = parts.log
        self._now_ms = parts.clock()
        self._holder = holder
        self._workers = workers
        self._unread: set[str] = set()
        """Runs that are about to be looked at and may turn out to be suspects."""
        self._quarantine = Quarantine(self._unread)
        self._kick = asyncio.Event()
        self._urgent = True
        self._taken: set[str] = set()
        self._begun: set[str] = set()
        """Runs that this round has begun."""
        self._count_at = 0.0
        self._owners: set[str] = set()
        """Who wanted a slot: the first two."""
        self._turns = Turns(parts.limits.weights)
        self.queue = Queue(parts.limits)
        self.backlog = False
        """The store has more than could be begun here: who comes now stands behind them."""
        self.stopping = False
        """Nothing is begun any more: the server ends."""
        self._writable = True
        self.shortage: str | None = None
        """Why no run is begun or gone on with now, though the server runs: the disk is short of room."""
        self.recovered = 0
        """Runs that were continued after a crash or a restart."""
        self.taken_over = 0
        """Those whose last holder died."""
        self.survivors: list[Gone] = []
        """The first of them, as (owner, run)."""
        self.restarted = 0
        """Those that another process had parked in order: a clean restart is no crash (G18)."""
        self.sealed = 0

    # slots

    @property
    def active(self) -> int:
        """How many slots are in use."""
        return self._turns.taken

    @property
    def queued(self) -> int:
        """How many runs wait to be claimed, as far as is known."""
        return len(self.queue)

    def takes(self, run: str) -> bool:
        """Is it being claimed, or driven?"""
        return run in self._taken or run in self._workers.by_run

    def take_slot(self, owner: str, *, in_memory: bool) -> bool:
        """Take a slot for a run that is about to be opened; False where it must wait: it is the turn of others, or it
        is not for us to drive it."""
        free = not self.stopping and self._has_slot(owner) and (not self.backlog or self._is_first(owner))
        taken = free and (in_memory or self._claims())
        if taken:
            self._turns.take(owner)
        return taken

    def _is_first(self, owner: str) -> bool:
        """Would a run of this owner be the next in any case? All who wait have more at work."""
        waiting = {place.owner for place in self.queue.waiting.values()}
        mine, next_of = self._turns.next_of(owner), self._turns.next_of
        return bool(waiting) and not self.queue.hides_some and all(mine < next_of(each) for each in waiting)

    def _has_slot(self, owner: str) -> bool:
        """Whether a slot is free, and an owner may take one more."""
        most = self._limits.concurrent_runs
        if self._turns.taken >= most:
            return False
        if len(self._owners) < 2:
            self._owners.add(owner)
        share = self._limits.owner_share or (1.0 if len(self._owners) < 2 else SHARED)
        return self._turns.slots[owner] < max(1, math.floor(most * share))

    def _claims(self) -> bool:
        """May a journaled run be begun here?"""
        able = self._limits.works and self._writable and self.shortage is None
        return able and not self._workers.lease.over

    def stop(self) -> None:
        """The server stops: nothing is begun any more."""
        self.stopping = True

    def give_up_writing(self) -> None:
        """Nothing can be written any more: only runs in memory are begun."""
        self._writable = False

    def release(self, owner: str) -> None:
        """A slot is free."""
        self._turns.give_back(owner)
        if self.backlog or self.queue.waiting:
            self._kick.set()

    def opened(self, run: str, place: QueuePlace) -> None:
        """One more waits."""
        self.queue.opened(run, place)
        self.backlog = True
        self._kick.set()

    def seek(self) -> None:
        """Look now: there may be a run to claim, and a signal may wait for one."""
        self._urgent = True
        self._kick.set()

    # rounds

    async def run(self) -> None:
        """Look whenever a notification says so, and now and then, until cancelled."""
        unlisten = self._parts.notifier.listen(WORK, self.seek)
        rounds = 0
        try:
            while True:
                self._kick.clear()
                urgent = self._urgent or rounds % URGENT_ROUNDS == 0
                self._urgent = False
                rounds += 1
                if (short := self._parts.durable.upkeep.short()) != self.shortage:
                    self._note_shortage(short)
                try:
                    await self._look(urgent)
                except CutOff:  # the engine ends: the next start finds what is left
                    return
                except StoreUnavailable as error:
                    self._log.warning("claimable_not_read", reason=str(error))
                except Exception as error:  # the edge of a task that must not end
                    self._log.error("finder_failed", error=repr(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._kick.wait()
        finally:
            unlisten()

    def _note_shortage(self, short: str | None) -> None:
        """Park what runs while room on the disk is short. The rounds that follow go on with it when there is room."""
        if short is not None and self.shortage is None:
            self._log.error("storage_short", reason=short)
            self._workers.park()
        elif short is None and self.shortage is not None:
            self._log.info("storage_back")
        self.shortage = short

    async def _look(self, urgent: bool) -> None:
        """Ask the stores what waits: as much as could be begun here, and now and then all that may wait, to count it.
        What is in memory is ours; what is in the durable store may not be for us to drive."""
        now, parts, queue = asyncio.get_running_loop().time(), self._parts, self._limits.queue
        counts, most, left, ours, found = now >= self._count_at, self._most(urgent), 0, 0, list[Gone]()
        if not (counts or most):
            self.backlog = self.queued > 0
            return
        known, self._begun = self.queue.waiting.copy(), set()
        fairness = Fairness(self._turns.weights, self._turns.debts())
        for store in (parts.memory, parts.durable):
            some = await store.claimable(max(most, queue + 1 if counts else 0), self._now_ms(), fairness)
            found += some
            if store is parts.memory or self._claims():
                ours += len(some)
                left += await self._begin(store, some[:most], urgent)
        self.backlog = left > 0 or (
            ours >= most and self._turns.taken >= self._limits.concurrent_runs if most else self.queued > 0
        )
        if counts:
            self._count_at = now + POLL_S
            more = len(found) > queue
            total = await parts.memory.peers.queued() + await parts.durable.peers.queued() if more else 0
            self.queue.answer(found, max(total, len(found)), known, self._begun)

    def _most(self, urgent: bool) -> int:
        """How many runs the stores are asked for, to begin them."""
        free = max(0, self._limits.concurrent_runs - self._turns.taken)
        if self.stopping or not (free or urgent):
            return 0
        return min(MOST, free + (URGENT if urgent else 0) + len(self._workers.resting))

    async def _begin(self, store: Store, found: list[Gone], urgent: bool) -> int:
        """Take runs that were found; how many must wait for a slot. A run with a signal waits for none."""
        left, busy = 0, (self._workers.resting, self._taken, self._workers.by_run)
        for owner, run in found:
            if any(run in each for each in busy):
                continue
            if not self._has_slot(owner) and not (urgent and await _is_wished(store, run)):
                left += 1
            elif not self.stopping and not any(run in each for each in busy):
                self._turns.take(owner)
                self.queue.waiting.pop(run, None)
                self._taken.add(run)
                self._begun.add(run)
                self._unread.add(run)
                self._workers.tasks.spawn(self._take(store, owner, run))
        return left

    # one run

    async def _take(self, store: Store, owner: str, run: str) -> None:
        """Claim and drive a run that was found."""
        turn: QuarantineTurn | None = None
        try:
            try:
                state = await read_state(store, owner, run)
            finally:
                self._unread.discard(run)
                asyncio.get_running_loop().call_soon(self._quarantine.begin_next)  # if it is a suspect, it asks first
            if state is None or state.ended:
                return
            # The claim below counts the death of the last attempt. With one strike in the journal it is the second.
            if state.facts.attempt > 0 and not state.facts.fresh and state.facts.strikes >= 1:
                turn = await self._quarantine.turn(state.facts.updated_at)
            if turn is None or not self.stopping:
                await self._claim_and_drive(store, owner, state, turn)
        except StoreUnavailable as error:  # the next round finds it again
            self._log.error("run_not_recovered", run=run, reason=str(error), retried=error.passing)
        except Damaged as error:
            self._log.error("run_not_recovered", run=run, reason=str(error))
            self._workers.rest(run, UNREADABLE_S)
        finally:
            if turn is not None:
                turn.over()
            self._taken.discard(run)
            self.release(owner)

    async def _claim_and_drive(self, store: Store, owner: str, state: RunState, alone: QuarantineTurn | None) -> None:
        in_memory = store is self._parts.memory
        writer, clean = self._workers.writers[in_memory], True
        span = LeaseSpan() if in_memory else self._workers.lease.span
        if not span.held():  # the finder looked a while ago: nothing is begun without a lease
            return

        agent = self._parts.agent_of(state.facts.accepted)
        keeps = isinstance(agent, DraftKeeper) and agent.keeps_draft(state)

        def first(attempt: int, was_clean: bool, lost: int) -> bytes:
            nonlocal clean
            clean = was_clean
            died = 0 if was_clean else self._parts.death_of(state.facts.updated_at)
            return codec.encode(AttemptStarted(clean=was_clean, lost=lost, died_at=died, keeps=keeps))

        claim = await store.claim(state.facts.run, self._holder, first, self._now_ms())
        if claim is None:
            return
        record, known = claim.record, None
        try:
            if record.seq == state.seq + 1:
                known = apply(state, *entries_of(claim.run, [record]))
            else:
                known = await read_state(store, owner, claim.run)
        except BaseException:  # nobody drives it, and our beats would keep it from all others (P4)
            writer.give_back(claim.run, claim.attempt, None)
            raise
        if known is None or not span.held():
            return writer.give_back(claim.run, claim.attempt, known)
        run = ClaimedRun(known, claim.attempt, ClaimPhase.CLAIMED, span, alone)
        self._count(run, known.facts.strikes, clean=clean)
        if known.facts.strikes >= self._limits.strikes:
            await self._give_up(run, writer)
        else:
            await self._workers.drive(run, Claimed(clean=clean, overdue=claim.overdue))

    def _count(self, run: ClaimedRun, strikes: int, *, clean: bool) -> None:
        parked_here = self._workers.parked.pop(run.run, False)
        self.taken_over += not clean
        if not clean and len(self.survivors) < MOST_SURVIVORS:
            self.survivors.append((run.owner, run.run))
        if run.attempt > 1:
            self.restarted += clean and not parked_here
            self.recovered += not (clean and parked_here)
            self._log.info("run_recovered", run=run.run, attempt=run.attempt, strikes=strikes, clean=clean)

    async def _give_up(self, run: ClaimedRun, writer: Writer) -> None:
        """The run has killed the server too often: it is given up (G10)."""
        self.sealed += 1
        self._log.error("run_sealed", run=run.run, strikes=run.staging.state.facts.strikes)
        message = f"The run was given up: {self._limits.strikes} attempts ended without any progress."
        run.advance(ClaimEvent.FAIL)
        try:
            await writer.fact(run, RunFailed(code="server_error", message=message, reason="recovery_attempts_exceeded"))
            self._workers.accounts.fail(run.accepted)
        except ClaimLost:
            self._log.warning("claim_lost", run=run.run)


async def _is_wished(store: Store, run: str) -> bool:
    """Whether a signal is pending that waits for no slot."""
    return any(signal.kind != "steer" for signal in await store.signals(run))


class QuarantineTurn:
    """One suspect's time alone."""

    def __init__(self, quarantine: Quarantine, seconds: float) -> None:
        self._quarantine = quarantine
        self._running = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self.over)

    def over(self) -> None:
        """The next one may begin. Only the first call counts."""
        if self._running:
            self._running = False
            self._timer.cancel()
            self._quarantine.done()


class Quarantine:
    """Suspects in the order of their turns."""

    def __init__(self, unread: Collection[str]) -> None:
        """`unread`: runs that may turn out to be suspects. Nobody begins before they are known."""
        self._waiting: list[tuple[int, int, asyncio.Future[QuarantineTurn]]] = []
        self._entered = 0
        self._unread = unread
        self._busy = False

    async def turn(self, claimed_at: int) -> QuarantineTurn:
        """Wait to be alone. Call `over()` on the result."""
        future: asyncio.Future[QuarantineTurn] = asyncio.get_running_loop().create_future()
        self._entered += 1
        heappush(self._waiting, (-claimed_at, self._entered, future))
        self.begin_next()
        return await future

    def done(self) -> None:
        """A turn is over."""
        self._busy = False
        self.begin_next()

    def begin_next(self) -> None:
        """Give the next one its turn, if there is one and nobody has to be waited for."""
        while self._waiting and not self._busy and not self._unread:
            share = ALL_S / len(self._waiting)
            _, _, future = heappop(self._waiting)
            if not future.done():
                self._busy = True
                future.set_result(QuarantineTurn(self, min(TURN_S, share)))


class Turns:
    """Who has slots and who was served, for one process. Each start of a run moves its owner on by one turn for its
    weight."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = weights
        self._next: dict[str, float] = {}
        self._now = 0.0
        self.slots: Counter[str] = Counter()
        """Slots that are in use, by owner."""
        self.taken = 0
        """All of them."""

    def take(self, owner: str) -> None:
        """A run of this owner gets a slot."""
        self.slots[owner] += 1
        self.taken += 1
        start = max(self._next.get(owner, 0.0), self._now)
        self._now, self._next[owner] = start, start + 1 / self.weights.get(owner, 1)
        if len(self._next) > SERVED:
            self._next = {name: turn for name, turn in self._next.items() if turn > self._now}

    def give_back(self, owner: str) -> None:
        """A run of this owner has let go of its slot."""
        self.taken -= 1
        self.slots[owner] -= 1
        if not self.slots[owner]:
            del self.slots[owner]

    def debts(self) -> dict[str, float]:
        """How many turns each owner has had before its time."""
        return {owner: turn - self._now for owner, turn in self._next.items() if turn > self._now}

    def next_of(self, owner: str) -> float:
        """When the next run of an owner has its turn."""
        return self.slots[owner] / self.weights.get(owner, 1) + max(0.0, self._next.get(owner, 0.0) - self._now)


class QueuePlace(Struct, frozen=True, eq=False):
    """A place in the queue: for a run that is being opened, or that waits."""

    owner: str
    size: int
    """Bytes of its request; 0 where it was opened by another process."""


class Queue:
    """What waits for a slot, as far as is known: ids, owners and sizes. The runs are in their store."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._opening: set[QueuePlace] = set()
        self.waiting: dict[str, QueuePlace] = {}
        self._more = 0
        """How many more the store has than it listed."""

    def __len__(self) -> int:
        return len(self.waiting) + self._more

    @property
    def hides_some(self) -> bool:
        """More wait than are known by their owners."""
        return self._more > 0

    def take(self, owner: str, size: int) -> QueuePlace | None:
        """A place for a run that is about to be opened; None: the queue is full. Call opened() or leave()."""
        if self._is_full(owner, size):
            return None
        place = QueuePlace(owner, size)
        self._opening.add(place)
        return place

    def _is_full(self, owner: str, size: int) -> bool:
        """Would one more be too much? A queue, or a share of it, that is empty takes a run of any size."""
        limits, count = self._limits, len(self) + len(self._opening)
        if count >= limits.queue:
            return True
        sizes = [(place.owner == owner, place.size) for place in (*self.waiting.values(), *self._opening)]
        own = [taken for mine, taken in sizes if mine]
        share, total = limits.queue_share, sum(taken for _, taken in sizes)
        return (
            len(own) >= math.ceil(limits.queue * share)
            or (count > 0 and total + size > limits.queue_bytes)
            or (len(own) > 0 and sum(own) + size > limits.queue_bytes * share)
        )

    def opened(self, run: str, place: QueuePlace) -> None:
        """The run of this place is in its store, and waits."""
        self._opening.discard(place)
        self.waiting[run] = place

    def leave(self, place: QueuePlace) -> None:
        """No run was opened."""
        self._opening.discard(place)

    def answer(self, found: Iterable[Gone], total: int, known: Container[str], begun: Container[str]) -> None:
        """What the store said: owners and runs, and how many there are in all. `known`: the runs that waited when it
        was asked; those that were opened since then wait too. `begun`: those that have a slot since then."""
        listed = {run: self.waiting.get(run) or QueuePlace(owner, 0) for owner, run in found}
        self._more = max(0, total - len(listed))
        opened = {run: place for run, place in self.waiting.items() if run not in known}
        self.waiting = {run: place for run, place in (listed | opened).items() if run not in begun}

    def refusal(self, active: int) -> ClientError:
        """The error for a run that finds no place."""
        return ClientError(
            "too_many_runs",
            f"{active} runs are active and {len(self)} wait: the queue or your share of it is full (limits.queue, "
            "limits.queue_bytes, limits.queue_share). Try again in a moment.",
            status=429,
            retry_after=2,
        )

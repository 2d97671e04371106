"""Submit, attach, look, wait, cancel, delete: the one door to runs. Owns: the parts of an engine and how they are
joined, what follows when a caller leaves, comparing what the store says with what is driven here, and the order of a
shutdown. There is one path for a run: whatever is kept of it, streamed or not. Refuses to know: dialects and HTTP."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Any

from ninelives.agents.approval import grant_of
from ninelives.core.admission import Asked, RunActive
from ninelives.core.errors import Damaged
from ninelives.core.events import Choice, Entry, ForkedFrom, SteerApplied
from ninelives.core.spec import Message, forked_spec, keeps_content
from ninelives.core.state import RunState
from ninelives.core.table import Phase
from ninelives.engine.admission import Admission, RequestLine
from ninelives.engine.base import RETRY_S, EngineParts, ForkOrder, Order, Tasks, Ticket, patiently
from ninelives.engine.claim import ClaimEvent
from ninelives.engine.lease import Lease
from ninelives.engine.readers import DeliveryTracker, Readers
from ninelives.engine.replay import decoded
from ninelives.engine.retention import Retainer
from ninelives.engine.work import WorkFinder
from ninelives.engine.workers import Workers
from ninelives.engine.writer import Writer
from ninelives.journal.answers import PersonAnswer, leave_answer, not_offered, not_pending
from ninelives.journal.fork import copied, fork_at, not_stored_fork
from ninelives.journal.listing import SessionLister
from ninelives.journal.steering import Steer, leave_steer, not_accepting, unused
from ninelives.journal.values import Gone, HeldRun, RunRow, Signal, StoreUnavailable

FOLLOW_S = 0.05
"""How often a server that stops looks whether its readers have the end of their runs."""
CANCEL_WAIT_S = 10.0


class Engine:
    """One process's engine. `await start()` before use, `await stop()` at the end."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.limits, self.new_id, self.durable = parts.limits, parts.new_id, parts.durable
        self.holder = holder = parts.holder or parts.new_id()
        self.now_ms = parts.clock()
        self._tasks = tasks = Tasks(parts.log)
        self.readers = readers = Readers(parts)
        self.lease = Lease(parts, holder, self)
        self._writers = writers = {
            False: Writer(parts, parts.durable, self.lease if parts.limits.lease_s < math.inf else None, self),
            True: Writer(parts, parts.memory, None, self),
        }
        self.lister = SessionLister(parts.durable.sessions, readers.look, lambda: bool(readers.lives), parts.log)
        self._workers = workers = Workers(parts, readers, writers, self.lease, tasks, self.lister)
        self.accounts = workers.accounts
        self._finder = WorkFinder(parts, holder, workers)
        self._deliveries = DeliveryTracker(parts, tasks)
        self.retainer = Retainer(parts, readers)
        self._admission = Admission(
            parts, holder, workers, self._finder, self._deliveries, partial(self.close, whole=False)
        )
        # The doors of its parts, as its own: see Admission and Readers.
        self.refuse_if_unable = self._admission.refuse_if_unable
        self.attach, self.look, self.wait = readers.subscribe, readers.look, readers.wait
        self._line = RequestLine(self, self._admission.submit)
        self._undriven: set[tuple[str, int]] = set()
        self._main: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Set when the engine has ended, by stop() or by a failure of its own."""
        self.failed = False

    @property
    def survivors(self) -> Sequence[Gone]:
        """The first runs that this process took over from one that died, as (owner, run)."""
        return self._finder.survivors

    @property
    def draining(self) -> bool:
        """Does the server stop?"""
        return self._admission.draining

    # life

    async def start(self, adopted: Collection[Gone] = ()) -> None:
        """Begin to write, tick, beat and recover. `adopted`: runs (owner, run) whose callers waited at the last process
        and are still connected."""
        await self._deliveries.strand(adopted)
        begun = asyncio.Event()
        self._main = asyncio.create_task(self._run(begun), name="engine")
        self._main.add_done_callback(self._note_end)
        await begun.wait()

    def _note_end(self, main: asyncio.Task[None]) -> None:
        """A part of the engine that fails takes all others with it: whoever serves must not go on as if nothing was."""
        if not main.cancelled() and (error := main.exception()) is not None:
            self._parts.log.error("engine_failed", trace="".join(traceback.format_exception(error)))
            self.failed = True
        self.ended.set()

    async def _run(self, begun: asyncio.Event) -> None:
        self._tasks.begin()
        try:
            async with asyncio.TaskGroup() as parts:
                for writer in self._writers.values():
                    parts.create_task(writer.run(), name="writer")
                    parts.create_task(writer.run_apart(), name="writer apart")
                parts.create_task(self.readers.tick(), name="keepalives")
                parts.create_task(self.lease.beat(), name="beat")
                parts.create_task(self.lease.watch(), name="lease")
                parts.create_task(self._finder.run(), name="finder")
                parts.create_task(self.lister.run(), name="sessions")
                parts.create_task(self.accounts.run(), name="accounts")
                parts.create_task(self.retainer.run(), name="retention")
                parts.create_task(self.retainer.run_forgetting(), name="forgetting")
                begun.set()
        finally:
            await self._tasks.end()

    async def drain(self, seconds: float, notice_s: float = 0.0, *, follows: bool = False) -> None:
        """Refuse new work; park journaled runs at a safe point, end the others; flush; cut the streams, but not before
        `notice_s` have passed. With `follows`, those who read a run that another process goes on with get its end
        here, if it comes within `seconds`."""
        loop = asyncio.get_running_loop()
        began, left = loop.time(), list(self._workers.by_run)
        await self.park(seconds)
        if follows and await self._has_peers():
            while loop.time() < began + seconds and any(map(self.readers.is_read, left)):  # noqa: ASYNC110
                await asyncio.sleep(FOLLOW_S)
        await asyncio.sleep(max(0.0, began + notice_s - loop.time()))
        self.readers.cut()

    async def park(self, seconds: float, *, keeps_calls: bool = False, keeps_clients: bool = False) -> None:
        """Refuse new work; park journaled runs at a safe point, end the others; flush. `keeps_calls`: model calls
        outlive this process, so messages need not end. `keeps_clients`: callers do so too."""
        self._admission.stop()
        self._finder.stop()
        self._deliveries.stop(keeps_clients=keeps_clients)
        await self._workers.drain(seconds, keeps_calls=keeps_calls)
        await self.accounts.flush()

    async def _has_peers(self) -> bool:
        """Is there another process that may go on with our runs?"""
        try:
            return sum(replica.works for replica in await self._parts.durable.peers.replicas()) > 1
        except StoreUnavailable:
            return False

    async def stop(self) -> None:
        """End all tasks."""
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)

    # what the parts tell (Notices)

    def lease_lapsed(self) -> None:
        """See Notices.lease_lapsed."""
        self._workers.lapse()

    def store_broke(self) -> None:
        """See Notices.store_broke."""
        self._finder.give_up_writing()
        self.lease.resign()
        self.readers.cut()

    async def beaten(self) -> None:
        """See Notices.beaten. A claim that nobody drives, seen at two beats, is given back: the answer to an opening or
        a claim may be on its way at the first."""
        await self._deliveries.strand()
        undriven: set[tuple[str, int]] = set()
        for held in await self.durable.peers.held(self.holder):
            if not self._finder.takes(held.run):
                undriven.add((held.run, held.attempt))
                self.readers.kept.forget(held.run)  # its end may have been lost with a database server
            else:
                self._compare(held)
        for run, attempt in undriven & self._undriven:
            self._parts.log.warning("claim_undriven", run=run, attempt=attempt)
            self._writers[False].give_back(run, attempt, None)
        self._undriven = undriven

    def _compare(self, held: HeldRun) -> None:
        """What the store knows of a run that is driven here, and no notification told."""
        if held.wished:
            self._workers.signalled(held.run)
        if held.left_ms > self.limits.leave_grace_s * 1000 and not self.readers.is_read(held.run):
            self._workers.leave_uncalled(held.run)

    # requests

    async def submit(self, order: Order) -> Ticket:
        """See Admission.submit. Call close() when the request is over. While another run of its conversation or session
        is active, the strategy of the order decides."""
        try:
            return await self._admission.submit(order)
        except RunActive as busy:
            if order.strategy == "reject":
                raise
            return await self._line.submit(order, busy)

    async def interrupt(self, owner: str, run: str, reason: str = "interrupted") -> None:
        """End a run at its next safe point, so that another one can follow it. What it did stands."""
        signal = Signal(run, "interrupt", "interrupt", reason.encode())
        store = self._parts.store_of(run)
        if await store.signal(owner, signal):
            self._workers.hear(run, await store.signals(run))
            self._finder.seek()

    async def find(self, owner: str, run: str) -> RunRow | None:
        """The catalog's row of a journaled run."""
        self.retainer.used(owner, run)
        return await self.durable.find(owner, run)

    async def entries(self, owner: str, run: str, after: int = -1) -> AsyncIterator[Entry]:
        """The committed entries of a journaled run, or those after a number."""
        while True:
            async with self.readers.looking(owner):
                entries = await decoded(run, await self.durable.read(owner, run, after))
            if not entries:
                return
            for entry in entries:
                yield entry
            after = entries[-1].seq
            await asyncio.sleep(0)

    async def history(self, state: RunState) -> tuple[Message, ...]:
        """What was said before a run."""
        return await self._workers.earlier.before(state.facts.accepted)

    async def waiting_with(self, owner: str, code: str) -> RunState | None:
        """The owner's run that asks the question with this code."""
        run = await self.durable.asking(owner, code)
        state = await self.look(owner, run) if run is not None else None
        asked = state.facts.asked if state is not None else None
        return state if asked is not None and asked.code == code else None

    async def cancel(self, owner: str, run: str) -> RunState | None:
        """Ask the holder to stop, wait (bounded) until it has; the state then. None: no such run."""
        if await self._parts.store_of(run).signal(owner, Signal(run, "cancel", "cancel")):
            self._workers.cancelling[run] += 1
            self._workers.cancel(run)
            self._finder.seek()
            try:
                async with asyncio.timeout(CANCEL_WAIT_S):
                    state = await self.look(owner, run)
                    while state is not None and not state.ended:  # a question may come while the signal is on its way
                        asked = state.facts.asked
                        state = await self.wait(owner, run, asked.code if asked is not None else "")
                    return state
            except TimeoutError:
                return await self.look(owner, run)
            finally:
                self._workers.cancelling -= Counter([run])
        return await self.look(owner, run)

    async def steer(self, owner: str, run: str, steer: Steer) -> None:
        """Write to a run while it works. What returns is stored, and is used before the next message of the model; or,
        where the run ends first, told as unused. Raises ClientError: 409 where it has ended, 429 beyond the bounds."""
        self._workers.hear(run, await leave_steer(self._parts.store_of(run), owner, run, steer))
        live = self.readers.lives.get(run)
        if live is not None and live.staging.state.ended:
            facts = live.staging.state.facts
            if steer.id not in facts.steered and not (steer.ends and steer.id in facts.unused):
                raise not_accepting()  # its end was on its way

    async def fork(self, owner: str, run: str, fork: ForkOrder) -> tuple[Ticket, int]:
        """A new run that begins with the facts of another one, up to an entry; and which entry that is. Nothing of it
        is done again. It stands alone: the history before it is copied, and it adds nothing to session and
        conversation. Raises ClientError where it cannot be forked there."""
        place = await fork_at(self.entries(owner, run), fork.from_seq, speaks=bool(fork.said))
        accepted = place.state.facts.accepted
        if not keeps_content(accepted.spec.kept):
            raise not_stored_fork()
        earlier = await self.history(place.state)
        spec = forked_spec(accepted.spec, earlier)
        asked = Asked(
            owner=owner,
            fingerprint=fork.fingerprint,
            key=fork.key,
            derived_session=accepted.resolved.session or "",
        )
        order = Order(owner=owner, spec=spec, asked=asked, size=len(spec.history_json), credential=fork.credential)
        source = ForkedFrom(run, place.seq, 0)
        ticket = await self._admission.open_fork(order, lambda new: copied(place, new, fork.said, fork.by), source)
        return ticket, place.seq

    async def unused_steers(self, state: RunState) -> list[SteerApplied]:
        """The steers that were accepted, and that the run has not used."""
        run = state.facts.run
        return unused(state.facts, await self._parts.store_of(run).signals(run))

    async def delete(self, owner: str, run: str) -> bool:
        """Cancel it if it is active, then hide it for ever; False where there is none."""
        row = await self.durable.find(owner, run)
        if row is None:
            return False
        if not row.ended:
            await self.cancel(owner, run)
        gone = await self.durable.delete(owner, run)
        self._workers.earlier.forget(owner, run)
        live = self.readers.lives.get(run)
        if live is not None:
            live.advance(ClaimEvent.FENCE)
        self.readers.vanish(run, "the run was deleted")
        self._parts.notifier.ring([run])  # whoever waits for its end without a stream
        return gone

    async def approve(self, owner: str, state: RunState, choice: Choice, by: str) -> None:
        """Answer the open question of a run; 409 where there is none or another answer came first."""
        asked = state.facts.asked
        if asked is None:
            raise not_pending()
        if choice not in asked.takes():
            raise not_offered(asked.takes())
        grant = grant_of(state, choice, self._parts.now_ms(), by)
        if grant is not None:
            await self.retainer.check_grant(grant)
        await leave_answer(self.durable, owner, state, PersonAnswer(choice, by, self._parts.new_id()))
        if grant is not None:
            await self.durable.grant(grant)
        self._finder.seek()

    # callers that go

    async def close(self, owner: str, ticket: Ticket, *, whole: bool, cut: bool = False) -> None:
        """A caller's request is over. `whole`: all that there is was handed to its connection, and that did not break.
        `cut`: it was not the caller who went: its stream could not go on.
        What follows for the run was settled when it was accepted (Spec.kept and Spec.on_disconnect): it goes on, is
        cancelled, or is parked until the same request comes again (B6, C4)."""
        if ticket.in_memory:
            await self._abandon_in_memory(owner, ticket.run)
        elif ticket.waited and whole:
            self._deliveries.answered(owner, ticket.run)
        elif ticket.rest and whole:
            await self._deliveries.rest_given(owner, ticket.run)
        elif not whole:
            cut = cut or self.draining
            if ticket.waited:
                await self._deliveries.lost(owner, ticket.run, left=not cut)
            if not cut and not ticket.watches:
                await self._left(owner, ticket.run)

    async def _abandon_in_memory(self, owner: str, run: str) -> None:
        """Nobody else can read it: it ends, and is deleted."""
        live = self.readers.lives.get(run)
        if live is not None and not live.committed.ended:
            self._tasks.spawn(self._cancel_and_delete(owner, run))
        else:
            await self._parts.memory.delete(owner, run)

    async def _cancel_and_delete(self, owner: str, run: str) -> None:
        await self.cancel(owner, run)
        await self._parts.memory.delete(owner, run)

    async def _left(self, owner: str, run: str) -> None:
        live = self.readers.lives.get(run)
        try:
            state = live.committed if live is not None else await patiently(lambda: self.look(owner, run))
        except Damaged as error:  # nobody here can go on with it anyway
            return self._parts.log.error("run_damaged", run=run, reason=str(error))
        if state is None or state.ended or state.facts.accepted.spec.on_disconnect == "detach":
            return
        self._tasks.spawn(self._stop_unread(owner, run, state.facts.accepted.spec.on_disconnect == "cancel"))

    async def _stop_unread(self, owner: str, run: str, cancels: bool) -> None:
        """After a grace, unless somebody came meanwhile. A run that another process drives is parked by that one, at
        its next beat (Notices.beaten)."""
        await asyncio.sleep(self.limits.leave_grace_s)
        while not self.readers.is_read(run) and not self.draining:
            if not cancels:
                return self._workers.leave(run)
            try:
                await self.cancel(owner, run)
                return None
            except StoreUnavailable as error:
                self._parts.log.warning("cancel_not_stored", run=run, reason=str(error))
                if not error.passing:
                    return None
                await asyncio.sleep(RETRY_S)

    # numbers

    def under_way(self) -> tuple[int, int]:
        """How many runs of this process work, and how many of them are in a tool: what a stop waits for."""
        phases = [worker.run.staging.state.phase for worker in self._workers.by_run.values()]
        return len(phases), phases.count(Phase.ACTING)

    def stats(self) -> dict[str, Any]:
        """Numbers for health and metrics."""
        return {
            "active": self._finder.active,
            "queued": self._finder.queued,
            "held": self._workers.held(),
            "recovered": self._finder.recovered,
            "taken_over": self._finder.taken_over,
            "restarted": self._finder.restarted,
            "sealed": self._finder.sealed,
            "fenced": self._writers[False].fenced,
            "beat_age_s": age if (age := self.lease.age_s()) is None else round(age, 3),
            "entries": sum(writer.entries for writer in self._writers.values()),
            "subscriptions": self.readers.count(),
            "evicted": self.retainer.evicted,
            "forgotten": self.retainer.forgotten,
            "writable": (failed := self._failed()) is None,
            "degraded": failed or self.durable.upkeep.short(),
        }

    def _failed(self) -> str | None:
        """Why nothing can be written now."""
        if self.failed:
            return "the engine failed; see the log, and restart the server"
        return self._writers[False].degraded or self.lease.trouble or self.durable.upkeep.trouble()

"""Submit, attach, look, wait, cancel, delete: the one door to runs. Owns: which of the two stores a run lives in
(durable, or memory for runs that the connection owns), the tasks of workers, admission to slots, and the order of a
shutdown. There is one path for a run: stored or not, streamed or not. Refuses to know: dialects and HTTP."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.core.events import Entry
from holdfast.core.state import RunState
from holdfast.engine.admit import Admission
from holdfast.engine.approvals import Answer, Choice, give, not_pending
from holdfast.engine.base import Order, Projection, Ticket
from holdfast.engine.callers import Callers, CutOff
from holdfast.engine.drivers import Drivers, Parts
from holdfast.engine.handover import Handover
from holdfast.engine.keeper import Keeper, entry_of, read_kept, read_state
from holdfast.engine.lease import Lease
from holdfast.engine.retention import Retainer
from holdfast.engine.scout import Scout
from holdfast.engine.subscription import Subscription
from holdfast.engine.writer import RETRY_S, patiently
from holdfast.journal.base import Query, Row, Signal, StoreUnavailable

CANCEL_WAIT_S = 10.0
LOOK_AGAIN_S = 3.0
"""Who waits for a run that another process drives looks this often by itself: a ring may be lost."""


class Engine:
    """One process's engine. `await start()` before use, `await stop()` at the end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.limits, self.new_id, self.durable = parts.limits, parts.new_id, parts.durable
        holder = parts.holder or parts.new_id()
        self._drivers = drivers = Drivers(parts, holder)
        self._hubs, self._writers = drivers.hubs, drivers.writers
        self._stored = partial(read_kept, parts.durable, self._hubs[True].kept)
        steady = parts.steady_ms
        seconds = (lambda: steady() / 1000) if steady is not None else None
        self.lease = Lease(parts.durable, holder, parts.limits, parts.log, seconds)
        self.keeper = Keeper(
            parts.durable, self._writers[True], drivers.drive_claimed, parts.limits, parts.log, self.lease
        )
        self.keeper.holder = holder
        self.keeper.now_ms = parts.clock()
        self.keeper.spawn = self._spawn
        self._drivers.asking = self.keeper.waiting
        self.handover = Handover(lambda: parts.durable.deliveries, parts.now_ms, parts.log)
        self.keeper.park = self._drivers.park
        self._writers[True].broke = self.cut
        self.retainer = Retainer(parts, self._hubs[True].being_read)
        self.admission = Admission(parts, drivers, self.keeper, self._spawn, self.left)
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self.failed = False
        self.fallen: Callable[[], None] = lambda: None
        """Called when the engine ends by a failure of its own."""
        self._shared = parts.durable.peers.shared
        self._callers = Callers(self._drivers.hub_of, self.look, parts.bell)
        self._callers.look_again_s = LOOK_AGAIN_S if self._shared else None
        drivers.spawn = self._spawn
        if self._shared:
            self._join_peers()

    def _join_peers(self) -> None:
        """Other processes use the store too."""
        parts, drivers = self._parts, self._drivers
        scout = Scout(parts.durable, parts.bell, parts.limits, parts.log)
        self.keeper.join(scout)
        scout.driven = lambda run: self.keeper.takes(run) or drivers.drives(run)
        drivers.parked = scout.seek_urgent
        self.lease.lapsed, self.lease.wished = drivers.lapse, drivers.heard
        drivers.span = self.lease.span
        self.lease.besides = self.handover.begin
        self._writers[True].mind_lease = self.lease.mind

    @property
    def draining(self) -> bool:
        """Does the server stop?"""
        return self.admission.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self.admission.draining = draining

    # life

    async def start(self) -> None:
        """Begin to write, tick, beat and recover."""
        await self.handover.begin()
        begun = asyncio.Event()
        self._main = asyncio.create_task(self._run(begun), name="engine")
        self._main.add_done_callback(self._ended)
        await begun.wait()

    def _ended(self, main: asyncio.Task[None]) -> None:
        """A part of the engine that fails takes all others with it: whoever serves must not go on as if nothing was."""
        if not main.cancelled() and (error := main.exception()) is not None:
            self._parts.log.error("engine_failed", trace="".join(traceback.format_exception(error)))
            self.failed = True
            self.fallen()

    async def _run(self, begun: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for writer in self._writers.values():
                tasks.create_task(writer.run(), name="writer")
            for hub in self._hubs.values():
                tasks.create_task(hub.tick(), name="hub ticker")
            tasks.create_task(self.keeper.run(), name="keeper")
            tasks.create_task(self.lease.beat(), name="beat")
            tasks.create_task(self.keeper.watch_clock(), name="clock")
            tasks.create_task(self.retainer.run(), name="retention")
            if self.keeper.scout is not None:
                tasks.create_task(self.lease.watch(), name="lease")
                tasks.create_task(self.keeper.scout.run(), name="scout")
            begun.set()
            await self.keeper.recover()

    def _spawn(self, work: Awaitable[None]) -> None:
        if self._tasks is None or self._main is None or self._main.cancelling():  # not begun, or at its end
            if isinstance(work, Coroutine):
                work.close()
            raise CutOff
        self._tasks.create_task(self._guard(work))

    async def _guard(self, work: Awaitable[None]) -> None:
        """The edge of every worker: one that fails must not take the others with it."""
        try:
            await work
        except CutOff:  # it wanted more work begun while the engine ends: the next start finds what is left
            return
        except Exception as error:
            self._parts.log.error("worker_failed", error=repr(error))

    async def drain(self, seconds: float) -> None:
        """Refuse new work; park stored runs at a safe point, end the others; flush; cut the streams."""
        self.draining = self.keeper.stopping = True
        self.handover.closing = not self._shared  # with others about, callers come back before any start of ours
        await self._drivers.drain(seconds, self.keeper.urgent)
        self.cut()

    def cut(self) -> None:
        """Break off every stream and every wait."""
        self._hubs[True].cut_all()
        self._callers.cut()

    async def stop(self) -> None:
        """End all tasks."""
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)

    async def submit(self, order: Order) -> Ticket:
        """See Admission.submit."""
        return await self.admission.submit(order)

    def refuse_if_unable(self, *, stored: bool) -> None:
        """See Admission.refuse_if_unable."""
        self.admission.refuse_if_unable(stored=stored)

    def attach(self, owner: str, run: str, projection: Projection, after: int = -1) -> Subscription:
        """A new reader of a run."""
        return self._drivers.hub_of(run).subscribe(owner, run, projection, after)

    def readers(self, run: str | None = None) -> int:
        """Open subscriptions, in all or of one run."""
        return sum(hub.readers(run) for hub in self._hubs.values())

    async def find(self, owner: str, run: str) -> Row | None:
        """The catalog's row of a stored run."""
        self.retainer.used(owner, run)
        return await self.durable.find(owner, run)

    async def look(self, owner: str, run: str, known: RunState | None = None) -> RunState | None:
        """The committed state of a run now; `known`: a state of it that was seen before."""
        for hub in self._hubs.values():
            live = hub.live(run)
            if live is not None and not live.lost:  # what was lost goes on elsewhere, or is gone
                return live.committed if live.owner == owner else None
        return await read_state(self._parts.memory, owner, run) or await self._stored(owner, run, known)

    async def entries(self, owner: str, run: str) -> AsyncIterator[Entry]:
        """The committed entries of a stored run."""
        after = -1
        while records := await self.durable.read(owner, run, after):
            for record in records:
                yield entry_of(run, record)
            after = records[-1].seq
            await asyncio.sleep(0)

    async def waiting_with(self, owner: str, code: str) -> RunState | None:
        """The owner's run that asks the question with this code."""
        query = Query(owner=owner, statuses=("waiting_for_approval",), limit=1000)
        for row in await self.durable.rows(query):
            state = await self.look(owner, row.run)
            if state is not None and state.facts.asked is not None and state.facts.asked.code == code:
                return state
        return None

    async def wait(self, owner: str, run: str, answered: str = "") -> RunState | None:
        """See Callers.wait."""
        return await self._callers.wait(owner, run, answered)

    async def cancel(self, owner: str, run: str) -> RunState | None:
        """Ask the holder to stop, wait (bounded) until it has; the state then. None: no such run."""
        hub = self._drivers.hub_of(run)
        wish = Signal(run, "cancel", "cancel")
        if await hub.journal.signal(owner, wish):
            self._drivers.wished[run] += 1
            live = hub.live(run)
            if live is not None:
                live.poke()
            if live is None or self.keeper.queues(run):  # one that waits for a slot need not wait to be stopped
                self.keeper.urgent(owner, run)
            if live is None:
                self._parts.bell.ring([f"signal:{run}"])
            try:
                async with asyncio.timeout(CANCEL_WAIT_S):
                    state = await self.look(owner, run)
                    while state is not None and not state.ended:  # a question may come while the wish is on its way
                        asked = state.facts.asked
                        state = await self.wait(owner, run, asked.code if asked is not None else "")
                    return state
            except TimeoutError:
                return await self.look(owner, run)
            finally:
                self._drivers.wished -= Counter([run])
        return await self.look(owner, run)

    async def delete(self, owner: str, run: str) -> bool:
        """Cancel it if it is active, then hide it for ever; False where there is none."""
        row = await self.durable.find(owner, run)
        if row is None:
            return False
        if not row.ended:
            await self.cancel(owner, run)
        gone = await self.durable.delete(owner, run)
        self._drivers.earlier.forget(owner, run)
        live = self._hubs[True].live(run)
        if live is not None:
            live.lose()
        self._hubs[True].vanish(run, "the run was deleted")
        self._parts.bell.ring([run])  # whoever waits for its end without a stream
        return gone

    async def left(self, owner: str, run: str) -> None:
        """A caller's request is over, however it ended: an owned run ends with it and is forgotten; one whose caller
        stops by leaving ends after a grace."""
        live = self._drivers.hub_of(run).live(run)
        if live is None:
            await self._parts.memory.delete(owner, run)
            if self._shared and run in self.admission.minded and not self.draining:
                self._spawn(self._left_elsewhere(owner, run))
            elif self.keeper.queues(run) and (state := await self.look(owner, run)) is not None:
                self._stops_by_leaving(state)
        elif live.owned:
            self._drivers.orphan(run)
            self.keeper.urgent(owner, run)
        else:
            self._stops_by_leaving(live.committed)
        self.admission.minded.pop(run, None)

    async def _left_elsewhere(self, owner: str, run: str) -> None:
        state = await patiently(lambda: self.look(owner, run))
        if state is not None:
            self._stops_by_leaving(state)

    def _stops_by_leaving(self, state: RunState) -> None:
        accepted = state.facts.accepted
        if accepted.spec.on_disconnect == "cancel" and not state.ended and not self.draining:
            self._spawn(self._cancel_unread(accepted.owner, state.facts.run))

    async def _cancel_unread(self, owner: str, run: str) -> None:
        await asyncio.sleep(self.limits.grace_s)
        while not self.readers(run) and not self._callers.wait_for(run) and not self.draining:
            try:
                await self.cancel(owner, run)
                return
            except StoreUnavailable as error:
                self._parts.log.warning("cancel_not_stored", run=run, reason=str(error))
                if not error.passing:
                    return
                await asyncio.sleep(RETRY_S)

    async def approve(self, owner: str, state: RunState, choice: Choice, by: str) -> None:
        """Answer the open question of a run; 409 where there is none or another answer came first."""
        asked = state.facts.asked
        if asked is None:
            raise not_pending()
        await give(self.durable, owner, state, Answer(choice, by, self._parts.new_id()))
        if choice in ("session", "always"):
            session = state.facts.accepted.resolved.session or ""
            await self.durable.grant(owner, session if choice == "session" else "", asked.call.name)
        self.keeper.answered(state.facts.run)

    def stats(self) -> dict[str, Any]:
        """Numbers for health and metrics."""
        return {
            "active": self.keeper.active,
            "queued": self.keeper.queued,
            "held": self._drivers.held(),
            "recovered": self.keeper.recovered,
            "taken_over": self.keeper.taken_over,
            "sealed": self.keeper.sealed,
            "fenced": self._writers[True].fenced,
            "beat_age_s": age if (age := self.lease.age_s()) is None else round(age, 3),
            "entries": sum(writer.entries for writer in self._writers.values()),
            "subscriptions": self.readers(),
            "evicted": self.retainer.evicted,
            "writable": (failed := self._failed()) is None,
            "degraded": failed or self.durable.upkeep.short(),
        }

    def _failed(self) -> str | None:
        """Why nothing can be written now."""
        return self._writers[True].degraded or self.lease.trouble() or self.durable.upkeep.trouble()

"""Submit, attach, look, wait, cancel, delete: the one door to runs. Owns: which of the two stores a run lives in
(durable, or memory for runs that the connection owns), the tasks of workers, admission to slots, and the order of a
shutdown. There is one path for a run: stored or not, streamed or not. Refuses to know: dialects and HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.admission import Asked, settled
from holdfast.core.errors import ClientError, ServerError
from holdfast.core.events import AttemptStarted, Entry, RunAccepted
from holdfast.core.spec import Resolved
from holdfast.core.state import RunState
from holdfast.engine.approvals import Answer, Choice, give, not_pending
from holdfast.engine.base import Order, Projection, Ticket
from holdfast.engine.callers import Callers, CutOff
from holdfast.engine.drivers import Drivers, Parts
from holdfast.engine.handover import Handover
from holdfast.engine.keeper import Keeper, entry_of, live_of, read_kept, read_state
from holdfast.engine.live import Live
from holdfast.engine.retention import Retainer
from holdfast.engine.subscription import Subscription
from holdfast.engine.writer import RETRY_S
from holdfast.journal.base import Attached, Opened, Opening, Query, Row, Signal, StoreUnavailable

CANCEL_WAIT_S = 10.0


class Engine:
    """One process's engine. `await start()` before use, `await stop()` at the end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.limits, self.new_id, self.durable = parts.limits, parts.new_id, parts.durable
        holder = parts.holder or parts.new_id()
        self._drivers = Drivers(parts, holder)
        self._hubs, self._writers = self._drivers.hubs, self._drivers.writers
        self.keeper = Keeper(parts.durable, self._writers[True], self._drivers.drive_claimed, parts.limits, parts.log)
        self._stored = partial(read_kept, parts.durable, self._hubs[True].kept)
        self.keeper.holder = holder
        self.keeper.now_ms = parts.clock()
        self.keeper.spawn = self._spawn
        self._drivers.asking = self.keeper.waiting
        self.handover = Handover(lambda: parts.durable.deliveries, parts.now_ms, parts.log)
        self.keeper.park = self._drivers.park
        self._writers[True].broke = self.cut
        self.retainer = Retainer(parts, self._hubs[True].being_read)
        self._chores, self.draining = 0, False
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._callers = Callers(self._drivers.hub_of, self.look, parts.bell)

    # life

    async def start(self) -> None:
        """Begin to write, tick, beat and recover."""
        await self.handover.begin()
        begun = asyncio.Event()
        self._main = asyncio.create_task(self._run(begun), name="engine")
        await begun.wait()

    async def _run(self, begun: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for writer in self._writers.values():
                tasks.create_task(writer.run(), name="writer")
            for hub in self._hubs.values():
                tasks.create_task(hub.tick(), name="hub ticker")
            tasks.create_task(self.keeper.run(), name="keeper")
            tasks.create_task(self.keeper.beat(), name="beat")
            tasks.create_task(self.keeper.watch_clock(), name="clock")
            tasks.create_task(self.retainer.run(), name="retention")
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
        self.draining = self.keeper.stopping = self.handover.closing = True
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
        """Admit a run, or attach to the one that its key names. A caller who goes away in the middle does not undo what
        the store has begun: an admitted run is driven, and its caller has left it."""
        if not order.spec.store:  # memory: nothing is awaited between the opening of the run and its first task
            return await self._admit(order)
        answer: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._spawn(self._answer(order, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._spawn(self.left(order.owner, answer.result().run))
            raise

    async def _answer(self, order: Order, answer: asyncio.Future[Ticket]) -> None:
        try:
            ticket = await self._admit(order)
        except Exception as error:  # the caller's, if there still is one
            if not answer.done():
                answer.set_exception(error)
        except BaseException:
            answer.cancel()
            raise
        else:
            if answer.done():
                await self.left(order.owner, ticket.run)
            else:
                answer.set_result(ticket)

    async def _admit(self, order: Order) -> Ticket:
        stored = order.spec.store
        self.refuse_if_unable(stored=stored)
        if order.spec.chore:
            return await self._chore(order)
        slot = self.keeper.has_slot()
        full = not slot and self.keeper.queued >= self.limits.queue
        if full and order.asked.key is None and order.asked.again is None:
            raise self._too_many()
        self.keeper.active += slot
        try:
            opened = await self._open(order, held=slot or not stored, full=full)
        except BaseException:
            self._return_slot(slot)
            raise
        if isinstance(opened, Attached):
            self._return_slot(slot)
            return await self._ticket(order.owner, opened)
        self._begin(order.owner, opened, slot=slot, stored=stored)
        return Ticket(opened.run, opened.resolved.session or "", waited=stored and bool(order.asked.credential))

    async def _chore(self, order: Order) -> Ticket:
        """A front end's errand: beside the slots, with a small limit of its own (B7)."""
        if self._chores >= self.limits.chores:
            raise ClientError("too_many_runs", "Too many chores at once. Try again.", status=429, retry_after=1)
        self._chores += 1
        try:
            opened = await self._open(order, held=True)
        except BaseException:
            self._chores -= 1
            raise
        if not isinstance(opened, Opened):
            raise TypeError("a chore has no idempotency key")
        live = live_of(opened, owned=True)
        self._drivers.register(live)
        self._spawn(self._do_chore(live))
        return Ticket(opened.run, opened.resolved.session or "")

    async def _do_chore(self, live: Live) -> None:
        try:
            await self._drivers.drive(live)
        finally:
            self._chores -= 1

    def _return_slot(self, slot: bool) -> None:
        if slot:
            self.keeper.release()

    def _begin(self, owner: str, opened: Opened, *, slot: bool, stored: bool) -> None:
        """Drive it now, or let it wait: a stored run unclaimed, an owned one in memory."""
        if stored and not slot:
            self.keeper.enqueue(owner, opened.run)
            return
        live = live_of(opened, owned=not stored)
        self._drivers.register(live)
        if slot:
            self._spawn(self._fresh(live))
        else:
            self.keeper.enqueue(owner, opened.run, lambda: self._fresh(live))

    def refuse_if_unable(self, *, stored: bool) -> None:
        """503 while the server stops or, for what is to be stored, the store takes nothing."""
        if self.draining:
            raise ServerError("shutting_down", "The server is shutting down. Try again in a moment.", retry_after=5)
        if stored:
            self._writers[True].refuse_if_degraded(self.durable.upkeep.short())

    async def _open(self, order: Order, *, held: bool, full: bool = False) -> Opened | Attached:
        """Ask the store. In a `full` house a known key or a lost place is answered all the same (house rule 6.16)."""
        parts = self._parts
        asked, spec = order.asked, order.spec
        store, prepared = parts.durable, None
        if not spec.store:
            prepared = settled(asked) or await parts.durable.resolve(asked)
            store, asked = parts.memory, Asked(owner=order.owner, fingerprint="", store=False)

        def accept(resolved: Resolved) -> list[bytes]:
            if full:
                raise self._too_many()
            accepted = RunAccepted(spec=spec, resolved=prepared or resolved, owner=order.owner)
            return [codec.encode(accepted)] + ([codec.encode(AttemptStarted())] if held else [])

        opening = Opening(
            run=parts.new_id(),
            at=parts.now_ms(),
            dialect=spec.dialect,
            model=spec.model,
            asked=asked if asked.fresh_conversation else replace(asked, fresh_conversation=f"conv_{parts.new_id()}"),
            accept=accept,
            holder=self.keeper.holder if held else None,
            metadata=msgspec.json.encode(spec.metadata),
        )
        try:
            opened = await store.open(opening)
        except StoreUnavailable as error:
            raise ServerError("storage_full", f"The run cannot be stored: {error}.", retry_after=5) from error
        if prepared is not None and isinstance(opened, Opened):
            return Opened(opened.run, prepared, opened.records)
        return opened

    def _too_many(self) -> ClientError:
        return ClientError(
            "too_many_runs",
            f"{self.keeper.active} runs are active and {self.keeper.queued} wait. Try again in a moment.",
            status=429,
            retry_after=2,
        )

    async def _ticket(self, owner: str, found: Attached) -> Ticket:
        row = await self.durable.find(owner, found.run)
        return Ticket(found.run, row.session if row else "", attached=not found.again, waited=found.again)

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

    async def look(self, owner: str, run: str) -> RunState | None:
        """The committed state of a run now."""
        for hub in self._hubs.values():
            live = hub.live(run)
            if live is not None and not live.lost:  # what was lost goes on elsewhere, or is gone
                return live.committed if live.owner == owner else None
        return await read_state(self._parts.memory, owner, run) or await self._stored(owner, run)

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
                    asked = state.facts.asked if state is not None else None
                    return await self.wait(owner, run, asked.code if asked is not None else "")
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
        return gone

    async def left(self, owner: str, run: str) -> None:
        """A caller's request is over, however it ended: an owned run ends with it and is forgotten; one whose caller
        stops by leaving ends after a grace."""
        live = self._drivers.hub_of(run).live(run)
        if live is None:
            await self._parts.memory.delete(owner, run)
            if self.keeper.queues(run) and (state := await self.look(owner, run)) is not None:
                self._stops_by_leaving(state)
        elif live.owned:
            self._drivers.orphan(run)
            self.keeper.urgent(owner, run)
        else:
            self._stops_by_leaving(live.committed)

    def _stops_by_leaving(self, state: RunState) -> None:
        accepted = state.facts.accepted
        if accepted.spec.on_disconnect == "cancel" and not self.draining:
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

    async def _fresh(self, live: Live) -> None:
        try:
            await self._drivers.drive(live)
        finally:
            self.keeper.release()

    async def approve(self, owner: str, state: RunState, choice: Choice, by: str) -> None:
        """Answer the open question of a run; 409 where there is none or another answer came first."""
        asked = state.facts.asked
        if asked is None:
            raise not_pending()
        await give(self.durable, owner, state, Answer(choice, by, self._parts.new_id()))
        if choice in ("session", "always"):
            session = state.facts.accepted.resolved.session or ""
            await self.durable.grant(owner, session if choice == "session" else "", asked.call.name)
        self.keeper.waiting.wake(state.facts.run)

    def stats(self) -> dict[str, Any]:
        """Numbers for health and metrics."""
        return {
            "active": self.keeper.active,
            "queued": self.keeper.queued,
            "recovered": self.keeper.recovered,
            "sealed": self.keeper.sealed,
            "fenced": self._writers[True].fenced,
            "entries": sum(writer.entries for writer in self._writers.values()),
            "subscriptions": self.readers(),
            "evicted": self.retainer.evicted,
            "writable": (failed := self._writers[True].degraded or self.durable.upkeep.trouble()) is None,
            "degraded": failed or self.durable.upkeep.short(),
        }

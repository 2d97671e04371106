"""How an order becomes a run. Owns: what is refused before the store is asked, slots and the bound on those who wait
for one, the one call of open() for runs with an agent, and who drives a run that was just opened. Refuses to know: what
a run does, who reads it, dialects and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.admission import Asked, settled
from holdfast.core.errors import ClientError, ServerError, store_not_asked, store_unavailable
from holdfast.core.events import AttemptStarted, RunAccepted
from holdfast.core.spec import Resolved
from holdfast.engine.base import Order, Ticket
from holdfast.engine.drivers import Drivers, Parts
from holdfast.engine.keeper import Keeper, live_of
from holdfast.engine.live import Live
from holdfast.journal.base import Attached, Opened, Opening, StoreUnavailable

MINDED = 10_000
LATE_S, STEP_S, STEPS = 0.006, 0.004, 40
"""How late deltas must be told before new runs wait; the shortest step of that wait, and how many there are."""
Spawn = Callable[[Awaitable[None]], None]
Left = Callable[[str, str], Awaitable[None]]


class Admission:
    """The way in, for one process."""

    def __init__(self, parts: Parts, drivers: Drivers, keeper: Keeper, spawn: Spawn, left: Left) -> None:
        self._parts = parts
        self._limits = parts.limits
        self._drivers = drivers
        self._keeper = keeper
        self._spawn = spawn
        self._left = left
        self.draining = False
        self.chores = 0
        self._turn = 0
        self.minded: dict[str, None] = {}
        """Stored runs that were opened here and end when their caller leaves, wherever they are driven (C4)."""

    async def submit(self, order: Order) -> Ticket:
        """Admit a run, or attach to the one that its key names. A caller who goes away in the middle does not undo what
        the store has begun: an admitted run is driven, and its caller has left it."""
        if self._late():
            await self._give_way()
        if not order.spec.store:  # memory: nothing is awaited between the opening of the run and its first task
            return await self._admit(order)
        answer: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._spawn(self._answer(order, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._spawn(self._left(order.owner, answer.result().run))
            raise

    def _late(self) -> bool:
        return any(writer.late_s > LATE_S for writer in self._drivers.writers.values())

    async def _give_way(self) -> None:
        """Streams that run go before runs that begin: those would stutter, these begin a moment later, 0.4 seconds at
        most. Those who wait look one after the other, else all would begin at the same time."""
        for _ in range(STEPS):
            self._turn = self._turn % 4 + 1
            await asyncio.sleep(STEP_S * self._turn)
            if not self._late():
                return

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
                await self._left(order.owner, ticket.run)
            else:
                answer.set_result(ticket)

    async def _admit(self, order: Order) -> Ticket:
        stored = order.spec.store
        self.refuse_if_unable(stored=stored)
        if order.spec.chore:
            return await self._chore(order)
        slot = self._keeper.has_slot(stored=stored)
        full = not slot and self._keeper.in_line(stored=stored) >= self._limits.queue
        if full and order.asked.key is None and order.asked.again is None:
            raise self._too_many()
        self._keeper.active += slot
        held = self._keeper.lease.span()
        try:
            opened = await self._open(order, held=slot or not stored, full=full)
        except BaseException:
            self._return_slot(slot)
            raise
        if isinstance(opened, Attached):
            self._return_slot(slot)
            return await self._ticket(order.owner, opened)
        if stored and order.spec.on_disconnect == "cancel" and len(self.minded) < MINDED:
            self.minded[opened.run] = None
        self._begin(order.owner, opened, slot=slot, held=held if stored else None)
        return Ticket(opened.run, opened.resolved.session or "", waited=stored and bool(order.asked.credential))

    async def _chore(self, order: Order) -> Ticket:
        """A front end's errand: beside the slots, with a small limit of its own (B7)."""
        if self.chores >= self._limits.chores:
            raise ClientError("too_many_runs", "Too many chores at once. Try again.", status=429, retry_after=1)
        self.chores += 1
        try:
            opened = await self._open(order, held=True)
        except BaseException:
            self.chores -= 1
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
            self.chores -= 1

    def _return_slot(self, slot: bool) -> None:
        if slot:
            self._keeper.release()

    def _begin(self, owner: str, opened: Opened, *, slot: bool, held: Callable[[], bool] | None) -> None:
        """Drive it now, or let it wait: a stored run (it has a lease that must have `held`) unclaimed, an owned one in
        memory."""
        if held is not None and not slot:
            self._keeper.enqueue(owner, opened.run)
            if self._drivers.wished[opened.run]:  # somebody wants it stopped already: that waits for no slot
                self._keeper.urgent(owner, opened.run)
            return
        live = live_of(opened, owned=held is None)
        live.held = held or live.held
        self._drivers.register(live)
        if slot:
            self._spawn(self._fresh(live))
        else:
            self._keeper.enqueue(owner, opened.run, lambda: self._fresh(live))

    async def _fresh(self, live: Live) -> None:
        try:
            await self._drivers.drive(live)
        finally:
            self._keeper.release()

    def refuse_if_unable(self, *, stored: bool) -> None:
        """503 while the server stops or, for what is to be stored, the store takes nothing."""
        if self.draining:
            raise ServerError("shutting_down", "The server is shutting down. Try again in a moment.", retry_after=5)
        if not stored:
            return
        writer, store = self._drivers.writers[True], self._parts.durable
        if store.peers.shared and (why := writer.degraded or self._keeper.lease.trouble()) is not None:
            raise store_not_asked(why)
        writer.refuse_if_degraded(store.upkeep.short())

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
            holder=self._keeper.holder if held else None,
            metadata=msgspec.json.encode(spec.metadata),
        )
        try:
            opened = await store.open(opening)
        except StoreUnavailable as error:
            if parts.durable.peers.shared:
                raise store_unavailable(str(error)) from error
            raise ServerError("storage_full", f"The run cannot be stored: {error}.", retry_after=5) from error
        if prepared is not None and isinstance(opened, Opened):
            return Opened(opened.run, prepared, opened.records)
        return opened

    def _too_many(self) -> ClientError:
        return ClientError(
            "too_many_runs",
            f"{self._keeper.active} runs are active and {self._keeper.queued} wait. Try again in a moment.",
            status=429,
            retry_after=2,
        )

    async def _ticket(self, owner: str, found: Attached) -> Ticket:
        row = await self._parts.durable.find(owner, found.run)
        return Ticket(found.run, row.session if row else "", attached=not found.again, waited=found.again)

"""How an order becomes a run. Owns: what is refused before the store is asked, slots and the bound on those who wait
for one, the one call of open() for runs with an agent, who drives a run that was just opened, and what a request does
while another run of its conversation is active (RequestLine). Refuses to know: what a run does, who reads it, dialects
and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ninelives.core import codec
from ninelives.core.admission import Asked, RunActive, resolve_without_store
from ninelives.core.errors import ClientError, NinelivesError, ServerError, store_not_asked
from ninelives.core.events import AnyEvent, AttemptStarted, Entry, ForkedFrom, RunAccepted
from ninelives.core.spec import Resolved, Spec, is_short, keeps_content
from ninelives.core.state import apply, start
from ninelives.engine.base import RETRY_S, EngineParts, LeaseSpan, Order, Ticket
from ninelives.engine.claim import ClaimPhase
from ninelives.engine.limits import FREE
from ninelives.engine.readers import DeliveryTracker
from ninelives.engine.run import ClaimedRun, PendingOpening
from ninelives.engine.work import QueuePlace, WorkFinder
from ninelives.engine.workers import Workers
from ninelives.engine.writer import not_stored
from ninelives.journal.base import Store
from ninelives.journal.steering import Steer, steer_id_of
from ninelives.journal.values import Attached, Opened, Opening, StoreUnavailable

if TYPE_CHECKING:
    from ninelives.engine.engine import Engine

LATE_S, STEP_S, STEPS = 0.006, 0.004, 40
"""How late deltas must be told before new runs wait; the shortest step of that wait, and how many there are."""
LONGEST_S = 900.0
"""How long a request waits for the run before it."""
INTERRUPT_S = 30.0
"""A run that comes to no safe point in this time is cancelled."""
MOST = 16
"""Requests that wait for one conversation or session."""
_STARTED = AttemptStarted()
_ATTEMPT = codec.encode(_STARTED)
Abandon = Callable[[str, Ticket], Coroutine[Any, Any, None]]


class Admission:
    """The way in, for one process."""

    def __init__(
        self,
        parts: EngineParts,
        holder: str,
        workers: Workers,
        finder: WorkFinder,
        deliveries: DeliveryTracker,
        abandon: Abandon,
    ) -> None:
        """`abandon(owner, ticket)` is called where the caller went away while its run was admitted."""
        self._parts = parts
        self._limits = parts.limits
        self._clock = parts.clock()
        self._holder = holder
        self._workers = workers
        self._accounts, self._guard = workers.accounts, workers.guard
        self._lease, self._writers, self._tasks = workers.lease, workers.writers, workers.tasks
        self._finder = finder
        self._deliveries = deliveries
        self._abandon = abandon
        self.draining = False
        self.chores = 0
        self._held = 0
        """Requests that wait for a store that is away."""
        self._turn = 0

    def stop(self) -> None:
        """The server stops: new work is refused."""
        self.draining = True

    async def submit(self, order: Order) -> Ticket:
        """Admit a run, or attach to the one that its key names. A caller who goes away in the middle does not undo what
        the store has begun: an admitted run is driven, and its caller has left it."""
        order, given = await self._guard.enter(order)
        try:
            if self._writers[False].late_s > LATE_S or self._writers[True].late_s > LATE_S:
                await self._give_way()
            if order.spec.kept == "memory":  # nothing is awaited between the opening of the run and its first task
                ticket = await self._admit(order)
            else:
                troubled = self._lease.trouble is not None or self._writers[False].degraded is not None
                if troubled and self._store_is_away():
                    order = replace(order, until=asyncio.get_running_loop().time() + self._limits.hold_s)
                    await self._hold()
                self.refuse_if_unable(stored=True)
                ticket = await self._open_with_others(order) or await self._admit_apart(order)
            return ticket if given is FREE else replace(ticket, rates=given.headers)
        finally:
            if given is not FREE:
                self._guard.leave(given)

    async def _open_with_others(self, order: Order) -> Ticket | None:
        """Open a run whose admission depends on nothing in the store (Catalog.foregone): its opening is written like
        the events of other runs, and with them. Its worker begins after that: an agent that kills the process must not
        do so without a trace (P18). None where the store is to be asked, or no slot is free. Raises the refusal of an
        order that can be nothing but a new run."""
        alone = is_short(order.spec) and not order.spec.chore and not self._deliveries.untold
        resolved = self._parts.durable.foregone(order.asked) if alone else None
        if resolved is not None and order.refusal is not None:
            raise order.refusal
        if resolved is None or not self._finder.take_slot(order.owner, in_memory=False):
            return None
        accepted = accepted_of(order, resolved)
        data = [codec.encode(accepted), _ATTEMPT]
        opening = self._opening(order.spec, order.asked, lambda _: data, held=True, foregone=resolved)
        opened = Opened(opening.run, resolved, opening.first_records(data))
        span = self._lease.span
        pending = self._writers[False].open(opening, opened.records)
        try:
            await pending.opened()
        except asyncio.CancelledError:
            self._tasks.spawn(self._abandon_opened(order, opened, accepted, span, pending))
            raise
        except BaseException:
            self._finder.release(order.owner)
            raise
        return self._begin(opened, accepted, order, span)

    async def _abandon_opened(
        self, order: Order, opened: Opened, accepted: RunAccepted, span: LeaseSpan, pending: PendingOpening
    ) -> None:
        """A caller left before its run was in the store."""
        try:
            await pending.opened()
        except NinelivesError:
            return self._finder.release(order.owner)
        await self._abandon(order.owner, self._begin(opened, accepted, order, span))

    async def _give_way(self) -> None:
        """Delay a new run while the writer is late, so that running streams do not stutter. The delay is at most 40
        steps of 4 to 16 ms, about 0.4 seconds. Steps differ so that waiting runs do not all begin at once."""
        for _ in range(STEPS):
            self._turn = self._turn % 4 + 1
            await asyncio.sleep(STEP_S * self._turn)
            if max(writer.late_s for writer in self._writers.values()) <= LATE_S:
                return

    def _store_is_away(self) -> bool:
        return self._lease.trouble is not None or self._writers[False].is_away()

    async def _hold(self) -> None:
        """Wait for a store that is away, at most `hold_s`: most outages pass sooner than a caller would come back. As
        many wait as may be queued; others are refused at once."""
        if self._held >= self._limits.queue:
            return
        self._held += 1
        try:
            async with asyncio.timeout(self._limits.hold_s):
                while self._store_is_away() and not self.draining:  # noqa: ASYNC110 -- there are two to ask
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self._parts.log.warning("store_not_back", seconds=self._limits.hold_s)
        finally:
            self._held -= 1

    async def _admit_apart(self, order: Order) -> Ticket:
        """Admit it in a task of its own: its caller may go away in the middle."""
        answer: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._answer(order, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._tasks.spawn(self._abandon(order.owner, answer.result()))
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
                await self._abandon(order.owner, ticket)
            else:
                answer.set_result(ticket)

    async def _admit(self, order: Order) -> Ticket:
        in_memory = order.spec.kept == "memory"
        self.refuse_if_unable(stored=not in_memory)
        if order.spec.chore:
            return await self._chore(order)
        slot, place = self._room(order)
        try:
            span = LeaseSpan() if in_memory else self._lease.span
            opened = await self._open(order, held=slot, full=not slot and place is None)
        except BaseException:
            self._return(order, slot, place)
            raise
        if isinstance(opened, Attached):
            self._return(order, slot, place)
            if opened.again:  # it may have waited for this caller
                self._finder.seek()
            return await self._ticket(order.owner, opened)
        if place is None:
            return self._begin(opened, accepted_of(order, opened.resolved), order, span)
        return self._wait(opened, order, place)

    def _wait(self, opened: Opened, order: Order, place: QueuePlace) -> Ticket:
        """A run was opened without a slot."""
        self._accounts.count(order.owner, order.spec.model, order.credential, runs=1)
        self._finder.opened(opened.run, place)
        if self._workers.cancelling[opened.run]:  # somebody wants it stopped already: that waits for no slot
            self._finder.seek()
        session, waited = opened.resolved.session or "", bool(order.asked.credential)
        return Ticket(opened.run, session, waited=waited, in_memory=order.spec.kept == "memory")

    async def open_fork(self, order: Order, facts: Callable[[str], list[AnyEvent]], source: ForkedFrom) -> Ticket:
        """Open a run that begins with facts of another one. It waits for a slot like any that was found."""
        order, given = await self._guard.enter(order)
        try:
            return await self._open_fork(order, facts, source)
        finally:
            self._guard.leave(given)

    async def _open_fork(self, order: Order, facts: Callable[[str], list[AnyEvent]], source: ForkedFrom) -> Ticket:
        self.refuse_if_unable(stored=True)
        place = self._finder.queue.take(order.owner, order.size)
        if place is None:
            raise self._too_many()

        def accept(resolved: Resolved) -> list[bytes]:
            if order.refusal is not None:
                raise order.refusal
            taken = facts(opening.run)
            forked = replace(source, copied=len(taken))
            accepted = replace(accepted_of(order, resolved), forked=forked)
            return [codec.encode(event) for event in (accepted, _STARTED, *taken)]

        opening = self._opening(order.spec, order.asked, accept, held=False)
        try:
            opened = await self._parts.durable.open(opening)
        except StoreUnavailable as error:
            self._return(order, False, place)
            raise not_stored(error) from error
        except BaseException:
            self._return(order, False, place)
            raise
        if isinstance(opened, Attached):
            self._return(order, False, place)
            return await self._ticket(order.owner, opened)
        self._accounts.count(order.owner, order.spec.model, order.credential, runs=1)
        self._finder.opened(opened.run, place)
        return Ticket(opened.run, opened.resolved.session or "")

    def _begin(self, opened: Opened, accepted: RunAccepted, order: Order, span: LeaseSpan) -> Ticket:
        """Drive a run that was opened with a slot, or as a chore, with two records. `accepted` is the first of them:
        made from the order, because to decode it would take as long as to parse the request."""
        self._accounts.count(order.owner, order.spec.model, order.credential, runs=1)
        name, in_memory, session = opened.run, order.spec.kept == "memory", opened.resolved.session or ""
        if span.held() and not self._finder.takes(name):
            at = opened.records[0].at
            first, second = Entry(name, 0, at, 0, accepted), Entry(name, 1, at, 1, _STARTED)
            state = apply(start(first), second)
            run = ClaimedRun(state, 1, ClaimPhase.OPENED, span, opened_with=(first, second))
            self._workers.start(run)
            self._tasks.spawn(self._drive(run, chore=order.spec.chore))
        else:  # the answer came so late that the run may be somebody else's, or is claimed here again (P11)
            self._writers[in_memory].give_back(name, 1, None)
            self._finder.release(order.owner)
        return Ticket(name, session, waited=bool(order.asked.credential), in_memory=in_memory)

    async def _drive(self, run: ClaimedRun, *, chore: bool) -> None:
        try:
            await self._workers.drive(run)
        finally:
            if chore:
                self.chores -= 1
            else:
                self._finder.release(run.owner)

    def _place_in_queue(self, order: Order) -> QueuePlace | None:
        """A place, before the store is asked; None where the queue is full. Raises at once where the order can be
        nothing but a new run."""
        place = self._finder.queue.take(order.owner, order.size)
        if place is None and order.asked.key is None and not order.asked.match:
            raise self._too_many()
        return place

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
        return self._begin(opened, accepted_of(order, opened.resolved), order, LeaseSpan())

    def _room(self, order: Order) -> tuple[bool, QueuePlace | None]:
        """A slot, or a place in the queue; neither for an order that is refused."""
        if order.refusal is not None:
            return False, None
        slot = self._finder.take_slot(order.owner, in_memory=order.spec.kept == "memory")
        return slot, None if slot else self._place_in_queue(order)

    def _return(self, order: Order, slot: bool, place: QueuePlace | None) -> None:
        """Give back what _room() gave."""
        if slot:
            self._finder.release(order.owner)
        if place is not None:
            self._finder.queue.leave(place)

    def refuse_if_unable(self, *, stored: bool) -> None:
        """503 while the server stops or, for what is to be stored, the store takes nothing."""
        if self.draining:
            raise ServerError("shutting_down", "The server is shutting down. Try again in a moment.", retry_after=5)
        if not stored:
            return
        if self._lease.trouble is not None:
            raise store_not_asked(self._lease.trouble)
        writer, short = self._writers[False], self._parts.durable.upkeep.short()
        if writer.degraded is not None or short is not None:
            writer.refuse_if_degraded(short)

    async def _open(self, order: Order, *, held: bool, full: bool = False) -> Opened | Attached:
        """Ask the store. In a `full` house a known key or a lost place is answered all the same (R16)."""
        parts = self._parts
        asked, spec = order.asked, order.spec
        store, prepared = parts.durable, None
        if spec.kept == "memory":
            prepared = resolve_without_store(asked) or await parts.durable.resolve(asked)
            store, asked = parts.memory, Asked(owner=order.owner, fingerprint="", kept="memory")

        def accept(resolved: Resolved) -> list[bytes]:
            if full:
                raise order.refusal or self._too_many()
            accepted = accepted_of(order, prepared or resolved)
            return [codec.encode(accepted)] + ([_ATTEMPT] if held else [])

        if not asked.fresh_conversation:
            asked = replace(asked, fresh_conversation=f"conv_{parts.new_id()}")
        opening = self._opening(spec, asked, accept, held=held)
        opened = await self._open_in(store, opening, order.until)
        if prepared is not None and isinstance(opened, Opened):
            return Opened(opened.run, prepared, opened.records)
        return opened

    async def _open_in(self, store: Store, opening: Opening, until: float) -> Opened | Attached:
        """Open a run. If the store is away it is asked again with the same opening, at most `hold_s` in all: an opening
        that was written after all is recognised."""
        loop = asyncio.get_running_loop()
        until = until or loop.time() + self._limits.hold_s
        while True:
            try:
                await self._deliveries.tell_losses()
                return await store.open(opening)
            except StoreUnavailable as error:
                if not (error.passing and error.away) or loop.time() >= until or self.draining:
                    raise not_stored(error) from error
            await asyncio.sleep(RETRY_S)

    def _opening(
        self,
        spec: Spec,
        asked: Asked,
        accept: Callable[[Resolved], list[bytes]],
        *,
        held: bool,
        foregone: Resolved | None = None,
    ) -> Opening:
        return Opening(
            run=self._parts.new_id(),
            at=self._parts.now_ms(),
            now=self._clock(),
            dialect=spec.dialect,
            model=spec.model,
            asked=asked,
            accept=accept,
            holder=self._holder if held else None,
            metadata=msgspec.json.encode(spec.metadata) if spec.metadata else b"{}",
            foregone=foregone,
        )

    def _too_many(self) -> ClientError:
        return self._finder.queue.refusal(self._finder.active)

    async def _ticket(self, owner: str, found: Attached) -> Ticket:
        """The ticket for a run that was there. Its caller has its place by now: without an answer from the store it
        only misses the name of its session."""
        try:
            row = await self._parts.durable.find(owner, found.run)
        except StoreUnavailable as error:
            self._parts.log.warning("session_not_read", run=found.run, reason=str(error))
            row = None
        return Ticket(found.run, row.session if row else "", attached=not found.again, waited=found.again)


def accepted_of(order: Order, resolved: Resolved) -> RunAccepted:
    """The first event of a run."""
    return RunAccepted(spec=order.spec, resolved=resolved, owner=order.owner, key=order.credential, budget=order.budget)


class RequestLine:
    """Requests that come while another run of their conversation or session is active (C7): first come, first served.
    The store decides in its transaction who is next, and whoever loses waits again.

    A request that waits here is not stored: it has no id yet, and its caller was told nothing. When the server stops,
    the caller is cut off without an answer and sends its request again."""

    def __init__(self, engine: Engine, submit: Callable[[Order], Awaitable[Ticket]]) -> None:
        self._engine = engine
        self._submit = submit
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def submit(self, order: Order, busy: RunActive) -> Ticket:
        """The ticket of a request that found another run active. Raises RunActive where it waited too long."""
        if order.strategy == "steer":
            return await self._steer(order, busy)
        place = (order.owner, order.asked.conversation or order.asked.session or "")
        lock, waiting = self._locks.get(place, (asyncio.Lock(), 0))
        if waiting >= MOST:
            words = f"{MOST} requests wait for this conversation or session already. Try again later."
            raise ClientError("too_many_queued", words, status=429, retry_after=5)
        self._locks[place] = lock, waiting + 1
        try:
            async with asyncio.timeout(LONGEST_S), lock:
                return await self._next(order, busy)
        except TimeoutError:
            raise busy from None
        finally:
            lock, waiting = self._locks.pop(place)
            if waiting > 1:
                self._locks[place] = lock, waiting - 1

    async def _next(self, order: Order, busy: RunActive) -> Ticket:
        while True:
            if order.strategy == "interrupt":
                await self._interrupt(order.owner, busy.run)
            await self._ended(order.owner, busy.run)
            try:
                return await self._submit(order)
            except RunActive as another:
                busy = another

    async def _interrupt(self, owner: str, run: str) -> None:
        await self._engine.interrupt(owner, run)
        try:
            async with asyncio.timeout(INTERRUPT_S):
                await self._ended(owner, run)
        except TimeoutError:
            await self._engine.cancel(owner, run)

    async def _ended(self, owner: str, run: str) -> None:
        state = await self._engine.look(owner, run)
        while state is not None and not state.ended:
            asked = state.facts.asked
            state = await self._engine.wait(owner, run, asked.code if asked is not None else "")

    async def _steer(self, order: Order, busy: RunActive) -> Ticket:
        """Write to the active run, and answer with that run. A request with `store: false` is not written to another
        run, which may keep it."""
        said = order.spec.input
        if not keeps_content(order.spec.kept) or not said or any(message.get("role") != "user" for message in said):
            raise busy
        while True:
            run, key = busy.run, order.asked.key
            name = steer_id_of(run, key) if key else f"steer_{self._engine.new_id()}"
            try:
                await self._engine.steer(order.owner, run, Steer(id=name, messages=said, by=order.asked.credential))
                return Ticket(run, order.asked.session or "", attached=True, watches=True)
            except ClientError as refused:
                if refused.code != "run_not_accepting_steer":
                    raise
            await self._ended(order.owner, run)
            try:
                return await self._submit(order)
            except RunActive as another:
                busy = another

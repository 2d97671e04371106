"""Who drives which run in this process. Owns: the workers, from the moment a run is claimed to the moment it ends, is
parked or waits for a person; the two hubs and writers between which a run may move; and letting all of them go at a
shutdown. Refuses to know: how a run was admitted and who asks about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from holdfast.agents.base import Agent
from holdfast.core.state import waiting
from holdfast.engine.approvals import Waiting, adopt, answer_to, concerns
from holdfast.engine.base import Limits, Log
from holdfast.engine.callers import CutOff
from holdfast.engine.earlier import Earlier
from holdfast.engine.hub import Hub
from holdfast.engine.live import Live
from holdfast.engine.worker import Stop, Worker
from holdfast.engine.writer import Writer, patiently
from holdfast.journal.base import Bell, Signal, Store, StoreUnavailable


class Parts(msgspec.Struct, frozen=True):
    """What an engine is made of; chosen in assemble.py."""

    durable: Store
    memory: Store
    bell: Bell
    agent: Agent
    limits: Limits
    log: Log
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    steady_ms: Callable[[], int] | None = None
    """By what things expire: a clock that nobody sets while the server runs; None: `now_ms` is such a one."""
    holder: str = ""
    """By what name this process claims; empty: a new id."""

    def clock(self) -> Callable[[], int]:
        """The clock by which things expire."""
        return self.steady_ms or self.now_ms


class Drivers:
    """The workers of one process. Hubs and writers are by `stored`: True is the durable store, False memory."""

    def __init__(self, parts: Parts, holder: str) -> None:
        self._parts = parts
        self._holder = holder
        self.hubs: dict[bool, Hub] = {}
        self.writers: dict[bool, Writer] = {}
        for stored, store in ((True, parts.durable), (False, parts.memory)):
            self.hubs[stored] = Hub(store, parts.bell, parts.limits)
            self.hubs[stored].shared = stored and parts.durable.peers.shared
            self.writers[stored] = Writer(store, parts.bell, parts.now_ms, parts.limits, parts.log)
        self.earlier = Earlier(parts.durable)
        self.asking: Waiting | None = None
        """Where a run goes that waits for a person; set by the engine."""
        self._workers: dict[str, Worker] = {}
        self._orphans: set[str] = set()
        """Owned runs whose caller is gone."""
        self.wished: Counter[str] = Counter()
        """Runs that somebody wants to stop and nobody drives yet: a wish can be durable before a worker is there."""
        self.spawn: Callable[[Awaitable[None]], None] = lambda work: None
        self.parked: Callable[[], None] = lambda: None
        """Called in a shared store when a run waits for a person: the answer may have come before it did."""
        self.span: Callable[[], Callable[[], bool]] = lambda: _always
        """See Lease.span."""
        self._ears: dict[str, Callable[[], None]] = {}
        """How to stop listening for the signals of a run."""
        self._quiet = asyncio.Event()
        """Set when the last worker lets go."""
        self._draining = False

    def hub_of(self, run: str) -> Hub:
        """The hub that has a run."""
        return self.hubs[False] if self.hubs[False].live(run) else self.hubs[True]

    def register(self, live: Live) -> None:
        """A run is claimed: from now on it is live, and can be stopped. Where the lease was over meanwhile nothing
        is begun: it may be somebody else's, and if not it is given back (P11)."""
        self.hubs[not live.owned].add(live)
        run = live.run  # not `live`: a cycle would keep a finished run, with all its text, until a full collection
        live.poke = lambda: self.stop(run)
        live.let_go = lambda: self._let_go(run)
        parts = self._parts
        if not live.owned:
            self._listen(run)
        worker = Worker(live, parts.agent, self.writers[not live.owned], self.earlier, parts.limits, parts.log)
        worker.adopt = self._adopt
        self._workers[live.run] = worker
        if self._draining:
            worker.drain()
        if not live.owned and not live.held():
            live.lapse()
        if self.wished[live.run]:
            worker.stop(Stop.CANCEL)

    def stop(self, run: str) -> None:
        """Cancel a run that is driven here."""
        worker = self._workers.get(run)
        if worker is not None:
            worker.stop(Stop.CANCEL)

    def _listen(self, run: str) -> None:
        if self._parts.durable.peers.shared:
            self._ears[run] = self._parts.bell.listen(f"signal:{run}", lambda: self.heard(run))

    def heard(self, run: str) -> None:
        """Somebody, somewhere, left a signal for a run that is driven here."""
        if self.drives(run):
            with suppress(CutOff):  # at the end of this process nothing is begun: the run is let go in any case
                self.spawn(self._mind(run))

    async def _mind(self, run: str) -> None:
        if any(signal.kind == "cancel" for signal in await self._signals(run)):
            self.stop(run)

    async def _signals(self, run: str) -> list[Signal]:
        return await patiently(lambda: self._parts.durable.signals(run))

    def drives(self, run: str) -> bool:
        """Is there a worker for it?"""
        return run in self._workers

    def held(self) -> int:
        """How many stored runs are driven here."""
        return sum(not worker.live.owned for worker in self._workers.values())

    def lapse(self) -> None:
        """The lease is over: stored runs may be somebody else's. Their workers end with their tools, nothing that was
        staged is written, and what is still ours then is given back."""
        for worker in list(self._workers.values()):
            if not worker.live.owned:
                worker.live.lapse()

    def _let_go(self, run: str) -> None:
        worker = self._workers.get(run)
        if worker is not None and worker.live.lost:
            worker.stop(Stop.LOST)

    def orphan(self, run: str) -> None:
        """The caller of an owned run is gone: it ends and is forgotten."""
        self._orphans.add(run)
        self.stop(run)

    async def drive_claimed(self, live: Live) -> None:
        """Drive a run that the keeper claimed, with the signals that were left for it. Where this process held it
        before and lost it, that attempt is over first, with its tools."""
        while (before := self._workers.get(live.run)) is not None:
            before.live.lose()
            await before.over.wait()
        self.register(live)
        await self._driving(live, self._with_signals(live))

    async def _with_signals(self, live: Live) -> None:
        worker = self._workers[live.run]
        signals = await self._signals(live.run)
        if any(signal.kind == "cancel" for signal in signals):
            live.poke()
        worker.answer = answer_to(live.staged, signals, self._parts.clock()())
        await worker.drive()

    async def drive(self, live: Live) -> None:
        """Drive a registered run until this process lets go of it."""
        await self._driving(live, self._workers[live.run].drive())

    async def _driving(self, live: Live, work: Awaitable[None]) -> None:
        worker = self._workers[live.run]
        try:
            await work
        except Exception:
            if not (live.owned or live.committed.ended):  # nobody drives it now, and our beats would keep it
                live.lapse()
            raise
        finally:
            self._workers.pop(live.run, None)
            self._ears.pop(live.run, _nobody)()
            worker.over.set()
            if not self._workers:
                self._quiet.set()
            if live.lapsed:
                self.writers[True].give_back(live.run, live.attempt, live.committed)
            self.hubs[not live.owned].remove(live)
            if live.committed.ended and not live.owned:
                self.earlier.ended(live.committed)
            if waiting(live.committed):
                await self._wait_for_person(live)
            if live.run in self._orphans:
                self._orphans.discard(live.run)
                await self._parts.memory.delete(live.owner, live.run)

    async def _adopt(self, live: Live) -> Writer:
        """A run that the connection owned becomes a stored one."""
        held = self.span()
        await adopt(self._parts.memory, self._parts.durable, live, self._holder)
        live.owned, live.held = False, held
        self._listen(live.run)
        self.hubs[False].hand_over(live, self.hubs[True])
        if not live.held():
            live.lapse()
        for wish in await self._parts.memory.signals(live.run):  # said while it moved, perhaps not heard yet
            live.poke()
            await self._leave(live.owner, wish)
        await self._parts.memory.delete(live.owner, live.run)
        return self.writers[True]

    async def _leave(self, owner: str, wish: Signal) -> None:
        """Leave a wish with the durable store. A failure must not stop a move that has happened, and the
        worker knows of the wish."""
        try:
            await patiently(lambda: self._parts.durable.signal(owner, wish))
        except StoreUnavailable as error:
            self._parts.log.warning("wish_not_stored", run=wish.run, reason=str(error))

    async def _wait_for_person(self, live: Live) -> None:
        """Leave it alone, unless the answer came while it was being parked. In a shared store anybody may wake it."""
        if self._parts.durable.peers.shared:
            self.parked()
            return
        asked = live.committed.facts.asked
        if asked is not None and self.asking is not None:
            self.asking.add(live.owner, live.run, asked.expires_at)
            if concerns(live.committed, await self._parts.durable.signals(live.run)):
                self.asking.wake(live.run)

    def park(self) -> None:
        """Ask every stored run to give its claim back at its next safe point."""
        for worker in list(self._workers.values()):
            if not worker.live.owned:
                worker.drain()

    async def drain(self, seconds: float, urgent: Callable[[str, str], None]) -> None:
        """Park stored runs at a safe point, end the others, flush. `urgent` starts those that still wait for a slot."""
        self._draining = True
        for worker in list(self._workers.values()):
            worker.drain()
        await self._none_left(seconds)
        for worker in list(self._workers.values()):
            worker.stop(Stop.SHUTDOWN if worker.live.owned else Stop.PARK)
            urgent(worker.live.owner, worker.live.run)
        await self._none_left(3.0)
        for writer in self.writers.values():
            with suppress(TimeoutError):
                await asyncio.wait_for(writer.flushed(), 3.0)

    async def _none_left(self, seconds: float) -> None:
        """Wait, bounded, until every worker has let go."""
        self._quiet.clear()
        if self._workers:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), seconds)


def _always() -> bool:
    return True


def _nobody() -> None:
    """Nobody listened."""

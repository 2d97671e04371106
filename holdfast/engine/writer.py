"""The only caller of append. Owns: the order "apply, append, tell", the group commit over all runs of one journal,
and what happens when the store does not take a batch.

Theory of operation. Workers stage events on their Live; the writer's one task takes everything that is staged, asks the
journal to append it in one transaction and then tells. While an append is under way the next batch grows by itself:
that is the whole of group commit. Deltas are flushed at most every `linger_s` (what comes after a pause goes at once),
because a flush has a price of its own: two context switches and a transaction; a fact ends the wait, and so does the
first delta of a message, which a person waits for. Death at any line: before append returns, nobody has seen anything;
after it, everything told is in the journal. A full or busy store: the same batch is tried again, and workers stop at
their byte bound. Any other failure: the writer stops writing for good (degraded), every run of it is lost to this
process, and readers keep what is committed: never again as if written (promises 1.7, P13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.core import codec
from holdfast.core.errors import ServerError
from holdfast.core.events import AnyEvent, ApprovalRequested, Delta, Entry
from holdfast.core.state import RunState
from holdfast.core.writing import Place
from holdfast.engine.base import Limits, Log
from holdfast.engine.live import Live
from holdfast.engine.marks import asking_mark, mark_for, parked_mark
from holdfast.journal.base import Bell, Journal, Mark, Slice, StoreUnavailable, Verdict

RETRY_S = 0.25
FEW = 16
"""A flush of fewer runs than this is put off once more: 50 streams then share a flush by fifteen, not by five."""
T = TypeVar("T")


class ClaimLost(Exception):
    """Another holder has the run: stop at once, write nothing."""


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store says, when it can be asked again: a trouble that passes costs a run time only (P15)."""
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if not error.passing:
                raise
        await asyncio.sleep(RETRY_S)


class Writer:
    """Group commit for one journal."""

    def __init__(self, journal: Journal, bell: Bell, now_ms: Callable[[], int], limits: Limits, log: Log) -> None:
        self._journal = journal
        self._bell = bell
        self._now_ms = now_ms
        self._limits = limits
        self._log = log
        self._dirty: list[Live] = []
        self._back: list[Slice] = []
        self._kick = asyncio.Event()
        self._urgent = False
        """A fact is staged, or the first delta of a message: somebody waits for it."""
        self._hurry: asyncio.Future[None] | None = None
        self._flushed_at = self._since = -1.0
        self.late_s = 0.0
        """How much longer than they should the oldest deltas of the last flush took until they were told: 0 where
        nothing is written, more where the process has more to do than it can."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.degraded: str | None = None
        """Why nothing is written now, for health."""
        self.broken = False
        self.broke: Callable[[], None] = lambda: None
        """Called when nothing will be written any more: whoever waits for more must not wait for ever."""
        self.mind_lease: Callable[[], None] = lambda: None
        """Called when the store has answered, before anybody is told, and right before a deed: this process may have
        stood still meanwhile, and then no worker may go on with what it was promised."""
        self.fenced = 0
        self.entries = 0

    def delta(self, live: Live, event: Delta) -> None:
        """Add a delta to the next batch. IllegalEvent: refused. ClaimLost: not ours any more."""
        if live.lost:
            raise ClaimLost(live.run)
        urgent = not live.staging.drafting
        live.stage(event, codec.encode(event), self._now_ms())
        if urgent or not live.queued:
            self._enqueue(live, urgent)

    def stage(self, live: Live, event: AnyEvent) -> RunState:
        """Add a fact to the next batch; the state after it. Raises as `delta` does."""
        if live.lost:
            raise ClaimLost(live.run)
        live.stage(event, codec.encode(event), self._now_ms())
        after = live.staged
        if after.ended:
            live.stage_mark(mark_for(after, stored=not live.owned))
        elif isinstance(event, ApprovalRequested):
            live.stage_mark(asking_mark(self._now_ms()))
        self._enqueue(live, True)
        return after

    def _enqueue(self, live: Live, urgent: bool) -> None:
        if urgent and not self._urgent:
            self._urgent = True
            if self._hurry is not None and not self._hurry.done():
                self._hurry.set_result(None)
        if live.queued:
            return
        live.queued = True
        self._dirty.append(live)
        if len(self._dirty) == 1:
            self._since = asyncio.get_running_loop().time()
            self._idle.clear()
            self._kick.set()

    async def fact(self, live: Live, event: AnyEvent) -> RunState:
        """Add an event and wait until it is committed and told."""
        after = self.stage(live, event)
        await self.committed(live, after.seq)
        return after

    async def park(self, live: Live) -> None:
        """Give the claim back cleanly, with everything staged before it."""
        live.stage_mark(parked_mark(self._now_ms(), live.staged))
        self._enqueue(live, True)
        while not live.lost and live.pending:
            await live.news()

    def give_back(self, run: str, attempt: int, state: RunState | None) -> None:
        """Nobody drives it here: the lease was over and the worker has ended, or what was claimed cannot be read. If
        the run is still ours it is free now, and that is nobody's fault. Written after whatever is on its way. `state`:
        where it stands, if that is known: whoever claims it next looks whether a person must be waited for."""
        now = self._now_ms()
        mark = parked_mark(now, state) if state is not None else Mark(status="queued", at=now, parked=True)
        self._back.append(Slice(run, attempt, [], mark))
        self._idle.clear()
        self._kick.set()

    async def committed(self, live: Live, seq: int) -> None:
        """Wait until the run is committed up to `seq`."""
        while live.committed.seq < seq:
            if live.lost:
                raise ClaimLost(live.run)
            await live.news()

    async def room(self, live: Live) -> None:
        """Wait while the run has more waiting for the disk than it may."""
        while live.pending_bytes > self._limits.stage_bytes and not live.lost:
            await live.news()

    async def flushed(self) -> None:
        """Wait until nothing is staged."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._kick.wait()
            self._kick.clear()
            while self._dirty:
                await self._linger()
                since = self._since
                await self._flush(self._taken())
                took = asyncio.get_running_loop().time() - since
                self.late_s = max(0.0, took - 1.5 * self._limits.linger_s)
            self.late_s = 0.0
            while self._back:
                await self._return()
            self._idle.set()

    async def _linger(self) -> None:
        """Let more deltas come, where the last flush was a moment ago; half as long again where only few are there."""
        now = await self._until(self._flushed_at + self._limits.linger_s)
        if len(self._dirty) < FEW:
            now = await self._until(self._flushed_at + 1.5 * self._limits.linger_s)
        self._urgent = False
        self._flushed_at = now

    async def _until(self, due: float) -> float:
        """Wait for a time, or a fact."""
        loop = asyncio.get_running_loop()
        if not self._urgent and loop.time() < due:
            self._hurry = loop.create_future()
            timer = loop.call_at(due, _done, self._hurry)
            try:
                await self._hurry
            finally:
                timer.cancel()
        return loop.time()

    def _taken(self) -> list[Live]:
        """What waits to be written. Nothing here keeps it: a finished run must leave memory while the server idles."""
        batch, self._dirty = self._dirty, []
        return [live for live in batch if not live.lost]

    async def _return(self) -> None:
        back, self._back = self._back, []
        verdicts = await self._append(back)
        self.fenced += sum(verdict is Verdict.FENCED for verdict in verdicts)
        self._bell.ring([*(part.run for part in back), "work"])

    async def _flush(self, batch: Sequence[Live]) -> None:
        fenced = Verdict.FENCED  # an enumeration is slow to ask
        taken = [live.take() for live in batch]
        verdicts = await self._append([part for part, _, _ in taken], batch)
        for live, (part, entries, after), verdict in zip(batch, taken, verdicts, strict=True):
            if live.lost:  # while it was on its way: what became of it the journal knows
                continue
            if verdict is fenced:
                self.fenced += 1
                self._log.warning("run_fenced", run=live.run, attempt=part.attempt)
                live.lose()
                continue
            self.entries += len(entries)
            self._tell(live, entries, after)
        self._bell.ring([live.run for live in batch])

    def _tell(self, live: Live, entries: list[Entry], after: Place) -> None:
        try:
            live.tell(entries, after)
        except Exception as error:  # a projection's bug must not stop the writer of all runs
            self._log.error("tell_failed", run=live.run, error=repr(error))
            live.break_off("the stream cannot be rendered")
            live.tell([], after)

    async def _append(self, slices: list[Slice], lives: Sequence[Live] = ()) -> list[Verdict]:
        """What is tried again leaves out runs whose lease was over meanwhile (their `lives` know)."""
        standing = slices
        while True:
            try:
                if self.broken:
                    return [Verdict.FENCED] * len(slices)
                verdicts = await self._journal.append(standing) if standing else []
            except StoreUnavailable as error:
                if self.degraded is None:
                    self._log.error("store_unavailable", reason=str(error), retried=error.passing)
                self.degraded = str(error)
                if not error.passing:
                    self._break_off()
                await asyncio.sleep(RETRY_S)
                lost = {live.run for live in lives if live.lapsed}
                standing = [part for part in standing if part.run not in lost]
                continue
            except Exception as error:
                self._log.error("store_failed", error=repr(error))
                self.degraded = f"the store failed ({type(error).__name__})"
                self._break_off()
                continue
            if self.degraded is not None:
                self._log.info("store_available")
                self.degraded = None
            self.mind_lease()
            if len(standing) == len(slices):
                return verdicts
            written = {part.run: verdict for part, verdict in zip(standing, verdicts, strict=True)}
            return [written.get(part.run, Verdict.FENCED) for part in slices]

    def _break_off(self) -> None:
        self.broken = True
        self.broke()

    def refuse_if_degraded(self, short: str | None = None) -> None:
        """503 for new work while the store takes nothing, or is about to (`short`)."""
        if (why := self.degraded or short) is not None:
            raise ServerError("storage_full", f"Nothing can be stored now: {why}. Try again later.", retry_after=5)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""The only caller of append. Owns: the order "apply, append, tell", the group commit over all runs of one journal,
and what happens when the store does not take a batch. Refuses to know: agents, dialects and readers.

Theory of operation. `delta` and `stage` add an event to its ClaimedRun. The writer's task (`run`) takes everything that
is staged, appends it in one call (`_flush`) and then tells the readers. The next batch grows during the append: that is
the whole of group commit. A flush costs two context switches and a transaction, so the first delta of a flush waits
`linger_s` for others. That follows the time that a flush takes, which grows with a slow commit, a far database and a
busy process: then more deltas share a flush. A fact ends the wait. So does the first delta of a message, because a
person waits for it.

A slice with a mark takes longer. Where the store can write both at the same time, a second task (`run_apart`) appends
such slices, and the deltas of other runs do not wait for them. All that follows in the same run takes the same way,
until nothing of it is on its way.

Death at any line: before append returns, nobody has seen anything. After it, everything that was told is in the
journal. While the store is full or busy, the same batch is tried again, and workers stop at their byte bound. After any
other failure the writer writes nothing until a restart (P13). This process then loses its runs, and readers keep what
is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ninelives.core import codec
from ninelives.core.errors import ServerError, store_not_asked, store_unavailable
from ninelives.core.events import AnyEvent, Delta, SteerUnused, Terminal
from ninelives.core.state import RunState
from ninelives.engine.base import RETRY_S, WORK, EngineParts, Notices
from ninelives.engine.claim import ClaimEvent
from ninelives.engine.lease import Lease
from ninelives.engine.run import ClaimedRun, ClaimLost, PendingOpening, parked_mark
from ninelives.journal.accounts.base import AuditEntry
from ninelives.journal.base import Journal
from ninelives.journal.values import Mark, Opening, Record, Slice, StoreUnavailable, Verdict

Staged = ClaimedRun | PendingOpening
PACE = 4.0
"""Deltas wait for each other so many times as long as a flush takes: a slow commit is shared by more of them."""
PAUSE = 2.0
"""A delta that comes so many times as long after the last flush as others wait does not wait."""


class Writer:
    """Group commit for one journal."""

    def __init__(self, parts: EngineParts, journal: Journal, lease: Lease | None, notices: Notices) -> None:
        """`lease` is checked when the store has answered, before anybody is told: this process may have stood still
        meanwhile, and then no worker may go on with what it was promised."""
        self._journal = journal
        self._notifier = parts.notifier
        self._now_ms = parts.now_ms
        self._clock = parts.clock()
        self._limits = parts.limits
        self._log = parts.log
        self._lease = lease
        self._notices = notices
        self._observer = parts.observer
        self._alarm = parts.alarm(self._end_wait)
        self._dirty: list[Staged] = []
        self._apart: list[Staged] = []
        """Runs whose slices must not hold the deltas of others, see ClaimedRun.apart."""
        self._back: list[Slice] = []
        self._kick, self._kick_apart = asyncio.Event(), asyncio.Event()
        self._urgent = False
        """A fact is staged, or the first delta of a message: somebody waits for it."""
        self._hurry: asyncio.Future[None] | None = None
        self._flushed_at = self._since = -1.0
        self._flush_s = 0.0
        """How long a flush takes, averaged over about the last eight."""
        self.linger_s = parts.limits.linger_s
        """How long the first delta of a flush waits for others."""
        self.late_s = 0.0
        """How much longer than they should the oldest deltas of the last flush took until they were told: 0 where
        nothing is written, more where the process has more to do than it can."""
        self._idle, self._idle_apart = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._idle_apart.set()
        self.degraded: str | None = None
        """Why nothing is written now, for health."""
        self._away = False
        """It is not known whether the store took the last batch: nobody answered."""
        self.broken = False
        """Nothing will be written any more."""
        self.fenced = 0
        self.entries = 0

    def delta(self, run: ClaimedRun, event: Delta) -> None:
        """Add a delta to the next batch. IllegalEvent: refused. ClaimLost: not ours any more."""
        if run.gone:
            raise ClaimLost(run.run)
        urgent = not run.staging.drafting
        run.stage(event, codec.encode(event), self._now_ms(), notable=urgent)
        if urgent or not run.queued:
            self._enqueue(run, urgent)

    def stage(self, run: ClaimedRun, event: AnyEvent, audit: AuditEntry | None = None) -> RunState:
        """Add a fact to the next batch; the state after it. Raises as `delta` does. `audit` is committed with it."""
        if run.gone:
            raise ClaimLost(run.run)
        if isinstance(event, Terminal):
            for steer in run.pending():
                unused = SteerUnused(id=steer.id, messages=steer.messages)
                run.stage(unused, codec.encode(unused), self._now_ms())
        run.stage(event, codec.encode(event), self._now_ms(), notable=True, audit=audit)
        self._enqueue(run, True)
        return run.staging.state

    def open(self, opening: Opening, records: list[Record]) -> PendingOpening:
        """Add the opening of a run to the next batch."""
        pending = PendingOpening(opening.run, Slice(opening.run, 1, records, None, opening))
        self._enqueue(pending, True)
        return pending

    def _enqueue(self, run: Staged, urgent: bool) -> None:
        if urgent and not self._urgent:
            self._urgent = True
            self._end_wait()
        if run.queued:
            return
        run.queued = True
        self._dirty.append(run)
        if len(self._dirty) == 1:
            self._since = self._alarm.now()
            self._idle.clear()
            self._kick.set()

    async def fact(self, run: ClaimedRun, event: AnyEvent) -> RunState:
        """Add an event and wait until it is committed and told."""
        after = self.stage(run, event)
        await run.until_committed(after.seq)
        return after

    async def park(self, run: ClaimedRun) -> None:
        """Give the claim back cleanly, with everything staged before it."""
        left_at = self._clock() if ClaimEvent.LEAVE in run.happened else 0
        run.stage_mark(parked_mark(self._now_ms(), run.staging.state, left_at=left_at))
        self._enqueue(run, True)
        while not run.gone and run.unwritten:
            await run.news()
        self._notifier.ring([WORK])

    def give_back(self, run: str, attempt: int, state: RunState | None) -> None:
        """Nobody drives it here: the lease was over and the worker has ended, or what was claimed cannot be read. If
        the run is still ours it is free now, and that is nobody's fault. Written after whatever is on its way. `state`:
        where it stands, if that is known: whoever claims it next looks whether a person must be waited for."""
        now = self._now_ms()
        mark = parked_mark(now, state) if state is not None else Mark(status="queued", at=now, parked=True)
        self._back.append(Slice(run, attempt, [], mark))
        self._idle.clear()
        self._kick.set()

    async def room(self, run: ClaimedRun) -> None:
        """Wait while the run has more waiting for the disk than it may."""
        while run.pending_bytes > self._limits.stage_bytes and not run.gone:
            await run.news()

    async def flushed(self) -> None:
        """Wait until nothing is staged."""
        while not (self._idle.is_set() and self._idle_apart.is_set()):
            await self._idle.wait()
            await self._idle_apart.wait()

    async def run(self) -> None:
        """Write until cancelled: until nothing is staged, or only what goes apart, and again when something is."""
        self._alarm.open()
        try:
            while True:
                await self._kick.wait()
                self._kick.clear()
                while self._dirty or self._back:
                    if self._dirty:
                        await self._linger()
                        await self._write_staged()
                    if self._back:
                        await self._idle_apart.wait()
                        await self._return()
                self.late_s = 0.0
                self._idle.set()
        finally:
            self._alarm.close()

    async def run_apart(self) -> None:
        """Write what must not hold the deltas of other runs, until cancelled."""
        while True:
            await self._kick_apart.wait()
            self._kick_apart.clear()
            while self._apart:
                batch, self._apart = self._apart, []
                await self._flush([run for run in batch if not run.gone])
            self._idle_apart.set()

    async def _write_staged(self) -> None:
        """Write what waits. The rest goes apart, where the store can write both at the same time. Nothing else keeps
        the batch: a finished run must leave memory while the server idles."""
        batch, self._dirty, since = self._dirty, [], self._since
        if self._journal.parallel and (apart := [run for run in batch if run.apart]):
            self._apart += apart
            self._idle_apart.clear()
            self._kick_apart.set()
            batch = [run for run in batch if not run.apart]
        batch = [run for run in batch if not run.gone]
        if not batch:
            return
        await self._flush(batch)
        now, mean, limits = self._alarm.now(), self._flush_s, self._limits
        self.late_s = max(0.0, now - since - 1.5 * self.linger_s)
        # One that took very long says little about the next: the disk was busy, or this process was.
        self._flush_s += (min(now - self._flushed_at, 2 * mean + 0.001) - mean) / 8
        self.linger_s = max(limits.linger_s, min(PACE * self._flush_s, limits.longest_linger_s))

    async def _linger(self) -> None:
        """Let more deltas come, until the first of them has waited long enough. A fact ends the wait. After a pause
        there is none: nobody else is there to share the flush with."""
        now, due = self._alarm.now, self._since + self.linger_s
        if not self._urgent and now() < due and self._since < self._flushed_at + PAUSE * self.linger_s:
            self._hurry = asyncio.get_running_loop().create_future()
            self._alarm.set(due)
            await self._hurry
        self._urgent = False
        self._flushed_at = now()

    def _end_wait(self) -> None:
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)

    async def _return(self) -> None:
        back, self._back = self._back, []
        verdicts = await self._append(back)
        self.fenced += sum(verdict is Verdict.FENCED for verdict in verdicts)
        self._notifier.ring([*(part.run for part in back), WORK])

    async def _flush(self, batch: Sequence[Staged]) -> None:
        written, fenced = Verdict.WRITTEN, Verdict.FENCED  # an enumeration is slow to ask
        taken, began = [run.take() for run in batch], self._alarm.now()
        verdicts = await self._append([part for part, _, _ in taken], batch)
        self._observer.flushed(self._alarm.now() - began)
        for run, (part, entries, after), verdict in zip(batch, taken, verdicts, strict=True):
            if run.gone:  # while it was on its way: what became of it the journal knows
                continue
            if verdict is not written:
                self.fenced += 1
                self._log.warning(
                    "run_fenced" if verdict is fenced else "run_went_back", run=run.run, attempt=part.attempt
                )
                run.lose()
                continue
            self.entries += len(part.records)
            try:
                run.tell(entries, after)
            except Exception as error:  # a projection's bug must not stop the writer of all runs
                self._log.error("tell_failed", run=run.run, error=repr(error))
                if isinstance(run, ClaimedRun):
                    run.break_off("the stream cannot be rendered")
                run.tell([], after)
            if run.told_notable and isinstance(run, ClaimedRun):
                self._observer.told(run.committed, entries)
        self._notifier.ring([run.run for run in batch])

    async def _append(self, slices: list[Slice], runs: Sequence[Staged] = ()) -> list[Verdict]:
        """What is tried again leaves out runs whose lease was over meanwhile, and openings (`runs` know)."""
        standing = slices
        while not self.broken:
            try:
                verdicts = await self._journal.append(standing) if standing else []
            except StoreUnavailable as error:
                self._note_unavailable(error, runs)
                await asyncio.sleep(RETRY_S)
                gone = {run.run for run in runs if run.gone}
                standing = [part for part in standing if part.run not in gone]
                continue
            except Exception as error:
                self._log.error("store_failed", error=repr(error))
                self.degraded = f"the store failed ({type(error).__name__})"
                self._break_off()
                continue
            if self.degraded is not None:
                self._log.info("store_available")
                self.degraded = None
            if self._lease is not None:
                self._lease.check()
            if len(standing) == len(slices):
                return verdicts
            written = {part.run: verdict for part, verdict in zip(standing, verdicts, strict=True)}
            return [written.get(part.run, Verdict.FENCED) for part in slices]
        return [Verdict.FENCED] * len(slices)

    def _note_unavailable(self, error: StoreUnavailable, runs: Sequence[Staged]) -> None:
        for run in runs:
            if isinstance(run, PendingOpening):  # its caller gets an answer now, as from open()
                run.lose(not_stored(error))
        if self.degraded is None:
            self._log.error("store_unavailable", reason=str(error), retried=error.passing)
        self.degraded, self._away = str(error), error.away
        if not error.passing:
            self._break_off()

    def _break_off(self) -> None:
        self.broken = True
        self._notices.store_broke()

    def is_away(self) -> bool:
        """Did nobody answer when the last batch was to be written?"""
        return self.degraded is not None and self._away

    def refuse_if_degraded(self, short: str | None = None) -> None:
        """503 for new work while the store takes nothing, or is about to (`short`)."""
        if self.is_away():
            raise store_not_asked(str(self.degraded))
        if (why := self.degraded or short) is not None:
            raise ServerError("storage_full", f"Nothing can be stored now: {why}. Try again later.", retry_after=5)


def not_stored(error: StoreUnavailable) -> ServerError:
    """The answer where the store took nothing, or did not say whether it did."""
    if error.away:
        return store_unavailable(str(error))
    return ServerError("storage_full", f"Nothing can be stored now: {error}. Try again later.", retry_after=5)

"""Drives runs. Owns: Worker, one attempt at one run: the way of events from the agent to the writer (facts are awaited,
deltas may run ahead by a bound, G12) and what is written when it is stopped; Workers, those of this process, from the
moment a run is held to the moment it ends, is parked or is lost; and what a signal does to them (claim.py, SIGNALS).
Refuses to know: how a run was admitted or found, and who reads it.

Theory of operation. A run has one task. While its agent works (`_pump`), a stop is a cancellation of that task: the
generator's own `finally` blocks let go of sockets and processes before anything more is written. Only then does the
worker, which still holds the claim, take the cancellation back and write what its phase says. Death at any line leaves
the journal at the last committed fact; whoever claims the run next goes on from there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec

from ninelives.agents.base import Agent, DraftKeeper, ToolKnower, Turn
from ninelives.core.errors import (
    AgentError,
    Damaged,
    IllegalEvent,
    NinelivesError,
    ServerError,
    Shortage,
    shortage_of,
)
from ninelives.core.events import (
    AnyEvent,
    ApprovalGiven,
    CancelRequested,
    Delta,
    MessageCompleted,
    RunAccepted,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    SteerApplied,
    ToolFinished,
)
from ninelives.core.ids import wire_id
from ninelives.core.spec import Message
from ninelives.core.state import RunState, between_steps, hands_back, in_flight, stopping, waiting
from ninelives.engine.base import CutOff, EngineParts, Tasks, patiently
from ninelives.engine.claim import SIGNALS, ClaimEvent, ClaimPhase
from ninelives.engine.lease import Lease
from ninelives.engine.limits import Accounts, LimitGuard
from ninelives.engine.readers import Readers
from ninelives.engine.run import ClaimedRun, ClaimLost
from ninelives.engine.writer import Writer
from ninelives.journal.accounts.base import AuditEntry
from ninelives.journal.answers import answer_entry_id, answer_to
from ninelives.journal.base import Unlisten
from ninelives.journal.earlier import Earlier
from ninelives.journal.listing import SessionLister
from ninelives.journal.steering import ends_run, steers_of
from ninelives.journal.values import Signal, StoreUnavailable

DRIVING, PARKING = ClaimPhase.DRIVING, ClaimPhase.PARKING
PARKED = 100_000
SHORT_S = 2.0
"""How long a run rests that the machine had no room for."""
FLUSH_S = 3.0
"""How long a shutdown waits for what was cut, and for the disk."""


class Claimed(msgspec.Struct, frozen=True):
    """How a run came to its worker, beyond what its journal says."""

    clean: bool = True
    """The attempt before gave the run back cleanly: a restart, not a crash."""
    overdue: bool = False
    """See journal.values.Claim.overdue."""
    answer: ApprovalGiven | None = None
    """What was answered to the question with which the last attempt was parked."""


OPENED = Claimed()
"""For a run that was just opened."""


class Worker(msgspec.Struct, eq=False, weakref=True):
    """One attempt at one run."""

    run: ClaimedRun
    _agent: Agent
    _writer: Writer
    _earlier: Earlier
    _parts: EngineParts
    _guard: LimitGuard
    _reason: str = "cancel"
    _failure: NinelivesError | None = None
    _interrupted: Literal["", "interrupted", "steered", "budget"] = ""
    """Why the run ends at its next safe point, if it does."""
    _limit: str = ""
    """Which budget is used up."""
    _begun: bool = False
    """The agent was asked to run."""
    _pumping: asyncio.Task[Any] | None = None
    """The task of this worker, while its agent works and may be stopped."""
    _stops: int = 0
    """How often that task was cancelled from here."""
    short: bool = False
    """The run was parked because the machine is short of something."""
    over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set when it has let go of everything."""

    def __repr__(self) -> str:
        return f"<Worker of {self.run.run}>"

    # how it is stopped

    def cancel(self, reason: str = "cancel") -> None:
        """Stop the run for good. The first reason counts."""
        if ClaimEvent.CANCEL not in self.run.happened:
            self._reason = reason
        self.run.advance(ClaimEvent.CANCEL)

    def drain(self, *, keeps_calls: bool = False) -> None:
        """Park at the next safe point: now, where no message and no tool is under way. A run in memory goes on, and so
        does one whose agent cannot be continued: both have until cut() to finish (A9, G18). `keeps_calls`: a successor
        goes on with messages that are under way."""
        if not self.run.in_memory:
            self.run.advance(ClaimEvent.DRAIN)
            kept = keeps_calls and isinstance(self._agent, DraftKeeper) and self._agent.keeps_calls
            safe = not in_flight(self.run.staging.state) if kept else between_steps(self.run.staging.state)
            if self._agent.resumable and safe:
                self.run.stop()

    def interrupt(self, reason: str) -> None:
        """End the run at the next safe point: now, where no message and no tool is under way. What it did stands."""
        self._interrupted = "steered" if reason == "steered" else "interrupted"
        self.run.advance(ClaimEvent.INTERRUPT)
        if between_steps(self.run.staging.state) and not hands_back(self.run.staging.state):
            self.run.stop()

    def cut(self) -> None:
        """The time to drain is over. A run that cannot be continued ends here, if its agent has begun: nobody may ask
        that agent a second time (G18)."""
        if self._begun and not self._agent.resumable and not self.run.in_memory and not waiting(self.run.staging.state):
            self._failure = _not_resumable(clean=True)
            self.run.advance(ClaimEvent.FAIL)
        elif self.run.in_memory:
            self._failure = ServerError("shutting_down", "The server is shutting down. Send the request again.")
            self.run.advance(ClaimEvent.FAIL)
        else:
            self.run.advance(ClaimEvent.DRAIN)
            self.run.stop()

    def leave(self) -> None:
        """The caller has left: cut the model off, let a tool that is in flight finish, then park (B6). A run that could
        not be continued is cancelled."""
        if not self._agent.resumable:
            return self.cancel("left")
        self.run.advance(ClaimEvent.LEAVE)
        if not in_flight(self.run.staging.state):
            self.run.stop()

    # what it does

    async def drive(self, claimed: Claimed) -> None:
        """Run the attempt to its end, its parking or the loss of its claim. Never raises but for cancellation."""
        run = self.run
        run.advance(ClaimEvent.DRIVE)
        if run.attempt > 1:
            await self._end_leftovers()
        self._pumping = task = asyncio.current_task()
        assert task is not None
        run.halt.add_done_callback(self._stop_pump)
        failure: BaseException | None = None
        try:
            await self._pump(claimed)
        except (Exception, asyncio.CancelledError) as error:
            failure = error
        finally:
            self._pumping = None
            run.halt.remove_done_callback(self._stop_pump)  # a cycle would keep the ended run in memory
        if self._stops:
            task.uncancel()
        if task.cancelling():  # somebody else wants us to end too
            raise asyncio.CancelledError
        if run.in_memory:  # it was stopped, perhaps while an entry waited to be stored
            await self._parts.audit.keep(())
        try:
            await self._settle(failure)
        except ClaimLost:
            self._parts.log.warning("claim_lost", run=run.run, attempt=run.attempt)

    def _stop_pump(self, halt: asyncio.Future[None]) -> None:
        if self._pumping is not None:
            self._stops += 1
            self._pumping.cancel()

    async def _end_leftovers(self) -> None:
        """Not in the pump: a stop must not cut it short, and a failure must not fail the run."""
        try:
            await self._agent.end_leftovers(self.run.staging.state)
        except Exception as error:
            self._parts.log.error("leftovers_not_ended", run=self.run.run, error=repr(error))

    async def _pump(self, claimed: Claimed) -> None:
        """From the agent to the writer, until the run ends or is stopped."""
        run = self.run
        if run.halt.done() or (claimed is not OPENED and not await self._may_go_on(claimed)):
            return  # told before it began: nothing is begun only to be stopped
        resolved = run.accepted.resolved
        follows = resolved.previous is not None or resolved.session_turns is not None
        earlier = await self._history() if follows else ()
        turn = Turn(run.staging.state, earlier, holds_claim=self._holds_claim, deltas=self, steering=run)
        self._begun = True
        async with aclosing(self._agent.run(turn)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Delta):
                    if run.halt.done():  # a first delta now would be a message that is cut and said again
                        await self._stopped()
                    self._writer.delta(run, event)
                    if run.pending_bytes > self._parts.limits.stage_bytes or run.in_memory:
                        await self._hold_back()
                elif (await self._fact(event)).ended:
                    run.advance(ClaimEvent.END)
                    return
        raise AgentError("agent_ended_early", "The agent stopped without saying how its run ended.")

    async def _stopped(self) -> None:
        """Wait to be cancelled: the agent must not go on."""
        await asyncio.sleep(self._parts.limits.stall_s)

    def _holds_claim(self) -> bool:
        """See Turn.holds_claim."""
        return self.run.lease.held() and not self.run.gone

    def has_room(self) -> bool:
        """See DeltaSink.has_room. A run that is to be parked goes step by step: it may park at its next fact (A9)."""
        run = self.run
        if run.phase is not DRIVING or run.pending_bytes > self._parts.limits.stage_bytes:
            return False
        return not run.in_memory or run.backlog() < self._parts.limits.subscriber_bytes

    def is_read(self) -> bool:
        """See DeltaSink.is_read."""
        return bool(self.run.audiences)

    def put(self, delta: Delta) -> None:
        """See DeltaSink.put."""
        self._writer.delta(self.run, delta)

    def put_last(self, message: MessageCompleted) -> None:
        """See DeltaSink.put_last."""
        self._writer.stage(self.run, self._guard.accounts.spend(self.run.accepted, message))

    async def _may_go_on(self, claimed: Claimed) -> bool:
        """What the journal says before the agent is asked: a stop, a question without an answer, or nothing. Then the
        limits, which for a run that was just opened the admission has asked."""
        run, asks = self.run, waiting(self.run.staging.state)
        if stopping(run.staging.state) or (claimed.overdue and not asks):
            self.cancel("left" if claimed.overdue else "cancel")
            return False
        if not asks and not self._agent.resumable and self._ran_before(claimed):
            raise _not_resumable(clean=claimed.clean)
        if asks and claimed.answer is None:
            run.advance(ClaimEvent.ASK)
            return False
        if claimed.answer is not None:
            await self._keep_answer(claimed.answer)
            await self._writer.fact(run, claimed.answer)
        return not await self._is_spent()

    def _ran_before(self, claimed: Claimed) -> bool:
        """Whether an earlier attempt may have asked the agent: one that died, or one that left something. An attempt
        that was parked in order and left nothing had not begun (see cut)."""
        return self.run.attempt > 1 and (bool(self.run.staging.state.facts.items) or not claimed.clean)

    async def _fact(self, event: AnyEvent) -> RunState:
        """Commit a fact; where it is a place to let go, wait here to be stopped."""
        run = self.run
        if self._interrupted and isinstance(event, SteerApplied):  # the next run is told it, not this one
            run.stop()
            await self._stopped()
        event = self._guard.accounts.spend(run.accepted, event)
        after = await self._finish(event) if isinstance(event, ToolFinished) else self._writer.stage(run, event)
        await run.until_committed(after.seq)
        if after.ended:
            return after
        if isinstance(event, ToolFinished | SteerApplied):
            await self._is_spent()
        interrupted = self._interrupted and not hands_back(after)
        if waiting(after):
            run.advance(ClaimEvent.ASK)
        elif between_steps(after) and (interrupted or (run.phase is PARKING and self._agent.resumable)):
            run.stop()
        else:
            return after
        await self._stopped()
        return after

    async def _finish(self, event: ToolFinished) -> RunState:
        """A tool was executed, or refused: one entry in the audit log, without arguments and output. The run goes on
        when both are stored. The tool's name is left out where it may be the words of a model, for they are content."""
        run, facts = self.run, self.run.staging.state.facts
        due = facts.due.get(event.call_id)
        name = due.call.name if due is not None else ""
        known = isinstance(self._agent, ToolKnower) and self._agent.has_tool(name)
        entry = AuditEntry(
            owner=facts.accepted.owner,
            key=facts.accepted.key,
            action="tool.execute",
            object=wire_id("runs", run.run),
            result="unknown" if event.outcome != "known" else "error" if event.is_error else "ok",
            detail=name[:256] if known else "",
        )
        if not run.in_memory:
            return self._writer.stage(run, event, entry)
        after = self._writer.stage(run, event)
        self._parts.audit.note(entry)  # the audit log is in another store
        await run.until_committed(after.seq)
        await self._parts.audit.keep(())
        return after

    async def _keep_answer(self, answer: ApprovalGiven) -> None:
        """A person's answer is in the audit log before it counts, also where the process that took it was killed."""
        state = self.run.staging.state
        entry = AuditEntry(
            owner=state.facts.accepted.owner,
            key=answer.by.removeprefix("key "),
            action="run.answer",
            object=self.run.run,
            result="ok",
            detail=answer.choice,
            id=answer_entry_id(state),
        )
        await self._parts.audit.keep([entry])

    async def _is_spent(self) -> bool:
        """Whether the run may not ask its model again: it ends then, and what it did stands (C10). Calls that are due
        are made first."""
        facts = self.run.staging.state.facts
        self._limit = "" if facts.due else await self._guard.exhausted(facts)
        if self._limit:
            self._interrupted = "budget"
            self.run.advance(ClaimEvent.INTERRUPT)
            self.run.stop()
        return bool(self._limit)

    async def _hold_back(self) -> None:
        """Deltas may run ahead of the disk, and of the one reader of a run in memory, by a bound."""
        await self._writer.room(self.run)
        if self.run.in_memory and self.run.backlog() >= self._parts.limits.subscriber_bytes:
            await self._reader_drained()

    async def _history(self) -> tuple[Message, ...]:
        return await patiently(lambda: self._earlier.before(self.run.accepted))

    async def _reader_drained(self) -> None:
        try:
            async with asyncio.timeout(self._parts.limits.stall_s):
                while self.run.backlog() >= self._parts.limits.subscriber_bytes and not self.run.gone:
                    await self.run.news()
        except TimeoutError:
            self.cancel("stalled")
            await self._stopped()

    # what it writes at the end

    async def _settle(self, failure: BaseException | None) -> None:
        """Write what the phase says."""
        run = self.run
        if run.staging.state.ended:
            await run.until_committed(run.staging.state.seq)
        elif run.gone:
            raise ClaimLost(run.run)
        elif not run.halt.done():  # the agent failed by itself
            if isinstance(failure, ClaimLost):
                raise failure
            await self._failed(failure)
        elif run.phase is PARKING:
            await self._writer.park(run)
        elif self._failure is not None:
            await self._write_failure(self._failure)
        elif self._interrupted and ClaimEvent.CANCEL not in run.happened:
            run.advance(ClaimEvent.END)
            await self._writer.fact(run, RunInterrupted(self._interrupted, self._limit))
        else:
            await self._write_cancel()
        if not run.gone:
            run.advance(ClaimEvent.SETTLED)

    async def _failed(self, failure: BaseException | None) -> None:
        """The agent failed by itself. A shortage of the machine is not its fault: the run is parked and tried again."""
        run = self.run
        short = failure if failure is None or isinstance(failure, Shortage) else shortage_of(failure)
        if short is not None and self._agent.resumable and not run.in_memory:
            self._parts.log.warning("run_parked", run=run.run, reason=short.message)
            self.short = True
            run.advance(ClaimEvent.DRAIN)
            await self._writer.park(run)
        else:
            run.advance(ClaimEvent.FAIL)
            await self._write_failure(failure)

    async def _write_cancel(self) -> None:
        run = self.run
        if not stopping(run.staging.state):
            await self._writer.fact(run, CancelRequested(self._reason))
        for call_id in in_flight(run.staging.state):
            await self._writer.fact(run, _given_up(call_id))
        await self._writer.fact(run, RunCancelled())

    async def _write_failure(self, error: BaseException | None) -> None:
        run = self.run.run
        match error:
            case NinelivesError():
                self._parts.log.warning("run_failed", run=run, code=error.code, reason=error.message)
                code = "rate_limit_exceeded" if error.status == 429 else "server_error"
                await self._fail(code, error.message, error.code, error.status)
            case StoreUnavailable():
                self._parts.log.warning("run_not_stored", run=run, reason=str(error))
                message = f"The history of this run cannot be read now: {error}. Try again."
                await self._fail("server_error", message, "store_unavailable", 503)
            case Damaged():
                self._parts.log.error("history_damaged", run=run, reason=str(error))
                await self._fail("server_error", f"The history of this run cannot be read: {error}", "damaged", 500)
            case IllegalEvent():
                self._parts.log.error("illegal_event", run=run, reason=str(error))
                await self._fail("server_error", f"The agent broke its contract: {error}", "illegal_event", 500)
            case _:
                self._parts.log.error("agent_crashed", run=run, error=repr(error))
                name = type(error).__name__
                await self._fail("server_error", f"The agent failed with {name}. See the log.", "agent_crashed", 500)

    async def _fail(self, code: str, message: str, reason: str, status: int) -> None:
        failed = RunFailed(code=code, message=self._parts.mask(message), reason=reason, status=status)
        await self._writer.fact(self.run, failed)
        self._guard.accounts.fail(self.run.accepted)


class Workers:
    """The workers of one process. `writers` are by `in_memory`: False is the durable store, True memory."""

    def __init__(
        self,
        parts: EngineParts,
        readers: Readers,
        writers: dict[bool, Writer],
        lease: Lease,
        tasks: Tasks,
        lister: SessionLister,
    ) -> None:
        self._parts = parts
        self.accounts = Accounts(parts)
        self.guard = LimitGuard(parts, self.accounts, self.driven)
        self._readers = readers
        self.writers = writers
        self.lease = lease
        self.tasks = tasks
        self.earlier = Earlier(parts.durable)
        self._lister = lister
        self._observer = parts.observer
        self.by_run: dict[str, Worker] = {}
        """All of them."""
        self.cancelling: Counter[str] = Counter()
        """Runs that somebody here is cancelling: a signal can be stored before a worker is there to hear of it."""
        self.parked: dict[str, bool] = {}
        """Runs that this process has parked, not the one before it: for counting."""
        self._listening: dict[str, Unlisten] = {}
        self.resting: set[str] = set()
        """Runs that a shortage parked, or that cannot be read: nobody tries them again here for a while."""
        self._quiet = asyncio.Event()
        """Set when the last worker lets go."""
        self._draining = self._keeps_calls = False

    # one run

    def start(self, run: ClaimedRun) -> Worker:
        """A run is held: from now on it is live, and can be stopped. Where the lease was over meanwhile nothing is
        begun: it may be somebody else's, and if not it is given back (P11)."""
        parts, name = self._parts, run.run
        self._readers.lives[name] = run
        agent = parts.agent_of(run.accepted)
        writer = self.writers[run.in_memory]
        worker = Worker(run, agent, writer, self.earlier, parts, self.guard)
        self.by_run[name] = worker
        if not run.in_memory:
            self._listening[name] = parts.notifier.listen(f"signal:{name}", lambda: self.signalled(name))
        if self._draining:
            worker.drain(keeps_calls=self._keeps_calls)
        if not run.lease.held():
            run.advance(ClaimEvent.LAPSE)
        if self.cancelling[name]:
            worker.cancel()
        return worker

    async def drive(self, run: ClaimedRun, claimed: Claimed = OPENED) -> None:
        """Drive a run until this process lets go of it. Where this process held it before and lost it, that attempt is
        over first, with its tools."""
        while (before := self.by_run.get(run.run)) is not None and before.run is not run:
            before.run.advance(ClaimEvent.FENCE)
            await before.over.wait()
        worker = before or self.start(run)
        try:
            if run.phase is ClaimPhase.CLAIMED:
                signals = await (self._parts.memory if run.in_memory else self._parts.durable).signals(run.run)
                if signals or claimed.overdue:
                    claimed = self._with_signals(worker, claimed, signals)
            await worker.drive(claimed)
        except Exception:
            if not run.committed.ended:  # nobody drives it now, and our beats would keep it
                run.advance(ClaimEvent.LAPSE)
            raise
        finally:
            self._let_go(worker)

    def _let_go(self, worker: Worker) -> None:
        run, state = worker.run, worker.run.committed
        del self.by_run[run.run]
        if (unlisten := self._listening.pop(run.run, None)) is not None:
            unlisten()
        worker.over.set()
        self._observer.left(run.run)
        if worker.short:
            self.rest(run.run, SHORT_S)
        if not self.by_run:
            self._quiet.set()
        if run.phase is ClaimPhase.RELEASED and not state.ended:
            self.parked[run.run] = True
            if len(self.parked) > PARKED:
                del self.parked[next(iter(self.parked))]
        if run.phase is ClaimPhase.LAPSED:
            self.writers[run.in_memory].give_back(run.run, run.attempt, state)
        self._readers.remove(run)
        if state.ended:
            self._lister.ended(state)
            if state.facts.accepted.resolved.previous is not None:
                self.earlier.ended(state)

    def rest(self, run: str, seconds: float) -> None:
        """Leave a run alone for so long."""
        self.resting.add(run)
        asyncio.get_running_loop().call_later(seconds, self.resting.discard, run)

    def _with_signals(self, worker: Worker, claimed: Claimed, signals: Sequence[Signal]) -> Claimed:
        """What was said while nobody held the run."""
        run = worker.run
        if run.staging.state.facts.asked is not None:
            answer = answer_to(run.staging.state, signals, overdue=claimed.overdue)
            claimed = msgspec.structs.replace(claimed, answer=answer)
        run.steer(steers_of(signals))
        for signal in signals:
            event = SIGNALS[signal.kind].get(run.phase)
            if event is ClaimEvent.CANCEL:
                worker.cancel()
            elif event is ClaimEvent.INTERRUPT:
                worker.interrupt(signal.payload.decode())
            elif event is ClaimEvent.ANSWERED and claimed.answer is not None:
                run.advance(event)
        return claimed

    # signals

    def signalled(self, run: str) -> None:
        """Somebody, somewhere, left a signal for a run that is driven here."""
        if run in self.by_run:
            with suppress(CutOff):  # at the end of this process nothing is begun: the run is let go in any case
                self.tasks.spawn(self._hear(run))

    async def _hear(self, run: str) -> None:
        self.hear(run, await patiently(lambda: self._parts.store_of(run).signals(run)))

    def hear(self, run: str, signals: Sequence[Signal]) -> None:
        """The signals of a run, which may be driven here."""
        if (worker := self.by_run.get(run)) is None:
            return
        for signal in signals:
            match SIGNALS[signal.kind].get(worker.run.phase):
                case ClaimEvent.CANCEL:
                    worker.cancel()
                case ClaimEvent.INTERRUPT:
                    worker.interrupt(signal.payload.decode())
                case ClaimEvent.STEER as steered:
                    new = worker.run.steer(steers_of([signal]))
                    worker.run.advance(steered)
                    if new and worker.run.phase in (ClaimPhase.OPENED, DRIVING) and ends_run(signal):
                        worker.interrupt("steered")

    def cancel(self, run: str) -> None:
        """Cancel a run that is driven here."""
        if (worker := self.by_run.get(run)) is not None:
            worker.cancel()

    def leave(self, run: str) -> None:
        """The caller of a run that is driven here has left."""
        if (worker := self.by_run.get(run)) is not None:
            worker.leave()

    def leave_uncalled(self, run: str) -> None:
        """The store says that a run which is driven here has no caller (HeldRun.left_ms). One that is kept until its
        delivery goes on all the same where a person answered its question: that person is told of its end."""
        worker = self.by_run.get(run)
        if worker is None or worker.run.detached:
            return
        answered = ClaimEvent.ANSWERED in worker.run.happened
        if not (answered and worker.run.accepted.spec.kept == "delivery"):
            worker.leave()

    # all runs

    def driven(self) -> list[RunAccepted]:
        """The runs that are driven here."""
        return [worker.run.accepted for worker in self.by_run.values()]

    def held(self) -> int:
        """How many journaled runs are driven here."""
        return sum(not worker.run.in_memory for worker in self.by_run.values())

    def lapse(self) -> None:
        """The lease is over: journaled runs may be somebody else's. Their workers end with their tools, nothing that
        was staged is written, and what is still ours then is given back."""
        for worker in list(self.by_run.values()):
            if not worker.run.in_memory:
                worker.run.advance(ClaimEvent.LAPSE)

    def park(self) -> None:
        """Ask every journaled run to give its claim back at its next safe point."""
        for worker in list(self.by_run.values()):
            worker.drain()

    async def drain(self, seconds: float, *, keeps_calls: bool = False) -> None:
        """Park journaled runs at a safe point, end the others, flush. `keeps_calls`: see Worker.drain."""
        self._draining, self._keeps_calls = True, keeps_calls
        for worker in list(self.by_run.values()):
            worker.drain(keeps_calls=keeps_calls)
        await self._none_left(seconds)
        for worker in list(self.by_run.values()):
            worker.cut()
        await self._none_left(FLUSH_S)
        for writer in self.writers.values():
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await writer.flushed()

    async def _none_left(self, seconds: float) -> None:
        """Wait, bounded, until every worker has let go."""
        self._quiet.clear()
        if self.by_run:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._quiet.wait()


def _given_up(call_id: str) -> ToolFinished:
    """The end of a call that was stopped with its run: whoever saw it start sees it end (B3)."""
    output = "The run was cancelled while this call was being carried out: its outcome is unknown."
    return ToolFinished(call_id=call_id, output=output, is_error=True, outcome="unknown")


def _not_resumable(*, clean: bool) -> AgentError:
    what = "The server was restarted" if clean else "The server died"
    return AgentError("agent_not_resumable", f"{what} during this run and its agent cannot go on.")

"""Drives one run under one claim. Owns: the pump from the agent to the writer (facts are awaited, deltas may run ahead
by a bound, G12), and the four ways it can be stopped: cancel, park, a reader that stalls, a lost claim. Refuses to
know: where the run came from and who reads it.

Theory of operation. The agent's generator runs in a task of its own, the pump, so that stopping it is a cancellation
of that task alone: the generator's own `finally` blocks let go of sockets and processes before anything more is
written. Only then does the worker, which still holds the claim, write what the stop means. Death at any line leaves
the journal at the last committed fact; the keeper goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import Enum

from holdfast.agents.base import Agent, Turn
from holdfast.core.errors import AgentError, Damaged, HoldfastError, IllegalEvent
from holdfast.core.events import (
    AnyEvent,
    ApprovalGiven,
    ApprovalRequested,
    CancelRequested,
    Delta,
    MessageCompleted,
    RunCancelled,
    RunFailed,
    ToolFinished,
)
from holdfast.core.history import paired
from holdfast.core.spec import Message
from holdfast.core.state import RunState, between_steps, in_flight, stopping, waiting
from holdfast.engine.base import Limits, Log
from holdfast.engine.earlier import Earlier
from holdfast.engine.live import Live
from holdfast.engine.writer import ClaimLost, Writer, patiently
from holdfast.journal.base import StoreUnavailable


class Stop(Enum):
    """Why a worker is asked to let go."""

    CANCEL = "cancel"
    PARK = "park"
    SHUTDOWN = "shutdown"
    """The server ends and the run is not stored: it fails."""
    STALLED = "stalled"
    WAIT = "wait"
    """A person must answer first."""
    LOST = "lost"
    """The run is not ours any more: nothing is written."""


class Worker:
    """One attempt at one run."""

    def __init__(self, live: Live, agent: Agent, writer: Writer, earlier: Earlier, limits: Limits, log: Log) -> None:
        # Six parts are joined here because a worker is where they meet; there is no smaller meeting place.
        self.live = live
        self._agent = agent
        self._writer = writer
        self._earlier = earlier
        self._limits = limits
        self._log = log
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._draining = False
        self.over = asyncio.Event()
        """Set when it has let go of everything."""
        self.answer: ApprovalGiven | None = None
        """What was answered to the question with which the last attempt was parked."""
        self.adopt: Callable[[Live], Awaitable[Writer]] | None = None
        """Makes a run that the connection owns durable; the writer that it has then."""

    def stop(self, why: Stop) -> None:
        """Ask it to let go now; the first reason counts."""
        if not self._stop.done():
            self._stop.set_result(why)

    def drain(self) -> None:
        """Ask it to park at the next safe point: now, where no message and no tool is under way."""
        self._draining = True
        if not self.live.owned and between_steps(self.live.staged):
            self.stop(Stop.PARK)

    async def drive(self) -> None:
        """Run the attempt to its end, its parking or the loss of its claim. Never raises but for cancellation."""
        if self.live.attempt > 1:
            await self._end_leftovers()
        result = await self._pumped()
        try:
            if self.live.staged.ended:
                await self._writer.committed(self.live, self.live.staged.seq)
            elif self._stop.done():
                await self._write_stop(self._stop.result())
            elif result is not None:
                await self._write_failure(result)
        except ClaimLost:
            self._log.warning("claim_lost", run=self.live.run, attempt=self.live.attempt)

    async def _pumped(self) -> BaseException | None:
        """The pump, until it has ended, stopped or not; what it failed with."""
        pump = asyncio.create_task(self._pump(), name=f"agent {self.live.run}")
        self._stop.add_done_callback(lambda _: pump.cancel())
        task, failure = asyncio.current_task(), None
        try:
            await pump  # cancelling us cancels it, and we wait for its end
        except (Exception, asyncio.CancelledError) as error:
            failure = error
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return failure

    async def _end_leftovers(self) -> None:
        """Not in the pump: a stop must not cut it short, and a failure must not fail the run."""
        try:
            await self._agent.end_leftovers(self.live.staged)
        except Exception as error:
            self._log.error("leftovers_not_ended", run=self.live.run, error=repr(error))

    async def _pump(self) -> None:
        """From the agent to the writer, until the run ends or is stopped."""
        if not await self._may_go_on():
            return
        turn = Turn(self.live.staged, await self._history(), ours=self._ours, ahead=self)
        async with aclosing(self._agent.run(turn)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Delta):
                    if self._stop.done():  # a first delta now would be a message that is cut and said again
                        await asyncio.sleep(self._limits.stall_s)
                    self._writer.delta(self.live, event)
                    if self.live.pending_bytes > self._limits.stage_bytes or self.live.owned:
                        await self._hold_back()
                elif (await self._fact(event)).ended:
                    return
        raise AgentError("agent_ended_early", "The agent stopped without saying how its run ended.")

    def _ours(self) -> bool:
        """See Turn.ours."""
        self._writer.mind_lease()
        return not self.live.lost and self.live.held()

    def free(self) -> bool:
        """See Ahead.free. A run that is to be parked goes step by step: its next fact may be the place for it (A9)."""
        live = self.live
        if live.lost or self._draining or self._stop.done() or live.pending_bytes > self._limits.stage_bytes:
            return False
        return not live.owned or live.backlog() < self._limits.subscriber_bytes

    def put(self, delta: Delta) -> None:
        """See Ahead.put."""
        self._writer.delta(self.live, delta)

    def settle(self, said: MessageCompleted) -> None:
        """See Ahead.settle."""
        self._writer.stage(self.live, said)

    async def _may_go_on(self) -> bool:
        """What the journal says before the agent is asked: a stop, a question without an answer, or nothing."""
        if self._stop.done():  # told before it began: nothing is begun only to be stopped
            return False
        if stopping(self.live.staged):
            self.stop(Stop.CANCEL)
            return False
        if self.live.attempt > 1 and not self._agent.resumable:
            raise AgentError("agent_not_resumable", "The server died during this run and its agent cannot go on.")
        if waiting(self.live.staged):
            if self.answer is None:
                self.stop(Stop.WAIT)
                return False
            await self._writer.fact(self.live, self.answer)
        return True

    async def _fact(self, event: AnyEvent) -> RunState:
        """Commit a fact; where it is a place to let go, wait here to be stopped."""
        if self.live.owned and isinstance(event, ApprovalRequested):
            await self._adopted()
        after = await self._writer.fact(self.live, event)
        if waiting(after):
            self.stop(Stop.WAIT)
        elif self._draining and not self.live.owned and not after.ended and between_steps(after):
            self.stop(Stop.PARK)
        else:
            return after
        await asyncio.sleep(self._limits.stall_s)
        return after

    async def _hold_back(self) -> None:
        """Deltas may run ahead of the disk, and of the one reader of an owned run, by a bound."""
        await self._writer.room(self.live)
        if self.live.owned and self.live.backlog() >= self._limits.subscriber_bytes:
            await self._reader_drained()

    async def _adopted(self) -> None:
        """The question outlives the connection: so must the run (G11)."""
        if self.adopt is None:
            raise RuntimeError("nobody can make this run durable")
        await self._writer.committed(self.live, self.live.staged.seq)
        moving = asyncio.ensure_future(self.adopt(self.live))
        try:
            self._writer = await asyncio.shield(moving)
        except asyncio.CancelledError:
            self._writer = await moving  # a stop must be written where the run is: half moved, it would come back
            raise

    async def _history(self) -> tuple[Message, ...]:
        accepted = self.live.staged.facts.accepted
        earlier = await patiently(lambda: self._earlier.messages(accepted.owner, accepted.resolved))
        return paired(earlier, accepted.spec.input) if accepted.resolved.conversation else earlier

    async def _reader_drained(self) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_s):
                while self.live.backlog() >= self._limits.subscriber_bytes and not self.live.lost:
                    await self.live.news()
        except TimeoutError:
            self.stop(Stop.STALLED)
            await asyncio.sleep(self._limits.stall_s)

    async def _write_stop(self, why: Stop) -> None:
        match why:
            case Stop.PARK | Stop.WAIT:  # drain or not: a question that came first must be found
                await self._writer.park(self.live)
            case Stop.LOST:
                raise ClaimLost(self.live.run)
            case Stop.SHUTDOWN:
                message = "The server is shutting down. Send the request again."
                await self._fail("server_error", message, "shutting_down", 503)
            case Stop.CANCEL | Stop.STALLED:
                if not stopping(self.live.staged):
                    await self._writer.fact(self.live, CancelRequested(why.value))
                for call_id in in_flight(self.live.staged):
                    await self._writer.fact(self.live, _given_up(call_id))
                await self._writer.fact(self.live, RunCancelled())

    async def _write_failure(self, error: BaseException) -> None:
        match error:
            case ClaimLost():
                raise error
            case HoldfastError():
                self._log.warning("run_failed", run=self.live.run, code=error.code, reason=error.message)
                code = "rate_limit_exceeded" if error.status == 429 else "server_error"
                await self._fail(code, error.message, error.code, error.status)
            case StoreUnavailable():
                self._log.warning("run_not_stored", run=self.live.run, reason=str(error))
                message = "A person must be asked, and the question cannot be stored now. Try again."
                await self._fail("server_error", message, "storage_full", 503)
            case Damaged():
                self._log.error("history_damaged", run=self.live.run, reason=str(error))
                await self._fail("server_error", f"The history of this run cannot be read: {error}", "damaged", 500)
            case IllegalEvent():
                self._log.error("illegal_event", run=self.live.run, reason=str(error))
                await self._fail("server_error", f"The agent broke its contract: {error}", "illegal_event", 500)
            case _:
                self._log.error("agent_crashed", run=self.live.run, error=repr(error))
                name = type(error).__name__
                await self._fail("server_error", f"The agent failed with {name}. See the log.", "agent_crashed", 500)

    async def _fail(self, code: str, message: str, reason: str, status: int) -> None:
        await self._writer.fact(self.live, RunFailed(code=code, message=message, reason=reason, status=status))


def _given_up(call_id: str) -> ToolFinished:
    """The end of a call that was stopped with its run: whoever saw it start sees it end (B3)."""
    output = "The run was cancelled while this call was being carried out: its outcome is unknown."
    return ToolFinished(call_id=call_id, output=output, is_error=True, outcome="unknown")

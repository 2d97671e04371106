"""The built-in agent: model, tools, model, until done. Owns: the rounds, the crash rule of each tool, and the limits of
tokens and rounds. Refuses to know: where events go, and how a tool does its work.

Theory of operation. All that the loop knows when an attempt begins comes from the folded state. So a first attempt and
a fifth one run the same code: execute what is due; else end, if the last message asked for nothing; else ask the model.
Each tool call writes two events: ToolStarted is committed before `Execution.run`, ToolFinished before the model is
asked again. A call that an earlier attempt started and did not finish is executed again only if its effect is read or
idempotent (P5). A write is settled with an unknown outcome, in words for the model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ninelives.agents.approval import WHY_UNKNOWN, Approvals
from ninelives.agents.base import Turn
from ninelives.agents.loop_state import Incoming, LoopState, Request, call_key, end_of, offered_tools
from ninelives.agents.steps import IN_MEMORY, UNKNOWN
from ninelives.core import events as e
from ninelives.core.context import SHOWN, estimated_tokens, estimated_tool_tokens, output_path, shortened
from ninelives.core.errors import shortage_of
from ninelives.core.history import ask_messages
from ninelives.core.spec import Message, Spec
from ninelives.core.state import Called, Due, RunState
from ninelives.core.table import DELTAS
from ninelives.models.base import Ask, KeptModel, Model
from ninelives.tools.base import Execution, ForgetfulTool, Output, Place, Tool, ToolRefused
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox

MAX_PROGRESS = 200
"""Progress messages of one call. Later ones are dropped."""
PROGRESS_CHARS = 1000
Steps = AsyncGenerator[e.AnyEvent, None]


class LoopSettings(Struct, frozen=True):
    """Limits of the loop."""

    system_prompt: str = ""
    max_rounds: int = 50
    max_message_bytes: int = 4 * 1024 * 1024
    context_tokens: int = 0
    """The model's window in tokens. 0: unknown, and nothing is left out."""
    on_unknown: Literal["tell", "ask"] = "tell"
    """What happens to a write that a crash interrupted: the model is told, or a person decides whether to repeat it."""


class CallEnvironment(Struct, frozen=True):
    """What tool calls take from outside of the loop."""

    place: Callable[[RunState, str], Place]
    """Where a call of a run works."""
    end_leftover: Callable[[e.Process, str], Awaitable[bool]]
    """Ends the process that a call of an earlier attempt left running."""
    outputs: OutputFiles


class PreparedCall(Struct):
    """A call between ToolStarted and ToolFinished. Without an execution, `refusal` is its result."""

    started: e.ToolStarted
    execution: Execution | None
    refusal: str = ""
    place: Place | None = None
    in_memory: bool = False
    """Nothing of the run may be written to the disk (B6)."""


class ProgressQueue(Struct):
    """What the tools of one group report while they run."""

    events: deque[e.ToolProgressed] = field(default_factory=deque)
    count: dict[str, int] = {}
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, call_id: str, text: str) -> None:
        """Queue a text of the tool of this call (Place.progress). Texts beyond MAX_PROGRESS are dropped."""
        self.count[call_id] = self.count.get(call_id, 0) + 1
        if self.count[call_id] <= MAX_PROGRESS:
            self.events.append(e.ToolProgressed(call_id, text[:PROGRESS_CHARS]))
            self.filled.set()


class LoopAgent:
    """An Agent over a Model and a Toolbox."""

    resumable = True

    def __init__(
        self,
        model: Model,
        toolbox: Toolbox,
        settings: LoopSettings,
        environment: CallEnvironment,
        approvals: Approvals,
    ) -> None:
        self._model = model
        self._keeper = model.keeper if isinstance(model, KeptModel) else None
        self._toolbox = toolbox
        self._settings = settings
        self._place = environment.place
        self._end_leftover = environment.end_leftover
        self._outputs = environment.outputs
        self._approvals = approvals

    @property
    def window(self) -> int:
        """The model's window in tokens. 0: unknown."""
        return self._settings.context_tokens

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """About how many tokens the first model call of a request has."""
        prompt = "" if spec.chore else self._settings.system_prompt
        messages = estimated_tokens(ask_messages(prompt, spec, history))
        return messages + estimated_tool_tokens(offered_tools(self._toolbox.current().schemas, spec))

    def has_tool(self, name: str) -> bool:
        """See ToolKnower.has_tool."""
        return self._toolbox.get(name) is not None

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers."""
        for due in state.facts.due.values():
            if due.started is not None and due.started.process is not None:
                await self._end_leftover(due.started.process, due.call.id)

    async def forget(self, state: RunState) -> bool:
        """See RunForgetter.forget: the files of long outputs go, and what tools kept for the run."""
        here = [
            await self._outputs.forget(self._place(state, call_id), output_path(call_id)) for call_id in _laid(state)
        ]
        for call_id, name in _called(state).items():
            tool: object = self._toolbox.get(name)
            if isinstance(tool, ForgetfulTool):
                here.append(await tool.forget(self._place(state, call_id)))
        return all(here)

    async def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        state = LoopState(turn, self._settings.system_prompt)
        while True:
            calls = [due.call for due in state.facts.due.values()]  # in the order of the message
            if not calls:
                for steer in self._steers(state):
                    yield steer
                    state.add(steer)
                if end := end_of(state.facts, self._settings.max_rounds):
                    yield end
                    return
            async with aclosing(self._execute(state, calls) if calls else self._ask(state)) as steps:
                async for event in steps:
                    if type(event) in DELTAS:
                        yield event
                        continue
                    end = state.end_at_once(event)
                    yield end or event
                    if end is not None:
                        return
                    state.add(event)

    def _steers(self, state: LoopState) -> Sequence[e.SteerApplied]:
        """The steers for the next message, in order: none where the run ends all the same, or where the answer of the
        model was kept, which knows of none."""
        waiting = state.steering.pending() if state.steering is not None else ()
        if not waiting or end_of(state.facts, self._settings.max_rounds, steered=True) is not None:
            return ()
        return () if self.keeps_draft(state.run_state) else waiting

    @property
    def keeps_calls(self) -> bool:
        """See DraftKeeper.keeps_calls."""
        return self._keeper is not None

    def keeps_draft(self, state: RunState) -> bool:
        """See DraftKeeper.keeps_draft."""
        return self._keeper is not None and not state.facts.due and self._keeper.held(call_key(state))

    async def _ask(self, state: LoopState) -> Steps:
        """Ask the model for one message."""
        facts, limit = state.facts, self._settings.max_message_bytes
        draft, state.draft = state.draft, None
        skips = draft.skips() if draft is not None else None
        own = self._toolbox.current()
        incoming = Incoming(facts.run, facts.calls, limit, state.client_tools, own.emojis.get, skips)
        messages, tools, options = state.request(own.schemas, self._settings.context_tokens)
        take = partial(incoming.take, state.deltas) if state.deltas is not None else None
        call = call_key(state.run_state) if self._keeper is not None else ""
        ask = Ask(messages, tools, options, take, call, draft is not None)
        async with aclosing(self._model.stream(ask)) as stream:  # type: ignore[type-var]
            async for parts in stream:
                if state.deltas is not None and not state.deltas.is_read() and incoming.take_whole(parts):
                    continue  # a delta costs a record, and the message is committed next
                for delta in incoming.feed(parts):
                    yield delta
                if incoming.full:
                    break
        message = incoming.completed(lambda: estimated_tokens(messages) + estimated_tool_tokens(tools))
        try:
            yield message
        finally:  # it is committed when the generator goes on or is closed: the model call is not needed any more
            if self._keeper is not None:
                self._keeper.settle(call)

    def request(self, turn: Turn) -> Request:
        """What the model would be sent next: messages, tools and options. For people who ask what it saw."""
        state = LoopState(turn, self._settings.system_prompt)
        return state.request(self._toolbox.current().schemas, self._settings.context_tokens)

    async def _execute(self, state: LoopState, calls: Sequence[e.Call]) -> Steps:
        """Execute calls: reads and idempotent ones side by side, each write alone and in its place."""
        together: list[e.Call] = []
        for call in calls:
            due = state.facts.due.get(call.id)
            tool = self._toolbox.get(call.name)
            match await self._before_start(state, call, due, tool):
                case e.ApprovalRequested() as question:
                    yield question
                    return
                case e.ToolFinished() as finished:
                    if due is None or due.started is None:
                        label = self._toolbox.label(call.name, call.arguments)
                        yield e.ToolStarted(call=call, effect="read", label=label)
                    yield finished
                    continue
            if tool is not None and tool.effect == "write":
                for group in (together, [call]):
                    async with aclosing(self._execute_group(state, group)) as steps:
                        async for event in steps:
                            yield event
                together = []
            else:
                together.append(call)
        async with aclosing(self._execute_group(state, together)) as steps:
            async for event in steps:
                yield event

    async def _before_start(
        self, state: LoopState, call: e.Call, due: Due | None, tool: Tool | None
    ) -> e.ApprovalRequested | e.ToolFinished | None:
        """What must happen instead of the call: a question to a person, or a result without a call. None: make it.

        This holds the crash rule of a call: a write that an earlier attempt started and did not finish is not made
        again (P5)."""
        if forbidden := state.refusal(call):
            return e.ToolFinished(call_id=call.id, output=forbidden, is_error=True)
        given = state.facts.approvals.get(call.id)
        if given is not None and given.choice in ("deny", "expired"):
            words = "denied by a person" if given.choice == "deny" else "not approved in time"
            return e.ToolFinished(call_id=call.id, output=f"This call was {words}; it was not made.", is_error=True)
        if given is not None:
            # Safe before the check of writes: ToolStarted drops the approval (core/state.py). So an answer that is
            # still here came after the last start, and a write that was interrupted since then has none.
            return None
        if due is not None and due.started is not None and due.started.effect == "write":
            if self._settings.on_unknown == "ask":
                return _asked_in(state, self._approvals.ask(call, WHY_UNKNOWN))
            return e.ToolFinished(call_id=call.id, output=UNKNOWN, is_error=True, outcome="unknown")
        if tool is None or self._approvals.never_asks:
            return None
        question = await self._approvals.question(state.run_state, call, tool, state.names_host)
        return None if question is None else _asked_in(state, question)

    async def _execute_group(self, state: LoopState, calls: Sequence[e.Call]) -> Steps:
        """Start each call, run all, report each as it is done."""
        prepared: list[PreparedCall] = []
        tasks: dict[asyncio.Task[Output], tuple[str, float]] = {}
        progress = ProgressQueue()
        reported = asyncio.ensure_future(progress.filled.wait())
        try:
            for call in calls:
                prepared.append(await self._prepare(state, call, progress, first=not prepared))
                yield prepared[-1].started
            for each in prepared:
                task = asyncio.create_task(self._execute_one(each, state.holds_claim))
                tasks[task] = each.started.call.id, time.monotonic()
            while tasks:
                done, _ = await asyncio.wait((*tasks, reported), return_when=asyncio.FIRST_COMPLETED)
                while progress.events:
                    yield progress.events.popleft()
                progress.filled.clear()
                if reported.done():
                    reported = asyncio.ensure_future(progress.filled.wait())
                for task in [task for task in tasks if task in done]:
                    call_id, began = tasks.pop(task)
                    output = task.result()
                    yield e.ToolFinished(
                        call_id=call_id,
                        output=output.text,
                        is_error=output.is_error,
                        outcome=output.outcome,
                        duration_ms=int((time.monotonic() - began) * 1000),
                    )
        finally:
            reported.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in prepared:
                if each.execution is not None:
                    await each.execution.abandon()

    async def _prepare(self, state: LoopState, call: e.Call, progress: ProgressQueue, *, first: bool) -> PreparedCall:
        """The call, ready to run. Raises Shortage for the first call of a round: the run is tried again later. The
        calls before a later one have begun, so that one is refused instead."""
        tool = self._toolbox.get(call.name)
        if tool is None:
            started = e.ToolStarted(call=call, effect="read", label=call.name)
            known = ", ".join(self._toolbox.names())
            return PreparedCall(started, None, f"There is no tool named {call.name!r}. The tools are: {known}.")
        label = self._toolbox.label(call.name, call.arguments)
        place = self._place(state.run_state, call.id)
        may_visit = partial(self._approvals.may_visit, call, tool, state.names_host)
        place = replace(place, progress=partial(progress.report, call.id), scratch=state.scratch, may_visit=may_visit)
        try:
            execution = await self._toolbox.prepare(call.name, call.arguments, place)
        except (ToolRefused, OSError) as refused:
            short = shortage_of(refused)
            if short is not None and first:
                raise short from refused
            if short is None and isinstance(refused, OSError):
                raise
            started = e.ToolStarted(call=call, effect="read", label=label, emoji=tool.emoji)
            return PreparedCall(started, None, str(refused))
        started = e.ToolStarted(call=call, effect=tool.effect, label=label, emoji=tool.emoji, process=execution.process)
        return PreparedCall(started, execution, place=place, in_memory=state.spec.kept == "memory")

    async def _execute_one(self, prepared: PreparedCall, holds_claim: Callable[[], bool]) -> Output:
        if not holds_claim():
            await asyncio.get_running_loop().create_future()  # another process has the run: wait to be closed
        if prepared.execution is None:
            return Output(prepared.refusal, is_error=True)
        execution, prepared.execution = prepared.execution, None
        try:
            output = await execution.run()
            return await self._with_whole_file(prepared, output) if len(output.text) > SHOWN else output
        except ToolRefused as refused:
            return Output(str(refused), is_error=True)
        except Exception as error:  # the bug of a tool is a result: the model can read it, and the journal keeps it
            return Output(f"The tool failed: {type(error).__name__}: {error}", is_error=True)

    async def _with_whole_file(self, prepared: PreparedCall, output: Output) -> Output:
        """A long output. It is also written to a file in the workspace, where the model can read all of it."""
        if prepared.place is None:
            return output
        if prepared.in_memory:
            return Output(shortened(output.text), output.is_error, output.outcome)
        try:
            await self._outputs.keep(prepared.place, output_path(prepared.started.call.id), output.text)
        except (OSError, ToolRefused) as error:
            words = f"{output.text}\n[This output could not be laid in the workspace: {error}]"
            return Output(words, output.is_error, output.outcome)
        return output


def _called(state: RunState) -> dict[str, str]:
    """The calls of a run that were started: id and name of the tool."""
    return {item.started.call.id: item.started.call.name for item in state.facts.items if isinstance(item, Called)}


def _laid(state: RunState) -> list[str]:
    """The calls whose whole output may be in a file. An attempt that was cut off may have laid one down before it could
    say so. The others did only where the output is long: to ask for a file settles the home of a workspace."""
    results = state.facts.results
    if state.facts.attempt > 1 or not isinstance(state.facts.end, e.RunCompleted):
        return list(_called(state))
    return [call_id for call_id, result in results.items() if len(result.output) > SHOWN]


def _asked_in(state: LoopState, question: e.ApprovalRequested) -> e.ApprovalRequested | e.ToolFinished:
    """The question, or a refusal: a run in memory survives nothing, so it cannot wait for a person (B6)."""
    if state.spec.kept != "memory":
        return question
    return e.ToolFinished(call_id=question.call.id, output=IN_MEMORY, is_error=True)

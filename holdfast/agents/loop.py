"""The built-in agent: model, tools, model, until done. Owns: the rounds, the crash rule of each tool, the budget of
tokens and rounds. Refuses to know: where events go and how a tool does its work.

Theory of operation. Everything the loop knows when an attempt begins comes from the folded state, so a first attempt
and a fifth one run the same code: carry out what is due, else end if the last message asked for nothing, else ask the
model. A call is two facts with the deed between them: ToolStarted is committed before `Deed.run` (the generator goes
on only then), ToolFinished before the model is asked again. A call that an earlier attempt started and did not finish
is carried out again only if its effect is read or idempotent; a write is settled as unknown, in words for the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.agents.approval import Approvals
from holdfast.agents.base import Ahead, Turn
from holdfast.agents.incoming import Incoming
from holdfast.agents.progress import Progress
from holdfast.agents.talk import Talk, offered
from holdfast.core import events as e
from holdfast.core.context import estimated_tokens, estimated_tool_tokens, fit, is_long, output_path
from holdfast.core.history import ask_messages
from holdfast.core.spec import Message, Spec
from holdfast.core.state import Due, RunState
from holdfast.models.base import Ask, Model, Part
from holdfast.tools.base import Deed, Output, Place, ToolRefused
from holdfast.tools.registry import Toolbox
from holdfast.tools.spill import keep_whole

UNKNOWN = (
    "The server stopped while this call was being carried out, so its outcome is unknown: it may have happened fully, "
    "partly or not at all. It was not repeated. Check before you do it again."
)
Steps = AsyncGenerator[e.AnyEvent, None]


class LoopSettings(Struct, frozen=True):
    """Bounds of the loop."""

    system_prompt: str = ""
    max_rounds: int = 50
    max_message_bytes: int = 4 * 1024 * 1024
    context_tokens: int = 0
    """The model's window, in tokens; 0: not known, nothing is left out."""
    on_unknown: Literal["tell", "ask"] = "tell"
    """What becomes of a write that a crash interrupted: the model is told, or a person decides whether to repeat it."""


class Ready(Struct):
    """A call that is ready to be carried out, or that cannot be."""

    started: e.ToolStarted
    deed: Deed | None
    refusal: str = ""
    place: Place | None = None


class LoopAgent:
    """An Agent over a Model and a Toolbox."""

    resumable = True

    def __init__(
        self,
        model: Model,
        toolbox: Toolbox,
        settings: LoopSettings,
        place: Callable[[RunState, str], Place],
        end_leftover: Callable[[e.Process, str], Awaitable[bool]],
        approvals: Approvals,
    ) -> None:
        self._approvals = approvals
        self._model = model
        self._toolbox = toolbox
        self._settings = settings
        self._place = place
        self._end_leftover = end_leftover

    @property
    def window(self) -> int:
        """How many tokens fit; 0: not known."""
        return self._settings.context_tokens

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """About how many tokens the model would first be sent for a request."""
        prompt = "" if spec.chore else self._settings.system_prompt
        messages = estimated_tokens(ask_messages(prompt, spec, history))
        return messages + estimated_tool_tokens(offered(self._toolbox.schemas(), spec))

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers."""
        for due in state.facts.due.values():
            if due.started is not None and due.started.process is not None:
                await self._end_leftover(due.started.process, due.call.id)

    async def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        talk = Talk(turn, self._settings.system_prompt)
        while not talk.ended:
            due = talk.due()
            if not due and (end := talk.end(self._settings.max_rounds)):
                yield end
                talk.note(end)
                return
            async with aclosing(self._act(talk, due) if due else self._message(talk)) as events:
                async for event in events:
                    if isinstance(event, e.MessageCompleted) and (end := self._settled(talk, event)):
                        yield end
                        return
                    yield event
                    if type(event) is not e.TextDelta:
                        talk.note(event)

    def _settled(self, talk: Talk, said: e.MessageCompleted) -> e.RunCompleted | e.RunInterrupted | None:
        """The end of the run, where this message is its last and was told ahead of it."""
        if talk.ahead is None or not talk.ahead.free():
            return None
        end = talk.end_after(said, self._settings.max_rounds)
        if end is not None:
            talk.ahead.settle(said)
        return end

    async def _message(self, talk: Talk) -> Steps:
        """Ask the model once."""
        run, limit = talk.state.facts.run, self._settings.max_message_bytes
        incoming = Incoming(run, talk.calls, limit, talk.client_tools)
        tools = talk.tools(self._toolbox.schemas())
        options = talk.options()
        if not tools:  # upstreams refuse these where there are none
            options.pop("tool_choice", None)
            options.pop("parallel_tool_calls", None)
        window = self._settings.context_tokens
        messages = fit(talk.messages(), window, str(talk.spec.echo.get("truncation", "auto")))
        ask = Ask(messages, tools, options, _taker(talk.ahead, incoming))
        async with aclosing(self._model.stream(ask)) as stream:  # type: ignore[type-var]
            async for parts in stream:
                for delta in incoming.feed(parts):
                    yield delta
                if incoming.full:
                    break
        yield incoming.completed()

    async def _act(self, talk: Talk, calls: Sequence[e.Call]) -> Steps:
        """Carry out calls: reads and idempotent ones side by side, each write alone and in its place."""
        together: list[e.Call] = []
        for call in calls:
            due = talk.state.facts.due.get(call.id)
            tool = self._toolbox.get(call.name)
            match await self._stand(talk, call, due):
                case e.ApprovalRequested() as question:
                    yield question
                    return
                case e.ToolFinished() as settled:
                    if due is None or due.started is None:
                        label = self._toolbox.label(call.name, call.arguments)
                        yield e.ToolStarted(call=call, effect="read", label=label)
                    yield settled
                    continue
            if tool is not None and tool.effect == "write":
                for group in (together, [call]):
                    async with aclosing(self._group(talk, group)) as events:
                        async for event in events:
                            yield event
                together = []
            else:
                together.append(call)
        async with aclosing(self._group(talk, together)) as events:
            async for event in events:
                yield event

    async def _stand(self, talk: Talk, call: e.Call, due: Due | None) -> e.ApprovalRequested | e.ToolFinished | None:
        """How a call stands before it is made: a person must be asked, it is settled without being made, or neither."""
        if forbidden := talk.forbids(call):
            return e.ToolFinished(call_id=call.id, output=forbidden, is_error=True)
        given = talk.state.facts.approvals.get(call.id)
        if given is not None and given.choice in ("deny", "expired"):
            words = "denied by a person" if given.choice == "deny" else "not approved in time"
            return e.ToolFinished(call_id=call.id, output=f"This call was {words}; it was not made.", is_error=True)
        if given is not None:
            return None
        if due is not None and due.started is not None and due.started.effect == "write":
            if self._settings.on_unknown == "ask":
                return self._approvals.ask(call)
            return e.ToolFinished(call_id=call.id, output=UNKNOWN, is_error=True, outcome="unknown")
        tool = self._toolbox.get(call.name)
        if tool is None:
            return None
        return await self._approvals.question(talk.state, call, tool.effect)

    async def _group(self, talk: Talk, calls: Sequence[e.Call]) -> Steps:
        """Start each, run all, report each as it is done."""
        ready: list[Ready] = []
        tasks: dict[asyncio.Task[Output], tuple[str, float]] = {}
        progress = Progress()
        ringing = asyncio.ensure_future(progress.bell.wait())
        try:
            for call in calls:
                ready.append(await self._prepare(talk, call, progress))
                yield ready[-1].started
            for each in ready:
                tasks[asyncio.create_task(_carry_out(each, talk.ours))] = (each.started.call.id, time.monotonic())
            while tasks:
                done, _ = await asyncio.wait((*tasks, ringing), return_when=asyncio.FIRST_COMPLETED)
                for news in progress.take():
                    yield news
                if ringing.done():
                    ringing = asyncio.ensure_future(progress.bell.wait())
                for task in [task for task in tasks if task in done]:
                    finished, began = tasks.pop(task)
                    yield _settled(finished, task.result(), began)
        finally:
            ringing.cancel()
            await _let_go(ready, list(tasks))

    async def _prepare(self, talk: Talk, call: e.Call, progress: Progress) -> Ready:
        tool = self._toolbox.get(call.name)
        if tool is None:
            started = e.ToolStarted(call=call, effect="read", label=call.name)
            known = ", ".join(self._toolbox.names())
            return Ready(started, None, f"There is no tool named {call.name!r}. The tools are: {known}.")
        label = self._toolbox.label(call.name, call.arguments)
        place = replace(self._place(talk.state, call.id), progress=progress.teller(call.id))
        try:
            deed = await self._toolbox.prepare(call.name, call.arguments, place)
        except ToolRefused as refused:
            started = e.ToolStarted(call=call, effect="read", label=label, emoji=tool.emoji)
            return Ready(started, None, str(refused))
        started = e.ToolStarted(call=call, effect=tool.effect, label=label, emoji=tool.emoji, process=deed.process)
        return Ready(started, deed, place=place)


def _settled(call_id: str, output: Output, began: float) -> e.ToolFinished:
    return e.ToolFinished(
        call_id=call_id,
        output=output.text,
        is_error=output.is_error,
        outcome=output.outcome,
        duration_ms=int((time.monotonic() - began) * 1000),
    )


async def _carry_out(ready: Ready, ours: Callable[[], bool]) -> Output:
    if not ours():
        await asyncio.get_running_loop().create_future()  # somebody else has the run: until this one is closed
    if ready.deed is None:
        return Output(ready.refusal, is_error=True)
    deed, ready.deed = ready.deed, None
    try:
        return await _kept(ready, await deed.run())
    except ToolRefused as refused:
        return Output(str(refused), is_error=True)
    except Exception as error:  # a tool's bug is something the model can read, and the journal keeps it
        return Output(f"The tool failed: {type(error).__name__}: {error}", is_error=True)


async def _kept(ready: Ready, output: Output) -> Output:
    """The output; a long one is laid in the workspace too, where the model can read on."""
    if not is_long(output.text) or ready.place is None:
        return output
    try:
        await keep_whole(ready.place, output_path(ready.started.call.id), output.text)
    except (OSError, ToolRefused) as error:
        return Output(f"{output.text}\n[This output could not be laid in the workspace: {error}]", output.is_error)
    return output


def _taker(ahead: Ahead | None, incoming: Incoming) -> Callable[[list[Part]], bool] | None:
    """Hands the deltas of a message over as they come, where somebody takes them."""
    if ahead is None:
        return None

    def take(parts: list[Part]) -> bool:
        if not ahead.free():
            return False
        if (word := incoming.word(parts)) is not None:
            ahead.put(word)
            return True
        if not incoming.fits(parts):
            return False
        for delta in incoming.feed(parts):
            ahead.put(delta)
        return True

    return take


async def _let_go(ready: Sequence[Ready], tasks: Sequence[asyncio.Task[Output]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in ready:
        if each.deed is not None:
            await each.deed.abandon()

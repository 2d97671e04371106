"""Durable steps: what lets any Python code be the agent behind a run. Owns: Steps, the two seams through which an agent
touches the world (ask a model, make a call), and the replay of what an earlier attempt finished. Refuses to know: which
framework the agent is written with.

Theory of operation. The agent's own code runs in a task, and its steps become events: a call is ToolStarted and
ToolFinished, an answer of a model is a MessageCompleted. A step returns only when its event is committed. After a crash
the code runs again from its start. Steps that the journal holds return their recorded result and touch nothing; a call
that was in flight follows the crash rule of its effect (P5). A step is found again by its name and arguments, and equal
steps in their order. Where the code asks for something that the journal does not hold, while the journal holds steps
that nobody asked for, the run ends with `replay_diverged`: going on would repeat what was done.

A step can make steps, such as an agent inside a tool. They belong to it: where the outer one returns its recorded
result, or is not made again, nobody asks for the inner ones any more.

A message can only begin while no call is in flight (core/table.py). So an answer that arrives beside a call, such as
that of an agent inside a tool, is journaled as a call of the hidden tool `_model`."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Literal

from msgspec import Struct

from ninelives.agents.approval import WHY_UNKNOWN, Approvals
from ninelives.agents.base import Turn
from ninelives.core import events as e
from ninelives.core.context import shortened
from ninelives.core.errors import AgentError
from ninelives.core.ids import call_id
from ninelives.core.state import Called, Due, Facts
from ninelives.tools.base import Tool

MODEL = "_model"
"""The hidden tool whose calls are answers of a model that are no messages of the run."""
SETTLE_S = 2.0
"""How long a step that the journal does not hold waits for the others of its group to be asked for."""
AHEAD = 256
"""Deltas that may wait to be handed on."""
UNKNOWN = (
    "The process stopped while this call was being carried out, so its outcome is unknown: it may have happened fully, "
    "partly or not at all. It was not repeated. Check before you do it again."
)
IN_MEMORY = (
    "This call needs the approval of a person. It was not made, because this run is kept in memory only "
    '(store_false = "memory") and cannot wait for an answer. Send the request with store: true, or leave store out.'
)
NO_WAITING = (
    "This call needs the approval of a person. It was not made, because it is part of another call, which cannot wait "
    "for an answer."
)
NO_USAGE = e.Usage()
SHOWN = 500
"""Characters of a value in an error message."""
_inside: ContextVar[str] = ContextVar("inside", default="")
"""The id of the call whose body this code is part of."""


class StepFailed(AgentError):
    """A step failed, now or in an earlier attempt: the same words are raised again after a crash. An agent that does
    not catch it fails the run with them."""

    def __init__(self, message: str, code: str = "step_failed") -> None:
        super().__init__(code, message, status=500)


class StepUnknown(StepFailed):
    """A crash interrupted this write. Nobody knows whether it happened, and it was not repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "outcome_unknown")


class StepDenied(StepFailed):
    """A person did not approve this step, or did not answer in time. It was not made."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "approval_denied")


class AnswerEnd(Struct, frozen=True):
    """The end of a model's answer. `record` is what the agent needs to read the answer again after a crash."""

    text: str
    record: str
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of the calls that the model asks for, in order."""
    usage: e.Usage = e.Usage()
    reasoning: str = ""
    finish: e.Finish = "stop"


class RecordedAnswer(Struct, frozen=True):
    """A model's answer as the journal holds it."""

    record: str
    calls: tuple[e.Call, ...] = ()
    """The calls of the answer, with the ids of this run."""


class CallPlan(Struct, frozen=True, kw_only=True):
    """A call to make: what is shown of it, and its rule after a crash."""

    name: str
    arguments: str
    effect: e.Effect = "write"
    label: str = ""
    emoji: str = ""
    call: e.Call | None = None
    """The call of a message that this is. None: the agent makes it by itself."""
    tool: Tool | None = None
    """What the call is of, for the question whether a person must approve it. None: nobody is asked."""


class Made(Struct, frozen=True):
    """What a call gave."""

    output: str
    """The text that people and the model see."""
    record: str = ""
    """What the agent gets after a crash, where it is not the output."""
    is_error: bool = False
    usage: e.Usage = e.Usage()


class _Waiting(Struct):
    """An event on its way to the journal, and who waits for its commit."""

    event: e.AnyEvent
    committed: asyncio.Future[None] | None = None


class Steps:
    """The steps of one attempt at one run."""

    def __init__(
        self, turn: Turn, approvals: Approvals | None = None, on_unknown: Literal["tell", "ask"] = "tell"
    ) -> None:
        self._state = turn.state
        self._facts = facts = turn.state.facts
        self._holds_claim = turn.holds_claim
        self._approvals = approvals
        self._on_unknown = on_unknown
        self._events: asyncio.Queue[_Waiting] = asyncio.Queue(AHEAD)
        self._floor = asyncio.Lock()
        """Held while a message streams: no other event may come in between."""
        self._in_flight = 0
        self._asking = False
        """A question waits for the calls in flight. No other call may start then."""
        self._landed = asyncio.Event()
        """Set at the end of each call."""
        self._calls = facts.calls
        self._piece: list[str] = []
        self._thought: list[str] = []
        self._last_text = ""
        self._open: dict[str, e.Call] = {}
        """Calls of messages that the agent has neither made nor passed over."""
        self._answers = {digest: deque(found) for digest, found in _answers(facts.messages).items()}
        self._texts = deque(said for said in facts.messages if not said.step)
        self._own = _own_calls(facts)
        self._outer = {item.started.call.id: item.started.inside for item in facts.items if isinstance(item, Called)}
        self._left = len(facts.messages) + sum(map(len, self._own.values()))
        self._asked_for = asyncio.Event()
        """Set at each step that the journal holds."""

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        return self._last_text

    def went_on_after(self, plan: CallPlan) -> bool:
        """True where the journal holds steps that nobody asked for yet, and not this one: an earlier attempt did not
        make it once more."""
        return self._left > 0 and not self._own.get((plan.name, plan.arguments))

    # from the agent's task to the server

    async def events(self, agent: Coroutine[object, object, None]) -> AsyncIterator[e.AnyEvent]:
        """What Agent.run yields: the events of `agent`, which runs in a task, and the end of the run."""
        task = asyncio.create_task(self._to_end(agent))
        try:
            while True:
                waiting = await self._next(task)
                if waiting is None:
                    break
                yield waiting.event
                if waiting.committed is not None and not waiting.committed.done():
                    waiting.committed.set_result(None)
            task.result()
            yield e.RunCompleted()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _to_end(self, agent: Coroutine[object, object, None]) -> None:
        await agent
        await self.close_message()
        async with self._floor:
            await self._pass_over()
        self._check_all_asked()

    async def _next(self, task: asyncio.Task[None]) -> _Waiting | None:
        """The next event; None when the agent has ended and all were handed on."""
        if self._events.empty() and not task.done():
            get = asyncio.ensure_future(self._events.get())
            try:
                await asyncio.wait((get, task), return_when=asyncio.FIRST_COMPLETED)
                if get.done():
                    return get.result()
            finally:
                get.cancel()
        return None if self._events.empty() else self._events.get_nowait()

    async def _tell(self, event: e.AnyEvent) -> None:
        """Hand an event on. Returns when a fact is committed, and at once for a delta while few wait."""
        if isinstance(event, e.Delta):
            return await self._events.put(_Waiting(event))
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._events.put(_Waiting(event, committed))
        await committed

    # text of the agent itself

    async def say(self, text: str, *, thinking: bool = False) -> None:
        """A piece of the answer. Pieces become one message, which the next step or the end of the agent closes."""
        (self._thought if thinking else self._piece).append(text)
        if not self._texts:  # else an earlier attempt said it: it is compared when the message is closed
            async with self._floor:
                await self._pass_over()
                await self._tell(e.ReasoningDelta(text) if thinking else e.TextDelta(text))

    async def end_message(self, text: str, usage: e.Usage) -> None:
        """The whole of the last message, and what it cost. It is said where it was not."""
        if text.strip() not in ("".join(self._piece).strip(), self._last_text.strip()):
            await self.close_message()
            await self.say(text)
        await self.close_message(usage)

    async def close_message(self, usage: e.Usage = NO_USAGE) -> None:
        """End the message that `say` began, if there is one."""
        text, thought = "".join(self._piece), "".join(self._thought)
        self._piece, self._thought = [], []
        if not text and not thought:
            return
        self._last_text = text
        if self._texts:
            said = self._texts.popleft()
            if (said.text, said.reasoning) != (text, thought):
                raise _diverged(f"the text {_brief(said.text)}", f"the text {_brief(text)}")
            return self._found()
        async with self._floor:
            await self._tell(e.MessageCompleted(text, usage=usage, reasoning=thought))

    # the seam of models

    async def ask(
        self, request: bytes, stream: Callable[[], AsyncIterator[e.Delta | AnswerEnd]], *, shown: bool = True
    ) -> RecordedAnswer:
        """A model's answer: recorded, or asked for now. `stream` yields its deltas, then one AnswerEnd. An answer that
        is not `shown` is no message of the run."""
        await self.close_message()
        digest = hashlib.sha256(request).hexdigest()[:32]
        if found := self._answers.get(digest):
            said = found.popleft()
            self._found()
            self._last_text = said.text
            self._open |= {call.id: call for call in said.calls if call.id not in self._facts.results}
            return RecordedAnswer(said.record, said.calls)
        hidden = CallPlan(name=MODEL, arguments=f'{{"request":"{digest}"}}', effect="idempotent")
        if not shown or self._in_flight or self._floor.locked() or self._own.get((MODEL, hidden.arguments)):
            return RecordedAnswer((await self.call(hidden, lambda _: _whole(stream()))).record)
        excerpt = _excerpt(request)
        await self._check_new(f"model call {digest} of {excerpt!r}")
        async with self._floor:
            await self._pass_over()
            return await self._stream(digest, excerpt, stream())

    async def _stream(self, digest: str, excerpt: str, parts: AsyncIterator[e.Delta | AnswerEnd]) -> RecordedAnswer:
        """An answer as a message of the run, told while it arrives."""
        async for part in parts:
            if not isinstance(part, AnswerEnd):
                await self._tell(part)
                continue
            calls = tuple(e.Call(self._new_id(), name, arguments) for name, arguments in part.calls)
            said = e.MessageCompleted(
                part.text, calls, part.usage, part.reasoning, part.finish, "", digest, part.record, excerpt
            )
            self._last_text = part.text
            await self._tell(said)
            self._open |= {call.id: call for call in calls}
            return RecordedAnswer(part.record, calls)
        raise AgentError("upstream_ended_early", "The model's answer stopped without an end.")

    async def _pass_over(self) -> None:
        """Settle calls of earlier messages that the agent did not make: no message may come before they have a result.
        Frameworks skip calls, for example beside a call that is the answer."""
        if self._in_flight:
            return
        for call in list(self._open.values()):
            await self._tell(e.ToolStarted(call=call, effect="read", label=call.name))
            await self._tell(e.ToolFinished(call_id=call.id, output="The agent did not make this call."))
            del self._open[call.id]

    # the seam of calls

    async def call(self, plan: CallPlan, body: Callable[[str], Awaitable[Made]]) -> Made:
        """Make a call: recorded, or now. `body` gets the id of the call, which is the same when the call is repeated:
        use it as idempotency key. An error of `body` is journaled and raised as StepFailed."""
        await self.close_message()
        call, due = await self._journaled(plan)
        self._open.pop(call.id, None)
        if (done := self._facts.results.get(call.id)) is not None:
            await self._leave_inner(call.id)
            return _raised(done)
        if (given := self._facts.approvals.get(call.id)) is not None and given.choice in ("deny", "expired"):
            words = "denied by a person" if given.choice == "deny" else "not approved in time"
            raise StepDenied(await self._refuse(plan, call, due, f"This call was {words}; it was not made."))
        if given is None and due is not None and due.started is not None and due.started.effect == "write":
            await self._settle_unknown(call)
        elif given is None and (due is None or due.started is None):
            await self._ask_person(plan, call)
        return await self._carry_out(plan, call, body)

    async def tool(self, plan: CallPlan, body: Callable[[str], Awaitable[Made]]) -> Made:
        """`call` for a tool of a framework: the model is told of an unknown outcome and of a denial, as by the built-in
        agent, and goes on. Such a result has no record."""
        try:
            return await self.call(plan, body)
        except (StepUnknown, StepDenied) as error:
            return Made(error.message, is_error=True)

    async def _journaled(self, plan: CallPlan) -> tuple[e.Call, Due | None]:
        """The call as the journal holds it, or a new one."""
        if plan.call is not None:
            return plan.call, self._facts.due.get(plan.call.id)
        if found := self._own.get((plan.name, plan.arguments)):
            call = found.popleft()
            self._found()
            return call, self._facts.due.get(call.id)
        await self._check_new(f"{plan.name}({_brief(plan.arguments)})")
        return e.Call(self._new_id(), plan.name, plan.arguments), None

    async def _leave_inner(self, outer: str) -> None:
        """Nobody will ask for the steps that this call made: it is not made again. One that was in flight is told as
        unknown."""
        inner = [call for found in self._own.values() for call in found if self._outer.get(call.id) == outer]
        for call in inner:
            self._own[call.name, call.arguments].remove(call)
            self._found()
            await self._leave_inner(call.id)
            if call.id in self._facts.due:
                await self._finish_unknown(call)

    async def _finish_unknown(self, call: e.Call) -> None:
        async with self._floor:
            await self._tell(e.ToolFinished(call_id=call.id, output=UNKNOWN, is_error=True, outcome="unknown"))

    async def _settle_unknown(self, call: e.Call) -> None:
        """A write that an earlier attempt started and did not finish: told as unknown, or a person decides."""
        await self._leave_inner(call.id)
        if self._on_unknown == "ask" and self._approvals is not None and self._facts.accepted.spec.kept != "memory":
            await self._wait_for_person(self._approvals.ask(call, WHY_UNKNOWN))
        await self._finish_unknown(call)
        raise StepUnknown(UNKNOWN)

    async def _refuse(self, plan: CallPlan, call: e.Call, due: Due | None, words: str) -> str:
        async with self._floor:
            if due is None or due.started is None:
                await self._tell(e.ToolStarted(call=call, effect="read", label=plan.label or plan.name))
            await self._tell(e.ToolFinished(call_id=call.id, output=words, is_error=True))
        return words

    async def _ask_person(self, plan: CallPlan, call: e.Call) -> None:
        """Ask whether the call may be made, where the policy of the server says so."""
        if self._approvals is None or self._approvals.never_asks or plan.tool is None:
            return
        question = await self._approvals.question(self._state, call, plan.tool, lambda host: False)
        if question is None:
            return
        if self._facts.accepted.spec.kept == "memory" or _inside.get():
            words = NO_WAITING if _inside.get() else IN_MEMORY
            raise StepDenied(await self._refuse(plan, call, None, words))
        await self._wait_for_person(question)

    async def _wait_for_person(self, question: e.ApprovalRequested) -> None:
        """Ask, once no call is in flight: the run is parked then, and a call would be cut off. So this never returns:
        the answer comes to a later attempt."""
        if not self._asking:
            self._asking = True
            while self._in_flight:
                self._landed.clear()
                await self._landed.wait()
            async with self._floor:
                await self._tell(question)
        await asyncio.get_running_loop().create_future()

    async def _carry_out(self, plan: CallPlan, call: e.Call, body: Callable[[str], Awaitable[Made]]) -> Made:
        if self._asking:
            await asyncio.get_running_loop().create_future()  # the run is about to be parked
        self._in_flight += 1
        try:
            async with self._floor:
                label = plan.label or plan.name
                await self._tell(
                    e.ToolStarted(call=call, effect=plan.effect, label=label, emoji=plan.emoji, inside=_inside.get())
                )
            if not self._holds_claim():
                await asyncio.get_running_loop().create_future()  # another process has the run: wait to be closed
            began = asyncio.get_running_loop().time()
            failure: Exception | None = None
            outer = _inside.set(call.id)
            try:
                made = await body(call.id)
            except Exception as error:  # the error of a step is a fact: it is the same after a crash
                failure = error
                made = Made(f"{type(error).__name__}: {error}", is_error=True)
            finally:
                _inside.reset(outer)
            async with self._floor:
                took = int((asyncio.get_running_loop().time() - began) * 1000)
                await self._tell(_finished(call.id, made, took))
        finally:
            self._in_flight -= 1
            self._landed.set()
        if made.is_error and failure is not None:
            raise StepFailed(made.output) from failure
        return made

    def _new_id(self) -> str:
        self._calls += 1
        return call_id(self._facts.run, self._calls - 1)

    # what the journal holds

    def _found(self) -> None:
        self._left -= 1
        self._asked_for.set()

    async def _check_new(self, wanted: str) -> None:
        """Raise AgentError where a step is new though the journal holds steps that nobody asked for yet. Steps of a
        group may be asked for in another order than before, so the others get a moment."""
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while self._left:
            self._asked_for.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._asked_for.wait()
            except TimeoutError:
                raise _diverged(self._first_left(), wanted) from None

    def _check_all_asked(self) -> None:
        """Raise AgentError where the agent ended and the journal holds steps that it did not ask for."""
        if self._left:
            raise _diverged(self._first_left(), "the end of the agent")

    def _first_left(self) -> str:
        if self._texts:
            return f"the text {_brief(self._texts[0].text)}"
        calls = (f"{name}({_brief(arguments)})" for (name, arguments), found in self._own.items() if found)
        answers = (f"model call {digest} of {found[0].asked!r}" for digest, found in self._answers.items() if found)
        return next((*calls, *answers).__iter__(), "a step")


def _answers(messages: tuple[e.MessageCompleted, ...]) -> dict[str, list[e.MessageCompleted]]:
    """The answers of models, by their request."""
    answers: dict[str, list[e.MessageCompleted]] = defaultdict(list)
    for said in messages:
        if said.step:
            answers[said.step].append(said)
    return answers


def _own_calls(facts: Facts) -> dict[tuple[str, str], deque[e.Call]]:
    """The calls that the agent made by itself, by name and arguments, in the order in which they were started."""
    asked = {call.id for said in facts.messages for call in said.calls}
    started = [item.started.call for item in facts.items if isinstance(item, Called)]
    known = {call.id for call in started}
    calls: dict[tuple[str, str], deque[e.Call]] = defaultdict(deque)
    for call in (*started, *(due.call for due in facts.due.values() if due.call.id not in known)):
        if call.id not in asked:
            calls[call.name, call.arguments].append(call)
    return calls


async def _whole(parts: AsyncIterator[e.Delta | AnswerEnd]) -> Made:
    """An answer that is not told while it arrives."""
    async for part in parts:
        if isinstance(part, AnswerEnd):
            return Made(shortened(part.text), part.record, usage=part.usage)
    raise AgentError("upstream_ended_early", "The model's answer stopped without an end.")


def _raised(done: e.ToolFinished) -> Made:
    """The recorded result of a call; an error of it is raised as it was."""
    if done.outcome == "unknown":
        raise StepUnknown(done.output)
    if done.is_error and not done.record:
        raise StepFailed(done.output)
    return Made(done.output, done.record, done.is_error)


def _finished(call: str, made: Made, took_ms: int) -> e.ToolFinished:
    return e.ToolFinished(
        call_id=call,
        output=made.output,
        is_error=made.is_error,
        duration_ms=took_ms,
        record=made.record,
        usage=made.usage,
    )


def _brief(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def _excerpt(request: bytes) -> str:
    """The beginning and the end of a request. What differs is mostly in the instructions or in the last message."""
    if len(request) <= SHOWN:
        return request.decode(errors="replace")
    return f"{request[: SHOWN // 2].decode(errors='replace')} ... {request[-SHOWN // 2 :].decode(errors='replace')}"


def _diverged(journal: str, wanted: str) -> AgentError:
    return AgentError(
        "replay_diverged",
        f"After a restart the agent did not do the same again. The journal holds {journal}; the agent asked for "
        f"{wanted}. The run was ended, so that nothing is repeated. Put what can differ between two runs of the code, "
        "such as the time, a random number or a read of a file, into a step.",
    )

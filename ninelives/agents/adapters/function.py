"""An async function or async generator as an agent. Owns: AgentContext, its second argument, and how what it
returns or yields becomes the answer. Refuses to know: the journal, and how steps are replayed (steps.py).

    async def agent(question: str, ctx) -> str:
        weather = await ctx.step("weather", fetch_weather, "Vienna", effect="read")
        return f"It is {weather}."

A function without `ctx` has no steps. After a crash it could only do everything again, so its run ends as failed then,
unless the function has the attribute `resumable = True`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from ninelives.agents.adapters import Surroundings
from ninelives.agents.base import Agent, Turn
from ninelives.agents.steps import AnswerEnd, CallPlan, Made, Steps
from ninelives.core import events as e
from ninelives.core.history import ask_messages, text_of
from ninelives.core.spec import Message
from ninelives.core.state import RunState
from ninelives.models.base import Ask, CallPiece, Finished, Model, Text, Thinking

T = TypeVar("T")
_encode = msgspec.json.Encoder(order="sorted").encode


class ModelCall(Struct, frozen=True):
    """A tool call that a model asks for. Nobody makes it but your function."""

    name: str
    arguments: str


class ModelAnswer(Struct, frozen=True):
    """What ctx.ask() returns."""

    text: str
    calls: tuple[ModelCall, ...] = ()
    reasoning: str = ""
    finish: e.Finish = "stop"


class AgentContext:
    """One attempt at one run, as a function sees it. After a crash the function is called again, with the same input;
    steps that were finished return what they returned before."""

    def __init__(self, turn: Turn, steps: Steps, surroundings: Surroundings) -> None:
        facts = turn.state.facts
        spec = facts.accepted.spec
        self._steps = steps
        self._model = surroundings.model
        self.run_id: str = f"run_{facts.run}"
        self.owner: str = facts.accepted.owner
        self.session: str = facts.accepted.resolved.session or ""
        self.attempt: int = facts.attempt
        """1 at first, and one more after each crash or restart. Do not let the work depend on it."""
        self.messages: list[Message] = [*ask_messages(surroundings.settings.system_prompt, spec, turn.history)]
        """The whole conversation in the form of Chat Completions, the new input last."""
        self.input: str = "\n".join(text_of(message.get("content")) for message in spec.input)

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        effect: e.Effect = "write",
        returns: Any = Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function once: after a crash its recorded result is returned.

        `effect` says what happens to a call that a crash interrupted: a read or idempotent one is made again, a write
        raises StepUnknown. A parameter `key` of the function gets a text that is the same when the call is made again.
        Arguments and result must be JSON. The result is what JSON makes of it, or of the type `returns`. An error of
        the function is raised as StepFailed."""
        plan = CallPlan(name=name, arguments=_arguments(name, function, args, kwargs), effect=effect)

        async def body(key: str) -> Made:
            own = {"key": key} if "key" in inspect.signature(function).parameters and "key" not in kwargs else {}
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs, **own)
            else:
                value = await asyncio.to_thread(function, *args, **kwargs, **own)
            record = _encode(value).decode()
            return Made(value if isinstance(value, str) else record, record)

        made = await self._steps.call(plan, body)
        return msgspec.json.decode(made.record, type=returns)

    async def ask(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] = (),
        shown: bool = True,
        **options: object,
    ) -> ModelAnswer:
        """Ask the configured model. The answer streams to the caller as a message, unless `shown` is False. Once it is
        finished it is recorded: a crash does not pay for it twice."""
        given: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        ask = Ask(tuple(given), tuple(tools), dict(options))
        request = _encode([given, ask.tools, ask.options])
        asked = await self._steps.ask(request, lambda: _parts(self._model, ask), shown=shown)
        return msgspec.json.decode(asked.record, type=ModelAnswer)

    async def say(self, text: str) -> None:
        """A piece of the answer, sent at once."""
        await self._steps.say(text)


class FunctionAgent:
    """An Agent over a function."""

    def __init__(self, function: Callable[..., Any], surroundings: Surroundings) -> None:
        self._function = function
        self._surroundings = surroundings
        self._with_context = _takes_context(function)
        self.resumable = bool(getattr(function, "resumable", self._with_context))

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers. A function has no processes of ours."""

    def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        steps = Steps(turn)
        return steps.events(self._answer(steps, AgentContext(turn, steps, self._surroundings)))

    async def _answer(self, steps: Steps, context: AgentContext) -> None:
        given = self._function(context.input, context) if self._with_context else self._function(context.input)
        if inspect.isasyncgen(given):
            async for piece in given:
                await _say(steps, piece)
            return
        answer = await given
        if answer is not None and str(answer) != steps.last_text:  # else the model has said it already
            await steps.say(str(answer))


async def _say(steps: Steps, piece: object) -> None:
    match piece:
        case e.ReasoningDelta(text):
            await steps.say(text, thinking=True)
        case str(text) | e.TextDelta(text):
            await steps.say(text)
        case _:
            kind = type(piece).__name__
            raise TypeError(
                f"An agent yields text, TextDelta or ReasoningDelta, not {kind}. Make calls with ctx.step()."
            )


def _takes_context(function: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return len([each for each in parameters if each.kind in kinds]) > 1


def _arguments(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a step as one JSON object, with the names of the function's parameters."""
    try:
        given: dict[str, Any] = dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        given = {**{str(n): value for n, value in enumerate(args)}, **kwargs}
    try:
        return _encode(given).decode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"The arguments of step {name!r} must be JSON, to find it again after a crash: {error}"
        ) from None


async def _parts(model: Model, ask: Ask) -> AsyncIterator[e.Delta | AnswerEnd]:
    """A model's answer as deltas and a AnswerEnd."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, tuple[str, str]] = {}
    async for parts in model.stream(ask):
        for part in parts:
            match part:
                case Text(text):
                    texts.append(text)
                    yield e.TextDelta(text)
                case Thinking(text):
                    thoughts.append(text)
                    yield e.ReasoningDelta(text)
                case CallPiece(index, name, arguments):
                    before = calls.get(index, ("", ""))
                    calls[index] = before[0] + name, before[1] + arguments
                case Finished(reason, usage):
                    asked = tuple(ModelCall(*calls[index]) for index in sorted(calls))
                    answer = ModelAnswer("".join(texts), asked, "".join(thoughts), reason)
                    record = _encode(answer).decode()
                    yield AnswerEnd(answer.text, record, (), usage, answer.reasoning, reason)


def adapt(found: object, surroundings: Surroundings) -> Agent:
    """The function as an Agent."""
    return FunctionAgent(cast(Callable[..., Any], found), surroundings)

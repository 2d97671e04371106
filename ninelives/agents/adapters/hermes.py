"""A producer with the callbacks of hermes-agent as an agent: its AIAgent, or a function that takes such callbacks.
Owns: how callbacks become events, with the rule of G14 for calls without ids. Refuses to know: the journal, and what
the producer does.

The producer runs in a thread of its own, and its callbacks are told to the server. A callback returns when its event is
committed, so a tool does not run before its start is in the journal. Callbacks only tell: they cannot give back a
recorded result. So the producer cannot be continued, and its run ends as failed after a crash, with its events kept."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import Struct

from ninelives.agents.adapters import Surroundings
from ninelives.agents.base import Agent, Turn
from ninelives.agents.steps import CallPlan, Made, Steps
from ninelives.core import events as e
from ninelives.core.errors import AgentError
from ninelives.core.history import text_of
from ninelives.core.state import RunState

_encode = msgspec.json.Encoder(enc_hook=str).encode
NOT_TOLD = "The agent did not tell how this call ended."
_TOKENS = ("input_tokens", "output_tokens")
STARTED, COMPLETED = "tool.started", "tool.completed"


class RunLeft(BaseException):
    """The run was stopped. It ends the thread of the producer at its next callback: producers swallow exceptions of
    callbacks, but not this one."""


class _OpenCall(Struct, eq=False):
    """A call that was started."""

    known: str
    """Its id at the producer, empty where it has none."""
    name: str
    result: asyncio.Future[Made]
    task: asyncio.Task[Made]
    start_only: bool = False
    """The producer tells no completions: the call ends at the next thing that is told."""


class Callbacks:
    """The callbacks of one run, for a producer in a thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._open: list[_OpenCall] = []
        self._held: list[tuple[str, bool]] = []
        """Text that came while a call was open: a message cannot begin then."""
        self._left = False
        self._telling: set[asyncio.Task[Any]] = set()
        self._begins = True
        """The next piece of text begins a message."""

    # called by the producer, in its threads

    def tool_start(self, known: str | None, name: str, arguments: Any = None) -> None:
        """A tool is about to run. Returns when that is in the journal."""
        self._tell(self._start(known or "", name, arguments))

    def tool_complete(self, known: str | None, name: str, arguments: Any = None, result: Any = None) -> None:
        """A tool has ended."""
        self._tell(self._complete(known or "", name, result))

    def tool_progress(
        self, event: str, name: Any = None, preview: Any = None, arguments: Any = None, **more: Any
    ) -> None:
        """The older callback, without ids: ("tool.started", name, preview, arguments), ("tool.completed", name), or
        (name, preview, arguments) at the start alone."""
        if event == COMPLETED:
            self._tell(self._complete("", str(name), more.get("result"), bool(more.get("is_error"))))
        elif event == STARTED:
            self._tell(self._start("", str(name), arguments if arguments is not None else {"preview": preview}))
        elif "." not in event and not event.startswith("_"):
            self._tell(self._start("", event, preview if isinstance(preview, dict) else {"preview": name}, alone=True))

    def delta(self, text: str | None) -> None:
        """A piece of the answer. hermes-agent puts an empty line before text that follows a tool."""
        text = (text or "").lstrip("\n") if self._begins else text
        if text:
            self._begins = False
            self._tell(self._say(text, False))

    def reasoning(self, text: str | None) -> None:
        """A piece of reasoning."""
        if text:
            self._tell(self._say(text, True))

    def wired(self) -> dict[str, Callable[..., None]]:
        """The callbacks by the names of hermes-agent."""
        return {
            "tool_start_callback": self.tool_start,
            "tool_complete_callback": self.tool_complete,
            "tool_progress_callback": self.tool_progress,
            "stream_delta_callback": self.delta,
            "reasoning_callback": self.reasoning,
        }

    def _tell(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(CancelledError):
            asyncio.run_coroutine_threadsafe(self._told(work), self._loop).result()
        if self._left:
            raise RunLeft

    # in the event loop

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        if self._left:
            return work.close()
        task = asyncio.current_task()
        assert task is not None
        self._telling.add(task)
        try:
            await work
        finally:
            self._telling.discard(task)

    def leave(self) -> None:
        """The run was stopped: nothing more is told."""
        self._left = True
        for task in (*self._telling, *(each.task for each in self._open)):
            task.cancel()

    async def end(self) -> None:
        """The producer has ended. Calls that it did not complete have an unknown end."""
        await self._end_alone()
        for each in list(self._open):
            await self._close(each, Made(NOT_TOLD, is_error=True))

    async def _start(self, known: str, name: str, arguments: Any, alone: bool = False) -> None:
        await self._end_alone()
        self._begins = True
        begun, result = self._loop.create_future(), self._loop.create_future()

        async def body(_: str) -> Made:
            begun.set_result(None)
            return cast(Made, await result)

        plan = CallPlan(name=name, arguments=_text(arguments or {}))
        task = self._loop.create_task(self._steps.call(plan, body))
        self._open.append(_OpenCall(known, name, result, task, alone))
        await asyncio.wait((begun, task), return_when=asyncio.FIRST_COMPLETED)

    async def _complete(self, known: str, name: str, result: Any, is_error: bool = False) -> None:
        """Closes the call with this id, or the oldest open one of that name (G14). One that was never started is not
        told."""
        by_id = (each for each in self._open if known and each.known == known)
        by_name = (each for each in self._open if each.name == name and not (known and each.known))
        found = next(by_id, None) or next(by_name, None)
        if found is not None:
            await self._close(found, Made(_text(result), is_error=is_error))

    async def _close(self, call: _OpenCall, made: Made) -> None:
        self._open.remove(call)
        if not call.result.done():
            call.result.set_result(made)
        await asyncio.wait((call.task,))
        if not self._open:
            held, self._held = self._held, []
            for text, thinking in held:
                await self._steps.say(text, thinking=thinking)

    async def _end_alone(self) -> None:
        for each in [each for each in self._open if each.start_only]:
            await self._close(each, Made(""))

    async def _say(self, text: str, thinking: bool) -> None:
        await self._end_alone()
        if self._open:
            self._held.append((text, thinking))
        else:
            await self._steps.say(text, thinking=thinking)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else _encode(value).decode()


class CallbackAgent:
    """An Agent over a producer with callbacks."""

    resumable = False

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._is_function = inspect.isroutine(producer)
        self._one_at_a_time = asyncio.Lock()
        """For an AIAgent that was made already: it has one conversation at a time."""

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers. The tools of the producer run in this process, or are its own to end."""

    def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        steps = Steps(turn)
        return steps.events(self._answer(turn, steps))

    async def _answer(self, turn: Turn, steps: Steps) -> None:
        callbacks = Callbacks(steps)
        thread = ThreadPoolExecutor(1, thread_name_prefix="producer")
        loop = asyncio.get_running_loop()
        made: list[Any] = []
        try:
            if self._is_function or callable(self._producer):
                work = functools.partial(self._produce, turn, callbacks, made)
                result = await loop.run_in_executor(thread, work)
            else:
                async with self._one_at_a_time:
                    result = await loop.run_in_executor(thread, self._converse, self._producer, turn, callbacks, made)
            await callbacks.end()
        except BaseException:
            callbacks.leave()
            for agent in made:
                agent.interrupt()
            raise
        finally:
            thread.shutdown(wait=False)
        await _say_end(steps, result)

    def _produce(self, turn: Turn, callbacks: Callbacks, made: list[Any]) -> Any:
        """In the thread: a function is called; a class or a partial of one makes an agent for this run."""
        if self._is_function:
            question = text_of(turn.state.facts.accepted.spec.input[-1].get("content"))
            return self._producer(question, **_taken(self._producer, callbacks))
        agent = self._producer(session_id=turn.state.facts.accepted.resolved.session or turn.state.facts.run)
        return self._converse(agent, turn, callbacks, made)

    def _converse(self, agent: Any, turn: Turn, callbacks: Callbacks, made: list[Any]) -> Any:
        """In the thread: one turn of an AIAgent."""
        spec = turn.state.facts.accepted.spec
        wired = callbacks.wired()
        del wired["tool_progress_callback"]  # an AIAgent tells each call twice: the other two have its id
        for name, callback in wired.items():
            setattr(agent, name, callback)
        agent.tool_progress_callback = None
        made.append(agent)
        *earlier, last = spec.input
        before = [getattr(agent, f"session_{name}", 0) for name in _TOKENS]
        result = agent.run_conversation(
            last.get("content"),
            system_message=spec.instructions or None,
            conversation_history=[dict(message) for message in (*turn.history, *spec.history, *earlier)],
        )
        spent = {name: (result.get(name) or 0) - then for name, then in zip(_TOKENS, before, strict=True)}
        return {**result, **spent}


def _taken(producer: Callable[..., Any], callbacks: Callbacks) -> dict[str, Callable[..., None]]:
    """The callbacks that a function takes. One that takes both kinds tells each call twice."""
    wired, parameters = callbacks.wired(), inspect.signature(producer).parameters
    taken = {name: callback for name, callback in wired.items() if name in parameters}
    if "tool_start_callback" in taken and "tool_progress_callback" in taken:
        taken["tool_progress_callback"] = lambda *_, **__: None
    return taken


async def _say_end(steps: Steps, result: Any) -> None:
    """The answer, where it was not streamed. The dict of an AIAgent says how its turn ended."""
    told = result if isinstance(result, dict) else {"final_response": result}
    text = told.get("final_response")
    if told.get("failed") or (text is None and told.get("error")):
        raise AgentError("agent_failed", f"The agent failed: {told.get('error') or text or 'it did not say why'}")
    spent = e.Usage(int(told.get("input_tokens") or 0), int(told.get("output_tokens") or 0))
    await steps.end_message("" if text is None else str(text), spent)


def adapt(found: object, surroundings: Surroundings) -> Agent:
    """The producer as an Agent."""
    return CallbackAgent(found)

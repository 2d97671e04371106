"""A LangGraph graph as an agent. Owns: its two seams, the chat models and the tools of langchain-core, which become
durable steps, and the conversion of messages. Refuses to know: the journal, and how steps are replayed (steps.py).

The graph runs as it is, also one of langchain's create_agent(). Its nodes hold their models in closures, so the seams
are methods of two base classes: BaseChatModel and BaseTool. They are replaced once, when the first graph is served, and
differ only inside a run of a served graph. After a crash the graph runs again from its start, and both return what was
recorded. A tool says what it does with `tool.metadata = {"effect": "read"}`; without it, it is a write. Code of a node
that is neither a model nor a tool runs again.

A checkpointer of the graph is replaced by one in memory: the journal is what continues a run, and the conversation
comes from the server. So `interrupt()` ends the run with an error."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolMessage,
    convert_to_messages,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from ninelives.agents.adapters import FrameworkCalls, FrameworkTool, NotAnAgent, Surroundings, effect_of
from ninelives.agents.base import Agent, Turn
from ninelives.agents.steps import AnswerEnd, CallPlan, Made, Steps
from ninelives.core import events as e
from ninelives.core.errors import AgentError
from ninelives.core.state import RunState

T = TypeVar("T")
_serializer = JsonPlusSerializer()
_seams: ContextVar[GraphSeams | None] = ContextVar("seams", default=None)
"""The seams of the run that this code is part of."""


class LangGraphAgent:
    """An Agent over a compiled graph."""

    resumable = True

    def __init__(self, graph: Pregel[Any, Any, Any, Any], surroundings: Surroundings) -> None:
        self._graph = graph
        self._surroundings = surroundings

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers. The tools of a framework run in this process, so nothing is left."""

    def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        steps = Steps(turn, self._surroundings.approvals, self._surroundings.settings.on_unknown)
        return steps.events(self._answer(turn, steps))

    async def _answer(self, turn: Turn, steps: Steps) -> None:
        spec = turn.state.facts.accepted.spec
        told = [{"role": "system", "content": spec.instructions}] if spec.instructions else []
        given = convert_to_messages([*told, *turn.history, *spec.history, *spec.input])
        graph = self._graph
        if graph.checkpointer:
            graph = graph.copy({"checkpointer": InMemorySaver()})
        final: dict[str, Any] = {}
        seams = GraphSeams(steps)
        _seams.set(seams)
        try:
            stream = graph.astream(
                {"messages": given},
                {"configurable": {"thread_id": turn.state.facts.run}},
                stream_mode=["messages", "values"],  # messages: models stream only where somebody reads their tokens
            )
            async for mode, part in stream:
                final = cast(dict[str, Any], part) if mode == "values" else final
        finally:
            seams.close()
        if final.get("__interrupt__"):
            raise AgentError("graph_interrupted", "The graph called interrupt(). Use approval rules of the server.")
        await _say_end(steps, final)


async def _say_end(steps: Steps, final: dict[str, Any]) -> None:
    """What the graph ends with, where no model has said it: a structured answer, or a message of a node."""
    last = final["messages"][-1] if final.get("messages") else None
    text = str(last.text) if isinstance(last, AIMessage) else ""
    if "structured_response" in final:
        text = to_json(final["structured_response"]).decode()
    if text and text != steps.last_text:
        await steps.say(text)


class GraphSeams:
    """The models and tools of one run."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._calls = FrameworkCalls()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Cancel what nodes in threads still wait for."""
        for task in self._tasks:
            task.cancel()

    async def ask(self, model: BaseChatModel, messages: Sequence[BaseMessage], options: dict[str, Any]) -> AIMessage:
        """A model's answer: recorded, or asked for now."""
        kept = {name: value for name, value in options.items() if name not in _ABOUT_CALLS}
        request = to_json([_digested(messages), str(model.get_name()), kept], fallback=str)
        asked = await self._steps.ask(request, lambda: _parts(model, messages, options))
        answer = messages_from_dict(from_json(asked.record))[0]
        assert isinstance(answer, AIMessage)
        self._calls.add((call["id"] for call in answer.tool_calls), asked.calls)
        return answer

    async def call(self, tool: BaseTool, given: Any, call_id: str | None, go: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a tool: recorded, or made now."""
        effect = effect_of((tool.metadata or {}).get("effect"))
        schema: dict[str, object] = {"type": "object", "properties": tool.args}
        call = self._calls.take(call_id, tool.name)
        if call_id is None:
            call = self._calls.take_equal(tool.name, _arguments(tool, given))
        plan = CallPlan(
            name=tool.name,
            arguments=call.arguments if call is not None else _arguments(tool, given),
            effect=effect,
            call=call,
            tool=FrameworkTool(tool.name, tool.description, schema, effect),
        )
        wrong = _wrong(tool, given)

        async def body(_: str) -> Made:
            if wrong:
                return Made(wrong, '{"wrong":true}', is_error=True)
            value = await go()
            kind, data = _serializer.dumps_typed(value)
            record = to_json({"kind": kind, "data": base64.b64encode(data).decode()}).decode()
            return Made(_shown(value), record, getattr(value, "status", "") == "error")

        if call is None and call_id is None:  # the node calls it, and no model: who else is told of an unknown outcome?
            made = await self._steps.call(plan, body)
        else:
            made = await self._steps.tool(plan, body)
        if not made.record and call_id is None:
            return made.output
        if not made.record:
            return ToolMessage(made.output, tool_call_id=call_id, name=tool.name, status="error")
        record = from_json(made.record)
        if "wrong" in record:
            return await go()  # nothing runs: the tool refuses its arguments, in the way that the graph expects
        return _serializer.loads_typed((record["kind"], base64.b64decode(record["data"])))

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` in the event loop, for a node in a thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            context, done = copy_context(), Future[T]()

            def start() -> None:
                task = self._loop.create_task(work(), context=context)
                self._tasks.add(task)
                task.add_done_callback(lambda ended: _copy(ended, done))

            self._loop.call_soon_threadsafe(start)
            return done.result()
        raise AgentError("blocking_call", "An async node called invoke(), which blocks the server. Use ainvoke().")


def _copy(ended: asyncio.Task[T], to: Future[T]) -> None:
    if ended.cancelled():
        to.cancel()
    elif (error := ended.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(ended.result())


_ABOUT_CALLS = frozenset({"callbacks", "tags", "metadata", "run_name", "run_id"})
"""Options of a call that do not change the answer."""


def _digested(messages: Sequence[BaseMessage]) -> list[Any]:
    """Messages without the ids that the framework draws at random."""
    return [{**each["data"], "id": None} for each in messages_to_dict(messages)]


class _Tokens(AsyncCallbackHandler):
    """Takes the tokens of one answer."""

    run_inline = True

    def __init__(self) -> None:
        self.queue: asyncio.Queue[e.Delta | None] = asyncio.Queue()
        self.streamed = False

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        """See AsyncCallbackHandler.on_llm_new_token."""
        message = getattr(chunk, "message", None)
        for block in message.content_blocks if message is not None else [{"type": "text", "text": token}]:
            if block.get("type") == "text" and block.get("text"):
                self.streamed = True
                self.queue.put_nowait(e.TextDelta(block["text"]))
            elif block.get("type") == "reasoning" and block.get("reasoning"):
                self.queue.put_nowait(e.ReasoningDelta(block["reasoning"]))


async def _parts(
    model: BaseChatModel, messages: Sequence[BaseMessage], options: dict[str, Any]
) -> AsyncIterator[e.Delta | AnswerEnd]:
    """A model's answer as deltas and an AnswerEnd."""
    tokens = _Tokens()
    callbacks = options.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        callbacks.add_handler(tokens, inherit=False)
    else:
        callbacks = [*(callbacks or []), tokens]

    async def whole() -> LLMResult:
        try:
            return await _agenerate(model, [list(messages)], **{**options, "callbacks": callbacks})
        finally:
            tokens.queue.put_nowait(None)

    task = asyncio.create_task(whole())
    try:
        while (delta := await tokens.queue.get()) is not None:
            yield delta
        answer = cast(ChatGeneration, (await task).generations[0][0]).message
    finally:
        task.cancel()
    assert isinstance(answer, AIMessage)
    text = str(answer.text)
    if text and not tokens.streamed:
        yield e.TextDelta(text)
    yield _end(answer, text)


def _end(answer: AIMessage, text: str) -> AnswerEnd:
    calls = tuple((call["name"], to_json(call["args"]).decode()) for call in answer.tool_calls)
    thoughts = "".join(str(block.get("reasoning", "")) for block in answer.content_blocks)
    cut = answer.response_metadata.get("finish_reason") == "length"
    finish: e.Finish = "tool_calls" if calls else "length" if cut else "stop"
    spent = answer.usage_metadata
    usage = e.Usage()
    if spent is not None:
        cached = spent.get("input_token_details", {}).get("cache_read", 0)
        thought = spent.get("output_token_details", {}).get("reasoning", 0)
        usage = e.Usage(spent["input_tokens"], spent["output_tokens"], cached, thought)
    record = to_json(messages_to_dict([answer]), fallback=str).decode()
    return AnswerEnd(text, record, calls, usage, thoughts, finish)


def _arguments(tool: BaseTool, given: Any) -> str:
    """The arguments of a call that a node makes by itself, without what the framework adds."""
    shown = {name: value for name, value in given.items() if name in tool.args} if isinstance(given, dict) else given
    return to_json(shown, fallback=str).decode()


def _wrong(tool: BaseTool, given: Any) -> str:
    """What is wrong with the arguments; empty where nothing is."""
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)) or not isinstance(given, dict):
        return ""
    try:
        schema.model_validate({name: value for name, value in given.items() if name in schema.model_fields})
    except ValidationError as error:
        return str(error)
    return ""


def _shown(value: Any) -> str:
    """The result of a tool as people see it."""
    if isinstance(value, BaseMessage):
        return str(value.text) or to_json(value.content, fallback=str).decode()
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()


# The two seams: each method does what it did, but inside a run of a served graph.

_agenerate, _generate = BaseChatModel.agenerate, BaseChatModel.generate
_astream, _stream = BaseChatModel.astream, BaseChatModel.stream
_arun, _run = BaseTool.arun, BaseTool.run


async def _ask_all(
    seams: GraphSeams, model: BaseChatModel, prompts: Sequence[Sequence[BaseMessage]], options: dict[str, Any]
) -> LLMResult:
    answers = [await seams.ask(model, prompt, options) for prompt in prompts]
    return LLMResult(generations=[[ChatGeneration(message=answer)] for answer in answers])


async def _ask_all_async(
    self: BaseChatModel, messages: list[list[BaseMessage]], stop: Any = None, callbacks: Any = None, **given: Any
) -> LLMResult:
    options = {"stop": stop, "callbacks": callbacks, **given}
    seams = _seams.get()
    return await (_agenerate(self, messages, **options) if seams is None else _ask_all(seams, self, messages, options))


def _ask_all_blocking(
    self: BaseChatModel, messages: list[list[BaseMessage]], stop: Any = None, callbacks: Any = None, **given: Any
) -> LLMResult:
    options = {"stop": stop, "callbacks": callbacks, **given}
    seams = _seams.get()
    if seams is None:
        return _generate(self, messages, **options)
    return seams.wait(lambda: _ask_all(seams, self, messages, options))


async def _stream_async(self: BaseChatModel, input: Any, config: Any = None, **given: Any) -> AsyncIterator[Any]:
    """The caller sees the tokens as they arrive; the node gets them as one piece."""
    if _seams.get() is None:
        async for chunk in _astream(self, input, config, **given):
            yield chunk
    else:
        yield _chunk(await self.ainvoke(input, config, **given))


def _stream_blocking(self: BaseChatModel, input: Any, config: Any = None, **given: Any) -> Iterator[Any]:
    if _seams.get() is None:
        yield from _stream(self, input, config, **given)
    else:
        yield _chunk(self.invoke(input, config, **given))


def _chunk(answer: AIMessage) -> AIMessageChunk:
    return AIMessageChunk(**answer.model_dump(exclude={"type"}), chunk_position="last")


async def _call_async(self: BaseTool, tool_input: Any, *rest: Any, **given: Any) -> Any:
    seams = _seams.get()
    if seams is None:
        return await _arun(self, tool_input, *rest, **given)
    return await seams.call(
        self, tool_input, given.get("tool_call_id"), lambda: _arun(self, tool_input, *rest, **given)
    )


def _call_blocking(self: BaseTool, tool_input: Any, *rest: Any, **given: Any) -> Any:
    seams = _seams.get()
    if seams is None:
        return _run(self, tool_input, *rest, **given)

    async def go() -> Any:
        return await asyncio.to_thread(_run, self, tool_input, *rest, **given)

    return seams.wait(lambda: seams.call(self, tool_input, given.get("tool_call_id"), go))


BaseChatModel.agenerate = _ask_all_async  # type: ignore[method-assign]
BaseChatModel.generate = _ask_all_blocking  # type: ignore[method-assign]
BaseChatModel.astream = _stream_async  # type: ignore[method-assign]
BaseChatModel.stream = _stream_blocking  # type: ignore[method-assign]
BaseTool.arun = _call_async  # type: ignore[method-assign]
BaseTool.run = _call_blocking  # type: ignore[method-assign]


def adapt(found: object, surroundings: Surroundings) -> Agent:
    """The graph as an Agent. A graph that is not compiled is compiled here."""
    graph = found.compile() if isinstance(found, StateGraph) else found
    assert isinstance(graph, Pregel)
    if "messages" not in graph.channels:
        raise NotAnAgent("is a graph whose state has no `messages`. Add it: class State(MessagesState)")
    return LangGraphAgent(graph, surroundings)

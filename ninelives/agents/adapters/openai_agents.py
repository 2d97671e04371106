"""An agent of the OpenAI Agents SDK as an agent. Owns: its two seams, the model and the function tools, which become
durable steps, also behind handoffs. Refuses to know: the journal, and how steps are replayed (steps.py).

The agent is copied for each run, with a model whose answers stream to the caller and are recorded, and with tools whose
calls write two events. After a crash the agent runs again, and both return what was recorded. A tool says what it does
with an attribute, `tool.effect = "read"`; without it, it is a write. Tools that the model's provider carries out, and
tools of MCP servers, are not steps."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
from agents import Agent as SdkAgent
from agents import FunctionTool, Handoff, Model, ModelResponse, Runner, Usage, handoff
from agents.models.multi_provider import MultiProvider
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputItem
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json

from ninelives.agents.adapters import FrameworkCalls, FrameworkTool, Surroundings, effect_of
from ninelives.agents.base import Agent, Turn
from ninelives.agents.steps import AnswerEnd, CallPlan, Made, Steps
from ninelives.core import events as e
from ninelives.core.history import text_of
from ninelives.core.spec import Message
from ninelives.core.state import RunState

_PARAMETERS = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")
"""Of Model.get_response, in order."""
_items = TypeAdapter(list[ResponseOutputItem])
_encode = msgspec.json.Encoder(order="sorted", enc_hook=str).encode


class OpenAIAgent:
    """An Agent over an agent of the OpenAI Agents SDK."""

    resumable = True

    def __init__(self, agent: SdkAgent[Any], surroundings: Surroundings) -> None:
        self._agent = agent
        self._surroundings = surroundings

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers. The tools of a framework run in this process, so nothing is left."""

    def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        steps = Steps(turn, self._surroundings.approvals, self._surroundings.settings.on_unknown)
        return steps.events(self._answer(turn, steps))

    async def _answer(self, turn: Turn, steps: Steps) -> None:
        spec = turn.state.facts.accepted.spec
        given = [item for message in (*turn.history, *spec.history, *spec.input) for item in _items_of(message)]
        if spec.instructions:
            given.insert(0, {"role": "developer", "content": spec.instructions})
        result = await Runner.run(DurableCopy(steps).of(self._agent), cast(Any, given))
        output = result.final_output
        if isinstance(output, BaseModel):
            output = output.model_dump_json()
        elif not isinstance(output, str):
            output = to_json(output).decode()
        if output != steps.last_text:  # else the model has said it already
            await steps.say(output)


class DurableCopy:
    """Copies of an agent and of the agents that it can hand over to, for one run."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._calls = FrameworkCalls()
        self._copies: dict[int, SdkAgent[Any]] = {}

    def of(self, agent: SdkAgent[Any]) -> SdkAgent[Any]:
        """The copy of an agent. Agents may hand over in a circle, so each is copied once."""
        if id(agent) not in self._copies:
            model = agent.model if isinstance(agent.model, Model) else MultiProvider().get_model(agent.model)
            tools = [self._tool(tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
            names = frozenset(tool.name for tool in tools if isinstance(tool, FunctionTool))
            copy = agent.clone(model=StepModel(model, self._steps, self._calls, names), tools=tools, handoffs=[])
            self._copies[id(agent)] = copy
            copy.handoffs = [self._handoff(each) for each in agent.handoffs]
        return self._copies[id(agent)]

    def _handoff(self, given: Any) -> Any:
        if not isinstance(given, Handoff):
            return handoff(self.of(given))

        async def invoke(context: Any, arguments: str) -> Any:
            return self.of(await given.on_invoke_handoff(context, arguments))

        return dataclasses.replace(given, on_invoke_handoff=invoke)

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        effect = effect_of(getattr(tool, "effect", None))
        shown = FrameworkTool(tool.name, tool.description, tool.params_json_schema, effect)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            call = self._calls.take(context.tool_call_id, tool.name)
            plan = CallPlan(name=tool.name, arguments=arguments or "{}", effect=effect, call=call, tool=shown)

            async def body(_: str) -> Made:
                value = await tool.on_invoke_tool(context, arguments)
                text = value if isinstance(value, str) else to_json(value).decode()
                return Made(text, to_json({"value": value}).decode())

            made = await self._steps.tool(plan, body)
            return from_json(made.record)["value"] if made.record else made.output

        return dataclasses.replace(tool, on_invoke_tool=invoke)


class StepModel(Model):
    """A model, each answer of which is a step."""

    def __init__(self, wrapped: Model, steps: Steps, calls: FrameworkCalls, durable: frozenset[str]) -> None:
        self._wrapped = wrapped
        self._durable = durable
        """The tools whose calls are steps. Calls of others, such as handoffs, are no calls of the run."""
        self._steps = steps
        self._calls = calls

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """See Model.get_response."""
        given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
        tools = sorted(tool.name for tool in given["tools"])
        request = _encode([given["system_instructions"], given["input"], tools])
        parts = _parts(self._wrapped.stream_response(**given), self._durable)
        asked = await self._steps.ask(request, lambda: parts)
        record = from_json(asked.record)
        output = _items.validate_python(record["output"])
        made = [item for item in output if isinstance(item, ResponseFunctionToolCall) and item.name in self._durable]
        self._calls.add((item.call_id for item in made), asked.calls)
        return ModelResponse(output=output, usage=Usage(**record["usage"]), response_id=record["id"])

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """See Model.stream_response. This adapter runs agents without the SDK's own stream."""
        return self._wrapped.stream_response(*args, **kwargs)


async def _parts(stream: AsyncIterator[Any], durable: frozenset[str]) -> AsyncIterator[e.Delta | AnswerEnd]:
    """A model's answer as deltas and an AnswerEnd."""
    texts: list[str] = []
    thoughts: list[str] = []
    async for event in stream:
        match event.type:
            case "response.output_text.delta":
                texts.append(event.delta)
                yield e.TextDelta(event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                thoughts.append(event.delta)
                yield e.ReasoningDelta(event.delta)
            case "response.completed" | "response.incomplete":
                yield _end(event.response, "".join(texts), "".join(thoughts), durable)


def _end(response: Any, text: str, thought: str, durable: frozenset[str]) -> AnswerEnd:
    made = [item for item in response.output if item.type == "function_call" and item.name in durable]
    spent = response.usage
    counts = {"requests": 1, "input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    if spent is not None:
        counts |= {name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "total_tokens")}
    output = [item.model_dump(mode="json", exclude_unset=True) for item in response.output]
    record = to_json({"output": output, "usage": counts, "id": response.id}).decode()
    calls = tuple((item.name, item.arguments) for item in made)
    usage = e.Usage(counts["input_tokens"], counts["output_tokens"])
    return AnswerEnd(text, record, calls, usage, thought, "tool_calls" if calls else "stop")


def _items_of(message: Message) -> list[dict[str, Any]]:
    """A message of Chat Completions as items of Responses."""
    content = message.get("content")
    if message.get("role") == "tool":
        call = str(message.get("tool_call_id"))
        return [{"type": "function_call_output", "call_id": call, "output": text_of(content)}]
    items: list[dict[str, Any]] = []
    if content:
        items.append({"role": message.get("role"), "content": _content(content)})
    for each in cast(list[dict[str, Any]], message.get("tool_calls", [])):
        function = each["function"]
        items.append(
            {
                "type": "function_call",
                "call_id": each["id"],
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    return items


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    images = [part for part in content if part.get("type") == "image_url"]
    if not images:
        return text_of(content)
    urls = [{"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"} for part in images]
    return [{"type": "input_text", "text": text_of(content)}, *urls]


def adapt(found: object, surroundings: Surroundings) -> Agent:
    """The agent of the SDK as an Agent."""
    assert isinstance(found, SdkAgent)
    return OpenAIAgent(found, surroundings)

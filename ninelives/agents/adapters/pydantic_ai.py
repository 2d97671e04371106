"""A pydantic-ai Agent as an agent. Owns: its two seams, the model and the toolsets, which become durable steps, and the
conversion of messages. Refuses to know: the journal, and how steps are replayed (steps.py).

The agent runs as it is. For each run its model is wrapped, so that an answer streams to the caller and is recorded, and
its toolsets, so that a call writes two events. After a crash the agent runs again, and both return what was recorded. A
tool says what it does with `metadata={"effect": "read"}`; without it, it is a write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import ModelRetry
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import from_json, to_json

from ninelives.agents.adapters import FrameworkCalls, FrameworkTool, Surroundings, effect_of
from ninelives.agents.base import Agent, Turn
from ninelives.agents.steps import AnswerEnd, CallPlan, Made, Steps
from ninelives.core import events as e
from ninelives.core.errors import AgentError
from ninelives.core.history import text_of
from ninelives.core.spec import Message
from ninelives.core.state import RunState

_CHANGING = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of messages that differ between two runs of the same code."""


class PydanticAgent:
    """An Agent over a pydantic-ai agent."""

    resumable = True

    def __init__(self, agent: AbstractAgent[Any, Any], surroundings: Surroundings) -> None:
        self._agent = agent
        self._surroundings = surroundings

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers. The tools of a framework run in this process, so nothing is left."""

    def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        """See Agent.run."""
        steps = Steps(turn, self._surroundings.approvals, self._surroundings.settings.on_unknown)
        return steps.events(self._answer(turn, steps))

    async def _answer(self, turn: Turn, steps: Steps) -> None:
        spec, agent = turn.state.facts.accepted.spec, self._agent
        if agent.model is None:
            raise AgentError("agent_without_model", "The pydantic-ai agent has no model: Agent('openai:gpt-5.2').")
        calls = FrameworkCalls()
        model = PydanticStepModel(agent.model, steps, calls)
        toolsets = [StepToolset(each, steps, calls) for each in agent.toolsets]
        with agent.override(model=model, toolsets=toolsets, tools=[]):
            result = await agent.run(
                [part for message in spec.input for part in _prompt(message)],
                message_history=[part for message in (*turn.history, *spec.history) for part in _history(message)],
                instructions=spec.instructions or None,
            )
        output = result.output if isinstance(result.output, str) else to_json(result.output).decode()
        if output != steps.last_text:  # else the model has said it already
            await steps.say(output)


class PydanticStepModel(WrapperModel):
    """The model of an agent, each answer of which is a step."""

    def __init__(self, wrapped: Any, steps: Steps, calls: FrameworkCalls) -> None:
        super().__init__(infer_model(wrapped) if isinstance(wrapped, str) else wrapped)
        self._steps = steps
        self._calls = calls

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """See Model.request."""
        outputs = {tool.name for tool in model_request_parameters.output_tools}
        parts = _parts(self.wrapped, messages, model_settings, model_request_parameters, outputs)
        asked = await self._steps.ask(_digested(messages, model_request_parameters), lambda: parts)
        response = ModelMessagesTypeAdapter.validate_json(asked.record)[0]
        assert isinstance(response, ModelResponse)
        self._calls.add((part.tool_call_id for part in _calls(response, outputs)), asked.calls)
        return response


@dataclass
class StepToolset(WrapperToolset[Any]):
    """A toolset, each call of which is a step."""

    wrapped: AbstractToolset[Any]
    steps: Steps
    calls: FrameworkCalls

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """See AbstractToolset.call_tool. A ModelRetry is a result, which is raised again after a crash."""
        shown = tool.tool_def
        effect = effect_of((shown.metadata or {}).get("effect"))
        call = self.calls.take(ctx.tool_call_id, name)
        plan = CallPlan(
            name=name,
            arguments=call.arguments if call is not None else to_json(tool_args).decode(),
            effect=effect,
            call=call,
            tool=FrameworkTool(name, shown.description or "", shown.parameters_json_schema, effect),
        )

        async def body(_: str) -> Made:
            try:
                value = await WrapperToolset.call_tool(self, name, tool_args, ctx, tool)
            except ModelRetry as again:
                return Made(again.message, to_json({"retry": again.message}).decode(), is_error=True)
            text = value if isinstance(value, str) else to_json(value).decode()
            return Made(text, to_json({"value": value}).decode())

        made = await self.steps.tool(plan, body)
        record = from_json(made.record) if made.record else {"value": made.output}
        if "retry" in record:
            raise ModelRetry(record["retry"])
        return record["value"]


def _digested(messages: list[ModelMessage], parameters: ModelRequestParameters) -> bytes:
    """What makes a request to a model the same request."""
    tools = sorted(tool.name for tool in (*parameters.function_tools, *parameters.output_tools))
    return to_json([_steady(ModelMessagesTypeAdapter.dump_python(messages, mode="json")), tools])


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(each) for name, each in value.items() if name not in _CHANGING}
    return [_steady(each) for each in value] if isinstance(value, list) else value


def _calls(response: ModelResponse, outputs: set[str]) -> list[ToolCallPart]:
    """The calls that the framework will make. A call of an output tool is the answer itself."""
    return [part for part in response.parts if isinstance(part, ToolCallPart) and part.tool_name not in outputs]


async def _parts(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
    outputs: set[str],
) -> AsyncIterator[e.Delta | AnswerEnd]:
    """A model's answer as deltas and an AnswerEnd."""
    texts: list[str] = []
    thoughts: list[str] = []
    async with model.request_stream(messages, settings, parameters) as stream:
        async for event in stream:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    texts.append(text)
                    if text:
                        yield e.TextDelta(text)
                case (
                    PartStartEvent(part=ThinkingPart(content=str(text)))
                    | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
                ):
                    thoughts.append(text)
                    if text:
                        yield e.ReasoningDelta(text)
        response = stream.get()
    made = tuple((part.tool_name, part.args_as_json_str()) for part in _calls(response, outputs))
    usage = e.Usage(
        response.usage.input_tokens,
        response.usage.output_tokens,
        response.usage.cache_read_tokens,
        (response.usage.details or {}).get("reasoning_tokens", 0),
    )
    record = ModelMessagesTypeAdapter.dump_json([response]).decode()
    yield AnswerEnd("".join(texts), record, made, usage, "".join(thoughts), "tool_calls" if made else "stop")


def _prompt(message: Message) -> list[UserContent]:
    """The content of a user's message for the framework."""
    content = message.get("content")
    if not isinstance(content, list):
        return [text_of(content)]
    parts: list[UserContent] = []
    for part in content:
        url = part.get("image_url", {}).get("url", "") if part.get("type") == "image_url" else ""
        if url.startswith("data:"):
            parts.append(BinaryContent.from_data_uri(url))
        elif url:
            parts.append(ImageUrl(url))
        elif text := text_of([part]):
            parts.append(text)
    return parts


def _history(message: Message) -> list[ModelMessage]:
    """An earlier message for the framework."""
    content = message.get("content")
    match message.get("role"):
        case "user":
            return [ModelRequest([UserPromptPart(_prompt(message))])]
        case "assistant":
            spoken = [TextPart(text_of(content))] if content else []
            calls = [
                ToolCallPart(call["function"]["name"], call["function"]["arguments"], tool_call_id=call["id"])
                for call in cast(list[dict[str, Any]], message.get("tool_calls", []))
            ]
            return [ModelResponse([*spoken, *calls])]
        case "tool":
            part = ToolReturnPart("tool", text_of(content), tool_call_id=str(message.get("tool_call_id")))
            return [ModelRequest([part])]
        case _:
            return [ModelRequest([SystemPromptPart(text_of(content))])]


def adapt(found: object, surroundings: Surroundings) -> Agent:
    """The pydantic-ai agent as an Agent."""
    assert isinstance(found, AbstractAgent)
    return PydanticAgent(found, surroundings)

"""A pydantic-ai agent behind the server: streamed, journaled, and killed after every event (E5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pydantic_ai = pytest.importorskip("pydantic_ai")

from pydantic import BaseModel  # noqa: E402
from pydantic_ai import Agent, ModelRetry, RunContext, Tool  # noqa: E402
from pydantic_ai.messages import ModelMessage, ModelResponse  # noqa: E402
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel  # noqa: E402

from ninelives.core import events as e  # noqa: E402
from tests.agents.replays import World, agent_of, attempt, killed_everywhere  # noqa: E402
from tests.journals import Pen  # noqa: E402


def script(world: World, *answers: list[tuple[str, str]] | str) -> FunctionModel:
    """A model that answers by its script: calls, or words."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        world.asked += 1
        turn = answers[sum(isinstance(message, ModelResponse) for message in messages)]
        if isinstance(turn, str):
            for word in turn.split():
                yield f"{word} "
            return
        for n, (name, arguments) in enumerate(turn):
            yield {n: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"tool-{n}-{len(messages)}")}

    return FunctionModel(stream_function=stream)


def quickstart(world: World) -> Agent[None, str]:
    """A framework's quick-start agent: a model, instructions, two tools, one of which declares its effect."""
    model = script(
        world, [("look", '{"city":"Rome"}'), ("look", '{"city":"Oslo"}')], [("pay", '{"amount":5}')], "All is paid."
    )

    def look(city: str) -> str:
        """Weather."""
        world.calls.append(f"look {city}")
        return "sunny"

    agent = Agent(model, instructions="Be brief.", tools=[Tool(look, metadata={"effect": "read"})])

    @agent.tool
    async def pay(ctx: RunContext[None], amount: int) -> dict[str, int]:
        """Pay."""
        world.calls.append(f"pay {amount}")
        return {"paid": amount}

    return agent


async def test_e5_a_pydantic_agent_streams_its_text_and_shows_its_tools() -> None:
    world = World()
    pen = await attempt(agent_of(quickstart(world)), Pen().attempt())
    kinds = [type(item).__name__ for item in pen.state.facts.items]
    assert pen.state.status == "completed" and pen.state.facts.messages[-1].text == "All is paid. "
    assert kinds == ["Called", "Called", "Returned", "Returned", "Called", "Returned", "Said"]
    assert sum(isinstance(entry.event, e.TextDelta) for entry in pen.entries) == 3
    assert pen.state.facts.usage.output_tokens > 0
    assert sorted(world.calls) == ["look Oslo", "look Rome", "pay 5"] and world.asked == 3


async def test_e5_a_pydantic_agent_that_is_killed_anywhere_repeats_nothing_that_was_finished() -> None:
    _, kills = await killed_everywhere(quickstart)
    assert len(kills) > 10
    for kill in kills:
        assert (kill.after, kill.calls_again, kill.asked_again) == (kill.after, 0, 0)
        assert kill.state.status == "completed"
    unknown = [done.outcome for kill in kills for done in kill.state.facts.results.values()].count("unknown")
    assert unknown == 1, "the payment that was in flight, told to the model"


async def test_e5_a_retry_that_a_tool_asks_for_is_the_same_after_a_crash() -> None:
    def make(world: World) -> Agent[None, str]:
        agent = Agent(script(world, [("find", '{"name":"x"}')], [("find", '{"name":"ada"}')], "Found."))

        @agent.tool_plain(metadata={"effect": "read"})
        def find(name: str) -> str:
            world.calls.append(name)
            if name == "x":
                raise ModelRetry("Use a whole name.")
            return "found"

        return agent

    whole, kills = await killed_everywhere(make)
    assert whole.state.facts.messages[-1].text == "Found. "
    assert [done.is_error for done in whole.state.facts.results.values()] == [True, False]
    for kill in kills:
        assert (kill.state.status, kill.calls_again, kill.asked_again) == ("completed", 0, 0)


async def test_e5_a_structured_answer_is_told_as_json_and_its_tool_is_not_shown() -> None:
    class City(BaseModel):
        name: str

    def make(world: World) -> Agent[None, City]:
        return Agent(script(world, [("final_result", '{"name":"Rome"}')]), output_type=City)

    pen = await attempt(agent_of(make(World())), Pen().attempt())
    assert pen.state.status == "completed" and pen.state.facts.messages[-1].text == '{"name":"Rome"}'
    assert [type(item).__name__ for item in pen.state.facts.items] == ["Said"]

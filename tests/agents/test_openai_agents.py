"""An agent of the OpenAI Agents SDK behind the server: streamed, journaled, and killed after every event (E5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, Model, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from ninelives.core import events as e
from tests.agents.replays import World, agent_of, attempt, killed_everywhere
from tests.journals import Pen

set_tracing_disabled(True)


class Scripted(Model):
    """Answers by a script: calls, or words. Which turn it is, it counts in its input."""

    def __init__(self, world: World, *answers: list[tuple[str, str]] | str) -> None:
        self._world, self._answers = world, answers

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only streams are asked for")

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self._world.asked += 1
        calls = [item for item in kwargs["input"] if item.get("type") == "function_call"]
        turn = len({item["id"].split("-")[0] for item in calls})
        answer = self._answers[turn]
        output: list[Any] = []
        if isinstance(answer, str):
            for n, word in enumerate(answer.split()):
                yield ResponseTextDeltaEvent(
                    content_index=0,
                    delta=f"{word} ",
                    item_id="m",
                    logprobs=[],
                    output_index=0,
                    sequence_number=n,
                    type="response.output_text.delta",
                )
            text = ResponseOutputText(annotations=[], text="".join(f"{w} " for w in answer.split()), type="output_text")
            output = [
                ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            ]
        else:
            output = [
                ResponseFunctionToolCall(
                    arguments=arguments, call_id=f"c{turn}-{n}", name=name, type="function_call", id=f"f{turn}-{n}"
                )
                for n, (name, arguments) in enumerate(answer)
            ]
        details: Any = {"cached_tokens": 0, "cache_write_tokens": 0}
        usage = ResponseUsage(
            input_tokens=5,
            output_tokens=3,
            total_tokens=8,
            input_tokens_details=details,
            output_tokens_details={"reasoning_tokens": 0},  # type: ignore[arg-type]
        )
        whole = Response(
            id=f"r{turn}",
            created_at=0,
            model="m",
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
            usage=usage,
        )
        yield ResponseCompletedEvent(response=whole, sequence_number=99, type="response.completed")


def quickstart(world: World) -> Agent[None]:
    """A quick-start agent with two tools, one of which declares its effect."""

    @function_tool
    def look(city: str) -> str:
        """Weather."""
        world.calls.append(f"look {city}")
        return "sunny"

    @function_tool
    async def pay(amount: int) -> str:
        """Pay."""
        world.calls.append(f"pay {amount}")
        return "paid"

    look.effect = "read"  # type: ignore[attr-defined]
    model = Scripted(
        world, [("look", '{"city":"Rome"}'), ("look", '{"city":"Oslo"}')], [("pay", '{"amount":5}')], "All is paid."
    )
    return Agent(name="Helper", instructions="Be brief.", model=model, tools=[look, pay])


async def test_e5_an_sdk_agent_streams_its_text_and_shows_its_tools() -> None:
    world = World()
    pen = await attempt(agent_of(quickstart(world)), Pen().attempt())
    assert pen.state.status == "completed" and pen.state.facts.messages[-1].text == "All is paid. "
    kinds = [type(item).__name__ for item in pen.state.facts.items]
    assert kinds == ["Called", "Called", "Returned", "Returned", "Called", "Returned", "Said"]
    assert sum(isinstance(entry.event, e.TextDelta) for entry in pen.entries) == 3
    assert pen.state.facts.usage.output_tokens == 9
    assert sorted(world.calls) == ["look Oslo", "look Rome", "pay 5"] and world.asked == 3


async def test_e5_an_sdk_agent_that_is_killed_anywhere_repeats_nothing_that_was_finished() -> None:
    _, kills = await killed_everywhere(quickstart)
    assert len(kills) > 10
    for kill in kills:
        assert (kill.after, kill.calls_again, kill.asked_again) == (kill.after, 0, 0)
        assert kill.state.status == "completed"
    unknown = [done.outcome for kill in kills for done in kill.state.facts.results.values()].count("unknown")
    assert unknown == 1, "the payment that was in flight, told to the model"


async def test_e5_a_handoff_is_followed_and_the_other_agent_is_durable_too() -> None:
    def make(world: World) -> Agent[None]:
        @function_tool
        def refund(amount: int) -> str:
            """Refund."""
            world.calls.append("refund")
            return "refunded"

        refund.effect = "idempotent"  # type: ignore[attr-defined]
        billing = Agent(
            name="Billing",
            model=Scripted(world, [], [("refund", '{"amount":1}')], "Done."),
            tools=[refund],
        )
        return Agent(name="Triage", model=Scripted(world, [("transfer_to_billing", "{}")]), handoffs=[billing])

    whole, kills = await killed_everywhere(make)
    assert whole.state.status == "completed" and whole.state.facts.messages[-1].text == "Done. "
    for kill in kills:
        assert (kill.state.status, kill.calls_again, kill.asked_again) == ("completed", 0, 0)

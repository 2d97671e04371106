"""A LangGraph graph behind the server: streamed, journaled, and killed after every event (E5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from ninelives.agents.adapters import NotAnAgent
from ninelives.core import events as e
from tests.agents.replays import World, agent_of, attempt, killed_everywhere
from tests.journals import Pen


class Scripted(BaseChatModel):
    """Answers by a script: calls, or words. Which turn it is, it counts in the messages."""

    world: Any
    answers: tuple[Any, ...]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[each.name for each in tools])

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("it streams")

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        self.world.asked += 1
        turn = sum(isinstance(message, AIMessage) for message in messages)
        answer = self.answers[turn]
        for word in answer.split() if isinstance(answer, str) else ():
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
        calls: list[Any] = [
            {"name": name, "args": arguments, "id": f"c{turn}-{n}", "index": n}
            for n, (name, arguments) in enumerate([] if isinstance(answer, str) else answer)
        ]
        spent: Any = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls, usage_metadata=spent))


def tools_of(world: World) -> list[Any]:
    @tool
    def look(city: str) -> str:
        """Weather."""
        world.calls.append(f"look {city}")
        return "sunny"

    @tool
    async def pay(amount: int) -> dict[str, int]:
        """Pay."""
        world.calls.append(f"pay {amount}")
        return {"paid": amount}

    look.metadata = {"effect": "read"}
    return [look, pay]


TURNS = [("look", '{"city":"Rome"}'), ("look", '{"city":"Oslo"}')], [("pay", '{"amount":5}')], "All is paid."


def quickstart(world: World) -> Any:
    """The agent of langchain, with two tools, one of which declares its effect."""
    return create_agent(Scripted(world=world, answers=TURNS), tools_of(world), system_prompt="Be brief.")


def own_graph(world: World) -> Any:
    """A graph with nodes that block: they run in threads."""
    look, pay = tools_of(world)
    model = Scripted(world=world, answers=("One.", "Two."))

    def first(state: MessagesState) -> Any:
        look.invoke({"city": "Rome"})
        return {"messages": [model.invoke(state["messages"])]}

    async def second(state: MessagesState) -> Any:
        await pay.ainvoke({"amount": 5})
        chunks = [chunk async for chunk in model.astream(state["messages"])]
        return {"messages": [AIMessage(f"{chunks[0].content}Last.")]}

    graph = StateGraph(MessagesState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph


async def test_e5_a_graph_streams_its_text_and_shows_its_tools() -> None:
    world = World()
    pen = await attempt(agent_of(quickstart(world)), Pen().attempt())
    assert pen.state.status == "completed" and pen.state.facts.messages[-1].text == "All is paid. "
    kinds = [type(item).__name__ for item in pen.state.facts.items]
    assert kinds == ["Called", "Called", "Returned", "Returned", "Called", "Returned", "Said"]
    assert sum(isinstance(entry.event, e.TextDelta) for entry in pen.entries) == 3
    assert pen.state.facts.usage.output_tokens == 9
    assert sorted(world.calls) == ["look Oslo", "look Rome", "pay 5"] and world.asked == 3


async def test_e5_a_graph_that_is_killed_anywhere_repeats_nothing_that_was_finished() -> None:
    _, kills = await killed_everywhere(quickstart)
    assert len(kills) > 10
    for kill in kills:
        assert (kill.after, kill.calls_again, kill.asked_again) == (kill.after, 0, 0)
        assert kill.state.status == "completed"
    unknown = [done.outcome for kill in kills for done in kill.state.facts.results.values()].count("unknown")
    assert unknown == 1, "the payment that was in flight, told to the model"


async def test_e5_nodes_in_threads_and_nodes_that_stream_are_durable_too() -> None:
    whole, kills = await killed_everywhere(own_graph)
    texts = [said.text for said in whole.state.facts.messages]
    assert whole.state.status == "completed" and texts == ["One. ", "Two. ", "Two. Last."]
    for kill in kills:
        assert (kill.after, kill.calls_again, kill.asked_again) == (kill.after, 0, 0)


async def test_a_checkpointer_of_the_graph_does_not_add_the_input_twice() -> None:
    saver = InMemorySaver()

    def make(world: World) -> Any:
        return create_agent(Scripted(world=world, answers=TURNS), tools_of(world), checkpointer=saver)

    whole, kills = await killed_everywhere(make)
    assert whole.state.status == "completed" and {kill.state.status for kill in kills} == {"completed"}


async def test_wrong_arguments_are_told_to_the_model_as_the_framework_does() -> None:
    def make(world: World) -> Any:
        answers = [("pay", '{"amount":"much"}')], [("pay", '{"amount":5}')], "Paid."
        return create_agent(Scripted(world=world, answers=answers), tools_of(world))

    whole, kills = await killed_everywhere(make)
    first, second = whole.state.facts.results.values()
    assert first.is_error and "amount" in first.output and second.output == '{"paid": 5}'
    for kill in kills:
        assert (kill.state.status, kill.calls_again, kill.asked_again) == ("completed", 0, 0)


async def test_an_agent_as_a_tool_of_another_is_durable_too() -> None:
    def make(world: World) -> Any:
        inner = create_agent(Scripted(world=world, answers=([("pay", '{"amount":5}')], "Paid.")), tools_of(world))

        @tool
        async def cashier(order: str) -> str:
            """Pays."""
            state = await inner.ainvoke({"messages": [("user", order)]})
            return str(state["messages"][-1].text)

        cashier.metadata = {"effect": "idempotent"}
        answers = [("cashier", '{"order":"five"}')], "All is paid."
        return create_agent(Scripted(world=world, answers=answers), [cashier])

    whole, kills = await killed_everywhere(make)
    assert whole.state.facts.messages[-1].text == "All is paid. "
    assert {kill.state.status for kill in kills} == {"completed"}
    for kill in kills:
        assert (kill.after, kill.calls_again, kill.asked_again) == (kill.after, 0, 0)


def test_a_graph_without_messages_is_refused_with_what_to_do() -> None:
    class State(dict[str, Any]):
        pass

    graph = StateGraph(State)
    graph.add_node("one", lambda state: state)
    graph.add_edge(START, "one")
    with pytest.raises(NotAnAgent, match="MessagesState"):
        agent_of(graph)

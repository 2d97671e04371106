"""Producers with the callbacks of hermes-agent behind the server (E5, G14). The real AIAgent: tests/frameworks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ninelives.core import events as e
from tests.agents.replays import agent_of, attempt
from tests.journals import Pen


async def shown(producer: Callable[..., Any]) -> tuple[Pen, list[str]]:
    """A run of a producer, and its events but for deltas."""
    pen = await attempt(agent_of(producer), Pen().attempt())
    return pen, [line(entry.event) for entry in pen.entries if line(entry.event)]


def line(event: e.AnyEvent) -> str:
    match event:
        case e.ToolStarted():
            return f"> {event.call.name} {event.call.arguments} {event.call.id[-1]}"
        case e.ToolFinished():
            return f"< {event.output} {event.call_id[-1]}"
        case e.MessageCompleted(text):
            return text
    return ""


async def test_e5_callbacks_with_ids_become_paired_events_in_any_order() -> None:
    def agent(
        message: str, *, tool_start_callback: Any, tool_complete_callback: Any, stream_delta_callback: Any
    ) -> str:
        stream_delta_callback("Let me ")
        stream_delta_callback("look.")
        tool_start_callback("a", "look", {"city": "Rome"})
        tool_start_callback("b", "look", {"city": "Oslo"})
        tool_complete_callback("b", "look", {"city": "Oslo"}, "rain")
        tool_complete_callback("a", "look", {"city": "Rome"}, {"sun": 1})
        stream_delta_callback("\n\nRain ")
        stream_delta_callback("and sun.")
        return "Rain and sun."

    pen, lines = await shown(agent)
    assert lines == [
        "Let me look.",
        '> look {"city":"Rome"} 0',
        '> look {"city":"Oslo"} 1',
        "< rain 1",
        '< {"sun":1} 0',
        "Rain and sun.",
    ]
    assert pen.state.status == "completed" and not agent_of(agent).resumable


async def test_g14_a_completion_without_an_id_closes_the_oldest_open_call_of_that_name() -> None:
    def agent(message: str, tool_progress_callback: Any) -> dict[str, Any]:
        tool_progress_callback("tool.started", "look", "Rome", {"city": "Rome"})
        tool_progress_callback("tool.started", "pay", "5", {"amount": 5})
        tool_progress_callback("tool.started", "look", "Oslo", {"city": "Oslo"})
        tool_progress_callback("tool.completed", "look", None, None, duration=1, is_error=False, result="sun")
        tool_progress_callback("tool.completed", "look", None, None, result="rain")
        tool_progress_callback("tool.completed", "never", None, None, result="an orphan")
        tool_progress_callback("tool.completed", "pay", None, None, result="no money", is_error=True)
        tool_progress_callback("_thinking", "hm")
        return {"final_response": "Done.", "input_tokens": 7, "output_tokens": 2}

    pen, lines = await shown(agent)
    assert [text for text in lines if text.startswith("<")] == ["< sun 0", "< rain 2", "< no money 1"]
    assert lines[-1] == "Done." and pen.state.facts.usage.input_tokens == 7


async def test_g14_a_producer_that_tells_only_starts_gets_pairs_all_the_same() -> None:
    def agent(message: str, tool_progress_callback: Any, stream_delta_callback: Any) -> str:
        tool_progress_callback("look", "Rome", {"city": "Rome"})
        tool_progress_callback("pay", "5", {"amount": 5})
        stream_delta_callback("Paid.")
        tool_progress_callback("look", "Oslo", {"city": "Oslo"})
        return "Paid."

    pen, lines = await shown(agent)
    assert [text[0] for text in lines] == [">", "<", ">", "<", "P", ">", "<"]
    assert pen.state.status == "completed"


async def test_a_tool_runs_only_when_its_start_is_committed() -> None:
    seen: list[str] = []
    pen = Pen().attempt()

    def agent(message: str, tool_start_callback: Any, tool_complete_callback: Any) -> str:
        tool_start_callback("a", "look", {})
        seen.append(type(pen.entries[-1].event).__name__)
        tool_complete_callback("a", "look", {}, "sun")
        return "Done."

    await attempt(agent_of(agent), pen)
    assert seen == ["ToolStarted"]


async def test_text_beside_an_open_call_and_a_call_without_an_end_are_not_lost() -> None:
    def agent(message: str, tool_start_callback: Any, stream_delta_callback: Any) -> str:
        tool_start_callback("a", "look", {})
        stream_delta_callback("Beside. ")
        return "The end."

    _, lines = await shown(agent)
    assert "did not tell" in lines[1] and lines[2:] == ["Beside. ", "The end."]


async def test_a_stopped_run_ends_the_producer_at_its_next_callback() -> None:
    went_on: list[str] = []
    over = threading.Event()

    def agent(message: str, tool_start_callback: Any, stream_delta_callback: Any) -> str:
        try:
            stream_delta_callback("One. ")
            tool_start_callback("a", "pay", {})
            went_on.append("paid")
            return "Paid."
        finally:
            over.set()

    pen = await attempt(agent_of(agent), Pen().attempt(), 1)
    assert await asyncio.to_thread(over.wait, 10) and went_on == []
    assert pen.state.status == "in_progress"


class AIAgent:
    """The interface of hermes-agent's class."""

    made = 0

    def __init__(self, model: str = "", session_id: str = "") -> None:
        type(self).made += 1
        self.session_input_tokens, self.session_output_tokens = 0, 0
        self.tool_start_callback: Any = None
        self.tool_complete_callback: Any = None
        self.stream_delta_callback: Any = None

    def interrupt(self) -> None:
        pass

    def run_conversation(self, message: str, system_message: Any, conversation_history: Any) -> dict[str, Any]:
        self.tool_start_callback("x", "look", {})
        self.tool_complete_callback("x", "look", {}, "sun")
        self.session_input_tokens += 5
        return {"final_response": f"{message}: sun", "failed": False, "input_tokens": self.session_input_tokens}


AIAgent.__module__ = "run_agent"


async def test_an_agent_a_class_and_a_partial_are_served_and_each_run_has_its_own_counts() -> None:
    for found in (AIAgent(), AIAgent, partial(AIAgent, model="m")):
        agent = agent_of(found)
        for _ in range(2):
            pen = await attempt(agent, Pen().attempt())
            assert pen.state.status == "completed" and pen.state.facts.messages[-1].text == "Say hello: sun"
            assert pen.state.facts.usage.input_tokens == 5
    assert AIAgent.made == 5

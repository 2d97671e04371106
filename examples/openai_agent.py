"""An agent of the OpenAI Agents SDK: ninelives serve examples/openai_agent.py:agent"""

import asyncio
from pathlib import Path

from agents import Agent, function_tool, set_default_openai_api

set_default_openai_api("chat_completions")


@function_tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@function_tool
async def book(city: str) -> str:
    """Book a trip."""
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city}\n")
    await asyncio.sleep(0.2)
    return f"booked {city}"


weather.effect = "read"
agent = Agent(name="Trips", instructions="You plan trips. Be brief.", tools=[weather, book])

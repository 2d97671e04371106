"""A pydantic-ai agent: ninelives serve examples/pydantic_agent.py:agent"""

import asyncio
from pathlib import Path

from pydantic_ai import Agent

agent = Agent("openai-chat:gpt-5.2", instructions="You plan trips. Be brief.")


@agent.tool_plain(metadata={"effect": "read"})
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@agent.tool_plain
async def book(city: str) -> str:
    """Book a trip."""
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city}\n")
    await asyncio.sleep(0.2)
    return f"booked {city}"

"""An agent of langchain, which is a LangGraph graph: ninelives serve examples/langgraph_agent.py:agent"""

import asyncio
from pathlib import Path

from langchain.agents import create_agent
from langchain.tools import tool


@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@tool
async def book(city: str) -> str:
    """Book a trip."""
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city}\n")
    await asyncio.sleep(0.2)
    return f"booked {city}"


weather.metadata = {"effect": "read"}
agent = create_agent("openai:gpt-5.2", [weather, book], system_prompt="You plan trips. Be brief.")

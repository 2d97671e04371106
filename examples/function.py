"""An async function with steps: ninelives serve examples/function.py:agent"""

from __future__ import annotations

import asyncio
from pathlib import Path


async def weather(city: str) -> str:
    """A read: after a crash it may be asked again."""
    await asyncio.sleep(0.1)
    return "sunny"


async def book(city: str, key: str) -> str:
    """A write: nobody wants to pay twice. A real service takes `key`, which is the same if this is called again."""
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city} {key}\n")
    await asyncio.sleep(0.2)
    return f"booked {city}"


async def agent(question: str, ctx) -> str:
    city = question.split()[-1]
    outlook = await ctx.step("weather", weather, city, effect="read")
    booked = await ctx.step("book", book, city)
    return f"It is {outlook} in {city}: {booked}."

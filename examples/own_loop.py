"""A loop of one's own over the configured model: ninelives serve examples/own_loop.py:agent --model-url URL"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a trip.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def book(city: str) -> str:
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city}\n")
    await asyncio.sleep(0.2)
    return f"booked {city}"


async def agent(question: str, ctx) -> str:
    messages = list(ctx.messages)
    while True:
        answer = await ctx.ask(messages, tools=[BOOK])
        if not answer.calls:
            return answer.text
        messages.append({"role": "assistant", "content": answer.text})
        for call in answer.calls:
            done = await ctx.step("book", book, **json.loads(call.arguments))
            messages.append({"role": "user", "content": f"Result of {call.name}: {done}"})

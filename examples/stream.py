"""An async generator that streams its answer: ninelives serve examples/stream.py:agent"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path


def roll() -> int:
    """What differs between two runs of the code belongs into a step."""
    return random.randint(1, 6)


async def note(number: int) -> str:
    """Written twice, it is the same file."""
    await asyncio.sleep(0.1)
    Path(f"note-{number}.txt").write_text(f"note {number}\n")
    return f"note {number}"


async def agent(question: str, ctx):
    yield "I roll a die. "
    rolled = await ctx.step("roll", roll, effect="read")
    yield f"It is a {rolled}. "
    done = await asyncio.gather(*(ctx.step("note", note, n, effect="idempotent") for n in range(3)))
    for word in f"I wrote {', '.join(done)}.".split():
        yield f"{word} "

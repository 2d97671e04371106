"""Tools that leave a trace, one of each effect, so that a drill can count what really ran. The server of a drill loads
them by tools.modules. Owns: the three tools, and the line that each call adds to a file. An environment variable names
the file, because nothing else of the drill reaches this process. Refuses to know: who reads the file."""

from __future__ import annotations

import asyncio
import os
import time

from ninelives.drill import TRACES_ENV
from ninelives.tools.base import Place
from ninelives.tools.decorator import tool


def _trace(place: Place) -> None:
    """Add a line by one write(), so that a kill leaves all of it or nothing."""
    line = f"{place.call_id} {time.time_ns() // 1_000_000}\n".encode()
    file = os.open(os.environ[TRACES_ENV], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


async def _work(name: str, seconds: float, place: Place) -> str:
    _trace(place)
    await asyncio.sleep(min(seconds, 5.0))
    return f"{name} is done"


@tool(effect="write", name="drill_write", label="Leaving a trace")
async def write(place: Place, seconds: float = 0.0) -> str:
    """A probe of ninelives drill: leaves a trace, then takes `seconds`."""
    return await _work("drill_write", seconds, place)


@tool(effect="idempotent", name="drill_idempotent", label="Leaving a trace again")
async def idempotent(place: Place, seconds: float = 0.0) -> str:
    """A probe of ninelives drill that may be repeated: leaves a trace, then takes `seconds`."""
    return await _work("drill_idempotent", seconds, place)


@tool(effect="read", name="drill_read", label="Looking")
async def read(place: Place, seconds: float = 0.0) -> str:
    """A probe of ninelives drill that only reads: leaves a trace, then takes `seconds`."""
    return await _work("drill_read", seconds, place)

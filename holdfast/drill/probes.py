"""Tools that leave a trace, one of each effect, for the drill to count what was really carried out. Loaded into the
server of a drill by tools.modules. Owns: the three tools and the line that each call adds to a file. Refuses to know:
who reads it. The file is named by an environment variable of the drill's own: nothing else reaches this process."""

from __future__ import annotations

import asyncio
import os
import time

from holdfast.drill import TRACES_ENV
from holdfast.tools.base import Place
from holdfast.tools.decorator import tool


def _trace(place: Place) -> None:
    """One line in one write: whoever kills the process gets all of it or nothing."""
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
    """A probe of holdfast drill: leaves a trace, and takes so long after it."""
    return await _work("drill_write", seconds, place)


@tool(effect="idempotent", name="drill_idempotent", label="Leaving a trace again")
async def idempotent(place: Place, seconds: float = 0.0) -> str:
    """A probe of holdfast drill that may be repeated: leaves a trace, and takes so long after it."""
    return await _work("drill_idempotent", seconds, place)


@tool(effect="read", name="drill_read", label="Looking")
async def read(place: Place, seconds: float = 0.0) -> str:
    """A probe of holdfast drill that only reads: leaves a trace, and takes so long after it."""
    return await _work("drill_read", seconds, place)

"""Where the work on a request is done. Owns: the rule that large requests are checked and parsed in a thread of their
own, so that the loop goes on meanwhile. Python runs one thread at a time, so this is not faster. But the loop gets its
turn every 5 ms, and after each call into C, instead of at the end. Refuses to know: what the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 262_144
"""Smaller requests are handled on the loop: a thread costs more than it saves."""


class Aside:
    """One thread for large requests. Each caller waits for its work, so the queue holds one piece per open request."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ninelives-large")

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do pure work on a request of `size` bytes and return its result."""
        if size <= LARGE_BYTES:
            return work(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

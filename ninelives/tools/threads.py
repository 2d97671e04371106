"""Threads for the blocking work of tools. Owns: one named pool of a few threads. Refuses to know: what the work is. A
thread cannot be stopped: if its caller is cancelled, the work goes on to its end. So the work must bound itself, in
bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of threads. Every caller waits, so its queue holds at most one piece of work per call in progress."""

    def __init__(self, size: int = 4) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="ninelives-tools")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in one of the threads and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Accept no more work. Threads end when they have finished theirs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

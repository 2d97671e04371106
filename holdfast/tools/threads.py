"""Where blocking work of the tools happens. Owns: one named pool of a few threads. Refuses to know: what the work is.
Work given to it must be bounded by itself (bytes, time), for a thread cannot be stopped: when its caller is
cancelled it goes on to its end unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of threads. Its queue holds at most one piece of work per call in flight, for every caller waits."""

    def __init__(self, size: int = 4) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="holdfast-tools")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` gives, done in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    def close(self) -> None:
        """No more work; threads end when they are done with theirs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

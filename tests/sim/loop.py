"""An event loop without a clock and without sockets. Owns: virtual time (it jumps to the next timer when nothing else
is left to do), the seeded choice of which ready callback runs next, and the bound on steps. Everything that can order
itself by an address in memory (sets of tasks) orders itself by age here, so that a seed is the same on every machine.
Refuses to know: what runs on it.

Theory of operation. asyncio promises that callbacks run in the order in which they became ready. With `shuffle` 0 that
promise is kept and the dice of the store, the model and the clients make the orders; with more, any ready callback may
come next, which is harsher than any real loop and finds code that leans on luck."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

MOST_STEPS = 400_000


class Stuck(Exception):
    """Nothing is left that could happen, or far too much happens."""


class SimTask(asyncio.Task[Any]):
    """A task that sets order by age."""

    def __init__(self, work: Coroutine[Any, Any, Any], loop: SimLoop, context: Context | None) -> None:
        self.born = loop.births = loop.births + 1
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self.born


class SimFuture(asyncio.Future[Any]):
    """A future that sets order by age."""

    def __init__(self, loop: SimLoop) -> None:
        self.born = loop.births = loop.births + 1
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.born


class SimLoop(asyncio.BaseEventLoop):
    """Runs one callback per step."""

    def __init__(self, chance: random.Random, shuffle: float) -> None:
        super().__init__()
        self.now = 1_000.0
        self.steps = 0
        self._chance = chance
        self._shuffle = shuffle
        self.births = 0
        self.tasks: list[SimTask] = []
        self.made: Callable[[SimTask], None] = lambda task: None
        """Told of every new task."""
        self.stands_still: Callable[[asyncio.Handle], bool] = lambda handle: False
        """Takes the callbacks of a process that is stopped (SIGSTOP), until it goes on."""
        self.set_task_factory(self._make)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def _make(self, _: Any, work: Coroutine[Any, Any, Any], context: Context | None = None) -> SimTask:
        task = SimTask(work, self, context)
        self.tasks.append(task)
        self.made(task)
        return task

    def create_future(self) -> SimFuture:
        """See AbstractEventLoop.create_future."""
        return SimFuture(self)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Stuck("nothing is left that could happen")
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        if not ready:
            return
        if len(ready) > 1 and self._shuffle and self._chance.random() < self._shuffle:
            ready.rotate(self._chance.randrange(len(ready)))
        handle = ready.popleft()
        if not handle._cancelled and not self.stands_still(handle):
            handle._run()
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck(f"{MOST_STEPS} steps, and no end")

    def _write_to_self(self) -> None:
        """Nobody sleeps: there is nobody to wake."""

"""python -m bench.growth: what length costs. One run of n events over a real SQLite store in this process, with a live
reader: CPU time of the first and of the last thousand events, of a snapshot, of a replay from zero and of a resume near
the end, for growing n. What counts are the ratios in one run: the last thousand over the first, and the cost per event
at the longest over that at the shortest."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.agents.base import Turn
from holdfast.core.admission import Asked
from holdfast.core.events import AnyEvent, MessageCompleted, RunCompleted, TextDelta
from holdfast.core.spec import Spec
from holdfast.core.state import RunState
from holdfast.dialects.responses.body import body
from holdfast.dialects.responses.frames import ResponsesProjection
from holdfast.engine.base import Chunk, Limits, Order
from holdfast.engine.drivers import Parts
from holdfast.engine.engine import Engine
from holdfast.journal.bell import LocalBell
from holdfast.journal.memory import MemoryStore
from holdfast.journal.sqlite import SqliteStore

THOUSAND = 1000
PAUSE = 50
"""Deltas between two breaths: about what one flush carries under load."""


class Silent:
    """A log that nobody reads."""

    def info(self, name: str, **fields: object) -> None: ...
    def warning(self, name: str, **fields: object) -> None: ...
    def error(self, name: str, **fields: object) -> None:
        raise RuntimeError(f"{name} {fields}")


class Talker:
    """An agent that says n words and notes what each thousand of them cost this process."""

    resumable = True

    def __init__(self, events: int) -> None:
        self._events = events
        self.costs: list[float] = []

    async def end_leftovers(self, state: RunState) -> None:
        """It leaves nothing."""

    async def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        began = time.process_time()
        for n in range(1, self._events + 1):
            yield TextDelta("word ")
            if n % PAUSE == 0:
                await asyncio.sleep(0.002)  # so that each part is written and read before the next comes
            if n % THOUSAND == 0:
                now = time.process_time()
                self.costs.append(now - began)
                began = now
        yield MessageCompleted("word " * self._events)
        yield RunCompleted()


def cost(began: float) -> float:
    """Milliseconds of CPU since then."""
    return (time.process_time() - began) * 1000


async def read(engine: Engine, run: str, after: int) -> int:
    """A whole stream from a position: its bytes."""
    subscription = engine.attach("o", run, ResponsesProjection(), after)
    size = 0
    while isinstance(news := await subscription.next(), Chunk):
        size += len(news.data)
    subscription.close()
    return size


@asynccontextmanager
async def serving(path: Path, agent: Any) -> AsyncIterator[Engine]:
    """An engine over a store."""
    store = await SqliteStore.open_at(path, "normal", time.monotonic)
    ids = itertools.count()
    memory = MemoryStore(time.monotonic)
    now, new = (lambda: time.time_ns() // 1_000_000), (lambda: f"{next(ids):024d}")
    engine = Engine(Parts(store, memory, LocalBell(), agent, Limits(), Silent(), now, new))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        await store.close()


async def measure(events: int, folder: Path) -> dict[str, float]:
    """One run of so many events, live and then by a server that has just started."""
    agent = Talker(events)
    path = folder / f"{events}.db"
    async with serving(path, agent) as engine:
        spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": "go"},))
        ticket = await engine.submit(Order(owner="o", spec=spec, asked=Asked(owner="o", fingerprint="")))
        await read(engine, ticket.run, -1)
        await asyncio.sleep(0.5)
    async with serving(path, agent) as engine:
        await asyncio.sleep(0.5)
        began = time.process_time()
        state = await engine.look("o", ticket.run)
        assert state is not None and state.ended
        body(state)
        snapshot = cost(began)
        began = time.process_time()
        await read(engine, ticket.run, -1)
        replay = cost(began)
        began = time.process_time()
        await read(engine, ticket.run, events - 10)
        resume = cost(began)
    first, last = agent.costs[0] * 1000, sum(agent.costs[-3:]) / len(agent.costs[-3:]) * 1000
    return {"events": events, "first": first, "last": last, "snapshot": snapshot, "replay": replay, "resume": resume}


async def main() -> None:
    """The table."""
    options = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    options.add_argument("--events", default="5000,10000,50000,100000", help="lengths, with commas")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="holdfast-growth-") as folder:
        await measure(3 * THOUSAND, Path(folder))  # warm
        for events in map(int, given.events.split(",")):
            rows.append(await measure(events, Path(folder)))
    if given.json:
        print(json.dumps(rows))
        return
    print("CPU ms        first 1000  last 1000  last/first   snapshot     replay     resume")
    for row in rows:
        ratio = row["last"] / row["first"]
        whole = "".join(f"{row[name]:>11.1f}" for name in ("snapshot", "replay", "resume"))
        print(f"{row['events']:>7} events {row['first']:>9.1f}{row['last']:>11.1f}{ratio:>11.2f}x{whole}")
    short, long = rows[0], rows[-1]
    times = long["events"] / short["events"]
    for name in ("snapshot", "replay", "resume"):
        print(f"{name}: {long[name] / short[name]:.1f}x the cost for {times:g}x the events")


if __name__ == "__main__":
    asyncio.run(main())

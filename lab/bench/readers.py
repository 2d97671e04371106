"""The load `readers`: many who wait on a few runs, on a fresh server. Owns: the memory that each costs, and that all of
them get the end. Refuses to know: what is good."""

from __future__ import annotations

import asyncio
import resource
import time
import urllib.request
from dataclasses import dataclass, field

from lab.bench.cost import rss_mb
from lab.bench.figures import Figure
from lab.bench.loads import RUNS, Load
from lab.bench.targets import Ground, Target, fresh
from lab.bench.wire import COMPLETED, Caller, Unexpected, order, posted, request

HOLD_US = 600_000_000
"""Between the first and the second token of a held run; /bench/release makes the second due at once."""
AT_ONCE = 100
CONNECT_S = 200.0
END_S = 30.0
SETTLE_S = 1.0
SPARE_FILES = 200


@dataclass(eq=False)
class Reader(asyncio.Protocol):
    """One who waits: it keeps the tail of what it got, no more."""

    ask: bytes
    first: asyncio.Future[None]
    last: asyncio.Future[None]
    tail: bytearray = field(default_factory=bytearray)
    line: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        self.line = transport
        transport.write(self.ask)

    def data_received(self, data: bytes) -> None:
        """The first bytes say that it is attached, the last that it is over."""
        self.tail += data
        if b"event: " in self.tail and not self.first.done():
            self.first.set_result(None)
        del self.tail[:-8192]
        if self.tail.endswith(b"0\r\n\r\n") and not self.last.done():
            self.last.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Over, well or not."""
        for future in (self.first, self.last):
            if not future.done():
                future.set_result(None)

    @property
    def ended(self) -> bool:
        """Whether it got the terminal event."""
        return COMPLETED in self.tail


def _runs(target: Target, count: int) -> list[str]:
    caller = Caller(target)
    ids = [str(caller.ask(target.path, posted(target, order(2, HOLD_US), background=True))["id"]) for _ in range(count)]
    caller.close()
    return ids


def _release(on: Ground) -> None:
    with urllib.request.urlopen(f"http://{on.upstream.address}/bench/release", timeout=5) as answer:
        answer.read()


async def _attach(target: Target, paths: list[str], count: int) -> list[Reader]:
    loop, gate, readers = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE), []

    async def one(number: int) -> None:
        ask = request(target, f"{paths[number % len(paths)]}?stream=true")
        async with gate:
            reader = Reader(ask, loop.create_future(), loop.create_future())
            await loop.create_connection(lambda: reader, *target.host)
            readers.append(reader)
            await reader.first

    try:
        async with asyncio.timeout(CONNECT_S), asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
    except* OSError as errors:
        raise Unexpected(f"after {len(readers)} readers: {errors.exceptions[0]}") from None
    return readers


async def _wait(on: Ground, target: Target, count: int) -> dict[str, float]:
    paths = [f"{target.path}/{run}" for run in _runs(target, RUNS)]
    held = await _attach(target, paths, RUNS)  # one reader of each run: what a run costs is not what a reader costs
    await asyncio.sleep(SETTLE_S)
    before, began = rss_mb(target.pids), time.monotonic()
    readers = await _attach(target, paths, count)
    attached = time.monotonic() - began
    await asyncio.sleep(SETTLE_S)
    after, began = rss_mb(target.pids), time.monotonic()
    if any(reader.last.done() for reader in readers):
        raise Unexpected("some did not wait: their streams ended before the runs did")
    await asyncio.to_thread(_release, on)
    await asyncio.wait([reader.last for reader in [*held, *readers]], timeout=END_S)
    ended = sum(reader.ended for reader in readers)
    for reader in [*held, *readers]:
        if reader.line is not None:
            reader.line.abort()
    return {
        "reader_kb": (after - before) * 1e6 / 1024 / count,
        "rss_mb": after,
        "attached_per_s": count / attached,
        "ended": ended / count,
        "end_s": time.monotonic() - began,
    }


def measure(on: Ground, target: Target, load: Load) -> Figure:
    """All of them on one server of their own."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files < load.size + SPARE_FILES:
        void = f"only {files} open files are allowed here (ulimit -Hn): {load.size + SPARE_FILES} are needed"
        return Figure(load.name, load.kind, target.name, {}, void=void)
    own = fresh(on, f"readers-{load.size}")
    try:
        values = asyncio.run(_wait(on, own, load.size))
    finally:
        on.fleet.stop(own.pid or 0)
    failed = round((1 - values["ended"]) * load.size)
    return Figure(load.name, load.kind, target.name, values, failed, "no terminal event" if failed else "")

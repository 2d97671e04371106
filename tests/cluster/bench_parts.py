"""The two measurements that need more than a load generator. Owns: bare appends to a store, the same slices for every
store, and the age of each token at two readers of one run on different replicas. Refuses to know: tables and targets.

A token of the bench's upstream is a text that begins with @ and the CLOCK_MONOTONIC nanoseconds of its making."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ninelives.journal.base import Store
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Verdict
from ninelives.testing.author import Author, Backend
from ninelives.testing.clock import VirtualClock

RUNS = 200
CHUNKS = (1, 20)
EVENT = b'{"t":"TextDelta","text":"%s"}' % (b"x" * 120)
STAMP = re.compile(rb"@(\d{10,20})")
STREAMS = 20
PACE_US = 20_000


async def append_rate(store: Store, word: str, chunk: int, seconds: float) -> float:
    """Events per second: one call at a time with a slice of `chunk` events for each run, as the writer makes them."""
    author = Author(Backend(store, VirtualClock(time.time())), holder="bench")
    runs = [f"{word}{chunk:02d}{n:020d}" for n in range(RUNS)]
    for run in runs:
        await author.open(run)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        verdicts = await store.append([author.slice(run, *[EVENT] * chunk) for run in runs])
        assert set(verdicts) == {Verdict.WRITTEN}
        for run in runs:
            author.seqs[run] += chunk
        count += RUNS * chunk
    return count / (time.monotonic() - began)


async def append_rates(folder: Path, url: str, seconds: float) -> dict[str, dict[str, float]]:
    """For each store and chunk. SQLite `full` is the one that is as durable as PostgreSQL."""
    from ninelives.journal.postgres.store import Identity, PostgresStore

    found: dict[str, dict[str, float]] = {}
    stores: dict[str, Any] = {
        "sqlite": await SqliteStore.open_at(folder / "bare-normal.db", "normal", time.time),
        "sqlite full": await SqliteStore.open_at(folder / "bare-full.db", "full", time.time),
        "postgresql": await PostgresStore.open_at(
            url, Identity(holder="bench", name="bench", works=True), LocalNotifier()
        ),
    }
    for chunk in CHUNKS:
        for name, store in stores.items():
            words = f"{chunk} event{'s' * (chunk > 1)} per slice"
            found.setdefault(name, {})[words] = await append_rate(store, name[:1] + name[-1:], chunk, seconds)
    for store in stores.values():
        await store.close()
    return found


def cpu_s(pid: int) -> float:
    """What a process, its children and those of them that have ended have used."""
    total = 0.0
    for each in (pid, *_children(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15] if each == pid else fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return total


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


class Ages:
    """The age of each token as it arrives at one reader."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read(self, port: int, request: bytes) -> None:
        """One stream to its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        text = b""
        try:
            while data := await reader.read(1 << 16):
                now = time.monotonic_ns()
                text = (text + data)[-(1 << 16) :] if not self.id.done() else data
                deltas = [line for line in data.split(b"\n") if b".delta" in line]
                self.ms += [(now - int(stamp)) / 1e6 for line in deltas for stamp in STAMP.findall(line)]
                if not self.id.done() and (found := re.search(rb'"id":"(resp_\w+)"', text)):
                    self.id.set_result(found[1].decode())
                if b"data: [DONE]" in data:
                    return
        finally:
            writer.transport.abort()


def _request(method: str, path: str, key: str, body: object = None) -> bytes:
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def _pair(here: int, there: int, key: str, tokens: int) -> tuple[list[float], list[float]]:
    """A run on one replica, read there and on the other."""
    text = f"[[bench n={tokens} pace_us={PACE_US}]]"
    own, other = Ages(), Ages()
    body = {"model": "hermes-agent", "input": text, "stream": True, "store": True}
    first = asyncio.create_task(own.read(here, _request("POST", "/v1/responses", key, body)))
    shown = await asyncio.wait_for(own.id, 20)
    await other.read(there, _request("GET", f"/v1/responses/{shown}?stream=true", key))
    await first
    return own.ms, other.ms[len(other.ms) // 10 :]  # what was there before it came is a replay


async def fan_out(here: int, there: int, key: str, seconds: float) -> dict[str, float]:
    """Ages in ms at the reader where the run is, and at one elsewhere; STREAMS runs at once."""
    tokens = int(seconds * 1e6 / PACE_US)
    pairs = await asyncio.gather(*(_pair(here, there, key, tokens) for _ in range(STREAMS)))
    own = sorted(ms for pair in pairs for ms in pair[0])
    other = sorted(ms for pair in pairs for ms in pair[1])
    assert own and other, "no token arrived"

    def at(ages: list[float], share: float) -> float:
        return ages[min(len(ages) - 1, int(len(ages) * share))]

    return {
        "reader on the same replica p50 ms": at(own, 0.5),
        "reader on the same replica p99 ms": at(own, 0.99),
        "reader elsewhere p50 ms": at(other, 0.5),
        "reader elsewhere p99 ms": at(other, 0.99),
        "added for a reader elsewhere p50 ms": at(other, 0.5) - at(own, 0.5),
    }

"""The loads that the load generator's client makes: tiny, first, flood, paced, control. Runs it against one target and
puts beside what it saw what the machine saw: CPU of the server's process tree, memory, wake-ups, how busy the cores
were, and with whom. Refuses to know: what is good."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from dataclasses import dataclass

import msgspec

from lab.bench.cost import cores_busy_s, cpu_s, rested, rss_mb, wakeups
from lab.bench.counters import Counter
from lab.bench.figures import Figure
from lab.bench.loads import Load
from lab.bench.targets import Ground, Target
from lab.bench.wire import Unexpected

SAMPLE_S = 0.5
SPARE_S = 15.0
BUSY_OTHERS = 0.10
BUSY_LOAD = 0.95
LATE_UPSTREAM = 0.01


class Spread(msgspec.Struct):
    """A distribution in µs."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Seen(msgspec.Struct):
    """What the client prints; its `expected` is what a perfect server would have delivered."""

    span_s: float
    cpu_s: float
    expected: int
    tokens: int
    delivered_share: float
    on_time_share: float
    tokens_per_s: float
    requests: int
    requests_per_s: float
    errors: int
    wrong: int
    unfinished: int
    error_sample: str
    latency_us: Spread
    first_us: Spread
    request_us: Spread


class Stats(msgspec.Struct):
    """What the upstream says of itself; a token is late when it was made over 5 ms after it was due."""

    tokens: int
    late: int


@dataclass
class Meter:
    """What the machine spends between its making and stop()."""

    on: Ground
    target: Target

    def __post_init__(self) -> None:
        self._counter = Counter(self.target.pids)
        self._stats = upstream_stats(self.on)
        self._before = self._read()

    def _read(self) -> tuple[float, ...]:
        cores, pids = self.on.cores, self.target.pids  # with those that were started meanwhile
        busy = cores_busy_s([cores.server]), cores_busy_s(cores.load)
        return time.monotonic(), cpu_s(pids), cpu_s([self.on.upstream.pid]), *busy, float(wakeups(pids))

    def stop(self, client_cpu_s: float, units: int) -> dict[str, float]:
        """The values since the start; `units` are the events or requests that the cost is told per. What the server put
        off until it has time is part of that cost, but not of how busy it was."""
        pairs = zip(self._read(), self._before, strict=True)
        wall, cpu, upstream, server_busy, load_busy, woken = (after - before for after, before in pairs)
        stats, before = upstream_stats(self.on), self._stats
        rested(self.target.pids)
        whole = cpu_s(self.target.pids) - self._before[1]
        load = client_cpu_s + upstream
        ours = (cpu + load, cpu + load) if self.on.cores.shared else (cpu, load)
        width = len(self.on.cores.load)
        values = {
            "server_busy": cpu / wall,
            "load_busy": load / wall / width,
            "others_server": max(0.0, server_busy - ours[0]) / wall,
            "others_load": max(0.0, load_busy - ours[1]) / wall / width,
            "upstream_late": (stats.late - before.late) / max(1, stats.tokens - before.tokens),
        }
        counted = self._counter.close()
        if self.target.pid and units:
            values |= {"cpu_us": whole / units * 1e6, "wakeups": woken / units}
            if counted is not None:
                values["instructions"] = counted / units
        return values


def upstream_stats(on: Ground) -> Stats:
    """Its own counters."""
    with urllib.request.urlopen(f"http://{on.upstream.address}/bench/stats", timeout=5) as answer:
        return msgspec.json.decode(answer.read(), type=Stats)


def warm_up(on: Ground, target: Target) -> None:
    """Imports, connection pools and caches are not what is measured."""
    for load in (Load("warm-up", "tiny", "", 8, 3, seconds=0.3, whole=True), Load("warm-up", "flood", "", 16, 50)):
        _client(on, target, load)


def _client(on: Ground, target: Target, load: Load) -> tuple[Seen, float]:
    """What the client saw, and the most memory that the target had meanwhile."""
    pids = target.pids
    proc = on.fleet.run([*on.generator.argv, "client", *target.argv(), *load.argv()], on.cores.load)
    give_up = time.monotonic() + load.longest_s + SPARE_S
    peak = rss_mb(pids)
    out = b""
    try:
        while proc.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, _ = proc.communicate(timeout=SAMPLE_S)
            peak = max(peak, rss_mb(pids))
            if time.monotonic() > give_up:
                raise TimeoutError(f"the load client hangs in {load.name} on {target.name}")
    finally:
        on.fleet.stop(proc.pid)
    if not out:
        raise Unexpected(f"the load client failed in {load.name} on {target.name}, code {proc.returncode}")
    return msgspec.json.decode(out, type=Seen), peak


def _reached(load: Load, seen: Seen) -> float:
    """The share of the load that got through: on time where time was promised."""
    if load.kind == "paced":
        return seen.on_time_share
    if load.kind == "tiny":
        return seen.requests / max(1, seen.requests + seen.errors + seen.wrong)
    return seen.delivered_share


def _values(load: Load, seen: Seen) -> dict[str, float]:
    """What the client saw that means something in this load."""
    latency = {"latency_p50_ms": seen.latency_us.p50 / 1e3, "latency_p99_ms": seen.latency_us.p99 / 1e3}
    first = {"first_p50_ms": seen.first_us.p50 / 1e3, "first_p99_ms": seen.first_us.p99 / 1e3}
    request = {"request_p50_ms": seen.request_us.p50 / 1e3, "request_p99_ms": seen.request_us.p99 / 1e3}
    own: dict[str, float] = {"reached": _reached(load, seen), "requests": float(seen.requests)}
    if load.kind == "tiny":
        return own | {"requests_per_s": seen.requests_per_s} | request
    if load.kind == "first":
        return own | first
    if load.kind == "paced":
        return own | {"delivered": seen.delivered_share, "on_time": seen.on_time_share} | latency | first
    return own | {"events_per_s": seen.tokens_per_s, "delivered": seen.delivered_share}


def doubts(on: Ground, target: Target, values: dict[str, float]) -> list[str]:
    """What makes a figure less than certain, in words. Where the generator goes first, others have what it leaves."""
    others = {
        "server's core": values["others_server"] if target.pid else 0.0,
        "load's cores": 0.0 if on.fleet.ahead else values["others_load"],
    }
    late = values["upstream_late"]
    said = [
        (bool(target.pid) and values["load_busy"] > BUSY_LOAD, "the load's cores were full"),
        *((share > BUSY_OTHERS, f"others had {share:.0%} of the {what}") for what, share in others.items()),
        (late > LATE_UPSTREAM, f"{late:.1%} of tokens made > 5 ms late"),
        (bool(target.remark), target.remark),
    ]
    return [text for holds, text in said if holds]


def measure(on: Ground, target: Target, load: Load) -> Figure:
    """One of the client's loads on one target."""
    meter = Meter(on, target)
    seen, rss = _client(on, target, load)
    units = seen.requests if load.kind == "tiny" else seen.tokens
    values = _values(load, seen) | meter.stop(seen.cpu_s, units)
    if target.pid:
        values["rss_mb"] = rss
    if seen.unfinished:
        values["unfinished"] = float(seen.unfinished)
    failed = seen.errors + seen.wrong
    return Figure(
        load.name, load.kind, target.name, values, failed, seen.error_sample, doubts=doubts(on, target, values)
    )

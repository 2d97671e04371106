"""What is asked of a target, and the one figure that each asking gives.

A `Load` is a row of options for the C client. `measure` runs it against one target and puts beside what the
client saw what the machine saw: CPU of the server's process tree, RSS, how busy both cores were, and with
whom. It judges nothing but whether a direct run reached the load; the rest is the report's.
"""

import contextlib
import subprocess
import time
import urllib.request
from dataclasses import dataclass

import msgspec

from bench.machine import LOAD, core_busy_s, cpu_s, rss_mb, tree
from bench.targets import Ground, Target

TOKENS_PER_S = 50
PACE_US = 1_000_000 // TOKENS_PER_S
REACHED = 0.995
SAMPLE_S = 0.5
SPARE_S = 15.0


class Spread(msgspec.Struct):
    """A distribution in µs."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Seen(msgspec.Struct):
    """What the C client prints; its `expected` is what a perfect server would have delivered."""

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


class Figure(msgspec.Struct):
    """One load on one target. `cpu_us` is per event, or per request where the load is tiny."""

    load: str
    target: str
    seen: Seen
    reached: float
    cpu_us: float | None
    server_busy: float
    load_busy: float
    others_server: float
    others_load: float
    rss_mb: float
    upstream_late: float
    void: str = ""


class Stats(msgspec.Struct):
    tokens: int
    late: int


@dataclass(frozen=True)
class Load:
    name: str
    kind: str
    says: str
    streams: int
    n: int
    pace_us: int = 0
    rounds: int = 1
    seconds: float = 30.0
    ramp_ms: int = 0
    whole: bool = False

    def argv(self) -> list[str]:
        options = {
            "--mode": self.kind,
            "--streams": self.streams,
            "--n": self.n,
            "--pace-us": self.pace_us,
            "--rounds": self.rounds,
            "--seconds": self.seconds,
            "--ramp-ms": self.ramp_ms,
            "--whole": int(self.whole),
        }
        return [str(part) for option in options.items() for part in option]

    def reached(self, seen: Seen) -> float:
        """The share of the load that got through: on time where time was promised."""
        if self.kind == "paced":
            return seen.on_time_share
        if self.kind == "tiny":
            return seen.requests / max(1, seen.requests + seen.errors + seen.wrong)
        return seen.delivered_share

    @property
    def longest_s(self) -> float:
        return max(self.seconds, self.n * self.pace_us * self.rounds / 1e6 + self.ramp_ms / 1e3)


def tiny(concurrency: int, seconds: float) -> Load:
    says = f"requests of 3 tokens, not streamed, {concurrency} at a time for {seconds:g} s"
    return Load(f"tiny-{concurrency}", "tiny", says, concurrency, 3, seconds=seconds, whole=True)


def first(streams: int) -> Load:
    says = f"time from POST to first delta, {streams} streams one after the other"
    return Load("first", "first", says, streams, 5, pace_us=1000)


def flood(rounds: int) -> Load:
    says = f"32 streams x 500 tokens as fast as they go, {rounds} rounds"
    return Load("flood-32", "flood", says, 32, 500, rounds=rounds)


def paced(streams: int, seconds: float, rate: int = TOKENS_PER_S) -> Load:
    says = f"{streams} streams x {rate} tokens/s for {seconds:g} s each"
    ramp_ms = int(min(1.0, seconds / 4) * 1000)
    n = max(1, round(seconds * rate))
    return Load(f"paced-{streams}", "paced", says, streams, n, pace_us=1_000_000 // rate, ramp_ms=ramp_ms)


def plan(quick: bool, seconds: float | None) -> list[Load]:
    """All loads in the order they run; `seconds` is the length of each paced one."""
    if quick:
        return [tiny(1, 0.5), tiny(32, 0.5), first(40), flood(2), paced(150, seconds or 2.0)]
    length = seconds or 8.0
    small = [tiny(concurrency, 2.0) for concurrency in (1, 8, 32)]
    return [*small, first(200), flood(5), *(paced(streams, length) for streams in (50, 100, 150, 200))]


def warm_up(on: Ground, target: Target) -> None:
    """Imports, connection pools and caches are not what is measured."""
    for load in (tiny(8, 0.3), Load("warm-up", "flood", "", 16, 50, seconds=10.0)):
        _client(on, target, load, [])


def _client(on: Ground, target: Target, load: Load, watched: list[int]) -> tuple[Seen, float]:
    """What the client saw, and the most memory that the watched processes had meanwhile."""
    proc = on.fleet.run([str(LOAD), "client", *target.argv(), *load.argv()], on.cores.load)
    give_up = time.monotonic() + load.longest_s + SPARE_S
    peak = rss_mb(watched)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, _ = proc.communicate(timeout=SAMPLE_S)
                break
            peak = max(peak, rss_mb(watched))
            if time.monotonic() > give_up:
                raise TimeoutError(f"the load client hangs in {load.name} on {target.name}")
    finally:
        proc.kill()
        proc.wait()
        on.fleet.forget(proc)
    if not out:
        raise RuntimeError(f"the load client failed in {load.name} on {target.name}, code {proc.returncode}")
    return msgspec.json.decode(out, type=Seen), max(peak, rss_mb(watched))


def _upstream_stats(on: Ground) -> Stats:
    with urllib.request.urlopen(f"http://{on.upstream.address}/bench/stats", timeout=5) as answer:
        return msgspec.json.decode(answer.read(), type=Stats)


def measure(on: Ground, target: Target, load: Load) -> Figure:
    pids = tree(target.pid) if target.pid else []
    cores, upstream = on.cores, [on.upstream.pid]
    stats = _upstream_stats(on)
    cpu, upstream_cpu, began = cpu_s(pids), cpu_s(upstream), time.monotonic()
    busy = core_busy_s(cores.server), core_busy_s(cores.load)
    seen, rss = _client(on, target, load, pids)
    wall = time.monotonic() - began
    busy = core_busy_s(cores.server) - busy[0], core_busy_s(cores.load) - busy[1]
    pids = tree(target.pid) if target.pid else []
    cpu = cpu_s(pids) - cpu
    load_cpu = seen.cpu_s + cpu_s(upstream) - upstream_cpu
    after = _upstream_stats(on)
    units = seen.requests if load.kind == "tiny" else seen.tokens
    ours = (cpu + load_cpu, cpu + load_cpu) if cores.shared else (cpu, load_cpu)
    return Figure(
        load=load.name,
        target=target.name,
        seen=seen,
        reached=load.reached(seen),
        cpu_us=cpu / units * 1e6 if pids and units else None,
        server_busy=cpu / wall,
        load_busy=load_cpu / wall,
        others_server=max(0.0, busy[0] - ours[0]) / wall,
        others_load=max(0.0, busy[1] - ours[1]) / wall,
        rss_mb=rss,
        upstream_late=(after.late - stats.late) / max(1, after.tokens - stats.tokens),
    )

"""The load `length`: one durable response of many events. Owns: what its last thousand cost the server against its
first, and how fast it can be read again. Refuses to know: what is good."""

from __future__ import annotations

import time
from statistics import median

from lab.bench.client import Meter, doubts
from lab.bench.cost import cpu_s
from lab.bench.figures import Figure
from lab.bench.loads import Load
from lab.bench.targets import Ground, Target
from lab.bench.wire import DELTA, Caller, Stream, Unexpected, order, posted, request, stream

THOUSAND = 1000
AGAIN = 5
SEALED_S = 0.5
"""What a server is given to put a finished run away."""


def costs(marks: list[tuple[int, float]]) -> list[float]:
    """CPU µs per event in each thousand, from (events so far, CPU seconds so far) in order."""
    per: list[float] = []
    start = marks[0] if marks else (0, 0.0)
    for at, cpu in marks:
        if at - start[0] >= THOUSAND:
            per.append((cpu - start[1]) / (at - start[0]) * 1e6)
            start = at, cpu
    return per


def growth(per: list[float]) -> dict[str, float]:
    """The first and the last thousand, each as the median of three so that one hiccup does not decide; a response of
    less than six thousand has no such thing."""
    if len(per) < 6:
        return {}
    first, last = median(per[:3]), median(per[-3:])
    return {"first_1000_us": first, "last_1000_us": last, "growth": last / first}


def _live(target: Target, load: Load) -> tuple[Stream, list[float]]:
    """Make it, and what each thousand of its events cost."""
    pids, marks = target.pids, [(0, 0.0)]

    def note(frames: int) -> None:
        if frames - marks[-1][0] >= THOUSAND // 4:
            marks.append((frames, cpu_s(pids)))

    marks[0] = 0, cpu_s(pids)
    body = posted(target, order(load.n, load.pace_us), stream=True)
    got = stream(target, request(target, target.path, body), note)
    if not got.completed:
        raise Unexpected(f"the response did not complete: {got.tail[-300:]!r}")
    return got, costs(marks)


def _read(target: Target, path: str) -> dict[str, float]:
    """Snapshots and replays of the finished one: the first of each, and the median of the next ones."""
    caller, snapshots, replays, frames = Caller(target), [], [], 0
    for _ in range(1 + AGAIN):
        began = time.perf_counter()
        caller.raw(path)
        snapshots.append((time.perf_counter() - began) * 1e3)
    caller.close()
    for _ in range(1 + AGAIN):
        got = stream(target, request(target, f"{path}?stream=true"), mark=DELTA)
        if not got.completed:
            raise Unexpected(f"a replay did not reach the end: {got.tail[-300:]!r}")
        frames = got.frames
        replays.append(got.frames / got.whole_s)
    return {
        "snapshot_cold_ms": snapshots[0],
        "snapshot_ms": median(snapshots[1:]),
        "replay_cold_per_s": replays[0],
        "replay_per_s": median(replays[1:]),
        "replay_frames": float(frames),
    }


def measure(on: Ground, target: Target, load: Load) -> Figure:
    """One response on one target."""
    stream(target, request(target, target.path, posted(target, order(2000, 0), stream=True)))  # warm
    meter = Meter(on, target)
    made, per = _live(target, load)
    values = meter.stop(0.0, made.frames) | growth(per)
    time.sleep(SEALED_S)
    values |= _read(target, f"{target.path}/{made.response}")
    return Figure(load.name, load.kind, target.name, values, doubts=doubts(on, target, values))

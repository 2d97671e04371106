"""The load `idle`: what a server costs before anybody asks. Owns: start to the first 200 from /health, memory, CPU and
wake-ups while nothing happens, each of a fresh process. Refuses to know: what is good."""

from __future__ import annotations

import contextlib
import socket
import time
from statistics import median

from lab.bench.client import BUSY_OTHERS
from lab.bench.cost import cores_busy_s, cpu_s, rss_mb, tree, wakeups
from lab.bench.figures import FLOOR, Figure
from lab.bench.loads import Load
from lab.bench.machine import START_TIMEOUT_S, NotStarted, Spawned, free_port
from lab.bench.targets import Ground, Target

SETTLE_S = 2.0
ASK = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def _answers(port: int, status: bytes) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as line:
        line.sendall(ASK)
        return line.recv(64).startswith(status)
    return False


def _start(on: Ground, target: Target, number: int) -> tuple[Spawned, float]:
    """A fresh process and the milliseconds until it answered; the floor has no /health, so its 404 is its answer."""
    port = free_port()
    floor = target.name == FLOOR
    argv = on.floor_argv(port=port) if floor else on.serve_argv(port)
    began = time.perf_counter()
    spawned = on.fleet.spawn(f"idle-{target.name}-{number}", argv, [on.cores.server], {} if floor else on.env)
    while not _answers(port, b"HTTP/1.1 404" if floor else b"HTTP/1.1 200"):
        spawned.check()
        if time.perf_counter() - began > START_TIMEOUT_S:
            raise NotStarted(f"{target.name} did not answer /health within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.002)
    return spawned, (time.perf_counter() - began) * 1e3


def measure(on: Ground, target: Target, load: Load) -> Figure:
    """Starts, and then the last of them at rest."""
    starts, readies, pid = [], [], 0
    for number in range(load.rounds):
        if pid:
            on.fleet.stop(pid)
        spawned, took = _start(on, target, number)
        pid = spawned.proc.pid
        starts.append(took)
        readies.append(spawned.listening().start_s * 1e3)  # it answers /health before its parts are put together
    time.sleep(SETTLE_S)
    pids = tree(pid)
    began, cpu, woken, busy = time.monotonic(), cpu_s(pids), wakeups(pids), cores_busy_s([on.cores.server])
    time.sleep(load.seconds)
    wall, used = time.monotonic() - began, cpu_s(pids) - cpu
    values = {
        "start_ms": median(starts),
        "start_max_ms": max(starts),
        "ready_ms": median(readies),
        "idle_cpu": used / wall,
        "idle_wakeups_per_s": (wakeups(pids) - woken) / wall,
        "idle_rss_mb": rss_mb(pids),
    }
    others = (cores_busy_s([on.cores.server]) - busy - used) / wall
    on.fleet.stop(pid)
    doubts = [f"others had {others:.0%} of the server's core"] if others > BUSY_OTHERS else []
    return Figure(load.name, load.kind, target.name, values, doubts=doubts)

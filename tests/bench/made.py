"""Reports made by hand, for the tests of what reads them."""

from __future__ import annotations

from lab.bench.figures import CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, EPHEMERAL, FLOOR, Figure, Report


def figure(load: str, target: str, **values: float) -> Figure:
    """One figure of a load whose direct run reached all of it."""
    return Figure(load, load.partition("-")[0], target, {"reached": 1.0, "requests": 100.0, **values})


def report(*figures: Figure) -> Report:
    """A report of nothing but these."""
    return Report("2026-01-01T00:00:00Z", {"instructions": "counted"}, {}, {}, [], {}, list(figures), [])


def kept() -> list[Figure]:
    """Figures that keep every promise, each just so."""
    paced = {"delivered": 0.97, "on_time": 0.99, "latency_p50_ms": 5.0, "latency_p99_ms": 25.0, "cpu_us": 150.0}
    direct = {"on_time": 1.0, "latency_p50_ms": 0.1, "latency_p99_ms": 0.1}
    figures = []
    for streams in (50, 100, 200, 250, 400):
        load = f"paced-{streams}"
        figures += [figure(load, DIRECT, **direct), figure(load, FLOOR, on_time=1.0, cpu_us=100.0)]
        figures.append(figure(load, DURABLE, **paced))
    for target, events, requests in (
        (DIRECT, 1e6, 1e4),
        (FLOOR, 1e5, 4000.0),
        (EPHEMERAL, 5e4, 1200.0),
        (DURABLE, 4e4, 800.0),
    ):
        figures.append(figure("flood-32", target, events_per_s=events))
        figures.append(figure("tiny-32", target, requests_per_s=requests))
    figures += [figure("first", DIRECT, first_p50_ms=0.1), figure("first", DURABLE, first_p50_ms=3.0)]
    figures.append(figure("readers-10000", DURABLE, reader_kb=40.0, ended=1.0))
    figures.append(figure("idle", DURABLE, idle_cpu=0.0005, start_ms=399.0, idle_rss_mb=69.0))
    first = {"replay_cold_per_s": 1e5, "snapshot_cold_ms": 90.0, "replay_frames": 50_009.0}
    figures.append(figure("length-50000", DURABLE, replay_per_s=2e5, snapshot_ms=19.0, growth=1.4, **first))
    figures += [figure(f"history-{turns}", DURABLE, first_p50_ms=ms) for turns, ms in ((10, 3.0), (1000, 6.0))]
    figures += [figure("resend-2000", FLOOR, first_p50_ms=5.0), figure("resend-2000", CHAT_DEFAULT, first_p50_ms=15.0)]
    figures += [figure("control", FLOOR, cpu_us=10.0), figure("control", CONTROL, cpu_us=62.0)]
    return figures

"""python -m tests.cluster.bench: SQLite, PostgreSQL with one replica and with three, side by side in one run. Owns: the
three targets, what is asked of each (a flood, paced streams, bare appends of the same slices, and how long an event
takes to a reader on another replica), the table and the verdicts. Refuses to know: processes and the load
generator, which are those of lab.bench.

Nothing is pinned to a core: servers, database and load share all of them, as they would on one small machine. The
latency of each target is told as what it adds to the upstream's own (`direct`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lab.bench import generator, loads
from lab.bench.client import Seen
from lab.bench.machine import Fleet, Server, describe
from tests.cluster.bench_parts import append_rates, cpu_s, fan_out
from tests.cluster.database import Database

KEY = "bench-Key_0123456789abcdef"
CORES = tuple(sorted(os.sched_getaffinity(0)))
SHARE = 0.40
FAN_OUT_MS = 10.0
PATIENCE_S = 60.0


@dataclass
class Target:
    """One or more servers over one store."""

    name: str
    servers: list[Server]
    path: str = "/v1/responses"
    extra: str = '{"store": true}'


@dataclass
class Line:
    """One row of the table."""

    target: str
    events_per_s: float = 0.0
    delivered: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    errors: int = 0
    server_us: float = 0.0
    """CPU of the servers per event of the paced streams."""
    database_us: float = 0.0
    """The same of the database."""


@dataclass
class Report:
    """All that was measured."""

    at: str
    machine: dict[str, str]
    lines: list[Line] = field(default_factory=list)
    appends: dict[str, dict[str, float]] = field(default_factory=dict)
    fan_out: dict[str, float] = field(default_factory=dict)
    verdicts: list[tuple[bool, str]] = field(default_factory=list)


class Bench:
    """One run of it."""

    def __init__(self, fleet: Fleet, made: generator.Generator, folder: Path, quick: bool) -> None:
        self.fleet, self.made, self.folder, self.quick = fleet, made, folder, quick
        self.database: Database | None = None
        self.upstream = fleet.start("upstream", [*made.argv, "upstream", "--port", "0"], CORES)

    def serve(self, name: str, store: str = "sqlite", code: Path | None = None) -> Server:
        """A server of its own data directory, of this code or of another checkout."""
        options = ["--port", "0", "--data-dir", str(self.folder / name), "--store", store]
        options += ["--model-url", f"http://{self.upstream.address}/v1", "--model", "bench"]
        environ = {"API_SERVER_KEY": KEY, "NINELIVES_SERVER_REPLICA": name}
        argv = [sys.executable, "-m", "ninelives", "serve", *options, "--no-supervisor"]
        if code is not None:  # it may be from before the supervisor
            environ["PYTHONPATH"] = str(code)
            argv = [sys.executable, "-P", "-m", "ninelives", "serve", *options]
        return self.fleet.start(name, argv, CORES, environ)

    def ask(self, target: Target, load: loads.Load) -> list[Seen]:
        """The load, divided over the servers of the target, all at once."""
        share = max(1, load.size // len(target.servers))
        procs = []
        for server in target.servers:
            part = replace(load, size=share)
            words = ["--url", server.address, "--path", target.path, "--key", KEY, "--model", "hermes-agent"]
            argv = [*self.made.argv, "client", *words, "--body-extra", target.extra, *part.argv()]
            procs.append(self.fleet.run(argv, CORES))
        try:
            return [msgspec.json.decode(p.communicate(timeout=PATIENCE_S)[0], type=Seen) for p in procs]
        finally:
            for proc in procs:
                self.fleet.stop(proc.pid)

    def measure(self, target: Target, direct: Line | None) -> Line:
        """Flood and pace."""
        self.ask(target, loads.Load("warm-up", "flood", "", 12, 50))
        flood = self.ask(target, loads.flood(2 if self.quick else 6))
        before = self.cpu_s(target)
        paced = self.ask(target, loads.paced(60, 2.0 if self.quick else 5.0))
        spent = [after - so_far for after, so_far in zip(self.cpu_s(target), before, strict=True)]
        events = max(1, sum(seen.tokens for seen in paced))
        base = (direct.p50_ms, direct.p99_ms) if direct else (0.0, 0.0)
        return Line(
            target.name,
            sum(seen.tokens for seen in flood) / max(seen.span_s for seen in flood),
            sum(seen.tokens for seen in paced) / max(1, sum(seen.expected for seen in paced)),
            statistics.median(seen.latency_us.p50 for seen in paced) / 1e3 - base[0],
            max(seen.latency_us.p99 for seen in paced) / 1e3 - base[1],
            sum(seen.errors + seen.wrong + seen.unfinished for seen in (*flood, *paced)),
            spent[0] / events * 1e6,
            spent[1] / events * 1e6,
        )

    def cpu_s(self, target: Target) -> tuple[float, float]:
        """Of the servers of a target, and of the database, since their starts."""
        used = sum(cpu_s(server.pid) for server in target.servers)
        return used, cpu_s(self.database.pid) if self.database is not None else 0.0


def judge(report: Report) -> None:
    """The targets."""
    rate = {line.target: line.events_per_s for line in report.lines}

    def share(name: str, part: float, whole: float) -> None:
        report.verdicts.append(
            (part >= SHARE * whole, f"{name}: {part / whole:.0%} of SQLite's (at least {SHARE:.0%})")
        )

    share("flood through the server, one replica", rate["postgresql x1"], rate["sqlite"])
    share("flood through the servers, three replicas", rate["postgresql x3"], rate["sqlite"])
    for chunk in report.appends["sqlite"]:
        share(f"bare appends, {chunk}", report.appends["postgresql"][chunk], report.appends["sqlite"][chunk])
    p50 = report.fan_out["added for a reader elsewhere p50 ms"]
    report.verdicts.append(
        (p50 < FAN_OUT_MS, f"fan-out p50 to another replica: {p50:.1f} ms (under {FAN_OUT_MS:g} ms)")
    )
    errors = sum(line.errors for line in report.lines)
    report.verdicts.append((errors == 0, f"{errors} requests failed or were not finished"))


def table(report: Report) -> str:
    """For a terminal."""
    rows = [f"{'':<16}{'flood events/s':>16}{'paced 60x50/s':>15}{'added p50 ms':>14}{'added p99 ms':>14}"]
    rows[0] += f"{'server us/ev':>14}{'database us/ev':>16}{'errors':>8}"
    for one in report.lines:
        figures = (
            f"{one.events_per_s:>16,.0f}{one.delivered:>15.1%}{one.p50_ms:>14.2f}{one.p99_ms:>14.2f}"
            f"{one.server_us:>14.0f}{one.database_us:>16.0f}{one.errors:>8}"
        )
        rows.append(f"{one.target:<16}{figures}")
    rows.append("\nbare appends, events/s (200 runs, one call at a time)")
    for name, rates in report.appends.items():
        rows.append(f"{name:<16}" + "".join(f"{f'{chunk}:':>28}{rate:>10,.0f}" for chunk, rate in rates.items()))
    rows.append("\nfrom the upstream's token to a reader")
    rows += [f"  {name:<44}{value:>8.2f}" for name, value in report.fan_out.items()]
    rows += ["", *(f"{'ok' if good else 'MISSED':>8}  {text}" for good, text in report.verdicts)]
    return "\n".join(rows)


async def measure_all(bench: Bench, report: Report) -> None:
    """On a database of its own."""
    async with Database() as database:
        await run(bench, database, report)
    judge(report)


async def run(bench: Bench, database: Database, report: Report) -> None:
    """Everything, one target after the other."""
    bench.database = database
    direct = Target("direct", [bench.upstream], "/v1/chat/completions", "{}")
    report.lines.append(await asyncio.to_thread(bench.measure, direct, None))
    sqlite = Target("sqlite", [bench.serve("sqlite")])
    first = bench.serve("r0", database.url)
    one = Target("postgresql x1", [first])
    for target in (sqlite, one):
        report.lines.append(await asyncio.to_thread(bench.measure, target, report.lines[0]))
    three = Target("postgresql x3", [first, bench.serve("r1", database.url), bench.serve("r2", database.url)])
    report.lines.append(await asyncio.to_thread(bench.measure, three, report.lines[0]))
    report.fan_out = await fan_out(three.servers[0].port, three.servers[1].port, KEY, 2.0 if bench.quick else 5.0)
    for server in [*sqlite.servers, *three.servers]:
        await asyncio.to_thread(bench.fleet.stop, server.pid)
    report.appends = await append_rates(bench.folder, database.url, 1.0 if bench.quick else 3.0)


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    options = argparse.ArgumentParser(prog="python -m tests.cluster.bench")
    options.add_argument("--quick", action="store_true", help="shorter loads")
    options.add_argument("--json", type=Path, help="also write the report to this file")
    options.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    given = options.parse_args(argv)
    out = Path("build/bench-cluster")
    out.mkdir(parents=True, exist_ok=True)
    report = Report(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), describe(out))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=out)))
        made = generator.find(out)
        fleet = stack.enter_context(Fleet(out, made.wrap))
        asyncio.run(measure_all(Bench(fleet, made, folder, given.quick), report))
    print(table(report))
    if given.json is not None:
        given.json.write_text(json.dumps(msgspec.to_builtins(report), indent=1))
    return int(given.check and not all(good for good, _ in report.verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

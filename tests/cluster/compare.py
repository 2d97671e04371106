"""python -m tests.cluster.compare: three replicas of this code beside three of the code before, in one run. Owns: the
rounds that take turns, the medians of both, the growth of the log to millions of rows, and the verdicts. Refuses to
know: processes and the load generator (tests/cluster/bench.py).

Each code has a database of its own. Rounds take turns, so that a machine that becomes slower slows both. The servers of
a round are started for it, so that those of the other code do not look for work meanwhile. It begins when they rest.
Both databases have written some segments of their write-ahead log before, and recycle them, as a database does that has
run for a while: to create one stops all commits for about 40 ms, once in 16 MB.

A shared machine is slower for minutes at a time, and a tail of some milliseconds shows it first. So a fixed piece of
work is timed before and after each round. A round waits for a calm machine, and one that was disturbed is repeated.
Both codes are treated alike, and what was repeated is told."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lab.bench import generator, loads
from lab.bench.client import Seen
from lab.bench.machine import Fleet, describe
from tests.cluster.__main__ import archived
from tests.cluster.bench import Bench, Target
from tests.cluster.bench_parts import cpu_s
from tests.cluster.database import Database

BEFORE = "b3016e7"
"""The last commit without the work on latency and failovers of many processes."""
STREAMS = 60
FIRSTS = 60
HALF = 0.5
LATER = 1.1
"""What noise may add to a time that must not grow."""
FLAT = 1.25
SEGMENTS = 5
"""As many as min_wal_size (80 MB) lets PostgreSQL keep for later."""
REST = 0.05
"""What part of a core a database uses at rest: replicas beat, and look for work."""
REST_S = 30.0
WORK = 400_000
"""Steps of the fixed piece of work: about 20 ms."""
CALM = 1.1
"""The machine is calm while that takes at most so many times as long as in the best moment."""
CALM_TRIES = 20
REPEATS = 1
"""How often a round is repeated at most."""
UNLISTED = "SELECT count(*) AS n FROM runs WHERE listed < 2 AND ended AND hidden = 0"
FILL = """
INSERT INTO runs (id, owner, dialect, model, status, attempt, parked, ended, last_seq, bytes, session, metadata, listed,
  created_at, updated_at, used_at, ended_at)
SELECT 'fill' || lpad(n::text, 20, '0'), 'filler', 'responses', 'bench', 'completed', 1, false, true, 99, 15000, '', '',
  2, c.now, c.now, c.now, c.now FROM generate_series($1::bigint, $2::bigint) AS n, (SELECT ninelives_now() AS now) c
"""
FILL_LOG = """
INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
SELECT 'filler', 'fill' || lpad(n::text, 20, '0'), s, s, 1, n, s, s + 1, repeat('x', 150)::bytea
FROM generate_series($1::bigint, $2::bigint) AS n, generate_series(0, 99) AS s
"""


@dataclass
class Round:
    """What one code did in one round."""

    p50_ms: float
    p99_ms: float
    first_ms: float
    """From the POST to the first delta, under the load."""
    server_us: float
    database_us: float
    delivered: float
    alone_ms: float
    """From the POST to the first delta, one stream at a time."""
    request_ms: float
    """A whole small request: it is opened, asked and ended, three facts."""
    errors: int


@dataclass
class Comparison:
    """All that was measured."""

    at: str
    machine: dict[str, str]
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    repeated: int = 0
    """Rounds that were measured again, because the machine was disturbed."""
    disturbed: int = 0
    """Rounds that count although it was."""
    grown: dict[int, Round] = field(default_factory=dict)
    """By the rows of the log."""
    verdicts: list[tuple[bool, str]] = field(default_factory=list)


def measured(bench: Bench, target: Target, database: Database, seconds: float) -> Round:
    """One round."""
    bench.database = database
    before = bench.cpu_s(target)
    paced = bench.ask(target, loads.paced(STREAMS, seconds))
    spent = [after - so_far for after, so_far in zip(bench.cpu_s(target), before, strict=True)]
    first = bench.ask(target, loads.first(FIRSTS))
    tiny = bench.ask(target, loads.tiny(3, 1.0))
    tokens = max(1, sum(seen.tokens for seen in paced))

    def middle(seen: list[Seen], name: str) -> float:
        return float(statistics.median(getattr(one, name).p50 for one in seen)) / 1e3

    return Round(
        middle(paced, "latency_us"),
        max(seen.latency_us.p99 for seen in paced) / 1e3,
        middle(paced, "first_us"),
        spent[0] / tokens * 1e6,
        spent[1] / tokens * 1e6,
        tokens / max(1, sum(seen.expected for seen in paced)),
        middle(first, "first_us"),
        middle(tiny, "request_us"),
        sum(seen.errors + seen.wrong + seen.unfinished for seen in (*paced, *first, *tiny)),
    )


class Calm:
    """Tells whether the machine is as quick as in its best moment."""

    def __init__(self) -> None:
        self._best = self._work()

    def _work(self) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(WORK):
                pass
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def now(self) -> bool:
        """Whether it is now."""
        took = self._work()
        self._best = min(self._best, took)
        return took <= CALM * self._best

    async def wait(self) -> None:
        """Wait until it is, at most CALM_TRIES seconds."""
        for _ in range(CALM_TRIES):
            if self.now():
                return
            await asyncio.sleep(1.0)


async def recycle_segments(database: Database) -> None:
    """Let the database have segments of its write-ahead log that it can use again."""
    await database.ask("CREATE TABLE segment_filler (n integer)")
    for _ in range(SEGMENTS):
        await database.ask("INSERT INTO segment_filler VALUES (1)")
        await database.ask("SELECT pg_switch_wal()")
    await database.ask("DROP TABLE segment_filler")
    await database.ask("CHECKPOINT")


async def rest(database: Database) -> None:
    """Wait until all runs are listed in their sessions and the database is idle, at most REST_S."""
    end, used = time.monotonic() + REST_S, 1.0
    while (used > REST or (await database.ask(UNLISTED))[0]["n"]) and time.monotonic() < end:
        before = cpu_s(database.pid)
        await asyncio.sleep(1.0)
        used = cpu_s(database.pid) - before


def medians(rounds: Sequence[Round]) -> Round:
    """Of each figure, but the sum of the errors."""
    middle = {name: statistics.median(getattr(one, name) for one in rounds) for name in Round.__dataclass_fields__}
    return Round(**{**middle, "errors": sum(one.errors for one in rounds)})


async def fill(database: Database, rows: int) -> None:
    """Let the log of the database have that many rows, of runs that have ended. A vacuum and a checkpoint follow here,
    because they would otherwise run beside the rounds."""
    have = (await database.ask("SELECT count(*) AS n FROM run_log WHERE owner = 'filler'"))[0]["n"] // 100
    for start in range(have, rows // 100, 2_000):
        last = min(start + 1_999, rows // 100 - 1)
        await database.ask(FILL, start, last)
        await database.ask(FILL_LOG, start, last)
    for table in ("run_log", "runs"):
        await database.ask(f"VACUUM (ANALYZE) {table}")
    await database.ask("CHECKPOINT")


def judge(done: Comparison) -> None:
    """The goals."""
    before, after = medians(done.rounds["before"]), medians(done.rounds["this code"])

    def at_most(name: str, part: float, whole: float, limit: float) -> None:
        done.verdicts.append((part <= limit * whole, f"{name}: {part / whole:.2f}x (at most {limit:g}x)"))

    at_most("p99 of a token", after.p99_ms, before.p99_ms, HALF)
    at_most("CPU of the database per event", after.database_us, before.database_us, HALF)
    at_most("first delta under load", after.first_ms, before.first_ms, LATER)
    at_most("first delta alone", after.alone_ms, before.alone_ms, LATER)
    at_most("a small request", after.request_ms, before.request_ms, LATER)
    for rows, grown in done.grown.items():
        at_most(f"p50 at {rows:,} rows, of the empty log's", grown.p50_ms, after.p50_ms, FLAT)
        at_most(f"p99 at {rows:,} rows, of the empty log's", grown.p99_ms, after.p99_ms, FLAT)
        at_most(f"database at {rows:,} rows, of the empty log's", grown.database_us, after.database_us, FLAT)
    every = [*(one for rounds in done.rounds.values() for one in rounds), *done.grown.values()]
    errors = sum(one.errors for one in every)
    done.verdicts.append((errors == 0, f"{errors} requests failed or were not finished"))


def table(done: Comparison) -> str:
    """For a terminal."""
    names = ("p50 ms", "p99 ms", "first ms", "server us/ev", "database us/ev", "delivered", "alone ms", "request ms")
    lines = [" " * 22 + "".join(f"{name:>16}" for name in names)]
    shown = [(name, one) for name, rounds in done.rounds.items() for one in rounds]
    shown += [(f"median: {name}", medians(rounds)) for name, rounds in done.rounds.items()]
    shown += [(f"{rows:,} rows", one) for rows, one in done.grown.items()]
    for name, one in shown:
        figures = [getattr(one, each) for each in Round.__dataclass_fields__ if each != "errors"]
        lines.append(f"{name:<22}" + "".join(f"{figure:>16.2f}" for figure in figures))
    lines += ["", f"{done.repeated} rounds repeated, {done.disturbed} counted though the machine was disturbed"]
    return "\n".join([*lines, "", *(f"{'ok' if good else 'MISSED':>8}  {text}" for good, text in done.verdicts)])


async def alone(bench: Bench, calm: Calm, code: Path | None, database: Database, seconds: float) -> tuple[Round, bool]:
    """A round of one code, whose servers have the machine to themselves; and whether the machine stayed calm."""
    servers = [bench.serve(f"{'now' if code is None else 'before'}{n}", database.url, code) for n in range(3)]
    try:
        target = Target("", servers)
        await asyncio.to_thread(bench.ask, target, loads.Load("warm-up", "flood", "", 12, 50))
        await rest(database)
        await calm.wait()
        return await asyncio.to_thread(measured, bench, target, database, seconds), calm.now()
    finally:
        for server in servers:
            await asyncio.to_thread(bench.fleet.stop, server.pid)


async def run(bench: Bench, before: Path, given: argparse.Namespace, done: Comparison) -> None:
    """All rounds; then the growth."""
    calm = Calm()
    async with AsyncExitStack() as stack:
        codes: dict[str, tuple[Path | None, Database]] = {}
        for name, code in (("before", before), ("this code", None)):
            codes[name] = code, await stack.enter_async_context(Database())
            await recycle_segments(codes[name][1])
        for n in range(given.rounds):
            for name in reversed(codes) if n % 2 else codes:
                for tries in range(REPEATS, -1, -1):
                    one, good = await alone(bench, calm, *codes[name], given.seconds)
                    if good:
                        break
                    done.repeated += tries > 0
                done.disturbed += not good
                done.rounds.setdefault(name, []).append(one)
                print(f"{name}: p99 {one.p99_ms:.2f} ms, database {one.database_us:.1f} us per event", flush=True)
        for rows in given.rows:
            await fill(codes["this code"][1], rows)
            rounds = [await alone(bench, calm, *codes["this code"], given.seconds) for _ in range(3)]
            done.grown[rows] = medians([one for one, _ in rounds])
    judge(done)


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    options = argparse.ArgumentParser(prog="python -m tests.cluster.compare", description=__doc__)
    options.add_argument("--before", default=BEFORE, help="a commit")
    options.add_argument("--rounds", type=int, default=6, help="even: each code follows itself as often as the other")
    options.add_argument("--seconds", type=float, default=12.0, help="of each paced load")
    options.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 5_000_000])
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    given = options.parse_args(argv)
    out = Path("build/bench-cluster")
    out.mkdir(parents=True, exist_ok=True)
    done = Comparison(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), describe(out))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=out))).absolute()
        before = archived(given.before, folder / "before")
        if before is None:
            print(f"there is no commit {given.before} here")
            return 2
        made = generator.find(out)
        fleet = stack.enter_context(Fleet(out, made.wrap))
        asyncio.run(run(Bench(fleet, made, folder, quick=False), before, given, done))
    print(table(done))
    if given.json is not None:
        given.json.write_text(json.dumps(msgspec.to_builtins(done), indent=1))
    return int(not all(good for good, _ in done.verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

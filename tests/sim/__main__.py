"""`python -m tests.sim`: play many seeds on all cores, or one with its trace. Owns: command line and summary."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.sim.dice import peers_plan_of
from tests.sim.play import Result, play

SHOWN = ("runs", "events", "lives", "crashes")


def main() -> int:
    """Play; 1 where an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="tell everything that happened in it")
    parser.add_argument("--peers", action="store_true", help="several processes on one store")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, given.trace, given.peers)
    return _many(range(given.first, given.first + given.seeds), given)


def _one(seed: int, trace: bool, peers: bool) -> int:
    result = play(seed, trace=trace, plan=peers_plan_of(seed) if peers else None)
    for line in result.trace:
        print(line)
    print(f"seed {seed}: {dict(result.counts)}")
    for finding in result.findings:
        print(finding)
    return bool(result.findings)


def _quiet(seed: int) -> Result:
    return play(seed)


def _among_peers(seed: int) -> Result:
    return play(seed, plan=peers_plan_of(seed))


def _results(seeds: range, given: argparse.Namespace) -> Iterator[Result]:
    one = _among_peers if given.peers else _quiet
    if given.jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.Pool(given.jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=20)


def _many(seeds: range, given: argparse.Namespace) -> int:
    began, total, bad, cpu = time.monotonic(), Counter[str](), list[Result](), 0.0
    how = " --peers" if given.peers else ""
    for n, result in enumerate(_results(seeds, given), 1):
        total += result.counts
        cpu += result.cpu_s
        if result.findings:
            bad.append(result)
            first = result.findings[0]
            print(
                f"\nseed {result.seed}: {first}\n  python -m tests.sim{how} --seed {result.seed} --trace",
                file=sys.stderr,
            )
        if n % 100 == 0 or n == len(seeds):
            rate = n / (time.monotonic() - began) * 60
            print(f"\r{n}/{len(seeds)} seeds, {rate:.0f}/min, {len(bad)} bad", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    summary = {
        "first": seeds.start,
        "seeds": len(seeds),
        "violations": len(bad),
        "bad_seeds": sorted(result.seed for result in bad),
        "kinds": dict(Counter(finding.kind for result in bad for finding in result.findings[:1])),
        "seconds": round(time.monotonic() - began, 1),
        "cpu_ms_per_seed": round(cpu / len(seeds) * 1000, 1),
        "counts": dict(sorted(total.items())),
    }
    print(json.dumps(summary) if given.json else _table(summary))
    return bool(bad)


def _table(summary: dict[str, object]) -> str:
    counts = summary.pop("counts")
    assert isinstance(counts, dict)
    rows = [*summary.items(), *((name, counts.pop(name, 0)) for name in SHOWN), *sorted(counts.items())]
    return "\n".join(f"{name:<16} {value}" for name, value in rows)


if __name__ == "__main__":
    raise SystemExit(main())

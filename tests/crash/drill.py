"""python -m tests.crash.drill --kills 500 [--seed S] [--in-flight N] [--json]: SIGKILL after SIGKILL against a real
server under mixed loads, and a table of what was lost. Exit code 1 when any promise was broken. The same seed draws the
same loads and the same moments; what the machine does in between is its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.rig import Rig, Tally

SHOWN = 20


def table(tally: Tally) -> dict[str, int | float]:
    """The result, one row per promise."""
    times = sorted(tally.recoveries) or [0.0]
    named = ("lost", "changed", "rerun", "stuck")
    return {
        "kills": tally.kills,
        "runs": tally.runs,
        "events seen": tally.events,
        "events lost": tally.count("lost"),
        "events changed": tally.count("changed"),
        "finished tools re-run": tally.count("rerun"),
        "unknown outcomes": tally.unknown,
        "runs stuck": tally.count("stuck"),
        "other violations": len(tally.found) - tally.count(*named),
        "recovery p50 (s)": round(times[len(times) // 2], 2),
        "recovery max (s)": round(times[-1], 2),
    }


async def drill(kills: int, seed: int, in_flight: int, folder: Path) -> Tally:
    """So many kills over one data directory."""
    async with Rig(folder, seed) as rig:
        for done in range(0, kills, 20):
            await rig.kill(min(20, kills - done), in_flight)
            if sys.stderr.isatty():
                print(f"\r{rig.tally.kills} kills, {len(rig.tally.found)} violations", end="", file=sys.stderr)
        return rig.tally


def main() -> int:
    """The exit code."""
    options = argparse.ArgumentParser(description="Kill a real server again and again; see what it loses.")
    options.add_argument("--kills", type=int, default=500)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--in-flight", type=int, default=4, help="runs that clients begin before each kill")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as folder:
        tally = asyncio.run(drill(given.kills, given.seed, given.in_flight, Path(folder)))
    rows: dict[str, int | float] = {"seed": given.seed, **table(tally), "time (s)": round(time.monotonic() - began, 1)}
    if given.json:
        print(json.dumps({**rows, "violations": [str(finding) for finding in tally.found]}))
    else:
        print("\n".join(f"{name:<24}{value:>12}" for name, value in rows.items()))
        print("".join(f"{str(finding)[:2000]}\n" for finding in tally.found[:SHOWN]), end="")
    return 1 if tally.found else 0


if __name__ == "__main__":
    raise SystemExit(main())

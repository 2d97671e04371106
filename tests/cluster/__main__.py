"""python -m tests.cluster [TRIAL...]: the whole programme on a real PostgreSQL. Owns: the choice of trials, the seed
and the exit code: 1 where a promise was broken. Refuses to know: what a trial does."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from ninelives.drill.processes import ROOT
from tests.cluster.balancer import program
from tests.cluster.chaos import Dose
from tests.cluster.elsewhere import elsewhere
from tests.cluster.few import few
from tests.cluster.judging import Result
from tests.cluster.outage import outage
from tests.cluster.plain import plain
from tests.cluster.races import races
from tests.cluster.replicas import SHORT_S, Shape
from tests.cluster.rolling import rolling, upgrade
from tests.cluster.storm import Extent, storm

NONE = Dose(0, 0, 0, 0, 0)
STORMS: dict[str, tuple[Dose, Shape, float, float | None]] = {
    "kills": (replace(NONE, kills=8), Shape(balancer="haproxy"), 0.0, 3.0),
    "terms": (replace(NONE, terms=8), Shape(balancer="haproxy"), 0.0, None),
    "faults": (
        replace(NONE, kills=6, freezes=2, terms=3, restarts=3, severs=2, limits=2),
        Shape(balancer="haproxy", lease_s=SHORT_S, connections=50),
        0.01,
        None,
    ),
    "pooler": (
        replace(NONE, kills=2, terms=2, severs=1, restarts=1, bouncers=3),
        Shape(balancer="haproxy", pooler=True),
        0.01,
        None,
    ),
    "sync": (replace(NONE, kills=1, failovers=1), Shape(balancer="haproxy", standby="synchronous"), 0.01, None),
    "async": (replace(NONE, failovers=1, lag_s=1.0), Shape(balancer="haproxy", standby="asynchronous"), 0.01, None),
}
"""Storms with a real balancer in front and callers with the openai SDK: what is done, to what, what part of the callers
may be given an error, and how long a takeover may take. Leases are those of a server but for frozen replicas."""
TRIALS = ("storm", *STORMS, "races", "rolling", "upgrade", "few", "nginx", "haproxy", "elsewhere", "outage")


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    options.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)}; none: all")
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--runs", type=int, default=200, help="of the storm")
    options.add_argument("--in-flight", type=int, default=24)
    options.add_argument("--kills", type=int, default=12)
    options.add_argument("--freezes", type=int, default=6)
    options.add_argument(
        "--cables", type=int, default=2, help="replicas cut off the network, where they have their own"
    )
    options.add_argument("--restarts", type=int, default=2, help="of the database")
    options.add_argument("--before", type=Path, help="of the upgrade: a checkout of the release before")
    options.add_argument("--loopback", action="store_true", help="no network namespaces")
    options.add_argument("--keep", type=Path, help="keep logs in this directory")
    options.add_argument("--json", type=Path, help="also write the results to this file")
    given = options.parse_args(argv)
    if unknown := set(given.trials) - set(TRIALS):
        options.error(f"no trial is called {', '.join(sorted(unknown))}; there are {', '.join(TRIALS)}")
    return given


def release_before(folder: Path) -> Path | None:
    """The code as it was before the schema was last changed; None where git does not have it."""
    log = ("git", "log", "-1", "--format=%H~1", "--", "ninelives/journal/postgres/sql/migrations")
    try:
        found = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return archived(found, folder)


def archived(found: str, folder: Path) -> Path | None:
    """The code of a commit; None where git does not have it."""
    try:
        packed = subprocess.run(("git", "archive", found), cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def missing(name: str) -> str:
    """The program that a trial needs and this machine does not have."""
    needed = {"nginx": "nginx", "pooler": "pgbouncer"}.get(name, "haproxy" if name in {*STORMS, "haproxy"} else "")
    return needed if needed and program(needed) is None else ""


async def run(name: str, folder: Path, given: argparse.Namespace) -> Result:
    """One trial."""
    own = not given.loopback
    shape, brief = Shape(own_networks=own), Shape(own_networks=own, lease_s=SHORT_S)
    if needed := missing(name):
        return Result(name, given.seed, {f"NOT TRIED: {needed} is not installed": ""})
    if name == "storm":
        dose = Dose(given.kills, given.freezes, given.cables, given.restarts)
        return await storm(folder, Extent(given.seed, given.runs, given.in_flight, dose, brief))
    if name in STORMS:
        dose, shape, errors, takeover_s = STORMS[name]
        shape, size = replace(shape, own_networks=False), (given.runs, given.in_flight)
        return await storm(folder, Extent(given.seed, *size, dose, shape, 0.5, errors, name, takeover_s))
    trials: dict[str, Callable[[], Awaitable[Result]]] = {
        "races": lambda: races(folder, given.seed, shape=shape),
        "rolling": lambda: rolling(folder, given.seed, shape),
        "upgrade": lambda: upgraded(folder, given),
        "few": lambda: few(folder),
        "nginx": lambda: plain(folder, Shape(own_networks=False, balancer="nginx", supervised=True)),
        "haproxy": lambda: plain(folder, Shape(own_networks=False, balancer="haproxy", supervised=True)),
        "elsewhere": lambda: elsewhere(folder, given.seed, shape=Shape(own_networks=own, approval="on-write")),
        "outage": lambda: outage(folder, given.seed, shape=brief),
    }
    return await trials[name]()


async def upgraded(folder: Path, given: argparse.Namespace) -> Result:
    """The upgrade from the release before, where there is one."""
    before = given.before or await asyncio.to_thread(release_before, folder / "before")
    if before is None:
        return Result("upgrade", given.seed, {"NOT TRIED: no checkout with its history (--before DIR)": ""})
    return await upgrade(folder, given.seed, before.absolute())


def main(argv: list[str]) -> int:
    """All chosen trials, one after the other."""
    given = parse(argv)
    home = given.keep or Path(tempfile.mkdtemp(prefix="ninelives-cluster-"))
    if given.keep is None:
        home.chmod(0o755)  # pgbouncer and a standby run as another user where we are root
    print(f"seed {given.seed}", flush=True)
    results = []
    try:
        for name in given.trials or TRIALS:
            began = time.monotonic()
            results.append(asyncio.run(run(name, home / name, given)))
            print(f"\n{results[-1].table()}\n  took {time.monotonic() - began:.0f} s in all", flush=True)
    finally:
        if given.keep is None:
            shutil.rmtree(home, ignore_errors=True)
    if given.json is not None:
        shown = [{"name": one.name, "rows": one.rows, "found": [str(f) for f in one.found]} for one in results]
        given.json.write_text(json.dumps({"seed": given.seed, "trials": shown}, indent=1))
    broken = [one.name for one in results if one.found]
    print(f"\nBROKEN in {', '.join(broken)}: again with --seed {given.seed}" if broken else "\nall promises were kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

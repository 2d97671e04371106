"""The table. Owns: how results look on a terminal and in docs/hostile.md. Refuses to know: how they were found."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from tests.hostile.field import Result

GOAL_MS = 50.0
HEAD = (
    "request",
    "key",
    "answer",
    "stop ms",
    "control ms",
    "RSS before, most, after MB",
    "fds",
    "threads",
    "failed",
    "SIGTERM s",
)
INTRO = """<!-- Written by `make test-hostile ARGS="--report docs/hostile.md"`. -->
# Hostile requests

The worst legal and illegal requests, sent to a real server process by `make test-hostile`. Beside each, another
process asks for `/livez` every 5 ms, and four journaled runs are under way.

- **stop**: the longest that a health check waited, in the calmest of up to {rounds} rounds. The goal is 50 ms on a calm
  machine. A row over it has a mark.
- **control**: the same, at the same time, for a server of a few lines. What both wait for is the machine.
- **RSS**: memory of the server before the request, at most while it lasted, and after it.
- **fds**, **threads**: how many more than before, after the connections were closed. Pools of threads grow to their
  size once.
- **failed**: journaled runs that did not complete.
- **SIGTERM**: seconds from SIGTERM, while the request is sent again and again, to the end of the process with exit code
  0. Up to 3 s of it are `limits.drain_s`.

{where}. Times depend on the machine and on what else runs there.

"""


def cells(result: Result) -> list[str]:
    over = " (!)" if result.stop_ms > GOAL_MS else ""
    ended = f"{result.term_s:.1f}" if result.term_code == 0 else f"code {result.term_code}"
    rss = ", ".join(f"{each:.0f}" for each in result.rss)
    return [
        *(result.row.name, "yes" if result.row.key else "no", result.answer),
        *(f"{result.stop_ms:.0f}{over}", f"{result.control_ms:.0f}", rss),
        *(f"{result.fds:+d}", f"{result.threads:+d}", str(result.failed), ended),
    ]


def line(result: Result) -> str:
    """One line of a terminal."""
    name, key, answer, stop, control, rss, fds, threads, failed, term = cells(result)
    return (
        f"{name:42} {'key' if key == 'yes' else '   '}  stop {stop:>9} ms (control {control:>4})  rss {rss:14}  "
        f"fds {fds:>3} threads {threads:>3} failed {failed} term {term:>6}  {answer}"
    )


def page(results: Sequence[Result], rounds: int) -> str:
    """The page in docs/."""
    rows = "\n".join("| " + " | ".join(each.replace("|", "\\|") for each in cells(result)) + " |" for result in results)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    intro = INTRO.format(rounds=rounds, where=f"{day}, {machine}, Python {platform.python_version()}")
    return f"{intro}| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n{rows}\n\n{verdict(results)}\n"


def verdict(results: Iterable[Result]) -> str:
    """What is not as it should be."""
    listed = list(results)
    over = [f"{each.row.name} ({each.stop_ms:.0f} ms)" for each in listed if each.stop_ms > GOAL_MS]
    broken = [f"{each.row.name}: {fault}" for each in listed for fault in each.faults()]
    said = [f"Over the goal of {GOAL_MS:.0f} ms: {'; '.join(over)}." if over else f"No row is over {GOAL_MS:.0f} ms."]
    return "\n".join([*said, *(f"Broken: {each}." for each in broken)])

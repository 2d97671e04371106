"""python -m ninelives.supervisor FD: `ninelives serve` starts it. Owns: its log lines. Refuses to know: servers."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from contextlib import suppress

from ninelives.supervisor.plan import SupervisorPlan, has_terminal
from ninelives.supervisor.process import Supervisor


def say(level: str, name: str, **fields: object) -> None:
    """Write a log line as the server does: JSON, or text on a terminal."""
    now = time.time()
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}+00:00"
    if sys.stderr.isatty():
        line = f"{at} {level:7} {name} " + " ".join(f"{key}={value}" for key, value in fields.items())
    else:
        line = json.dumps({"at": at, "level": level, "event": name, **fields}, separators=(",", ":"))
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(line.rstrip() + "\n")
        sys.stderr.flush()


async def supervise(plan: SupervisorPlan) -> int:
    """Run until the server ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it holds a descriptor for each client that is kept
    return await Supervisor(plan, say, lambda: plan.terminal and not has_terminal()).run()


def main() -> None:
    """Run the supervisor. Its exit code is that of the server."""
    raise SystemExit(asyncio.run(supervise(SupervisorPlan.read(int(sys.argv[1])))))


if __name__ == "__main__":
    main()

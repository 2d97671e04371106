"""python -m ninelives.supervisor FD: `ninelives serve` starts it. Owns: its log lines. Refuses to know: servers."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from contextlib import suppress

from ninelives.supervisor.loop import EventLoop
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


def say_fault(error: Exception) -> None:
    """Log a mistake of the supervisor. It goes on: all clients depend on it."""
    at, trace = [], error.__traceback__
    while trace is not None:
        at.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    say("error", "supervisor_fault", why=repr(error), at=" > ".join(at), note="please report this line")


def supervise(plan: SupervisorPlan) -> int:
    """Run until the server ends. Returns its exit code."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it holds a descriptor for each client that is kept
    return Supervisor(plan, EventLoop(say_fault), say, lambda: plan.terminal and not has_terminal()).run()


def main() -> None:
    """Run the supervisor, and end the process. Its exit code is that of the server."""
    os._exit(supervise(SupervisorPlan.read(int(sys.argv[1]))))  # the thread of the relays has nothing to finish


if __name__ == "__main__":
    main()

"""python -m tests.agents.dying WHEN N PROGRAM ARGUMENT...: run a program that kills itself before or after the N-th
write of its durable run. Owns: the kill. Refuses to know: the program."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from ninelives.agents.local import LocalRun


def die_at(when: str, n: int) -> None:
    append, written = LocalRun._append, 0

    async def dying(self: LocalRun, *given: Any) -> None:
        nonlocal written
        written += 1
        if (written, when) == (n, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        await append(self, *given)
        if (written, when) == (n, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    LocalRun._append = dying  # type: ignore[method-assign]


if __name__ == "__main__":
    when, n, program, *rest = sys.argv[1:]
    die_at(when, int(n))
    sys.argv = [program, *rest]
    runpy.run_path(program, run_name="__main__")

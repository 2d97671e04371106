"""python -m tests.story.hurried serve ...: the server as it is, with shorter pauses before it forgets, for tests that
would otherwise wait half a minute each. Owns: the three pauses (settling, rounds, emptying the log). Refuses to know:
everything else. The tests marked `long` run the same cases on the server itself."""

from __future__ import annotations

import runpy
from importlib import import_module

from ninelives.engine import retention
from ninelives.journal.sqlite import database

PAUSE_S = 0.3


def hurry() -> None:
    """Shorten the pauses of this process."""
    retention.FORGET_S = database.SCRUB_S = PAUSE_S
    for backend in ("sqlite", "postgres", "memory"):
        import_module(f"ninelives.journal.{backend}.upkeep").SETTLE_MS = int(PAUSE_S * 1000)


if __name__ == "__main__":
    hurry()
    runpy.run_module("ninelives", run_name="__main__")

"""python -m ninelives.drill.victim --key KEY --die-at N --when before|after serve ...: a server that kills itself at
one write of its journal. Owns: counting writes (open, append, claim) from the run with that idempotency key on, and the
SIGKILL. It comes before the Nth write reaches the store, or after its commit and before anybody hears of it. All other
arguments go to `ninelives` unchanged. Refuses to know: what is written."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from ninelives.journal.sqlite.store import SqliteStore

Call = Callable[..., Awaitable[Any]]


class Doom:
    """Counts writes, and kills the process at one of them."""

    def __init__(self, key: str, at: int, when: str) -> None:
        self._key = key
        self._at = at
        self._when = when
        self._count = 0

    def around(self, name: str, call: Call) -> Call:
        """A method of the store, with the kill added."""

        async def counted(store: SqliteStore, *args: Any, **named: Any) -> Any:
            ours = name == "open" and args[0].asked.key == self._key
            if not self._count and not ours:
                return await call(store, *args, **named)
            self._count += 1
            here = self._count == self._at
            if here and self._when == "before":
                self._die()
            answer = await call(store, *args, **named)
            if here:
                self._die()
            return answer

        return counted

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Run the server."""
    options = argparse.ArgumentParser(prog="ninelives.drill.victim")
    options.add_argument("--key", required=True)
    options.add_argument("--die-at", type=int, required=True)
    options.add_argument("--when", choices=("before", "after"), required=True)
    given, rest = options.parse_known_args(arguments)
    doom = Doom(given.key, given.die_at, given.when)
    for name in ("open", "append", "claim"):
        setattr(SqliteStore, name, doom.around(name, getattr(SqliteStore, name)))
    sys.argv[1:] = rest
    runpy.run_module("ninelives", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

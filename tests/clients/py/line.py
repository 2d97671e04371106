"""The line between the driver and a client in Python: one job per line of JSON on stdin, one line of what was seen on
stdout. Owns: that loop. Refuses to know: any client. It runs inside the client's own environment: standard library
only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

WEATHER = "sunny in Oslo"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Seen:
    """What a client's user sees of one answer; of the last turn, where there are several."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.ran: list[str] = []
        """Tools that the client was asked to run, in order."""
        self.error: dict[str, Any] | None = None
        self.more: dict[str, Any] = {}

    def failed(self, kind: str, message: str, status: int | None = None) -> None:
        self.error = {"kind": kind, "message": message, "status": status}


Way = Callable[[dict[str, Any], Seen], None]


def answer(job: dict[str, Any], ways: dict[str, Way]) -> dict[str, Any]:
    """One job done. Whatever the client raises is what its user sees."""
    seen = Seen()
    try:
        ways[job["way"]](job, seen)
    except Exception as error:
        seen.failed(type(error).__name__, str(error), getattr(error, "status_code", None))
    return vars(seen)


def serve(ways: dict[str, Way]) -> None:
    """Jobs until stdin ends. What libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), ways)), file=out, flush=True)

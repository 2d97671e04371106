"""Commands that are clients. Owns: running one to its end in a process group of its own, within a deadline; after it
the whole group is ended, since most of these are launchers of something else. Refuses to know: any client. Standard
library only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

DEADLINE_S = 150.0
COMMANDS = Path(__file__).parents[3] / ".venv-clients"


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def of(place: str, name: str) -> str:
    """Where a command from npm is."""
    return str(COMMANDS / place / "node_modules" / ".bin" / name)


def room(job: dict[str, Any], name: str) -> Path:
    """A home for one job, the same when it is asked again, with an empty folder `work` in it."""
    home = Path(job["where"]) / name / job["lane"]
    (home / "work").mkdir(parents=True, exist_ok=True)
    return home


def run(args: list[str], env: dict[str, str], where: Path, given: str = "") -> Ended:
    """Run a command to its end, with `given` on its stdin. TimeoutError if it has none."""
    child = subprocess.Popen(
        args,
        env={**os.environ, **env},
        cwd=where,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = child.communicate(given, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate(timeout=10)
        raise TimeoutError(f"no end within {DEADLINE_S} s: {(out + err)[-300:]}") from None
    return Ended(child.returncode, out, err)

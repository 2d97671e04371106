"""How long a newcomer needs from a clone to the first answer. Owns: the steps of "Start" in README.md, in a fresh clone
and a fresh home, with git, make and Python only, and their times. Refuses to know: how any step works.

python -m lab.newcomer [CHECKOUT]    exit code 1 after more than LIMIT_S"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
STEP_S = 600.0


@dataclass
class Newcomer:
    """Somebody whose first server listens."""

    home: Path
    env: dict[str, str]
    begun: float

    def told(self) -> str:
        """What the server has printed."""
        return (self.home / "out").read_text()

    def found(self, pattern: str) -> str:
        """A part of that."""
        match = re.search(pattern, self.told())
        if match is None:
            raise SystemExit(f"the server does not say {pattern}:\n{self.told()}")
        return match[1]

    def passed(self, step: str) -> float:
        """A step is done. Prints and returns the seconds since the first one began."""
        took = time.monotonic() - self.begun
        print(f"{took:6.1f} s  {step}", flush=True)
        return took


@contextmanager
def first_server(source: str) -> Iterator[Newcomer]:
    """Clone and `make serve`, from nothing."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        clone = Path(folder) / "ninelives"
        env = {"HOME": folder, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        given = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
        env |= {name: text for name, text in os.environ.items() if name.upper().startswith(given)}
        newcomer = Newcomer(Path(folder), env, time.monotonic())
        subprocess.run(["git", "clone", "-q", source, str(clone)], env=env, check=True, timeout=STEP_S)
        newcomer.passed("git clone")
        with (newcomer.home / "out").open("w") as out:
            command = ["make", "serve", "ARGS=--port 0"]
            server = subprocess.Popen(command, cwd=clone, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            _listening(server, newcomer)
            newcomer.passed("make serve listens")
            yield newcomer
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def _listening(server: subprocess.Popen[bytes], newcomer: Newcomer) -> None:
    while "Try it" not in newcomer.told():
        if server.poll() is not None or time.monotonic() - newcomer.begun > STEP_S:
            raise SystemExit(f"make serve did not start:\n{newcomer.told()}")
        time.sleep(0.05)


def main(source: str) -> int:
    with first_server(source) as newcomer:
        asked = [str(newcomer.home / "ninelives/.venv/bin/ninelives"), "ask", "hello"]
        answer = subprocess.run(
            asked,
            env=newcomer.env,
            check=True,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            stdin=subprocess.DEVNULL,
        )
        took = newcomer.passed(f"the first answer: {answer.stdout[:60]!r}")
        print(f"\n{newcomer.told()}")
    return int(took > LIMIT_S or not answer.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))

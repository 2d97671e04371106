"""A client's script as a process: one job per line of JSON on its stdin, one line of what was seen on its stdout. Owns:
starting it in a home of its own, the deadline of a job, and ending it. Refuses to know: any client, any case."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.clients import install
from tests.clients.matrix import Client

START_S, JOB_S = 240.0, 180.0
"""A job that takes longer hangs: no case needs more than a few seconds of an idle machine."""


class Script:
    """A client's script as a process. It is started again after a job that hung."""

    def __init__(self, command: list[str], env: dict[str, str], errors: Path) -> None:
        self._command, self._env, self._errors = command, env, errors
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[str]:
        with self._errors.open("a") as errors:
            child = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        lines: queue.Queue[str] = queue.Queue()
        self._lines = lines

        def read() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        return child

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
        self._child = None

    def ask(self, job: dict[str, Any]) -> dict[str, Any] | str:
        """What was seen, or why nothing was."""
        first = self._child is None
        if self._child is None:
            self._child = self._start()
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
            line = self._lines.get(timeout=START_S if first else JOB_S)
        except queue.Empty:
            self._end()
            return "it hung: no end within the deadline"
        except OSError:
            line = ""
        if not line:
            self._end()
            return f"its script ended: {self._errors.read_text().strip()[-300:]}"
        return dict(json.loads(line))


def command(client: Client) -> list[str]:
    """How a client's script is run."""
    if client.script.endswith(".mjs"):
        return [install.node() or "node", str(install.NODE / client.script), client.argument]
    python = str(install.python_of(client.place)) if client.place in install.PINS else sys.executable
    return [python, str(install.HERE / "py" / client.script)]


def started(start: list[str], home: Path) -> Script:
    """A script with an empty home and none of this user's keys."""
    home.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    env |= {"HOME": str(home), "NODE_NO_WARNINGS": "1", "PYTHONWARNINGS": "ignore"}
    return Script(start, env, home / "stderr")

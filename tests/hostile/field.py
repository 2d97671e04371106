"""Where a row is tried. Owns: the server, its upstream, the probes beside it, journaled runs that must not suffer, and
what is measured. Refuses to know: what a row sends."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.story.server import ROOT, Server, Upstream, start_server, start_upstream, wait_until

RUNS = 4
"""Journaled runs that are under way during each row."""
USUAL_FILES = 1024
"""The usual soft limit of open files."""
SETTLE_S = 45.0
"""How long descriptors may take to come back. Idle connections to the upstream are kept for 15 s."""
ATTACK_S = 120.0
Attack = Callable[["Field"], str]


@dataclass(frozen=True)
class Row:
    """One thing that somebody sends."""

    name: str
    attack: Attack
    key: bool = True
    """It needs a valid key."""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What it did. Times in milliseconds, memory in MB."""

    row: Row
    answer: str
    stop_ms: float
    """The longest that a health check waited, in the calmest round."""
    control_ms: float
    """The same for a server of a few lines, in the same round."""
    rss: tuple[float, float, float]
    """Before, at most and after."""
    fds: int
    threads: int
    failed: int
    """Journaled runs that did not complete."""
    term_s: float = 0.0
    term_code: int | None = 0

    def faults(self) -> list[str]:
        """What must never happen, whatever the machine."""
        found = [f"{self.failed} journaled runs failed"] if self.failed else []
        found += [f"{self.fds} descriptors did not come back"] if self.fds > 0 else []
        return found + ([f"SIGTERM: exit code {self.term_code}"] if self.term_code != 0 else [])


class Probe:
    """A health check of one port, in its own process."""

    def __init__(self, port: int) -> None:
        words = [sys.executable, "-m", "tests.hostile.probe", str(port)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._child.stdout is not None and self._child.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, float]:
        """End it. Returns what it saw."""
        out, _ = self._child.communicate(timeout=ATTACK_S)
        return dict(json.loads(out))


@contextmanager
def control() -> Iterator[int]:
    """The port of a server of a few lines."""
    words = [sys.executable, "-m", "tests.hostile.probe", "--control"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.stdin.close()


class Field:
    """A server under attack."""

    def __init__(self, where: Path, control_port: int, settings: dict[str, str], settle_s: float = SETTLE_S) -> None:
        self._control = control_port
        self._settle_s = settle_s
        self.upstream: Upstream = start_upstream(where / "upstream")
        own = {"NINELIVES_LIMITS_DRAIN_S": "3", **settings}
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_FILES, hard), hard))
        try:
            self.server: Server = start_server(where / "server", self.upstream.url, **own)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.notes: dict[str, Any] = {}
        """What an attack prepares once, such as the id of a run."""
        self._base: tuple[int, int] | None = None
        """Descriptors and threads before the first round."""

    @property
    def port(self) -> int:
        return self.server.port

    def close(self) -> None:
        """End what is left."""
        if self.server.process.child.poll() is None:
            self.server.kill()
        with suppress(OSError):
            self.upstream.process.stop()

    def journaled(self, text: str = "[[tokens=50 pace=0.02]]") -> str:
        """The id of a stored run in the background."""
        body = {"model": "hermes-agent", "input": text, "background": True, "store": True}
        answer = self.server.client.post("/v1/responses", body)
        assert answer.status == 200, answer
        return str(answer.json()["id"])

    def status(self, run: str) -> str:
        return str(self.server.client.get(f"/v1/responses/{run}").json().get("status"))

    def warm_up(self) -> None:
        """Load what is loaded at first use, and open pools of threads and connections to their size."""
        runs = [self.journaled("hi") for _ in range(RUNS * 2)]
        wait_until(lambda: all(self.status(run) == "completed" for run in runs), "the first runs", 60)
        self.server.client.post("/v1/chat/completions", b'{"model":"x","pad":"' + b"a" * 2_000_000 + b'"}')

    def measure(self, row: Row, rounds: int = 1, calm_ms: float = 50.0) -> Result:
        """Try the row, again while it stops the health checks for longer than `calm_ms`. The calmest round counts:
        what the row does, it does each time; what the machine does, it does not."""
        best: Result | None = None
        for _ in range(rounds):
            found = self._round(row)
            if best is None or found.stop_ms < best.stop_ms:
                kept = found if best is None else replace(found, rss=best.rss)
                best = replace(kept, failed=kept.failed + (best.failed if best else 0))
            if best.stop_ms <= calm_ms:
                break
        assert best is not None
        return best

    def _round(self, row: Row) -> Result:
        server = self.server
        self._base = self._base or (server.fds(), server.threads())
        rss = server.rss_kb()
        runs = [self.journaled() for _ in range(RUNS)]
        probe, beside = Probe(server.port), Probe(self._control)
        with self._peak() as peak:
            answer = row.attack(self)
        seen, control_seen = probe.stop(), beside.stop()
        wait_until(lambda: all(self.status(run) not in ("queued", "in_progress") for run in runs), "the runs", 120)
        failed = sum(self.status(run) != "completed" for run in runs)
        stop_ms, control_ms = seen["longest_ms"], control_seen["longest_ms"]
        return Result(row, answer, stop_ms, control_ms, (rss / 1024, max(peak) / 1024, 0.0), 0, 0, failed)

    def settled(self, found: Result) -> Result:
        """The result with what is left of the row, once connections to the upstream were idle for long enough."""
        server, (fds, threads) = self.server, self._base or (0, 0)
        with suppress(AssertionError):
            wait_until(lambda: server.fds() <= fds, "descriptors come back", self._settle_s, 0.1)
        rss = (*found.rss[:2], server.rss_kb() / 1024)
        return replace(found, rss=rss, fds=server.fds() - fds, threads=server.threads() - threads)

    @contextmanager
    def _peak(self) -> Iterator[list[int]]:
        """The memory of the server meanwhile."""
        seen = [self.server.rss_kb()]
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                with suppress(OSError, TypeError):
                    seen.append(self.server.rss_kb())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()

    def terminate(self, row: Row) -> tuple[float, int | None]:
        """SIGTERM in the middle of the row: seconds to the end, and the exit code (None: it had to be killed)."""

        over = threading.Event()

        def again() -> None:
            while not over.is_set():
                with suppress(OSError, AssertionError, ValueError, KeyError, EOFError, HTTPException):
                    row.attack(self)
                over.wait(0.01)

        attacker = threading.Thread(target=again, daemon=True)
        attacker.start()
        attacker.join(0.4)
        began = time.monotonic()
        self.server.process.child.send_signal(signal.SIGTERM)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self.server.process.child.wait(30)
        over.set()
        took = time.monotonic() - began
        if code is None:
            self.server.kill()
        attacker.join(ATTACK_S)
        return took, code

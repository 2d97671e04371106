"""make test-clients: real clients against the real server, a scripted model behind it. Owns: starting all of it,
handing jobs to the clients' scripts (one line of JSON each, both ways), the verdicts and the table. Refuses to know:
any client.   python -m tests.clients.run [--only NAME ...] [--json] [--docs FILE] [--jobs N]"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.clients import install, matrix
from tests.clients.matrix import Client
from tests.clients.proxy import CountingProxy
from tests.clients.table import page, printed
from tests.story.server import KEY, Server, Upstream, start_server, start_upstream

MODEL = "hermes-agent"
START_S, JOB_S = 240.0, 180.0
"""A job that takes longer hangs: no case needs more than a few seconds of an idle machine."""


@dataclass(frozen=True)
class Verdict:
    """One cell of the table. `result`: ok, limit (ok within a limit of the client's own), fail, skip."""

    client: str
    version: str
    way: str
    case: str
    result: str
    why: str = ""
    seconds: float = 0.0


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


@dataclass(frozen=True)
class Bench:
    """What every client is run against."""

    server: Server
    upstream: Upstream
    proxy: CountingProxy
    where: Path

    def missing(self, client: Client) -> str:
        """The route that a client needs and that this server does not have."""
        if client.route("") != matrix.MESSAGES:
            return ""
        answer = self.server.client.post(matrix.MESSAGES, {})
        return f"the server has no {matrix.MESSAGES} yet (404)" if answer.status == 404 else ""

    def missing_way(self, way: str) -> str:
        if way != "socket":
            return ""
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        answer = self.server.client.get("/v1/responses", {**upgrade, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        return "" if answer.status == 101 else f"the server has no WebSocket at /v1/responses yet ({answer.status})"

    def job(self, client: Client, way: str, case: str) -> dict[str, Any]:
        """One job. For a conflict its key was used before, for something else."""
        lane = "-".join(f"{client.name} {way} {case}".replace(".", "-").split())
        headers = {}
        if case == "conflict":
            headers = {"Idempotency-Key": lane}
            answer = self.server.client.post("/v1/responses", {"input": "another question"}, headers)
            assert answer.status == 200, answer.body
        prompt = f"({lane}) {matrix.PROMPTS[case]}"
        return {
            **{"base": self.proxy.base(lane), "key": KEY, "model": MODEL, "lane": lane, "headers": headers},
            **{"way": way, "case": case, "prompt": prompt, "where": str(self.where)},
        }

    def judge(self, client: Client, job: dict[str, Any], seen: dict[str, Any] | str) -> tuple[str, str]:
        """The result, and why it is not simply ok."""
        lane, way, case = job["lane"], job["way"], job["case"]
        if isinstance(seen, str):
            return "fail", f"{seen}; requests: {self.proxy.requests[lane]}"
        expect, limits = matrix.expected(client, way, case)
        asked = self.upstream.asked(f"({lane})")
        wrong = matrix.complaints(expect, seen, self.proxy.posts(lane), len(asked))
        if case == "own" and asked and matrix.WEATHER not in json.dumps(asked[-1]["messages"]):
            wrong.append("the client's own result did not reach the model")
        if wrong:
            return "fail", "; ".join(wrong) + f"; requests: {self.proxy.requests[lane]}"
        return ("limit", "; ".join(limits)) if limits else ("ok", "")


@contextmanager
def bench(where: Path) -> Iterator[Bench]:
    """A server, its model and the proxy, all ended at the end."""
    upstream = start_upstream(where / "upstream")
    try:
        server = start_server(where / "server", upstream.url)
        try:
            with CountingProxy(server.port) as proxy:
                yield Bench(server, upstream, proxy, where)
        finally:
            server.stop()
    finally:
        upstream.process.stop()


def command(client: Client) -> list[str]:
    """How a client's script is run."""
    if client.script.endswith(".mjs"):
        return [install.node() or "node", str(install.NODE / client.script), client.argument]
    python = sys.executable if client.place == "node" else str(install.python_of(client.place))
    return [python, str(install.HERE / "py" / client.script)]


def run(client: Client, on: Bench, version: str, start: list[str]) -> list[Verdict]:
    """All cases of one client, one after the other."""
    if why := on.missing(client):
        return [Verdict(client.name, version, "", "", "skip", why)]
    verdicts = []
    home = on.where / client.name.replace(" ", "-")
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    env |= {"HOME": str(home), "NODE_NO_WARNINGS": "1", "PYTHONWARNINGS": "ignore"}
    with Script(start, env, home / "stderr") as script:
        for way in client.ways:
            if why := on.missing_way(way):
                verdicts.append(Verdict(client.name, version, way, "", "skip", why))
                continue
            for case in client.cases_of(way):
                began = time.monotonic()
                job = on.job(client, way, case)
                result, why = on.judge(client, job, script.ask(job))
                seconds = round(time.monotonic() - began, 1)
                verdicts.append(Verdict(client.name, version, way, case, result, why, seconds))
    return verdicts


def installed(clients: list[Client]) -> dict[str, str]:
    """Why a place could not be filled, by its name."""
    why = {}
    for place in dict.fromkeys(client.place for client in clients):
        print(f"installing {place} ...", file=sys.stderr, flush=True)
        said = install.install_node() if place == "node" else install.install_python(place)
        if said:
            why[place] = said
            print(f"\n!!! {place}: CLIENTS ARE SKIPPED: {said}\n", file=sys.stderr, flush=True)
    return why


def run_all(clients: list[Client], jobs: int) -> list[Verdict]:
    missing = installed(clients)
    verdicts = [Verdict(c.name, "-", "", "", "skip", missing[c.place]) for c in clients if c.place in missing]
    there = [client for client in clients if client.place not in missing]

    def one(client: Client) -> list[Verdict]:
        found = run(client, on, install.version_of(client.place, client.package), command(client))
        counts = {result: sum(v.result == result for v in found) for result in ("ok", "limit", "fail", "skip")}
        print(f"{client.name}: {counts}", file=sys.stderr, flush=True)
        return found

    scratch = tempfile.TemporaryDirectory(prefix="holdfast-clients-")
    with scratch as where, bench(Path(where)) as on, ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, there):
            verdicts += found
    return verdicts


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.clients.run")
    options.add_argument("--only", action="append", help="part of a client's name; may be given again")
    options.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    options.add_argument("--docs", type=Path, help="write the table to this page")
    options.add_argument("--jobs", type=int, default=2)
    given = options.parse_args()
    wanted = [c for c in matrix.CLIENTS if not given.only or any(part.lower() in c.name.lower() for part in given.only)]
    verdicts = run_all(wanted, given.jobs)
    if given.docs:
        given.docs.write_text(page(verdicts))
    print(json.dumps([asdict(v) for v in verdicts], indent=1) if given.json else printed(verdicts))
    return int(not verdicts or any(v.result == "fail" for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())

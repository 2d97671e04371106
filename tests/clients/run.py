"""make test-clients: real clients against the real server, a scripted model behind it. Owns: starting all of it,
handing jobs to the clients' scripts, the verdicts and the table. Refuses to know:
any client.   python -m tests.clients.run [--only NAME ...] [--kills] [--json] [--docs FILE] [--jobs N]"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.clients import install, kills, matrix
from tests.clients.matrix import Client
from tests.clients.proxy import CountingProxy
from tests.clients.script import command, started
from tests.clients.table import page, printed
from tests.story.server import KEY, Server, Upstream, start_server, start_upstream

MODEL = "hermes-agent"


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


def run(client: Client, on: Bench, version: str, start: list[str]) -> list[Verdict]:
    """All cases of one client, one after the other."""
    if why := on.missing(client):
        return [Verdict(client.name, version, "", "", "skip", why)]
    verdicts = []
    with started(start, on.where / client.name.replace(" ", "-")) as script:
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
        if said := install.install(place):
            why[place] = said
            print(f"\n!!! {place}: CLIENTS ARE SKIPPED: {said}\n", file=sys.stderr, flush=True)
    return why


def run_all(clients: list[Client], missing: dict[str, str], jobs: int, where: Path) -> list[Verdict]:
    verdicts = [Verdict(c.name, "-", "", "", "skip", missing[c.place]) for c in clients if c.place in missing]
    there = [client for client in clients if client.place not in missing]

    def one(client: Client) -> list[Verdict]:
        found = run(client, on, install.version_of(client.place, client.package), command(client))
        counts = {result: sum(v.result == result for v in found) for result in ("ok", "limit", "fail", "skip")}
        print(f"{client.name}: {counts}", file=sys.stderr, flush=True)
        return found

    with bench(where) as on, ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, there):
            verdicts += found
    return verdicts


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.clients.run")
    options.add_argument("--only", action="append", help="part of a client's name; may be given again")
    options.add_argument("--kills", action="store_true", help="only the cases in which the server dies")
    options.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    options.add_argument("--docs", type=Path, help="write the table to this page")
    options.add_argument("--jobs", type=int, default=2)
    given = options.parse_args()

    def wanted(client: Client) -> bool:
        return not given.only or any(part.lower() in client.name.lower() for part in given.only)

    clients = [] if given.kills else [client for client in matrix.CLIENTS if wanted(client)]
    killed = [case for case in kills.KILLED if wanted(case.client)]
    missing = installed([*clients, *(case.client for case in killed)])
    with tempfile.TemporaryDirectory(prefix="ninelives-clients-") as scratch:
        verdicts = run_all(clients, missing, given.jobs, Path(scratch) / "matrix") if clients else []
        deaths = kills.run_all(killed, missing, Path(scratch) / "kills", given.jobs)
    if given.docs:
        given.docs.write_text(page(verdicts, deaths))
    told = {"cases": [asdict(v) for v in verdicts], "kills": [asdict(death) for death in deaths]}
    print(json.dumps(told, indent=1) if given.json else printed(verdicts, deaths))
    rows = [row.result for row in (*verdicts, *deaths)]
    return int(not rows or "fail" in rows)


if __name__ == "__main__":
    sys.exit(main())

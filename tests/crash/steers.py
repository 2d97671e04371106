"""Runs that are steered at random moments while their servers are killed: python -m tests.crash.steers --runs 100
--store sqlite (or postgres, with two replicas). Owns: the trial and its judge. Refuses to know: how the server works.

The judge compares what was accepted with what the runs say afterwards. Each accepted steer is read by the model once
and in order, or told as pending_steer at the end of its run. Tools leave lines in a file: none ran twice."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests import pg
from tests.story.server import Answer, Client, Json, Server, start_server, start_upstream

RUNS = "/v1/runs"
DEADLINE_S = 240.0
OVER = ("completed", "failed", "cancelled", "incomplete")


@dataclass
class SteeredRun:
    """One run, and what was accepted for it, in order."""

    n: int
    shown: str = ""
    accepted: list[str] = field(default_factory=list)
    refused: int = 0


class Replicas:
    """The servers of a trial, one of which may be dead."""

    def __init__(self, where: Path, model_url: str, store: str) -> None:
        self._where, self._model_url = where, model_url
        settings = {"NINELIVES_STORE_URL": asyncio.run(pg.server().database())} if store == "postgres" else {}
        names = ("one", "two") if store == "postgres" else ("one",)
        self._settings = {name: {**settings, "NINELIVES_SERVER_REPLICA": name} for name in names}
        self.servers = {name: self._start(name, 0) for name in names}
        self.kills = 0
        self._turn = 0

    def _start(self, name: str, at: int) -> Server:
        return start_server(self._where / name, self._model_url, at=at, **self._settings[name])

    def kill_one(self, dice: random.Random) -> None:
        """kill -9, and start it again on the same port."""
        name = dice.choice(sorted(self.servers))
        server = self.servers[name]
        server.kill()
        self.kills += 1
        self.servers[name] = self._start(name, server.port)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request, sent again while no server answers it."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self._turn += 1
            clients: list[Client] = [server.client for server in self.servers.values()]
            try:
                answer = clients[self._turn % len(clients)].call(method, path, body, headers)
                if answer.status not in (429, 503):
                    return answer
            except (OSError, HTTPException):
                pass  # it was killed: ask again
            time.sleep(0.05)
        raise AssertionError(f"{method} {path} had no answer in {DEADLINE_S:g} s")

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


def begin(replicas: Replicas, run: SteeredRun, mark: str) -> None:
    """Start a run with two tools between texts."""
    calls = [
        "terminal:" + json.dumps({"command": f"echo {name} >> effects-{mark}-{run.n}.txt"}) for name in ("one", "two")
    ]
    text = f"go {run.n} [[tools={'|'.join(calls)}]] [[pre=10 tokens=30 pace=0.1]]"
    answer = replicas.ask("POST", RUNS, {"input": text}, {"Idempotency-Key": f"{mark}-{run.n}"})
    assert answer.status == 202, answer.body
    run.shown = answer.json()["run_id"]


def steer(replicas: Replicas, run: SteeredRun, dice: random.Random, mark: str) -> None:
    """One to three steers at random moments."""
    for k in range(dice.randint(1, 3)):
        time.sleep(dice.uniform(0.0, 1.2))
        body = {"input": f"steer {run.n}.{k} [[tokens=6 pace=0.05]]"}
        headers = {"Idempotency-Key": f"{mark}-{run.n}-{k}"}
        answer = replicas.ask("POST", f"{RUNS}/{run.shown}/steer", body, headers)
        if answer.status == 200:
            run.accepted.append(answer.json()["steer_id"])
        else:
            assert answer.json()["error"]["code"] == "run_not_accepting_steer", answer.body
            run.refused += 1


def judge(run: SteeredRun, state: Json, events: Iterable[Json]) -> Counter[str]:
    """What became of the steers of one run. Raises AssertionError with the run's id."""
    used = [event["steer_id"] for event in events if event["event"] == "run.steered"]
    told = state.get("pending_steer_ids", [])
    assert len(set(used)) == len(used), f"{run.shown}: a steer was used twice: {used}"
    assert used == [steer for steer in run.accepted if steer in used], f"{run.shown}: order or origin: {used}"
    lost = set(run.accepted) - set(used) - set(told)
    assert not lost, f"{run.shown} ({state['status']}): accepted, not used and not told: {lost}"
    return Counter(used=len(used), told=len(set(run.accepted) - set(used)), refused=run.refused)


def events_of(replicas: Replicas, shown: str) -> list[Json]:
    lines = replicas.ask("GET", f"{RUNS}/{shown}/events").body.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def trial(runs: int, store: str, seed: int, where: Path) -> dict[str, Any]:
    """Steer so many runs while servers die. Raises AssertionError where a steer was lost, doubled or out of order."""
    dice, mark, began = random.Random(seed), f"s{seed}", time.monotonic()
    upstream = start_upstream(where / "upstream")
    replicas = Replicas(where, upstream.url, store)
    everything = [SteeredRun(n) for n in range(runs)]
    over = threading.Event()
    seeds = [dice.random() for _ in everything]

    def one(run: SteeredRun) -> None:
        own = random.Random(seeds[run.n])
        time.sleep(own.uniform(0.0, runs / 4))
        begin(replicas, run, mark)
        steer(replicas, run, own, mark)

    def killer() -> None:
        while not over.wait(dice.uniform(0.2, 1.5)):
            replicas.kill_one(dice)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(one, everything))
    finally:
        over.set()
        thread.join()
    total: Counter[str] = Counter()
    attempts = 0
    for run in everything:
        state = ended(replicas, run.shown)
        total += judge(run, state, events_of(replicas, run.shown)) + Counter({state["status"]: 1})
        attempts += state["attempt"]
    twice = doubled(where, mark)
    replicas.stop()
    upstream.process.stop()
    assert not twice, f"a tool ran twice: {twice}"
    took = round(time.monotonic() - began, 1)
    accepted = sum(len(run.accepted) for run in everything)
    return {"store": store, "runs": runs, "accepted": accepted, **total, "kills": replicas.kills, "attempts": attempts,
            "seconds": took}  # fmt: skip


def ended(replicas: Replicas, shown: str) -> Json:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        state: Json = replicas.ask("GET", f"{RUNS}/{shown}").json()
        if state["status"] in OVER:
            return state
        time.sleep(0.1)
    raise AssertionError(f"{shown} did not end in {DEADLINE_S:g} s")


def doubled(where: Path, mark: str) -> list[str]:
    """Effect files with a line twice: a finished call that was made again."""
    files = where.rglob(f"effects-{mark}-*.txt")
    return [f"{file.name}: {lines}" for file in files if len(set(lines := file.read_text().split())) < len(lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steers") as where:
        print(json.dumps(trial(given.runs, given.store, given.seed, Path(where))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

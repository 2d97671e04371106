"""The main trial: many durable runs through a cluster in which everything dies. Owns: the load, the faults beside it,
and the judging of every run afterwards. Refuses to know: how the result is shown."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openai

from ninelives.drill.checks import calls_of, frames_of, payload
from ninelives.drill.loads import Load
from ninelives.drill.wire import KEY, until
from ninelives.drill.witness import core
from tests.cluster.chaos import Chaos, Dose, Suffered
from tests.cluster.clients import Client, drawn
from tests.cluster.judging import Judge, Read, Result, spread
from tests.cluster.replicas import SHORT_S, Cluster, Shape
from tests.cluster.watch import Watch

MANY_ZOMBIES = 3
USUAL_S = 1.0
"""Where takeovers are judged, half of them take less."""
TAGS = re.compile(rb"(load-\d+-[0-9a-f]+) ")


@dataclass(frozen=True)
class Extent:
    """How much of it."""

    seed: int
    runs: int = 200
    in_flight: int = 24
    dose: Dose = field(default_factory=Dose)
    shape: Shape = field(default_factory=lambda: Shape(lease_s=SHORT_S))
    sdk: float = 0.0
    """What part of the callers uses the openai SDK as it comes."""
    errors: float = 0.0
    """What part of those may be given an error."""
    name: str = "storm"
    takeover_s: float | None = None
    """The longest that may pass from a kill to the next event of a run."""


class Storm:
    """One storm over one cluster."""

    def __init__(self, cluster: Cluster, extent: Extent) -> None:
        self.cluster, self.extent = cluster, extent
        self.chance = random.Random(extent.seed)
        self.watch = Watch(cluster)
        self.chaos = Chaos(cluster, self.watch, extent.dose, random.Random(self.chance.getrandbits(32)))
        self.judge = Judge(cluster, random.Random(self.chance.getrandbits(32)), lambda: self.chaos.suffered.blows)
        self.clients: list[Client] = []
        self.watchers: list[Client] = []
        self.seconds = 0.0
        self._finished = 0
        self._sdk = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{cluster.line.port}/v1", api_key=KEY)

    async def blow(self) -> Result:
        """Load and faults at once; then all is judged."""
        began = time.monotonic()
        for n in range(self.extent.runs):
            self._draw(n)
        slots = asyncio.Semaphore(self.extent.in_flight)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.chaos.unleash(lambda: self._finished / len(self.clients)))
            for n, client in enumerate(self.clients):
                group.create_task(self._one(client, slots, (n - self.extent.in_flight) / len(self.clients)))
            for watcher in self.watchers:
                group.create_task(watcher.bring_to_its_end(600.0))
        self.seconds = time.monotonic() - began
        await self._sdk.close()
        return await self.judged()

    def _draw(self, n: int) -> None:
        load, kind = drawn(self.chance, n)
        if self.chance.random() < self.extent.sdk:
            load, kind = Load(load.tag, "responses", load.text), "sdk"
        dice = [random.Random(self.chance.getrandbits(32)) for _ in range(2)]
        client = Client(load, kind, dice[0], self.cluster.line, sdk=self._sdk)
        self.clients.append(client)
        if load.dialect == "responses" and kind != "sdk" and self.chance.random() < 0.2:
            dialect = self.chance.choice(("responses", "runs"))
            beside = Load(load.tag, dialect, load.text)
            self.watchers.append(Client(beside, "watch", dice[1], self.cluster.line, beside=client))

    async def _one(self, client: Client, slots: asyncio.Semaphore, due: float) -> None:
        """One run, when its turn has come: load and faults last equally long."""
        await until(lambda: self.chaos.share >= due, 900.0, "the next fault")
        async with slots:
            await client.bring_to_its_end()
        self._finished += 1

    async def judged(self) -> Result:
        """Every run, as it is now; may be asked again."""
        result = Result(self.extent.name, self.extent.seed)
        read = await self.judge.judge([*self.clients, *self.watchers], result)
        excused = await self._excuse(result)
        await self._one_run_each(result)
        claims = [
            when - at
            for at, held in self.chaos.suffered.orphans
            for run, attempt in held.items()
            if (when := await self.watch.claimed(run, attempt)) is not None
        ]
        # one that comes back sees by its own clock that its lease is over, and may have nothing under way to be refused
        if self.chaos.suffered.zombies >= MANY_ZOMBIES and not self.chaos.suffered.refused:
            result.wrong("end", "all", "replicas came back after others had taken their runs, and none was refused")
        self._rows(result, read)
        half, most = spread(claims)
        result.rows["claimed elsewhere p50 / max (s)"] = f"{half} / {most}"
        if excused:
            result.rows["runs with events that the standby never had"] = excused
        return result

    async def _one_run_each(self, result: Result) -> None:
        """A request that was sent again goes on with the run of its first try (G13, P7)."""
        if self.cluster.database is None:
            return
        rows = await self.cluster.database.ask("SELECT data FROM run_log WHERE first_seq = 0")
        runs = Counter(found[1].decode() for row in rows if (found := TAGS.search(row["data"])))
        for tag, count in runs.items():
            if count > 1:
                result.wrong("rerun", tag, f"one request began {count} runs")
        deaths = [at for at, _ in self.chaos.suffered.orphans]
        given = [client for client in self.clients if client.given and not every_try_killed(client.cut_off, deaths)]
        callers = sum(client.kind == "sdk" for client in self.clients)
        if len(given) > self.extent.errors * callers:
            for client in given:
                result.wrong("end", client.load.tag, f"a caller of the SDK was given {client.given}")

    async def _excuse(self, result: Result) -> int:
        """A standby that was behind has lost what it never had. That is no finding where the run says so, or where it
        was begun after the standby was cut off. Returns how many runs lost something."""
        lost: set[str] = set()
        if self.chaos.suffered.behind is None or not self.extent.dose.lag_s:
            return 0
        by_tag = {client.load.tag: client for client in self.clients}
        for finding in [one for one in result.found if one.kind in ("lost", "changed", "numbers", "end")]:
            client = by_tag.get(finding.run)
            if client is not None and await self._told_of_loss(client):
                result.found.remove(finding)
                lost.add(finding.run)
        return len(lost)

    async def _told_of_loss(self, client: Client) -> bool:
        core_id = client.load.id.partition("_")[2]
        receipt = await self.cluster.line.get(f"/v1/runs/run_{core_id}/receipt")
        if receipt.status == 404:  # the standby never heard of it
            return True
        return receipt.status == 200 and "events_lost" in str(receipt.json())

    def _rows(self, result: Result, read: Read) -> None:
        suffered, clients = self.chaos.suffered, self.clients
        deaths = [at for at, _ in suffered.orphans]
        calls = [call for one in read.values() for call in calls_of(one.replay["runs"]).values()]
        answers = sum((client.answers for client in (*clients, *self.watchers)), Counter[int]())
        seen = sum(client.load.events for client in (*clients, *self.watchers))
        times = takeovers(suffered, read)
        half, most = spread(times)
        if self.extent.takeover_s is not None and times and max(times) > self.extent.takeover_s:
            result.wrong("stuck", "all", f"a run went on only {max(times):.1f} s after a kill")
        if self.extent.takeover_s is not None and times and statistics.median(times) >= USUAL_S:
            result.wrong("stuck", "all", f"half of the runs went on only {statistics.median(times):.1f} s after a kill")
        result.rows = {
            "replicas": len(self.cluster.replicas),
            "network": self.cluster.ground.name + (f" ({why})" if (why := self.cluster.ground.why) else ""),
            "balancer": self.cluster.shape.balancer or "our own",
            "runs": len(clients),
            "callers with the SDK": sum(client.kind == "sdk" for client in clients),
            "of them given an error": sum(bool(client.given) for client in clients),
            "of these after a kill per try": sum(every_try_killed(client.cut_off, deaths) for client in clients),
            "runs completed": len(read) - len(self.judge.sealed),
            "given up after five deaths in a row": len(self.judge.sealed),
            "connections": sum(client.connections for client in (*clients, *self.watchers)),
            "events seen": seen,
            **{FAULTS[fault]: count for fault, count in sorted(suffered.counts.items())},
            "answers 503 / 429 / cut": f"{answers[503]} / {answers[429]} / {answers[0]}",
            "events lost": result.count("lost"),
            "events changed": result.count("changed"),
            "gaps in numbers": result.count("numbers"),
            "tool calls": len(calls),
            "tool executions counted": sum(sum(one.effects.values()) for one in read.values()),
            "finished tools re-run": result.count("rerun"),
            "unknown outcomes": sum(call.outcome == "unknown" for call in calls),
            "second runs": sum("began" in finding.text for finding in result.found),
            "runs stuck": result.count("stuck"),
            "other violations": result.count("end", "resume", "outcome", "ask"),
            "zombies": suffered.zombies,
            "zombies' writes refused": suffered.refused,
            "runs taken over after a kill": len(times),
            "takeover p50 (s)": half,
            "takeover max (s)": most,
            "database outages (s)": " ".join(f"{one:.1f}" for one in suffered.outages) or "-",
            "time (s)": round(self.seconds, 1),
        }


def every_try_killed(cut_off: tuple[float, float], deaths: Sequence[float]) -> bool:
    """An SDK tries three times. Where as many replicas were killed while it asked, each of its connections may have
    ended with one of them, and no server can help that. `cut_off`: see Client.cut_off."""
    began, ended = cut_off
    return sum(began <= at <= ended for at in deaths) > openai.DEFAULT_MAX_RETRIES


FAULTS = {
    "kill": "replicas killed (SIGKILL)",
    "freeze": "replicas frozen past their lease",
    "cable": "replicas cut off the network",
    "database": "database restarts",
    "sever": "all connections terminated",
    "term": "replicas stopped (SIGTERM)",
    "limit": "connection limit reached",
    "bouncer": "pgbouncer killed",
    "failover": "failovers",
}


def takeovers(suffered: Suffered, read: Read) -> list[float]:
    """From each kill to the next event of every run that the dead one held (and that had not ended yet)."""
    by_core = {core(payload(frames_of(one.replay["runs"])[0])["run_id"]): one for one in read.values()}
    found = []
    for at, held in suffered.orphans:
        for run in held:
            if (one := by_core.get(core(run))) is None:
                continue
            stamps = (payload(frame).get("timestamp", 0.0) for frame in frames_of(one.replay["runs"]))
            later = [stamp - at for stamp in stamps if stamp > at]
            found += [min(later)] if later else []
    return found


async def storm(folder: Path, extent: Extent) -> Result:
    """The whole trial."""
    async with Cluster(folder, extent.shape) as cluster:
        return await Storm(cluster, extent).blow()

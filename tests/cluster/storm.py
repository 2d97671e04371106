"""The main trial: many durable runs through a cluster in which everything dies. Owns: the load, the faults beside it,
and the judging of every run afterwards. Refuses to know: how the result is shown."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.drill.checks import Evidence, Finding, calls_of, frames_of, judge, payload
from holdfast.drill.loads import TAG, Load, Unreadable
from holdfast.drill.own import PROBE_TOOLS
from holdfast.drill.rig import text_of
from holdfast.drill.witness import Setup, Witness, core, run_path
from tests.cluster.chaos import Chaos, Dose, Suffered
from tests.cluster.clients import Client, drawn, gaps
from tests.cluster.lines import Line
from tests.cluster.replicas import Cluster, Shape
from tests.cluster.watch import Watch

JUDGES = 6
LOOK_S = 60.0


@dataclass(frozen=True)
class Extent:
    """How much of it."""

    seed: int
    runs: int = 200
    in_flight: int = 24
    dose: Dose = field(default_factory=Dose)
    shape: Shape = field(default_factory=Shape)


@dataclass
class Result:
    """What one trial has seen."""

    rows: dict[str, int | float | str] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        """How many findings of these kinds."""
        return sum(finding.kind in kinds for finding in self.found)


class Front:
    """What Witness asks: the cluster as its clients see it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.port = line.port

    async def shown(self, path: str) -> dict[str, object]:
        """An object that must be there."""
        answer = await self._line.get(path)
        if answer.status != 200 or not answer.whole:
            raise Unreadable(f"GET {path} was answered {answer.status}: {answer.data[:300]!r}")
        body: dict[str, object] = answer.json()
        return body


class Storm:
    """One storm over one cluster."""

    def __init__(self, cluster: Cluster, extent: Extent) -> None:
        self.cluster, self.extent = cluster, extent
        self.chance = random.Random(extent.seed)
        self.watch = Watch(cluster)
        self.chaos = Chaos(cluster, self.watch, extent.dose, random.Random(self.chance.getrandbits(32)))
        setup = replace(
            Setup(traces=cluster.traces),
            counted=frozenset(PROBE_TOOLS),
            repeatable=frozenset(name for name, effect in PROBE_TOOLS.items() if effect != "write"),
        )
        self.witness = Witness(cluster.folder, setup, random.Random(self.chance.getrandbits(32)))
        self.clients: list[Client] = []
        self.watchers: list[Client] = []
        self.asks: dict[str, list[list[dict[str, object]]]] = {}
        self.seconds = 0.0
        self._finished = 0

    async def blow(self) -> Result:
        """Load and faults at once; then all is judged."""
        began = time.monotonic()
        for n in range(self.extent.runs):
            self._draw(n)
        slots = asyncio.Semaphore(self.extent.in_flight)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.chaos.unleash(lambda: self._finished / len(self.clients)))
            for client in self.clients:
                group.create_task(self._one(client, slots))
            for watcher in self.watchers:
                group.create_task(watcher.bring_to_its_end(600.0))
        self.seconds = time.monotonic() - began
        return await self.judged()

    def _draw(self, n: int) -> None:
        load, kind = drawn(self.chance, n)
        dice = [random.Random(self.chance.getrandbits(32)) for _ in range(2)]
        client = Client(load, kind, dice[0], self.cluster.line)
        self.clients.append(client)
        if load.dialect == "responses" and self.chance.random() < 0.2:
            dialect = self.chance.choice(("responses", "runs"))
            beside = Load(load.tag, dialect, load.text)
            self.watchers.append(Client(beside, "watch", dice[1], self.cluster.line, beside=client))

    async def _one(self, client: Client, slots: asyncio.Semaphore) -> None:
        async with slots:
            await client.bring_to_its_end()
        self._finished += 1

    # judging

    async def judged(self) -> Result:
        """Every run, as it is now; may be asked again."""
        result = Result()
        for client in (*self.clients, *self.watchers):
            result.found += [*client.found, *gaps(client)]
        self._take_asks()
        slots = asyncio.Semaphore(JUDGES)
        known = [client for client in self.clients if client.load.id]
        evidence = await asyncio.gather(*(self._read(client, slots, result.found) for client in known))
        read = {client.load.tag: one for client, one in zip(known, evidence, strict=True) if one is not None}
        for one in read.values():
            result.found += judge(one)
        result.found += await self.watch.attempts()
        self._rows(result, read)
        return result

    def _take_asks(self) -> None:
        for request in self.cluster.news():
            users = [text_of(message) for message in request["messages"] if message["role"] == "user"]
            if users and (found := TAG.search(users[-1])):
                self.asks.setdefault(found[1], []).append(request["messages"])

    async def _read(self, client: Client, slots: asyncio.Semaphore, found: list[Finding]) -> Evidence | None:
        """All that can be known of a run; it has ended, and completed, or that is a finding."""
        load, front = client.load, Front(self.cluster.line)
        beside = [told for watcher in self.watchers if watcher.beside is client for told in watcher.load.told]
        async with slots:
            try:
                async with asyncio.timeout(LOOK_S):
                    status = str((await front.shown(run_path(load)))["status"])
                    if status != "completed":
                        found.append(Finding("end", load.tag, f"it is {status}"))
                        return None
                    evidence = await self.witness.evidence(front, load, all_places=False)  # type: ignore[arg-type]
                    wrong = await self.witness.receipt(front, load, evidence)  # type: ignore[arg-type]
                    for dialect in {told.dialect for told in beside} - evidence.replay.keys():
                        raise AssertionError(f"nobody has read {dialect}")
            except (Unreadable, TimeoutError) as error:
                found.append(Finding("lost", load.tag, f"it cannot be read: {error!r}"))
                return None
        evidence.told += beside
        evidence.asks = self.asks.get(load.tag, [])
        found += [Finding("rerun", load.tag, text) for text in wrong]
        if client.told_body is not None and client.told_body["output"] != evidence.body["output"]:
            found.append(Finding("changed", load.tag, "what its caller was given is not what GET says now"))
        return evidence

    def _rows(self, result: Result, read: dict[str, Evidence]) -> None:
        suffered, clients = self.chaos.suffered, self.clients
        calls = [call for one in read.values() for call in calls_of(one.replay["runs"]).values()]
        answers = sum((client.answers for client in (*clients, *self.watchers)), Counter[int]())
        seen = sum(client.load.events for client in (*clients, *self.watchers))
        times = sorted(takeovers(suffered, read))
        result.rows = {
            "replicas": len(self.cluster.replicas),
            "network": self.cluster.ground.name + (f" ({why})" if (why := self.cluster.ground.why) else ""),
            "runs": len(clients),
            "runs completed": len(read),
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
            "runs stuck": result.count("stuck"),
            "other violations": result.count("end", "resume", "outcome", "ask"),
            "zombies": suffered.zombies,
            "zombies' writes refused": suffered.refused,
            "runs taken over after a kill": len(times),
            "takeover p50 (s)": round(times[len(times) // 2], 2) if times else "-",
            "takeover max (s)": round(times[-1], 2) if times else "-",
            "database outages (s)": " ".join(f"{one:.1f}" for one in suffered.outages) or "-",
            "time (s)": round(self.seconds, 1),
        }


FAULTS = {
    "kill": "replicas killed (SIGKILL)",
    "freeze": "replicas frozen past their lease",
    "cable": "replicas cut off the network",
    "database": "database restarts",
    "sever": "all connections terminated",
}


def takeovers(suffered: Suffered, read: dict[str, Evidence]) -> list[float]:
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

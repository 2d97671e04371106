"""The database is away (P15). Owns: a load that is caught in the middle by a stopped database, for longer than a lease
too, and by the end of all its connections; what is answered meanwhile, what streams hear, and that all goes on when it
is back, with nobody restarted. Refuses to know: other faults."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ninelives.drill.checks import calls_of
from ninelives.drill.loads import PROBES, Load
from ninelives.drill.wire import until
from tests.cluster.clients import Client
from tests.cluster.judging import Judge, Result, spread
from tests.cluster.lines import Request, until_so
from tests.cluster.replicas import KEEPALIVE_S, SHORT_S, Cluster, Replica, Shape

HOLD_S = 1.0
REFUSED_S = HOLD_S + 2.0
SLACK_S = 1.0
"""For a machine that has other things to do."""
TEXT = f"[[tools={PROBES.write(0.3)}|{PROBES.keep}|{PROBES.write(0.3)}|{PROBES.look}]] [[tokens=60 pace=0.05]]"


class Outage:
    """One cluster, several outages."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.result = Result("database away", seed)
        self.clients: list[Client] = []
        self.refusals: list[float] = []
        self.keepalives = 0
        self.returns: list[float] = []
        """From the database's return until a new run was taken."""

    async def all(self, outages: tuple[float, ...], runs: int) -> Result:
        """Each outage under its own load, then all connections cut, then everything is judged."""
        lives = [replica.pid for replica in self.cluster.replicas]
        for down_s in outages:
            await self._under_load(runs, self._away(down_s))
        await self._under_load(runs, self._cut())
        if lives != [replica.pid for replica in self.cluster.replicas if replica.alive]:
            self.result.wrong("end", "all", "a replica ended")
        read = await Judge(self.cluster, self.chance).judge(self.clients, self.result)
        half, most = spread(self.refusals)
        back, longest = spread(self.returns)
        self.result.rows = {
            "network": self.cluster.ground.name,
            "outages (s)": " ".join(f"{down_s:g}" for down_s in outages),
            "runs": len(self.clients),
            "runs completed": len(read),
            "refusals of new work": len(self.refusals),
            "refused after p50 / max (s)": f"{half} / {most}",
            "keepalives on open streams meanwhile": self.keepalives,
            "new work taken after p50 / max (s)": f"{back} / {longest}",
            "tool executions": sum(sum(one.effects.values()) for one in read.values()),
            "unknown outcomes": sum(
                c.outcome == "unknown" for o in read.values() for c in calls_of(o.replay["runs"]).values()
            ),
            "events lost or changed": self.result.count("lost", "changed", "numbers"),
            "finished tools re-run": self.result.count("rerun"),
        }
        return self.result

    async def _under_load(self, runs: int, trouble: object) -> None:
        clients = []
        for _ in range(runs):
            tag = f"load-{len(self.clients)}-{self.chance.getrandbits(24):x}"
            dice = random.Random(self.chance.getrandbits(32))
            clients.append(Client(Load(tag, "responses", f"{tag} {TEXT}"), "follow", dice, self.cluster.line))
            self.clients.append(clients[-1])
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.bring_to_its_end())
            await asyncio.sleep(self.chance.uniform(0.8, 1.5))
            await trouble  # type: ignore[misc]

    async def _away(self, down_s: float) -> None:
        """Stopped; everybody is asked; and back."""
        assert self.cluster.database is not None
        listeners = [await self._listener(replica) for replica in self.cluster.replicas]
        await self.cluster.database.stop()
        began = time.monotonic()
        before = [request.data.count(b": keepalive") for request, _ in listeners]
        await asyncio.gather(*(self._refused(replica) for replica in self.cluster.replicas))
        await asyncio.sleep(max(0.0, down_s - (time.monotonic() - began)))
        for (request, task), count in zip(listeners, before, strict=True):
            heard = request.data.count(b": keepalive") - count
            self.keepalives += heard
            if task.done() or (down_s > 3 * KEEPALIVE_S and heard == 0):
                self.result.wrong("end", "listener", f"{heard} keepalives in {down_s:g} s; over: {task.done()}")
        await self.cluster.database.start()
        await asyncio.gather(*(self._taken(replica) for replica in self.cluster.replicas))
        for _, task in listeners:
            task.cancel()
        await asyncio.gather(*(task for _, task in listeners), return_exceptions=True)

    async def _listener(self, replica: Replica) -> tuple[Request, asyncio.Task[Request]]:
        """A reader of a run that says nothing for a long time."""
        deadline = time.monotonic() + 120.0
        while True:
            tag = f"load-listener-{self.chance.getrandbits(24):x}"
            body = {"input": f"{tag} [[slowstart=300]]", "stream": True}
            request = Request(replica.line, "POST", "/v1/responses", body)
            task = asyncio.create_task(request.follow(60.0))
            with suppress(AssertionError):  # a busy machine may refuse the first
                await until(lambda r=request, t=task: b"response.in_progress" in r.data or t.done(), what="it")  # type: ignore[misc]
            if not task.done() and request.status == 200:
                return request, task
            task.cancel()
            assert time.monotonic() < deadline, f"{replica.name} takes no run: {request.status} {request.data[:200]!r}"

    async def _refused(self, replica: Replica) -> None:
        """New work while it is away: 503 with Retry-After, soon."""
        for _ in range(3):
            began = time.monotonic()
            answer = await replica.line.post("/v1/responses", {"input": "load-no"}, 20.0)
            took = time.monotonic() - began
            self.refusals.append(took)
            if answer.status != 503 or "retry-after" not in answer.headers:
                said = f"{answer.status} {answer.headers.get('retry-after')}: {answer.data[:200]!r}"
                self.result.wrong("end", replica.name, f"new work was answered {said}")
            if took > REFUSED_S + SLACK_S:
                self.result.wrong("stuck", replica.name, f"new work was refused after {took:.1f} s")

    async def _taken(self, replica: Replica) -> None:
        """New work when it is back."""
        began = time.monotonic()

        async def so() -> bool:
            return (await replica.line.post("/v1/responses", {"input": "load-yes"}, 20.0)).status == 200

        await until_so(so, what=f"{replica.name} takes new work")
        self.returns.append(time.monotonic() - began)

    async def _cut(self) -> None:
        """pg_terminate_backend of everything, three times."""
        assert self.cluster.database is not None
        for _ in range(3):
            await self.cluster.database.cut_all()
            await asyncio.sleep(self.chance.uniform(0.2, 0.8))
        await asyncio.gather(*(self._taken(replica) for replica in self.cluster.replicas))


async def outage(
    folder: Path, seed: int, outages: tuple[float, ...] = (5.0, 12.0), runs: int = 12, shape: Shape | None = None
) -> Result:
    """The whole trial."""
    async with Cluster(folder, replace(shape or Shape(lease_s=SHORT_S), hold_s=HOLD_S)) as cluster:
        return await Outage(cluster, seed).all(outages, runs)

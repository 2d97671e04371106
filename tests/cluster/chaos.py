"""What is done to a cluster under load. Owns: the plan (drawn from a seed: which fault, to whom, after how much of the
load), and each fault with what can be measured at it. Always one replica is left alone, so that there is somebody to
take over. Refuses to know: clients, and what is right."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import asyncpg

from tests.cluster.failover import Pair
from tests.cluster.ground import Namespaces
from tests.cluster.replicas import Cluster, Replica
from tests.cluster.watch import Held, Watch

Fault = Literal["kill", "freeze", "term", "cable", "database", "sever", "limit", "bouncer", "failover"]
WORK_S = 4.0
"""How long is waited for a victim to have work."""


@dataclass(frozen=True)
class Dose:
    """How much of each."""

    kills: int = 12
    freezes: int = 6
    cables: int = 2
    """Replicas that are cut off the network past their lease; only where they have networks of their own."""
    restarts: int = 2
    """Of the database, by stop -m immediate."""
    severs: int = 1
    """pg_terminate_backend of all connections."""
    terms: int = 0
    """SIGTERM, as a rolling restart does it."""
    limits: int = 0
    """All connections that the database has left are taken for a while."""
    bouncers: int = 0
    """pgbouncer is killed."""
    failovers: int = 0
    """The primary is lost; at most one."""
    lag_s: float = 0.0
    """How far the standby is behind then."""


@dataclass
class Suffered:
    """What was done, and what was seen at it."""

    counts: dict[Fault, int] = field(default_factory=dict)
    orphans: list[tuple[float, Held]] = field(default_factory=list)
    """At each kill: when, and what the dead held."""
    refused: int = 0
    """Zombies' writes that were refused, and runs that a zombie let go of by itself."""
    zombies: int = 0
    """Replicas that came back after their lease had ended, having held runs."""
    starts: list[float] = field(default_factory=list)
    """Seconds until a replica listened again."""
    outages: list[float] = field(default_factory=list)
    behind: float | None = None
    """When the standby was cut off."""

    @property
    def blows(self) -> int:
        """How often runs may have lost their process, or it its lease."""
        return sum(self.counts.values())


class Chaos:
    """Carries out one plan."""

    def __init__(self, cluster: Cluster, watch: Watch, dose: Dose, chance: random.Random) -> None:
        self._cluster, self._watch, self._chance = cluster, watch, chance
        self.suffered = Suffered()
        self._busy: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._dose = dose
        plan: list[Fault] = ["kill"] * dose.kills + ["freeze"] * dose.freezes + ["term"] * dose.terms
        if cluster.ground.cables:
            plan += ["cable"] * dose.cables
        if cluster.database is not None:
            plan += ["database"] * dose.restarts + ["sever"] * dose.severs + ["limit"] * dose.limits
            plan += ["bouncer"] * dose.bouncers + ["failover"] * dose.failovers
        chance.shuffle(plan)
        self.plan = plan
        self._diary = cluster.folder / "faults.log"
        self.struck = 0
        """How many of them have begun."""

    async def unleash(self, progress: Callable[[], float], longest_s: float = 20.0) -> None:
        """Each fault in its turn, spread evenly over the load; then wait until all is whole again."""
        for n, fault in enumerate(self.plan):
            due = (n + 0.5) / len(self.plan)
            deadline = time.monotonic() + longest_s
            while progress() < due and time.monotonic() < deadline:  # noqa: ASYNC110 (it happens in other processes)
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            await self._strike(fault)
        await asyncio.gather(*self._under_way)

    @property
    def share(self) -> float:
        """How much of the plan has been carried out."""
        return self.struck / len(self.plan) if self.plan else 1.0

    async def _strike(self, fault: Fault) -> None:
        acts = {"kill": self._kill, "freeze": self._freeze, "cable": self._cable, "term": self._term}
        shared = {
            "database": self._database,
            "sever": self._sever,
            "limit": self._limit,
            "bouncer": self._bouncer,
            "failover": self._failover,
        }
        if fault in acts:
            victim = await self._victim()
            self._busy.add(victim.name)
            task = asyncio.create_task(acts[fault](victim))
            task.add_done_callback(lambda _: self._busy.discard(victim.name))
        else:
            task = asyncio.create_task(shared[fault]())
        self._under_way.add(task)
        if fault in shared:
            await task
        self.struck += 1
        self.suffered.counts[fault] = self.suffered.counts.get(fault, 0) + 1

    def _note(self, text: str) -> None:
        """For whoever looks into a seed that failed."""
        with self._diary.open("a") as diary:
            diary.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")

    async def _victim(self) -> Replica:
        """One that is well, and not the last such."""
        replicas = self._cluster.replicas
        while True:
            well = [one for one in replicas if one.name not in self._busy]
            if len(well) >= min(2, len(replicas)):
                return self._chance.choice(well)
            await asyncio.sleep(0.02)

    async def _with_work(self, replica: Replica) -> Held:
        """What it holds, once that is something, or nothing comes."""
        deadline = time.monotonic() + WORK_S
        while True:
            held = await self._watch.held(replica)
            if held or time.monotonic() > deadline:
                return held
            await asyncio.sleep(0.05)

    async def _kill(self, victim: Replica) -> None:
        pause = self._chance.uniform(0.1, 2.0)
        held = await self._with_work(victim)
        at = time.time()
        await victim.kill()
        self._note(f"{victim.name} killed, held {' '.join(held)}")
        self.suffered.orphans.append((at, held))
        await asyncio.sleep(pause)
        self.suffered.starts.append(await self._brought_up(victim))
        self._note(f"{victim.name} is back")

    async def _term(self, victim: Replica) -> None:
        await self._with_work(victim)
        self._note(f"{victim.name} gets SIGTERM")
        victim.signal(signal.SIGTERM)
        await victim.gone()
        self.suffered.starts.append(await self._brought_up(victim))
        self._note(f"{victim.name} is back")

    async def _brought_up(self, victim: Replica) -> float:
        """As a supervisor does it: one that ends because the database goes away just then is started again."""
        for _ in range(3):
            try:
                return await self._cluster.start(victim)
            except AssertionError:
                if re.search("^ *Traceback", victim.last_lines(40), re.MULTILINE):  # not one in a line of the log
                    raise
        return await self._cluster.start(victim)

    async def _freeze(self, victim: Replica) -> None:
        longer = self._chance.uniform(0.5, 2.5)
        held = await self._with_work(victim)
        before = await self._watch.refused(victim)
        victim.freeze()
        self._note(f"{victim.name} frozen, held {' '.join(held)}")
        await self._past_lease(longer)
        victim.thaw()
        self._note(f"{victim.name} thawed")
        await self._count(victim, held, before)

    async def _cable(self, victim: Replica) -> None:
        ground, n = self._cluster.ground, self._cluster.replicas.index(victim)
        assert isinstance(ground, Namespaces)
        longer = self._chance.uniform(0.5, 2.5)
        held = await self._with_work(victim)
        before = await self._watch.refused(victim)
        await ground.cut(n)
        self._note(f"{victim.name} cut off, held {' '.join(held)}")
        await self._past_lease(longer)
        await ground.join(n)
        self._note(f"{victim.name} joined")
        await self._count(victim, held, before)

    async def _past_lease(self, longer: float) -> None:
        await asyncio.sleep(self._cluster.shape.lease_s + longer)

    async def _count(self, victim: Replica, held: Held, before: int) -> None:
        """Whoever held runs that others took meanwhile is refused: wait until that is seen."""
        taken = [run for run, attempt in held.items() if await self._watch.claimed(run, attempt) is not None]
        self.suffered.zombies += bool(taken)
        deadline = time.monotonic() + WORK_S
        now = await self._watch.refused(victim)
        while taken and now <= before and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            now = await self._watch.refused(victim)
        self.suffered.refused += max(0, now - before)

    async def _database(self) -> None:
        assert self._cluster.database is not None
        began = time.monotonic()
        self._note("database stops")
        await self._cluster.database.restart(self._chance.uniform(0.0, 1.5))
        self._note("database is back")
        self.suffered.outages.append(time.monotonic() - began)

    async def _sever(self) -> None:
        assert self._cluster.database is not None
        self._note(f"{await self._cluster.database.cut_all()} connections terminated")

    async def _limit(self) -> None:
        """Others take what is left, and then the connections of replicas are closed."""
        database = self._cluster.database
        assert database is not None
        taken: list[asyncpg.Connection] = []
        try:
            with suppress(asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError):
                while len(taken) < database.connections:
                    taken.append(await asyncpg.connect(database.url, timeout=10))
            self._note(f"{len(taken)} connections taken: none is left")
            await asyncio.sleep(self._chance.uniform(2.0, 4.0))
        finally:
            for each in taken:
                each.terminate()
        self._note("connections given back")

    async def _bouncer(self) -> None:
        pooler = self._cluster.pooler
        assert pooler is not None
        self._note("pgbouncer killed")
        await pooler.kill()
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        await pooler.start()
        self._note("pgbouncer is back")

    async def _failover(self) -> None:
        database = self._cluster.database
        assert isinstance(database, Pair)
        began = time.monotonic()
        self._note(f"the primary goes, the standby is {self._dose.lag_s:g} s behind")
        self.suffered.behind = time.time()
        await database.fail_over(self._dose.lag_s)
        self._note("the standby is the primary")
        self.suffered.outages.append(time.monotonic() - began - self._dose.lag_s)

"""A database with fewer connections than the replicas need, as small managed plans have. Owns: the refusal of the one
replica too many, others that take what is left, and how each request is answered meanwhile. Refuses to know: other
faults."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import asyncpg

from tests.cluster.database import Database
from tests.cluster.judging import Result, spread
from tests.cluster.lines import until_so
from tests.cluster.replicas import Cluster, Replica, Shape

CONNECTIONS = 20
HOLD_S = 3.0
SOON_S = 2.0
SLACK_S = 1.5
"""For a machine that has other things to do."""
ASKED = 10
"""Requests to each replica at a time."""


class Few:
    """Two replicas fit, the third does not."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.result = Result("few connections", 0)
        self.seconds: list[float] = []
        self.answers: dict[str, dict[int, int]] = {}

    async def all(self) -> Result:
        """One replica too many; then others take what is left, and more."""
        database = self.cluster.database
        assert database is not None
        said = await self._refused()
        await self._ask("with two replicas", only_200=True)
        taken = await _taken(database, 12)
        await self._ask("with 8 connections for both", only_200=False)
        for each in taken:
            each.terminate()
        await until_so(self._well, 60.0, "the replicas have their connections again")
        await self._ask("afterwards", only_200=True)
        half, most = spread(self.seconds)
        self.result.rows = {
            "max_connections": CONNECTIONS,
            "the third replica": said,
            **{f"answers {when}": str(counts) for when, counts in self.answers.items()},
            "answered after p50 / max (s)": f"{half} / {most}",
        }
        return self.result

    async def _refused(self) -> str:
        third = self.cluster.replica(2, "--wait-store", "1")
        with suppress(AssertionError):
            await third.start()
            self.result.wrong("end", "r2", "it started although the database has too few connections")
            await third.kill()
        said = next((line for line in third.log.read_text().splitlines() if "needed" in line), "")
        if "7 needed" not in said or "free" not in said:
            self.result.wrong("end", "r2", f"it did not say why: {third.last_lines()}")
        return said[-120:]

    async def _well(self) -> bool:
        for replica in self.cluster.replicas:
            if (await replica.line.post("/v1/responses", {"input": "load-well"}, 20.0)).status != 200:
                return False
        return True

    async def _ask(self, when: str, *, only_200: bool) -> None:
        counts = self.answers.setdefault(when, {})
        asked = [self._one(replica, counts, only_200) for replica in self.cluster.replicas for _ in range(ASKED)]
        await asyncio.gather(*asked)

    async def _one(self, replica: Replica, counts: dict[int, int], only_200: bool) -> None:
        began = time.monotonic()
        answer = await replica.line.post("/v1/responses", {"input": "load-few"}, 60.0)
        took = time.monotonic() - began
        self.seconds.append(took)
        counts[answer.status] = counts.get(answer.status, 0) + 1
        if answer.status not in ((200,) if only_200 else (200, 503)):
            self.result.wrong("end", replica.name, f"answered {answer.status}: {answer.data[:300]!r}")
        if answer.status != 200 and took > HOLD_S + SOON_S + SLACK_S:
            self.result.wrong("stuck", replica.name, f"answered {answer.status} after {took:.1f} s")


async def _taken(database: Database, count: int) -> list[asyncpg.Connection]:
    """Connections of others. Where the replicas have them, they are closed first."""
    taken: list[asyncpg.Connection] = []
    while len(taken) < count:
        try:
            taken.append(await asyncpg.connect(database.url, timeout=10))
        except asyncpg.TooManyConnectionsError:
            ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ninelives%'"
            await taken[0].fetch(f"{ours} LIMIT 3")
    return taken


async def few(folder: Path) -> Result:
    """The whole trial."""
    shape = Shape(replicas=2, own_networks=False, connections=CONNECTIONS, hold_s=HOLD_S)
    async with Cluster(folder, shape) as cluster:
        return await Few(cluster).all()

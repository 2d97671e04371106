"""Who holds what, as far as it can be seen. Owns: the queries over the tables of the store (read only) and over the
health of replicas that the trials need besides what clients see: held runs, refused writes, the order of attempts.
Refuses to know: what is done to whom."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import asyncpg

from ninelives.drill.checks import Finding
from tests.cluster.replicas import Cluster, Replica

Held = Mapping[str, int]
"""run -> attempt."""
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
REFUSALS = ("fenced",)
"""Counters of health.recovery: writes, and claims given back, that came too late."""


class Watch:
    """Looks, and changes nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def held(self, replica: Replica) -> Held:
        """The runs that a replica holds now; nothing while the database is away."""
        if self._cluster.database is None:
            shown = await replica.line.get("/v1/runs?status=running&limit=100")
            return {row["run_id"].removeprefix("run_"): 0 for row in shown.json()["data"]} if shown.whole else {}
        query = (
            "SELECT runs.id, runs.attempt FROM runs JOIN replicas USING (holder) "
            "WHERE replicas.name = $1 AND NOT replicas.dead AND NOT runs.ended"
        )
        try:
            rows = await self._cluster.database.ask(query, replica.name)
        except AWAY:
            return {}
        return {row["id"]: row["attempt"] for row in rows}

    async def refused(self, replica: Replica) -> int:
        """How many writes and claims of this life were refused so far."""
        recovery = (await replica.health()).get("recovery", {})
        return sum(int(recovery.get(name, 0)) for name in REFUSALS)

    async def claimed(self, run: str, attempt: int) -> float | None:
        """When a later attempt than this one took a run over (time.time); None also while the database is away."""
        if self._cluster.database is None:
            return None
        query = "SELECT min(at) AS at FROM run_log WHERE run = $1 AND attempt > $2"
        try:
            (row,) = await self._cluster.database.ask(query, run, attempt)
        except AWAY:
            return None
        return None if row["at"] is None else row["at"] / 1000

    async def attempts(self) -> list[Finding]:
        """P11: in every log, slices follow each other without a gap, and no older attempt writes after a newer one."""
        found: list[Finding] = []
        if self._cluster.database is None:
            return found
        rows = await self._cluster.database.ask(
            "SELECT run, first_seq, last_seq, attempt FROM run_log ORDER BY run, first_seq"
        )
        for before, after in pairwise(rows):
            if before["run"] != after["run"]:
                continue
            if after["first_seq"] != before["last_seq"] + 1:
                text = f"its log goes from {before['last_seq']} to {after['first_seq']}"
                found.append(Finding("numbers", str(after["run"]), text))
            if after["attempt"] < before["attempt"]:
                text = f"attempt {after['attempt']} wrote {after['first_seq']} after attempt {before['attempt']}"
                found.append(Finding("changed", str(after["run"]), text))
        return found

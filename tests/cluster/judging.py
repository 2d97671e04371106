"""What became of the runs of a trial. Owns: gathering the evidence of each over the balancer (so from any replica), the
checks of P1-P5 (ninelives.drill.checks) and P11 over it, and the result of a trial. Refuses to know: what was done to
the cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ninelives.drill.checks import Evidence, Finding, judge
from ninelives.drill.loads import TAG, Unreadable
from ninelives.drill.own import PROBE_TOOLS
from ninelives.drill.rig import text_of
from ninelives.drill.witness import Setup, Witness, run_path
from tests.cluster.clients import Client, gaps
from tests.cluster.lines import Line
from tests.cluster.replicas import Cluster
from tests.cluster.watch import Watch

JUDGES = 6
LOOK_S = 60.0
Read = dict[str, Evidence]
"""By tag."""
Row = int | float | str
SEALED = "recovery_attempts_exceeded"
STRIKES = 5
SEALED_SHARE = 50
"""One run in so many may be hit so often; it takes as many blows in a row, each before its next fact."""


def most_sealed(runs: int, blows: int) -> int:
    """How many runs of a trial may have been given up (P18), after so many blows that end a process or its lease."""
    return 0 if blows < STRIKES else max(1, runs // SEALED_SHARE)


@dataclass
class Result:
    """What one trial has seen."""

    name: str = ""
    seed: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        """How many findings of these kinds."""
        return sum(finding.kind in kinds for finding in self.found)

    def wrong(self, kind: Any, run: str, text: str) -> None:
        """One broken promise."""
        self.found.append(Finding(kind, run, text))

    def table(self) -> str:
        """For a terminal."""
        lines = [
            f"{self.name} (seed {self.seed})",
            *(f"  {name:<34}{value!s:>14}" for name, value in self.rows.items()),
        ]
        lines.append("  no promise was broken" if not self.found else f"  BROKEN: {len(self.found)} violations")
        return "\n".join([*lines, *(f"    {str(one)[:1500]}" for one in self.found[:20])])


def spread(seconds: Sequence[float], unit: float = 1.0) -> tuple[Row, Row]:
    """p50 and max, or dashes."""
    times = sorted(seconds)
    return (round(times[len(times) // 2] * unit, 2), round(times[-1] * unit, 2)) if times else ("-", "-")


class Front:
    """What Witness asks: the cluster as its clients see it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.port = line.port

    async def shown(self, path: str) -> dict[str, Any]:
        """An object that must be there."""
        answer = await self._line.get(path)
        if answer.status != 200 or not answer.whole:
            raise Unreadable(f"GET {path} was answered {answer.status}: {answer.data[:300]!r}")
        body: dict[str, Any] = answer.json()
        return body


class Judge:
    """Reads everything, as often as it is asked to."""

    def __init__(self, cluster: Cluster, chance: random.Random, blows: Callable[[], int] = lambda: 0) -> None:
        """`blows`: how many processes were killed or lost their lease so far."""
        self._cluster = cluster
        self._blows = blows
        setup = replace(
            Setup(traces=cluster.traces),
            counted=frozenset(PROBE_TOOLS),
            repeatable=frozenset(name for name, effect in PROBE_TOOLS.items() if effect != "write"),
        )
        self._witness = Witness(cluster.folder, setup, chance)
        self._asks: dict[str, list[list[dict[str, Any]]]] = {}
        self.sealed: list[str] = []
        """Runs that were hit five times in a row without a new fact in between: given up, as promised (P18), if they
        are few and there were as many blows."""

    async def judge(self, clients: Sequence[Client], result: Result) -> Read:
        """All runs of these clients; what is wrong goes into the result."""
        for client in clients:
            result.found += [*client.found, *gaps(client)]
        self._take_asks()
        self.sealed = []
        slots = asyncio.Semaphore(JUDGES)
        first = [client for client in clients if client.load.id and client.beside is None]
        gathered = await asyncio.gather(*(self._read(client, slots, result) for client in first))
        read = {client.load.tag: one for client, one in zip(first, gathered, strict=True) if one is not None}
        for client in clients:
            if client.beside is not None and client.load.tag in read:
                read[client.load.tag].told += client.load.told
        for one in read.values():
            result.found += judge(one)
        most = most_sealed(len(first), self._blows())
        if len(self.sealed) > most:
            words = f"given up; after {self._blows()} blows to {len(first)} runs at most {most} may be"
            result.wrong("end", " ".join(sorted(self.sealed)), words)
        result.found += await Watch(self._cluster).attempts()
        return read

    def _take_asks(self) -> None:
        for request in self._cluster.news():
            users = [text_of(message) for message in request["messages"] if message["role"] == "user"]
            if users and (found := TAG.search(users[-1])):
                self._asks.setdefault(found[1], []).append(request["messages"])

    async def _read(self, client: Client, slots: asyncio.Semaphore, result: Result) -> Evidence | None:
        """All that can be known of a run; it has ended, and completed, or that is a finding."""
        load, front = client.load, Front(self._cluster.line)
        server: Any = front
        async with slots:
            try:
                async with asyncio.timeout(LOOK_S):
                    shown = await front.shown(run_path(load))
                    if SEALED in str(shown["error"]):
                        self.sealed.append(load.tag)
                    elif shown["status"] != "completed":
                        result.wrong("end", load.tag, f"it is {shown['status']}: {shown['error']}")
                        return None
                    evidence = await self._witness.evidence(server, load, all_places=False)
                    wrong = await self._witness.receipt(server, load, evidence)
            except (Unreadable, TimeoutError) as error:
                result.wrong("lost", load.tag, f"it cannot be read: {error!r}")
                return None
        # A zombie may ask the model once more before it is refused, with what was settled when it froze: the order in
        # which requests came says nothing here.
        evidence.asks = sorted(self._asks.get(load.tag, []), key=len)
        result.found += [Finding("rerun", load.tag, text) for text in wrong]
        if client.told_body is not None and client.told_body["output"] != evidence.body["output"]:
            result.wrong("changed", load.tag, "what its caller was given is not what GET says now")
        return evidence

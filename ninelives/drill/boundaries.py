"""Kills at every write. Owns: the reference scenario, and its repetition with a server that dies before the first write
of its journal, then after it, then before the second, and so on until the scenario completes. Refuses to know: how the
server dies at a write (victim.py) and what is right (checks.py).

Each server serves two trials. It recovers the run of the last one, which is checked. Then it is the victim of the next
one; its count of writes begins with that run's first write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from ninelives.drill.loads import PROBES, Load
from ninelives.drill.rig import Rig

VICTIM = "ninelives.drill.victim"
MOST = 400
"""Stop here. The scripted scenario has fewer writes; a real model may talk on and on."""
DIALECTS = ("responses", "runs", "responses", "chat", "responses")
DYING_S = 2.0
"""How long to wait for a server's exit once its client was cut off."""
RUN_S = 120.0


class Point(NamedTuple):
    """A write, and whether the server dies before or after it."""

    at: int
    when: Literal["before", "after"]

    @property
    def key(self) -> str:
        """The idempotency key of the run that dies there."""
        return f"load-b{self.at}-{self.when}"

    @property
    def module(self) -> tuple[str, ...]:
        """What `python -m` runs for a server that dies there."""
        return (VICTIM, "--key", self.key, "--die-at", str(self.at), "--when", self.when)


def scenario(calls: Sequence[str] = ()) -> str:
    """Directives for reasoning, text, parallel calls of each effect, calls one by one, `calls`, and a final text."""
    write = PROBES.write(0.02)
    at_once = "|".join((PROBES.look, PROBES.keep, write))
    one_by_one = "|".join((write, PROBES.keep, PROBES.look, *calls))
    return f"[[reason=1 pre=1 pace=0.01]] [[parallel={at_once}]] [[tools={one_by_one}]] [[tokens=3]]"


def points(most: int) -> Iterator[Point]:
    """All points up to write `most`, in order."""
    for at in range(1, most + 1):
        yield Point(at, "before")
        yield Point(at, "after")


async def die_everywhere(rig: Rig, text: str, report: Callable[[str], None], most: int = MOST) -> None:
    """Kill at every write of a scenario. Afterwards the rig has a server that is alive."""
    await rig.server.kill()
    rig.module = Point(1, "before").module
    rig.server = await rig.start()
    for n, point in enumerate(points(most)):
        if not await dies(rig, point, text, DIALECTS[n % len(DIALECTS)]):
            break
        rig.tally.kills += 1
        rig.tally.boundaries += 1
        rig.module = (Point(point.at, "after") if point.when == "before" else Point(point.at + 1, "before")).module
        await rig.recover_and_judge()
        report(f"{point.when} write {point.at}")
    else:
        await rig.server.kill()
    rig.module = rig.setup.launch.module
    await rig.recover_and_judge()


async def dies(rig: Rig, point: Point, text: str, dialect: str) -> bool:
    """Start the run. True where the server died at the point; False where the run ended before it. Either way the
    server is gone."""
    text = f"{point.key} {text}" if rig.setup.scripted else text
    load = Load(point.key, dialect, text, seconds=rig.setup.recovery_s)
    rig.loads.append(load)
    client = asyncio.create_task(load.begin(rig.server.port))
    death = asyncio.create_task(rig.server.gone(RUN_S))
    await asyncio.wait((client, death), timeout=RUN_S, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait((death,), timeout=DYING_S)
    died = rig.server.code is not None
    await rig.server.kill()
    await asyncio.gather(client, death, return_exceptions=True)  # a client that timed out is reported by the rig
    return died

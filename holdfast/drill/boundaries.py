"""Death at every write. Owns: the reference scenario and its repetition with a server that dies before, then after, the
first write of its journal, then the second, and so on, until the scenario comes to its end. Refuses to know: how a
write is met (victim.py) and what is right (checks.py).

One server serves two trials: it recovers the run of the last one, which is judged, and is the victim of the next one;
its count begins with that one's first write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from holdfast.drill.loads import PROBES, Load
from holdfast.drill.rig import Rig

VICTIM = "holdfast.drill.victim"
MOST = 400
"""No scenario of ours has more writes; a model that talks on and on has."""
DIALECTS = ("responses", "runs", "responses", "chat", "responses")
DYING_S = 2.0
"""A server whose client was cut off is dying: it is gone within this time."""
RUN_S = 120.0


class Point(NamedTuple):
    """A place to die at."""

    at: int
    when: Literal["before", "after"]

    @property
    def key(self) -> str:
        """The idempotency key of the run that dies there."""
        return f"load-b{self.at}-{self.when}"

    @property
    def module(self) -> tuple[str, ...]:
        """The server that does."""
        return (VICTIM, "--key", self.key, "--die-at", str(self.at), "--when", self.when)


def scenario(calls: Sequence[str] = ()) -> str:
    """Reasoning, text, one call of each effect at once, calls one by one, the user's own ones, and a final text."""
    write = PROBES.write(0.02)
    at_once = "|".join((PROBES.look, PROBES.keep, write))
    one_by_one = "|".join((write, PROBES.keep, PROBES.look, *calls))
    return f"[[reason=1 pre=1 pace=0.01]] [[parallel={at_once}]] [[tools={one_by_one}]] [[tokens=3]]"


def points(most: int) -> Iterator[Point]:
    """In the order of the writes."""
    for at in range(1, most + 1):
        yield Point(at, "before")
        yield Point(at, "after")


async def die_everywhere(rig: Rig, text: str, tell: Callable[[str], None], most: int = MOST) -> None:
    """Kills at every boundary of this scenario; the rig is left with a server that lives."""
    await rig.server.kill()
    rig.module = Point(1, "before").module
    rig.server = await rig.start()
    for n, point in enumerate(points(most)):
        if not await _dies(rig, point, text, DIALECTS[n % len(DIALECTS)]):
            break
        rig.tally.kills += 1
        rig.tally.boundaries += 1
        rig.module = (Point(point.at, "after") if point.when == "before" else Point(point.at + 1, "before")).module
        await rig.settle()
        tell(f"{point.when} write {point.at}")
    else:
        await rig.server.kill()
    rig.module = rig.setup.launch.module
    await rig.settle()


async def _dies(rig: Rig, point: Point, text: str, dialect: str) -> bool:
    """Did the server die of it? Else the run ended first, and the server is ended too."""
    text = f"{point.key} {text}" if rig.setup.scripted else text
    load = Load(point.key, dialect, text, seconds=rig.setup.recovery_s)
    rig.loads.append(load)
    client = asyncio.create_task(load.begin(rig.server.port))
    death = asyncio.create_task(rig.server.gone(RUN_S))
    await asyncio.wait((client, death), timeout=RUN_S, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait((death,), timeout=DYING_S)
    died = rig.server.code is not None
    await rig.server.kill()
    await asyncio.gather(client, death, return_exceptions=True)  # a client that waited in vain is stuck, see settle
    return died

"""Real processes and SIGKILL. `make drill` does the same with 500 kills."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ninelives.drill.checks import judge
from ninelives.drill.loads import Load, terminal
from ninelives.drill.rig import Rig, run_path
from ninelives.drill.wire import all_done, get, until

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.parametrize("kills", [15, pytest.param(40, marks=pytest.mark.long)])
async def test_P1_to_P5_and_P7_hold_over_many_kills_under_load_and_in_recovery(tmp_path: Path, kills: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    async with Rig(tmp_path, seed) as rig:
        tally = await rig.kill(kills, in_flight=4)
    again = f"again: Rig(folder, {seed}).kill({kills})"
    assert not tally.found, "\n".join([again, *(str(finding)[:1500] for finding in tally.found[:10])])
    assert tally.kills == kills and tally.runs > kills and tally.events > 10 * kills, f"{again}: {tally}"


async def test_P18_in_a_storm_of_kills_a_run_that_never_settles_is_sealed_and_the_others_end(tmp_path: Path) -> None:
    tag = "load-poison"
    poison = Load(tag, "responses", f"{tag} [[hang=2]]")
    calls = "|".join(terminal(0.2) for _ in range(3))
    others = [Load(f"load-{n}", "responses", f"load-{n} [[tools={calls}]] [[tokens=20 pace=0.01]]") for n in range(3)]
    async with Rig(tmp_path, 18) as rig:
        clients = [asyncio.create_task(load.begin(rig.server.port)) for load in (poison, *others)]
        for deaths in range(1, 6):
            await until(lambda n=deaths: _asked(rig, tag) >= n, what=f"the model is asked {deaths} times")  # type: ignore[misc]
            await rig.server.kill()
            rig.server = await rig.start()
        await all_done(clients)
        unheard = [load for load in (poison, *others) if not load.id]  # killed before its first byte: it asks again
        await all_done(load.begin(rig.server.port) for load in unheard)
        assert not await rig.ended([poison, *others])
        shown = (await get(rig.server.port, run_path(poison))).json()
        assert shown["status"] == "failed" and "recovery_attempts_exceeded" in shown["error"]
        assert _asked(rig, tag) == 5, "a sealed run asked the model again"
        for load in others:
            evidence = await rig.evidence(load, all_places=True)
            assert evidence.status == "completed" and not judge(evidence)


def _asked(rig: Rig, tag: str) -> int:
    rig.take_asks()
    return len(rig.asks.get(tag, []))

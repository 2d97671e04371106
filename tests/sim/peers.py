"""What befalls processes that share a store. Owns: the faults of such a seed: one of them dies, drains, stands still
for a while (maybe past its lease) and goes on, cannot reach the store, does not hear its answers or hears them late; or
nobody can reach it. Refuses to know: what is right."""

from __future__ import annotations

import asyncio

from tests.sim.dice import Fault
from tests.sim.world import Life, World


async def faults(world: World) -> None:
    """All faults of the plan. Freezes and outages overlap with what comes next; all are over in the end."""
    started, going_on = world.loop.now, list[asyncio.Task[None]]()
    for fault in world.plan.faults:
        await asyncio.sleep(max(0.0, started + fault.at_s - world.loop.now))
        life = world.life
        if life is not None:
            world.watch.counts[fault.kind] += 1
            world.watch.note(f"fault {fault} for life {life.n}")
            going_on.append(asyncio.create_task(_strike(world, life, fault)))
    if going_on:
        await asyncio.wait(going_on)
    if world.plan.clock_jump_ms:
        world.jumped_ms += world.plan.clock_jump_ms
        world.watch.counts["clock_jumps"] += 1


async def _strike(world: World, life: Life, fault: Fault) -> None:
    until = world.loop.now + fault.seconds
    lease_s = world.plan.limits.lease_s
    match fault.kind:
        case "crash":
            life.crash("at once")
        case "crash_at_step":
            life.door.crash_at, life.door.crash_when = life.door.steps + fault.step, fault.when
            await asyncio.wait([asyncio.ensure_future(life.over.wait())], timeout=10.0)
            life.crash("because nothing happened any more")
        case "drain":
            await life.leave(fault.seconds)
        case "freeze":
            life.frozen = True
            world.watch.calm_since = max(world.watch.calm_since, until + lease_s)
            await asyncio.sleep(fault.seconds)
            world.watch.note(f"life {life.n} goes on")
            world.thaw(life)
            return
        case "outage":
            world.down_until = max(world.down_until, until)
        case "cut_off":
            life.door.down_until = max(life.door.down_until, until)
        case "deaf":
            life.door.deaf_until = max(life.door.deaf_until, until)
        case "hung":
            life.door.hung_until = max(life.door.hung_until, until)
    world.watch.calm_since = max(world.watch.calm_since, until + lease_s)
    await asyncio.sleep(max(0.0, until - world.loop.now))
    await all_up(world)


async def all_up(world: World) -> bool:
    """Whoever died is started again; was there anybody?"""
    before = len(world.lives)
    while sum(not life.dead for life in world.lives) < world.plan.replicas:
        await asyncio.sleep(world.chance.choice((0.0, 0.1, 1.0)))
        if sum(not life.dead for life in world.lives) < world.plan.replicas:
            await world.begin()
    return len(world.lives) > before

"""One seed, from its plan to its verdict. Owns: the order of events: a server starts, clients call, faults strike, then
all is calm and everything must come to its end within bounded virtual time. Refuses to know: what is checked."""

from __future__ import annotations

import asyncio
import random
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ninelives.agents import loop as agent_loop
from tests.sim import peers
from tests.sim.checks import FORGET_S, check_end, check_forgotten, stop_forgetting
from tests.sim.clients import Client, answers, cancels, cancels_now, deletes, steers
from tests.sim.dice import Fault, Plan, plan_of
from tests.sim.loop import SimLoop, Stuck
from tests.sim.watch import Finding, Track
from tests.sim.world import Life, World

BOUND_S = 240.0
"""Within this virtual time after the last fault every run must have come to its end."""


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


Plant = Callable[[World], None]
Person = tuple[asyncio.Task[None], Client]


def play(seed: int, *, trace: bool = False, plan: Plan | None = None, plant: Plant | None = None) -> Result:
    """Play one seed. `plant` may change the world before it begins: that is how the checkers are tested."""
    began = time.process_time()
    plan = plan or plan_of(seed)
    loop = SimLoop(random.Random(f"loop {seed}"), plan.shuffle)
    result = Result(seed)
    with _agent_clock(loop):
        try:
            world = _in(loop, _world(plan, loop, plant))
            if trace:
                world.watch.trace = result.trace
            loop.set_exception_handler(lambda _, context: _unhandled(world, context))
            try:
                _in(loop, _story(world))
            except Stuck as stuck:
                world.watch.wrong("stuck", "", str(stuck))
            result.findings, result.counts = world.watch.findings, world.watch.counts
            result.counts["steps"] = loop.steps
        finally:
            _bury(loop)
    result.cpu_s = time.process_time() - began
    return result


def _in(loop: SimLoop, work: Any) -> Any:
    return loop.run_until_complete(work)


@contextmanager
def _agent_clock(loop: SimLoop) -> Iterator[None]:
    """The built-in agent measures how long a tool took: here that is virtual too, or replays would differ."""
    real = agent_loop.time
    agent_loop.time = types.SimpleNamespace(monotonic=loop.time)  # type: ignore[assignment]
    try:
        yield
    finally:
        agent_loop.time = real


def _unhandled(world: World, context: dict[str, Any]) -> None:
    error = context.get("exception")
    world.watch.wrong("logged", "", f"unhandled: {context.get('message')} {error!r}")


def _bury(loop: SimLoop) -> None:
    """No task of this seed may speak up in the next one."""
    loop.set_exception_handler(lambda _, context: None)
    try:
        for _ in range(3):
            left = [task for task in loop.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=5.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except Stuck:
        return
    finally:
        loop.close()


async def _world(plan: Plan, loop: SimLoop, plant: Plant | None) -> World:
    world = World(plan, loop)
    if plant is not None:
        plant(world)
    return world


async def _story(world: World) -> None:
    plan, watch = world.plan, world.watch
    meddlers: list[asyncio.Task[None]] = []
    watch.asked = lambda track, question: meddlers.append(asyncio.create_task(answers(world, track, question)))
    if plan.eager:
        watch.accepted = lambda track: meddlers.append(asyncio.create_task(cancels_now(world, track.run)))
    for _ in range(plan.replicas):
        await world.begin()
    people = _people(world)
    await (_faults(world) if plan.replicas == 1 else peers.faults(world))
    watch.note("calm")
    await _calm(world, people, meddlers)
    await _calm(world, [], meddlers)  # a request that was under way when its caller was sent home
    if plan.restart_at_end:
        await _restart_at_end(world)
        await _calm(world, [], meddlers)
    calm = not plan.faults and not plan.clock_jump_ms
    if calm and any(calling.kept != "stored" for calling in plan.callings):
        await asyncio.sleep(FORGET_S + 5.0)
        check_forgotten(world)
    stop_forgetting(world)
    await _calm(world, [], meddlers)
    await check_end(world)
    for life in list(world.lives):
        if not life.dead:
            life._end()
    for life in world.lives:
        await life.buried()
    for task in meddlers:
        task.cancel()


def _people(world: World) -> list[Person]:
    """All who call, cancel and delete."""
    people: list[Person] = []
    for calling in world.plan.callings:
        world.model.books[calling.name] = calling.book
        twins = [Client(world, calling) for _ in range(1 + calling.twins)]
        people += [(asyncio.create_task(twin.live()), twin) for twin in twins]
        if calling.cancel_s:
            people.append((asyncio.create_task(cancels(world, twins[0], calling.cancel_s)), twins[0]))
        if calling.steers_s:
            people.append((asyncio.create_task(steers(world, twins[0], calling.steers_s)), twins[0]))
        if calling.delete_s:
            people.append((asyncio.create_task(deletes(world, twins[0], calling.delete_s)), twins[0]))
    return people


async def _restart_at_end(world: World) -> None:
    life = world.life
    if life is not None:
        life.crash("at the end")
        await (_restart(world) if world.plan.replicas == 1 else peers.all_up(world))


async def _faults(world: World) -> None:
    started = world.loop.now
    for fault in world.plan.faults:
        await asyncio.sleep(max(0.0, started + fault.at_s - world.loop.now))
        if world.life is None:  # a tool has killed it
            await _restart(world)
        await _strike(world, fault)
    if world.plan.clock_jump_ms:
        world.jumped_ms += world.plan.clock_jump_ms
        world.watch.counts["clock_jumps"] += 1


async def _strike(world: World, fault: Fault) -> None:
    life = world.life
    if life is None:
        return
    world.watch.counts[fault.kind] += 1
    world.watch.note(f"fault {fault}")
    match fault.kind:
        case "crash":
            life.crash("at once")
        case "crash_at_step":
            life.door.crash_at, life.door.crash_when = life.door.steps + fault.step, fault.when
            await _until(life, 10.0)
            life.crash("because nothing happened any more")
        case "drain":
            leaving = asyncio.create_task(life.leave(fault.seconds))
            await asyncio.wait([leaving])
        case "zombie":
            await _zombie(world, life, fault.seconds)
            return
        case "full":
            life.door.full_until = world.watch.calm_since = world.loop.now + fault.seconds
            return
        case "broken":
            life.door.broken = True
            await asyncio.sleep(fault.seconds)
            life.crash("broken: only a restart helps")
    await _restart(world)


async def _until(life: Life, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await life.over.wait()
    except TimeoutError:
        return


async def _zombie(world: World, old: Life, seconds: float) -> None:
    """The process stood still for longer than its leases; another has taken over; then it goes on, and dies later."""
    await world.begin()
    await asyncio.sleep(seconds)
    old.crash("as a zombie")
    await asyncio.sleep(0.1)
    if world.life is not None:  # what the zombie claimed in the meantime is found by the next start
        world.life.crash("after the zombie")
    await _restart(world)


async def _restart(world: World) -> None:
    await asyncio.sleep(world.chance.choice((0.0, 0.1, 1.0)))
    for life in world.lives:
        if life.dead:
            await life.buried()
    if world.life is None:
        await world.begin()


async def _calm(world: World, people: list[Person], meddlers: list[asyncio.Task[None]]) -> None:
    """No more faults: everything must end by itself."""
    deadline, quiet = world.loop.now + BOUND_S, 0
    await asyncio.sleep(0.5)
    while world.loop.now < deadline:
        if world.plan.replicas > 1:
            if await peers.all_up(world):
                deadline = max(deadline, world.loop.now + BOUND_S)
        elif world.life is None:
            await _restart(world)
            deadline = max(deadline, world.loop.now + BOUND_S)
        early = world.loop.now < world.watch.calm_since + 2.0  # a store that was full a moment ago is asked again soon
        busy = early or any(not task.done() for task in meddlers) or any(_waits(world, person) for person in people)
        quiet = 0 if busy or _unsettled(world) else quiet + 1
        if quiet > 4:
            break
        await asyncio.sleep(0.25)
    for track in _unsettled(world):
        world.watch.wrong("stuck", track.run, f"{track.state.phase.name} after {BOUND_S:g} s of calm")
    for task, client in people:
        if _waits(world, (task, client)):
            world.watch.wrong("client", client.run, f"{client.calling.name} is not answered: {task.get_coro()}")
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            world.watch.wrong("client", client.run, f"{client.calling.name} was answered with {error!r}")
        task.cancel()


def _waits(world: World, person: Person) -> bool:
    """Does somebody wait who need not? Who asks about a run that waits for a person, waits with it."""
    task, client = person
    track = world.watch.tracks.get(client.run)
    return not task.done() and not (track is not None and world.watch.stands(track, world.steady_ms()))


def _unsettled(world: World) -> list[Track]:
    now_ms = world.steady_ms()
    return [t for t in world.watch.tracks.values() if t.open and not world.watch.stands(t, now_ms)]

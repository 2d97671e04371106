"""One run through crashes, a drain or a cancel, and everything that is checked afterwards. Owns: the playbooks of the
recorded runs and the order of a trial. Refuses to know: which crashes are worth trying."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ninelives.core.events import Usage
from ninelives.core.state import RunState
from ninelives.drill.checks import Evidence, Finding, Told, frames_of, judge, next_turn, position
from ninelives.models.base import CallPiece, Finished, Text, Thinking
from ninelives.testing.playbook import Step, asked, said
from tests.crash.world import DEADLINE_S, OWNER, READ_AS, Crash, Life, World, asks_of, order

ONE = Usage(1, 1)
TEXT: list[list[Step]] = [said("Hel", "lo ", "world")]
THREE: list[list[Step]] = [
    asked(("note", '{"n":1}'), text="First. "),
    asked(("note", '{"n":2}'), text="Second. "),
    asked(("note", '{"n":3}'), text="Third. "),
    said("All ", "done."),
]
PARALLEL: list[list[Step]] = [
    asked(("look", '{"n":1}'), ("keep", '{"n":2}'), ("note", '{"n":3}'), ("look", '{"n":4}'), text="At once. "),
    said("Done."),
]
REASONING: list[list[Step]] = [
    [Thinking("Hm, "), Thinking("so. "), Text("I "), Text("act. "), CallPiece(0, "note", "{}"), Finished("stop", ONE)],
    [Thinking("Well, "), Text("done."), Finished("stop", ONE)],
]
BOOKS = {"text": TEXT, "three": THREE, "parallel": PARALLEL, "reasoning": REASONING}
JOINS = {"conversation": "talk", "session": "memory"}
Heard = list[tuple[str, Told]]


async def trial(world: World, crashes: Sequence[Crash], stride: int = 1) -> list[Finding] | None:
    """What is wrong after these crashes, one per life, and a last life without; None when the run ended before one."""
    told: Heard = []
    run: str | None = None
    for crash in crashes:
        life = await world.begin(crash)
        run, over = await _live(life, run, told)
        told += await life.end()
        if over:
            return None
    life = await world.begin()
    try:
        return await _recovered(world, life, run, told, stride)
    finally:
        await life.end()


async def _live(life: Life, run: str | None, told: Heard) -> tuple[str | None, bool]:
    """One life: the run, if its caller learned of it, and whether it outlived the plan."""
    mine = await life.submit(order(key="the key", **JOINS))
    if mine is None:
        return run, False
    assert run in (None, mine), "one idempotency key gave two runs (P7)"
    for dialect in READ_AS:
        life.watch(mine, dialect)
        if dialect != "chat" and (last := _last_seen(told, dialect)) is not None:
            life.watch(mine, dialect, last)
    return mine, await life.wait(mine) is not None


def _last_seen(told: Heard, dialect: str) -> int | None:
    frames = [frame for _, seen in told if seen.dialect == dialect for frame in frames_of(seen.data)]
    return max((place for frame in frames if (place := position(dialect, frame)) is not None), default=None)


async def _recovered(world: World, life: Life, run: str | None, told: Heard, stride: int) -> list[Finding]:
    left = await life.rows()
    assert run is None or left == [run], f"the run {run} was told, stored are {left}"
    for name in left:  # nobody asks for it: it must end by itself (P4)
        assert await life.wait(name) == "completed", f"{name} did not complete: {world.log.errors}"
    mine = await life.submit(order(key="the key", **JOINS))
    assert mine is not None and (not left or left == [mine]), f"the key gave {mine}, stored was {left}"
    assert await life.wait(mine) == "completed", f"{mine} did not complete: {world.log.errors}"
    evidence = await _evidence(world, life, mine, told, stride)
    wrong = judge(evidence)
    for how, joins in {"previous": {"previous": mine}, **{k: {k: v} for k, v in JOINS.items()}}.items():
        after = await life.submit(order(f"next by {how}", **joins))
        assert after is not None and await life.wait(after) == "completed"
        wrong += next_turn(evidence, list(asks_of(world, f"next by {how}")[0].messages))
    return wrong


async def _evidence(world: World, life: Life, run: str, told: Heard, stride: int = 7) -> Evidence:
    seen = [tell for name, tell in told if name == run]
    return await life.evidence(run, asks_of(world, "go"), seen, stride)


async def drained(world: World, at: int, seconds: float) -> tuple[Evidence, RunState] | None:
    """A run that is parked by a shutdown at the `at`th step and goes on in the next life; None when it ended first."""
    life = await world.begin(mark=at)
    run = await life.submit(order())
    assert run is not None
    for dialect in READ_AS:
        life.watch(run, dialect)
    over = await _first(life.wait(run), life.store.reached.wait())
    if not over:
        async with asyncio.timeout(DEADLINE_S):
            await life.engine.drain(seconds)
    told = await life.end()
    if over:
        return None
    life = await world.begin()
    try:
        assert await life.wait(run) == "completed", f"{run} did not complete: {world.log.errors}"
        state = await life.engine.look(OWNER, run)
        assert state is not None
        return await _evidence(world, life, run, told), state
    finally:
        await life.end()


async def cancelled(world: World, at: int, crash: Crash) -> tuple[Evidence, bool] | None:
    """A run whose stop is asked for at the `at`th step of a life that dies at `crash`, and whether that wish was
    durable; None when the life outlived the crash."""
    life = await world.begin(crash, mark=at)
    run = await life.submit(order())
    assert run is not None
    for dialect in READ_AS:
        life.watch(run, dialect)
    await _first(life.wait(run), life.store.reached.wait())
    answer = await life.unless_dead(life.engine.cancel(OWNER, run))
    if answer is not None:
        await life.end()
        return None
    wished = bool(await life.store.inner.signals(run))
    told = await life.end()
    life = await world.begin()
    try:
        assert await life.wait(run) in ("completed", "cancelled"), world.log.errors
        return await _evidence(world, life, run, told), wished
    finally:
        await life.end()


async def _first(one: object, other: object) -> bool:
    """Which comes first? True: the one."""
    tasks = [asyncio.ensure_future(work) for work in (one, other)]  # type: ignore[call-overload]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return bool(tasks[0].done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

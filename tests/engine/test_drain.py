"""A run that is told to let go between two steps begins no message any more (A9): its first words would be cut off, and
said again by whoever takes the run next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ninelives.core.events import AnyEvent, MessageCompleted, RunCompleted, TextDelta
from ninelives.engine.claim import ClaimEvent
from ninelives.engine.limits import Accounts, LimitGuard
from ninelives.engine.workers import OPENED, Worker
from ninelives.journal.earlier import Earlier
from tests.engine.test_flush import desk, turns


def guard(at: Any) -> LimitGuard:
    """Nobody has limits."""
    return LimitGuard(at.parts, Accounts(at.parts), list)


class Speaks:
    """An agent whose first word comes when it is told to."""

    resumable = True

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def run(self, turn: Any) -> AsyncIterator[AnyEvent]:
        await self.go.wait()
        yield TextDelta("first")
        await asyncio.sleep(3600)


async def test_A9_a_first_word_that_comes_together_with_the_order_to_let_go_is_not_said() -> None:
    async with desk(0.0) as at:
        live, agent = await at.live("a"), Speaks()
        worker = Worker(live, agent, at.writer, Earlier(at.store), at.parts, guard(at))  # type: ignore[arg-type]
        driving = asyncio.create_task(worker.drive(OPENED))
        await turns()
        agent.go.set()
        worker.drain()
        await driving
        assert not live.committed.drafting and not live.staging.state.drafting
        records = await at.store.read("o", "a", -1)
        assert len(records) == 2, "accepted and begun, nothing more"


class Ends:
    """An agent that settles its last message where it may."""

    resumable = True

    async def run(self, turn: Any) -> AsyncIterator[AnyEvent]:
        turn.deltas.put(TextDelta("all"))
        if turn.deltas.has_room():
            turn.deltas.put_last(MessageCompleted("all"))
        else:
            yield MessageCompleted("all")
        yield RunCompleted()


async def test_a_last_message_and_the_end_of_its_run_are_one_commit() -> None:
    async with desk(0.0) as at:
        live = await at.live("a")
        worker = Worker(live, Ends(), at.writer, Earlier(at.store), at.parts, guard(at))  # type: ignore[arg-type]
        await worker.drive(OPENED)
        assert live.committed.ended
        assert at.store.appends == [1]
        assert len(await at.store.read("o", "a", -1)) == 5


async def test_A9_a_run_that_is_to_be_parked_is_not_ended_in_one_go() -> None:
    async with desk(0.0) as at:
        live = await at.live("a")
        worker = Worker(live, Ends(), at.writer, Earlier(at.store), at.parts, guard(at))  # type: ignore[arg-type]
        live.advance(ClaimEvent.DRAIN)
        await worker.drive(OPENED)
        assert not live.committed.ended
        assert len(await at.store.read("o", "a", -1)) == 4, "parked behind its message"

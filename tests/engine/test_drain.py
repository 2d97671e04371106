"""A run that is told to let go between two steps begins no message any more (A9): its first words would be cut off, and
said again by whoever takes the run next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from holdfast.core.events import AnyEvent, TextDelta
from holdfast.engine.earlier import Earlier
from holdfast.engine.worker import Worker
from tests.engine.test_flush import Silent, desk, turns


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
        worker = Worker(live, agent, at.writer, Earlier(at.store), at.limits, Silent())  # type: ignore[arg-type]
        driving = asyncio.create_task(worker.drive())
        await turns()
        agent.go.set()
        worker.drain()
        await driving
        assert not live.committed.drafting and not live.staged.drafting
        records = await at.store.read("o", "a", -1)
        assert len(records) == 2, "accepted and begun, nothing more"

"""An engine that fails as a whole is not taken for one that works."""

from __future__ import annotations

import asyncio

from tests.engine.peers import House


async def test_a_part_that_fails_ends_the_engine_and_whoever_serves_is_told() -> None:
    house = House()
    await house.begin()
    try:
        engine = await house.engine()
        told = asyncio.Event()
        engine.fallen = told.set

        async def failing() -> None:
            raise RuntimeError("a bug")

        assert engine._tasks is not None
        engine._tasks.create_task(failing())
        await asyncio.wait_for(told.wait(), 10)
        assert engine.failed
    finally:
        await house.close()

"""An engine that fails as a whole is not taken for one that works."""

from __future__ import annotations

import asyncio

from tests.engine.peers import House


async def test_a_part_that_fails_ends_the_engine_and_whoever_serves_is_told() -> None:
    house = House()
    await house.begin()
    try:
        engine = await house.engine()

        async def failing() -> None:
            raise RuntimeError("a bug")

        assert engine._tasks._group is not None
        engine._tasks._group.create_task(failing())
        await asyncio.wait_for(engine.ended.wait(), 10)
        assert engine.failed
    finally:
        await house.close()

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

        engine._writers[True]._return = failing  # type: ignore[method-assign]
        engine._writers[True].give_back("run", 1, None)
        await asyncio.wait_for(engine.ended.wait(), 60)
        assert engine.failed
    finally:
        await house.close()

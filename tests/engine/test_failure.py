"""An engine that fails as a whole is not taken for one that works. A shortage of the machine is no failure of a run."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ninelives.engine import workers
from ninelives.testing.playbook import said
from tests.engine.peers import OWNER, AloneHouse, House, order, until


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


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN], ids=errno.errorcode.get)
async def test_a_shortage_parks_a_stored_run_again_and_again_without_a_strike(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than a run may die."""
    monkeypatch.setattr(workers, "SHORT_S", 0.01)
    house = AloneHouse()
    house.books["go"] = [[OSError(number, "short")]]
    try:
        engine = await house.engine(strikes=3)
        ticket = await engine.submit(order("go"))
        await until(lambda: len(house.asked) > 6, "it was tried again and again")
        house.books["go"] = [said("done")]
        state = await engine.wait(OWNER, ticket.run)
        assert state is not None and (state.status, state.facts.strikes) == ("completed", 0)
    finally:
        await house.close()

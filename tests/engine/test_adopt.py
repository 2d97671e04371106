"""A run that its connection owned becomes a stored one when a person must be asked (G11): a wish to stop that was left
with the old home while it moved comes along."""

from __future__ import annotations

from typing import Any

from holdfast.journal.base import Signal
from holdfast.models.scripted import asked, said
from tests.engine.peers import OWNER, House, order


async def test_G11_a_stop_said_while_a_run_becomes_a_stored_one_is_heard() -> None:
    house = House()
    engine = await house.engine()
    house.books["hi"] = [asked(("note", '{"n": 1, "ask": true}')), said("done")]
    valve, memory = house.valves[0], engine._parts.memory
    through = valve.through

    async def late(work: Any, *args: Any, **named: Any) -> Any:
        answer = await through(work, *args, **named)
        if work.__name__ == "open":
            assert await memory.signal(OWNER, Signal(args[0].run, "cancel", "cancel"))
        return answer

    valve.through = late  # type: ignore[method-assign]
    ticket = await engine.submit(order("hi", store=False))
    state = await engine.wait(OWNER, ticket.run)
    await house.close()
    assert state is not None and state.status == "cancelled"
    assert not house.deeds

"""A process that stood still (SIGSTOP, a machine that slept) past its lease begins no deed with what it was promised
before (P11, R8): neither on the store's answer, which waited for it, nor after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ninelives.core import codec
from ninelives.core.events import ToolStarted
from ninelives.engine.engine import Engine
from ninelives.testing.playbook import asked, said
from tests.engine.peers import LEASE_S, OWNER, House, order, until


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    await built.begin()
    yield built
    await built.close()


def stands_still(house: House, engine: Engine, when: str) -> None:
    """The clock of this process goes on by more than a lease: while the start of a tool is on its way to the store and
    back (`answer`), or when it is known and the tool has not begun (`deed`)."""
    lease, valve = engine.lease, house.valves[house.engines.index(engine)]
    now, check, through = lease._clock, lease.check, valve.through
    passed = {"s": 0.0, "next": 0.0}

    async def slow(work: Any, *args: Any, **named: Any) -> Any:
        answer = await through(work, *args, **named)
        if work.__name__ == "append" and any(_starts(part) for part in args[0]):
            passed["s" if when == "answer" else "next"] = 2 * LEASE_S
        return answer

    def checked() -> None:
        check()
        passed["s"] += passed.pop("next", 0.0)

    lease._clock = lambda: now() + int(1000 * passed["s"])
    valve.through = slow  # type: ignore[method-assign]
    lease.check = checked  # type: ignore[method-assign]


def _starts(part: Any) -> bool:
    return any(isinstance(codec.decode(record.data), ToolStarted) for record in part.records)


@pytest.mark.parametrize("when", ["answer", "deed"])
async def test_P11_a_process_that_stood_still_past_its_lease_begins_no_deed(house: House, when: str) -> None:
    engine = await house.engine()
    house.books["hi"] = [asked(("note", '{"n": 1}')), said("done")]
    stands_still(house, engine, when)
    ticket = await engine.submit(order("hi"))
    await until(lambda: "lease_lapsed" in [name for name, _ in house.logs[0].lines], "the end of the lease")
    assert (await engine.wait(OWNER, ticket.run)).status == "completed"  # type: ignore[union-attr]
    assert not house.deeds, "a write was carried out that others were told is unknown"

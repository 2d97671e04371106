"""The opening of a run whose admission depends on nothing in the store is written like its events: with those of other
runs. Nothing begins before it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ninelives.core.errors import ServerError
from ninelives.journal.values import Query
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, Ear, order, until

SENT: dict[str, Any] = {"credential": "k1", "match": "m1", "resend_ms": 60_000}


@pytest.fixture
async def house() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    built.books |= {"tell": [said("done")], "note": [asked(("note", '{"n": 1}')), said("done")]}
    yield built
    await built.close()


def held_writes(house: AloneHouse) -> asyncio.Event:
    """Nothing is appended before the event is set."""
    valve, event = house.valves[0], asyncio.Event()
    through = valve.through

    async def hold(work: Any, *args: Any, **named: Any) -> Any:
        if work.__name__ == "append":
            await event.wait()
        return await through(work, *args, **named)

    valve.through = hold  # type: ignore[method-assign]
    return event


async def stored(house: AloneHouse) -> list[str]:
    """The runs in the store."""
    return [row.run for row in await house.valves[0]._store.rows(Query(owner=OWNER))]


async def test_openings_share_a_write_and_no_agent_is_asked_before_it(house: AloneHouse) -> None:
    engine = await house.engine()
    valve, writes = house.valves[0], held_writes(house)
    submitted = [asyncio.create_task(engine.submit(order("tell"))) for _ in range(5)]
    await until(lambda: engine.stats()["active"] == 5, "all have a slot")
    for _ in range(100):
        await asyncio.sleep(0)
    assert not house.asked and await stored(house) == []
    writes.set()
    tickets = await asyncio.gather(*submitted)
    assert b"done" in await Ear(engine, tickets[0].run).whole()
    assert valve.calls["open"] == 0
    assert sorted(await stored(house)) == sorted(ticket.run for ticket in tickets)


async def test_an_opening_that_the_store_does_not_take_is_refused_and_the_run_never_was(house: AloneHouse) -> None:
    engine = await house.engine()
    valve = house.valves[0]
    valve.refused = {"append"}
    with pytest.raises(ServerError) as refused:
        await engine.submit(order("note"))
    assert refused.value.status == 503
    valve.refused = set()
    await until(lambda: engine.stats()["active"] == 0, "its slot is free")
    assert not house.deeds
    assert await stored(house) == []


async def test_a_caller_that_leaves_before_its_run_is_stored_is_found_again_by_the_same_request(
    house: AloneHouse,
) -> None:
    engine = await house.engine()
    valve, writes = house.valves[0], held_writes(house)
    first = asyncio.create_task(engine.submit(order("tell", kept="hours", **SENT)))
    await until(lambda: engine.stats()["active"], "it has a slot")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    writes.set()
    await until(lambda: valve.calls["lost"], "the loss is noted")
    again = await engine.submit(order("tell", kept="hours", **SENT))
    assert again.waited
    assert await stored(house) == [again.run]

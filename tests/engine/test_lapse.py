"""A lease that is over means that nothing is begun (P11), and that what the store gave meanwhile is given back: a run
is never held by a process that does not drive it (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ninelives.engine.base import EngineLimits, EngineParts
from ninelives.engine.engine import Engine
from ninelives.engine.lease import Lease
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from tests.engine.peers import LEASE_S, OWNER, House, Quiet, Valve, order, until


async def ended(engine: Engine, run: str) -> str:
    state = await asyncio.wait_for(engine.wait(OWNER, run), 60)
    assert state is not None
    return state.status


async def lapses(house: House, n: int, *, back: bool) -> None:
    """No beat comes through for a lease, and, `back`, then one does."""
    lease = house.engines[n].lease
    house.valves[n].refused.add("beat")
    await until(lambda: lease.over, "the end of the lease")
    if back:
        house.valves[n].refused.clear()
        await until(lambda: not lease.over, "the next lease")


async def given_back(house: House, n: int, run: str) -> None:
    """Nobody holds it, nothing was begun; with the next beat it may be claimed again."""

    async def free() -> bool:
        return (await house.rows())[run][0] is None

    if house.engines[n].lease.over:
        await until(free, "the giving back")
        assert not house.deeds
    house.valves[n].refused.clear()


@pytest.mark.parametrize("back", [False, True])
async def test_P11_a_claim_that_is_answered_after_the_lease_is_given_back_and_not_driven(
    house: House, back: bool
) -> None:
    door, engine = await house.engine(works=False), await house.engine()
    house.valves[1].late["claim"] = asyncio.Event()
    ticket = await door.submit(order("hi"))
    await until(lambda: house.valves[1].calls["claim"], "the claim")
    await lapses(house, 1, back=back)
    house.valves[1].late["claim"].set()
    await given_back(house, 1, ticket.run)
    assert await ended(engine, ticket.run) == "completed"
    assert list(house.deeds.values()) == [1] and (await house.rows())[ticket.run][1] == 2


@pytest.mark.parametrize("back", [False, True])
async def test_P11_an_opening_that_is_answered_after_the_lease_is_given_back_and_not_driven(
    house: House, back: bool
) -> None:
    engine = await house.engine()
    house.valves[0].late["open"] = asyncio.Event()
    submitting = asyncio.create_task(engine.submit(order("hi")))
    await until(lambda: house.valves[0].calls["open"], "the opening")
    await lapses(house, 0, back=back)
    house.valves[0].late["open"].set()
    ticket = await submitting
    await given_back(house, 0, ticket.run)
    assert await ended(engine, ticket.run) == "completed"
    assert list(house.deeds.values()) == [1] and (await house.rows())[ticket.run][1] == 2


async def test_P11_a_process_without_a_lease_claims_nothing_that_it_looked_at_before(house: House) -> None:
    door, engine = await house.engine(works=False), await house.engine()
    house.valves[1].late["read"] = asyncio.Event()
    ticket = await door.submit(order("hi"))
    await until(lambda: house.valves[1].calls["read"], "the look")
    await lapses(house, 1, back=False)
    house.valves[1].late["read"].set()
    await until(lambda: not engine.stats()["active"], "letting go")
    assert (await house.rows())[ticket.run] == (None, 0)
    house.valves[1].refused.clear()
    assert await ended(engine, ticket.run) == "completed"


class Told:
    """What a lease tells."""

    def __init__(self, lapsed: Callable[[], None]) -> None:
        self.lease_lapsed = lapsed

    async def beaten(self) -> None: ...

    def store_broke(self) -> None: ...


def lease_by(now: list[float], ends: list[float], lease_s: float = LEASE_S) -> tuple[Lease, Valve]:
    """A lease by the clock `now`, which notes when it ends; and the way to its store."""
    valve = Valve(House().store.seat("p", LocalNotifier()))
    given: Any = (valve, MemoryStore(lambda: 0.0), LocalNotifier(), None, EngineLimits(lease_s=lease_s), Quiet())
    return Lease(EngineParts(*given, lambda: int(1000 * now[0]), str), "p", Told(lambda: ends.append(now[0]))), valve


async def test_P11_the_beat_after_the_end_of_a_lease_does_not_wait_for_its_time() -> None:
    """Nothing is taken in until a beat comes through. With a lease of an hour the next one would be 5 seconds away."""
    now, ends, hour = [0.0], list[float](), 3600.0
    lease, valve = lease_by(now, ends, hour)
    beating = asyncio.create_task(lease.beat())
    await until(lambda: lease.age_s() is not None, "the first beat")
    now[0] = 1.1 * hour
    async with asyncio.timeout(2.0):
        lease.check()
        assert lease.over and ends == [now[0]]
        await until(lambda: valve.calls["beat"] == 2 and not lease.over, "the next beat")
    assert (lease.age_s(), lease.trouble) == (0.0, None)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def test_P11_a_beat_that_arrived_after_the_lease_before_it_does_not_hide_its_end() -> None:
    """The process stood still while its beat was on its way: nobody looked at the clock in between."""
    now, ends = [0.0], list[float]()
    lease, valve = lease_by(now, ends)
    beating = asyncio.create_task(lease.beat())
    await until(lambda: lease.age_s() is not None, "the first beat")
    now[0], valve.late["beat"] = 0.5 * LEASE_S, asyncio.Event()
    held = lease.span
    await until(lambda: valve.calls["beat"] == 2, "the second")
    assert held.held()
    now[0] = 1.2 * LEASE_S
    valve.late["beat"].set()
    await until(lambda: ends, "the end of the lease")
    assert not lease.over and not held.held() and lease.span.held()
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


@pytest.mark.parametrize("turns", range(5))
async def test_a_beat_that_is_cancelled_when_the_lease_lapses_ends(turns: int) -> None:
    """Else the engine would wait for it for ever at its stop. asyncio.wait_for of Python 3.11 loses such a
    cancellation."""
    now, ends = [0.0], list[float]()
    lease, _ = lease_by(now, ends)
    beating = asyncio.create_task(lease.beat())
    await until(lambda: lease.age_s() is not None, "the first beat")
    await asyncio.sleep(0.01)
    now[0] = 1.2 * LEASE_S
    lease.check()
    for _ in range(turns):
        await asyncio.sleep(0)
    beating.cancel()
    done, _ = await asyncio.wait([beating], timeout=2.0)
    beating.cancel()
    assert ends and done

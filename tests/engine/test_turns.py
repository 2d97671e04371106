"""Limits and turns of owners, in engines that share a store and in one that has its own (A8, C10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.limits import Limits, Window
from ninelives.engine.base import Limited, Order
from ninelives.testing.playbook import asked, said
from tests.engine.peers import AloneHouse, House, PostgresHouse, order, until

HOLDS = [asked(("note", '{"n": 1}')), said("done")]


@pytest.fixture(params=[AloneHouse, House, PostgresHouse])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    built: House = request.param()
    await built.begin()
    yield built
    await built.close()


def of(owner: str, text: str, **more: Any) -> Order:
    """A request of somebody."""
    made = order(text, **more)
    return replace(made, owner=owner, asked=replace(made.asked, owner=owner))


async def test_whoever_floods_waits_behind_himself(house: House) -> None:
    house.books |= {"hold": HOLDS, **{f"a{n}": [said("done")] for n in range(6)}, "b": [said("done")]}
    house.holds["1"] = asyncio.Event()
    engine = await house.engine(concurrent_runs=1)
    await engine.submit(of("ann", "hold"))
    await until(lambda: house.deeds, "the tool")
    for n in range(6):
        await engine.submit(of("ann", f"a{n}"))
    await engine.submit(of("bob", "b"))
    house.holds["1"].set()
    await until(lambda: len(house.asked) == 9, "all are done")
    turns = [text for text in house.asked if text != "hold"]
    assert turns.index("b") <= 1, turns
    assert sorted(turns) == sorted([*(f"a{n}" for n in range(6)), "b"])


async def test_an_owner_with_three_times_the_weight_has_three_turns_for_one(house: House) -> None:
    names = [f"{who}{n}" for who in ("ann", "bob") for n in range(8)]
    house.books |= {"hold": HOLDS, **{name: [said("done")] for name in names}}
    house.holds["1"] = asyncio.Event()
    engine = await house.engine(concurrent_runs=1, weights={"ann": 3})
    await engine.submit(of("eva", "hold"))
    await until(lambda: house.deeds, "the tool")
    for name in names:
        await engine.submit(of(name[:3], name))
    house.holds["1"].set()
    await until(lambda: len(house.asked) == len(names) + 2, "all are done")
    turns = [text[:3] for text in house.asked if text != "hold"]
    assert turns[:8].count("ann") in (5, 6, 7), turns


async def test_an_owner_who_has_his_share_of_the_slots_leaves_the_rest_to_others(house: House) -> None:
    house.books |= {f"hold{n}": HOLDS for n in range(4)} | {"b": [said("done")]}
    house.holds["1"] = asyncio.Event()
    engine = await house.engine(concurrent_runs=4, owner_share=0.5)
    for n in range(4):
        await engine.submit(of("ann", f"hold{n}"))
    await until(lambda: engine.stats()["active"] == 2, "ann has her share")
    await engine.submit(of("bob", "b"))
    await until(lambda: "b" in house.asked, "bob need not wait")
    assert engine.stats()["active"] <= 3 and sum(text.startswith("hold") for text in house.asked) == 2
    house.holds["1"].set()


async def test_a_single_owner_may_fill_all_slots_until_another_one_came(house: House) -> None:
    house.books |= {f"hold{n}": HOLDS for n in range(9)} | {"b": [said("done")]}
    house.holds["1"] = asyncio.Event()
    engine = await house.engine(concurrent_runs=4)
    for n in range(4):
        await engine.submit(of("ann", f"hold{n}"))
    await until(lambda: engine.stats()["active"] == 4, "ann has all")
    house.holds["1"].set()
    await until(lambda: engine.stats()["active"] == 0, "and is done")
    house.holds["1"] = asyncio.Event()
    await engine.submit(of("bob", "b"))
    for n in range(4, 9):
        await engine.submit(of("ann", f"hold{n}"))
    await until(lambda: engine.stats()["active"] == 3 and engine.stats()["queued"] == 2, "one slot is left to others")
    house.holds["1"].set()


async def test_the_runs_of_an_owner_are_counted_over_all_processes(house: House) -> None:
    house.limits_of = limited(Limits(runs=2))  # type: ignore[method-assign]
    house.books |= {f"hold{n}": HOLDS for n in range(3)}
    house.holds["1"] = asyncio.Event()
    first = await house.engine()
    second = first if isinstance(house, AloneHouse) else await house.engine()
    await first.submit(of("ann", "hold0"))
    await second.submit(of("ann", "hold1"))
    for engine in (first, second):
        with pytest.raises(ClientError) as refused:
            await engine.submit(of("ann", "hold2"))
        assert (refused.value.code, refused.value.status) == ("too_many_runs", 429)
    await first.submit(of("bob", "hold2"))
    house.holds["1"].set()


async def test_requests_per_minute_are_counted_over_all_processes(house: House) -> None:
    house.limits_of = limited(Limits(requests_per_minute=4))  # type: ignore[method-assign]
    house.books["hi"] = [said("done")]
    first = await house.engine()
    second = first if isinstance(house, AloneHouse) else await house.engine()
    for engine in (first, second):
        for _ in range(2):
            await engine.submit(of("ann", "hi"))

    async def told() -> bool:
        """Another process knows of it within about a second."""
        codes = []
        for engine in (first, second):
            try:
                await engine.submit(of("ann", "hi"))
            except ClientError as error:
                codes.append(error.code)
        return codes == ["rate_limit_exceeded"] * 2

    await until(told, "both refuse")


async def test_fifty_requests_at_once_do_not_pass_a_limit(house: House) -> None:
    house.limits_of = limited(Limits(requests_per_minute=5, runs=20))  # type: ignore[method-assign]
    house.books["hi"] = [said("done")]
    engine = await house.engine()
    done = await asyncio.gather(*(engine.submit(of("ann", "hi")) for _ in range(50)), return_exceptions=True)
    assert sum(not isinstance(each, ClientError) for each in done) == 5


def limited(limits: Limits) -> Any:
    """The same limits for every owner."""

    def of_owner(owner: str, key: str, profile: str) -> Limited:
        return ((("owner", owner), limits),)

    return of_owner


@pytest.mark.parametrize(
    ("window", "remaining", "wait"),
    [
        (Window(10, 0, 0, 0.0), 10, 0),
        (Window(10, 9, 0, 30.0), 1, 0),
        (Window(10, 10, 0, 30.0), 0, 36),  # the next minute, and a tenth of it
        (Window(10, 0, 10, 0.0), 0, 6),
        (Window(10, 5, 10, 30.0), 0, 6),
        (Window(1, 1, 0, 59.0), 0, 61),
        (Window(0, 0, 0, 10.0), 0, 110),
    ],
)
def test_a_limit_per_minute_slides(window: Window, remaining: int, wait: int) -> None:
    assert (window.remaining, window.wait_s()) == (remaining, wait)
    if wait and window.limit:
        later = window.second + wait
        now, before = [(window.now, window.before), (0, window.now), (0, 0)][int(later // 60)]
        assert Window(window.limit, now, before, later % 60).remaining >= 1, "then there is room"

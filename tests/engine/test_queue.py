"""The queue is exact, bounded in bytes, and shared by owners (A8)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.engine.base import EngineLimits, Order, Ticket
from ninelives.engine.engine import Engine
from ninelives.engine.work import Queue
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, AloneHouse, order, until


@pytest.fixture
async def house() -> AsyncIterator[AloneHouse]:
    built = AloneHouse()
    built.books["go"] = [asked(("note", '{"n": 1}')), said("done")]
    built.holds["1"] = asyncio.Event()
    yield built
    await built.close()


async def try_to(engine: Engine, given: Order) -> Ticket | ClientError:
    try:
        return await engine.submit(given)
    except ClientError as refused:
        return refused


@pytest.mark.parametrize("matched", [False, True], ids=["a new run", "perhaps a retry"])
async def test_a8_of_seven_runs_that_come_at_once_two_run_one_waits_and_four_are_429(
    house: AloneHouse, matched: bool
) -> None:
    """Five used to wait: each had looked at the queue before another was in it."""
    engine = await house.engine(concurrent_runs=2, queue=1)
    through = house.valves[0].through

    async def slow(work: Any, *args: Any, **named: Any) -> Any:
        await asyncio.sleep(0)  # as a disk is
        return await through(work, *args, **named)

    house.valves[0].through = slow  # type: ignore[method-assign]
    given = order("go")
    orders = [replace(given, asked=replace(given.asked, match=f"m{n}" if matched else "")) for n in range(7)]
    answers = await asyncio.gather(*(try_to(engine, each) for each in orders))
    refused = [answer for answer in answers if isinstance(answer, ClientError)]
    assert len(refused) == 4
    assert {(error.status, error.code) for error in refused} == {(429, "too_many_runs")}
    assert all("limits.queue" in error.message for error in refused)
    assert (engine.stats()["active"], engine.stats()["queued"]) == (2, 1)
    house.holds["1"].set()
    for answer in answers:
        if isinstance(answer, Ticket):
            state = await engine.wait(OWNER, answer.run)
            assert state is not None and state.status == "completed"
    await until(lambda: engine.stats()["queued"] == 0, "the queue is empty")
    assert isinstance(await try_to(engine, order("go")), Ticket)


async def test_a8_what_an_ended_run_held_is_free_without_the_garbage_collector(house: AloneHouse) -> None:
    """The collector is set to run seldom. Requests of 10 MB stood in memory until then: 300 MB after thirty."""
    engine = await house.engine()
    ticket = await engine.submit(order("go"))
    await until(lambda: house.deeds, "the tool")
    gc.disable()
    try:
        held = weakref.ref(engine._workers.by_run[ticket.run])
        house.holds["1"].set()
        assert (await engine.wait(OWNER, ticket.run)).status == "completed"  # type: ignore[union-attr]
        await until(lambda: held() is None, "the worker and its run are gone")
    finally:
        gc.enable()


async def test_a_place_that_no_run_took_is_free_again(house: AloneHouse) -> None:
    engine = await house.engine(concurrent_runs=1, queue=1)
    await engine.submit(order("go"))
    await until(lambda: house.deeds, "the tool")
    valve = house.valves[0]
    through = valve.through

    async def broken(work: Any, *args: Any, **named: Any) -> Any:
        if work.__name__ == "open":
            raise ClientError("no", "no")
        return await through(work, *args, **named)

    valve.through = broken  # type: ignore[method-assign]
    assert isinstance(await try_to(engine, order("go")), ClientError)
    valve.through = through  # type: ignore[method-assign]
    assert isinstance(await try_to(engine, order("go")), Ticket)


def queue(**limits: float) -> Queue:
    return Queue(EngineLimits(**limits))  # type: ignore[arg-type]


def fill(line: Queue, owner: str, size: int, count: int) -> int:
    """How many of so many runs find a place."""
    taken = 0
    for n in range(count):
        if (place := line.take(owner, size)) is not None:
            line.opened(f"{owner}{size}-{n}", place)
            taken += 1
    return taken


def test_the_queue_is_bounded_in_bytes() -> None:
    line = queue(queue=100, queue_bytes=1000, queue_share=1.0)
    assert fill(line, "ann", 300, 9) == 3
    assert fill(line, "bob", 200, 1) == 0
    assert fill(line, "bob", 100, 9) == 1


def test_an_empty_queue_takes_a_run_of_any_size() -> None:
    line = queue(queue=100, queue_bytes=1000)
    assert fill(line, "ann", 5000, 2) == 1


@pytest.mark.parametrize(("size", "limits"), [(0, {"queue": 8}), (100, {"queue": 100, "queue_bytes": 800})])
def test_an_owner_fills_its_share_and_leaves_the_rest_to_others(size: int, limits: dict[str, float]) -> None:
    line = queue(queue_share=0.75, **limits)
    assert fill(line, "ann", size, 20) == 6
    assert fill(line, "bob", size, 20) == 2


def test_a_small_queue_is_not_made_smaller_by_the_share() -> None:
    assert [fill(queue(queue=most, queue_share=0.75), "ann", 0, 9) for most in (0, 1, 2, 3, 4)] == [0, 1, 2, 3, 3]


def test_what_was_opened_or_begun_while_the_store_was_asked_counts_as_it_is_known_here() -> None:
    line = queue(queue=100)
    fill(line, "ann", 10, 3)
    known = line.waiting.copy()
    place = line.take("ann", 10)
    assert place is not None
    line.opened("new", place)
    del line.waiting["ann10-0"]
    line.answer([("ann", "ann10-0"), ("ann", "ann10-1"), ("bob", "other")], 3, known, {"ann10-0"})
    assert sorted(line.waiting) == ["ann10-1", "new", "other"], "ann10-2 was deleted"
    assert len(line) == 3


def test_runs_that_the_store_did_not_list_count_too() -> None:
    line = queue(queue=2)
    line.answer([("ann", "a"), ("ann", "b"), ("ann", "c")], 5000, (), ())
    assert len(line) == 5000
    assert line.take("bob", 0) is None

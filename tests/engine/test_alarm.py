"""The alarm of the writer: it rings once, at the time that was set last, with and without a timer of the kernel."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator

import pytest

from ninelives.engine.alarm import Alarm, FineAlarm, LoopAlarm

DEADLINE = 30.0
SOON = 0.002


@pytest.fixture(params=[LoopAlarm, FineAlarm], ids=["loop", "fine"])
async def alarm(request: pytest.FixtureRequest) -> AsyncIterator[Alarm]:
    made: Alarm = request.param()
    made.open()
    yield made
    made.close()


async def rung(alarm: Alarm, *delays: float) -> list[float]:
    """Set it for each of these; how late it rang after the time before."""
    heard: list[float] = []
    done = asyncio.Event()
    for n, delay in enumerate(delays):
        when = alarm.now() + delay

        def ring(n: int = n, when: float = when) -> None:
            heard.append(n)
            assert alarm.now() >= when - 0.001, "too early"
            done.set()

        alarm.set(when, ring)
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    return heard


async def test_it_rings_once_at_the_time_that_was_set_last(alarm: Alarm) -> None:
    assert await rung(alarm, SOON) == [0]
    assert await rung(alarm, SOON, 2 * SOON) == [1]
    assert await rung(alarm, 3600.0, SOON) == [1]
    await asyncio.sleep(5 * SOON)
    assert await rung(alarm, SOON) == [0]


async def test_a_time_that_is_over_rings_at_once(alarm: Alarm) -> None:
    assert await rung(alarm, -1.0) == [0]


async def test_a_closed_one_does_not_ring(alarm: Alarm) -> None:
    heard: list[int] = []
    alarm.set(alarm.now() + SOON, lambda: heard.append(1))
    alarm.close()
    await asyncio.sleep(5 * SOON)
    assert not heard


async def test_one_set_anew_after_it_went_off_unheard_waits_for_the_new_time(alarm: Alarm) -> None:
    heard: list[str] = []
    alarm.set(alarm.now(), lambda: heard.append("old"))
    alarm.set(alarm.now() + 3600.0, lambda: heard.append("new"))
    await asyncio.sleep(5 * SOON)
    assert "new" not in heard


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd")
async def test_without_a_free_descriptor_the_timers_of_the_loop_are_used() -> None:
    made = FineAlarm()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        made.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await rung(made, SOON) == [0]
    made.close()


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd")
async def test_close_gives_its_descriptor_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    made = FineAlarm()
    made.open()
    assert await rung(made, SOON) == [0]
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    made.close()
    assert not set(os.listdir("/proc/self/fd")) - before

"""The alarm of the writer: it rings once, at the time that was set last, with and without a timer of the kernel."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator

import pytest

from ninelives.engine.alarm import Alarm, FineAlarm, LoopAlarm

DEADLINE = 30.0
SOON = 0.002


class Bell:
    """An alarm, and when it rang."""

    def __init__(self, kind: type[LoopAlarm]) -> None:
        self.alarm: Alarm = kind(self._ring)
        self.rang: list[float] = []
        self._heard = asyncio.Event()

    def _ring(self) -> None:
        self.rang.append(self.alarm.now())
        self._heard.set()

    async def after(self, *delays: float) -> None:
        """Set it for each of these, and wait until it rings."""
        before = len(self.rang)
        self._heard.clear()
        for delay in delays:
            when = self.alarm.now() + delay
            self.alarm.set(when)
        async with asyncio.timeout(DEADLINE):
            await self._heard.wait()
        await asyncio.sleep(SOON)
        assert len(self.rang) == before + 1, "once"
        assert self.rang[-1] >= when - 0.001, "not before the time that was set last"


@pytest.fixture(params=[LoopAlarm, FineAlarm], ids=["loop", "fine"])
async def bell(request: pytest.FixtureRequest) -> AsyncIterator[Bell]:
    made = Bell(request.param)
    made.alarm.open()
    yield made
    made.alarm.close()


async def test_it_rings_once_at_the_time_that_was_set_last(bell: Bell) -> None:
    await bell.after(SOON)
    await bell.after(SOON, 2 * SOON)
    await bell.after(3600.0, SOON)
    await bell.after(SOON)


async def test_a_time_that_is_over_rings_at_once(bell: Bell) -> None:
    await bell.after(-1.0)


async def test_a_closed_one_does_not_ring(bell: Bell) -> None:
    bell.alarm.set(bell.alarm.now() + SOON)
    bell.alarm.close()
    await asyncio.sleep(5 * SOON)
    assert not bell.rang


async def test_one_set_anew_after_it_went_off_unheard_waits_for_the_new_time(bell: Bell) -> None:
    bell.alarm.set(bell.alarm.now() + SOON)
    time.sleep(3 * SOON)  # noqa: ASYNC251 - the loop has something else to do
    bell.alarm.set(bell.alarm.now() + 3600.0)
    await asyncio.sleep(5 * SOON)
    assert not bell.rang


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd")
async def test_without_a_free_descriptor_the_timers_of_the_loop_are_used() -> None:
    bell = Bell(FineAlarm)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        bell.alarm.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await bell.after(SOON)
    bell.alarm.close()


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd")
async def test_close_gives_its_descriptor_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    bell = Bell(FineAlarm)
    bell.alarm.open()
    await bell.after(SOON)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    bell.alarm.close()
    assert not set(os.listdir("/proc/self/fd")) - before

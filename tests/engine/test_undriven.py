"""A run is never held by a living process that does not drive it (P4): what was claimed and cannot be gone on with is
given back, whatever the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ninelives.core import codec
from ninelives.core.errors import NewerEvent
from ninelives.core.events import AttemptStarted
from ninelives.engine.base import EngineLimits
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import Mark, Slice, StoreUnavailable
from tests.engine.peers import OWNER, House, order, until


async def held_and_parked(house: House, run: str) -> None:
    """Another process has it for a moment."""
    store = await house.seat("z", LocalNotifier(), EngineLimits())
    claim = await store.claim(run, "z", lambda _, clean, lost: codec.encode(AttemptStarted(clean)), house.now_ms())
    assert claim is not None
    await store.append([Slice(run, claim.attempt, [], Mark(status="queued", at=house.now_ms(), parked=True))])


def fails_after_claim(house: House, n: int, name: str, failure: Exception) -> list[str]:
    """Right before the first claim of process `n` another one has the run for a moment; right after it the first call
    of `name` fails. The calls that failed."""
    valve, failed, claimed, met = house.valves[n], list[str](), list[str](), list[str]()
    through = valve.through

    async def unlucky(work: Any, *args: Any, **named: Any) -> Any:
        if work.__name__ == "claim" and not claimed:
            claimed.append(args[0])
            await held_and_parked(house, args[0])
            met.append(args[0])
        elif work.__name__ == name and met and not failed:
            failed.append(name)
            raise failure
        return await through(work, *args, **named)

    valve.through = unlucky  # type: ignore[method-assign]
    return failed


async def ended(house: House, run: str) -> str:
    state = await asyncio.wait_for(house.engines[0].wait(OWNER, run), 60)
    assert state is not None
    return state.status


@pytest.mark.parametrize("name", ["read", "signals"])
@pytest.mark.parametrize("passing", [True, False])
async def test_P4_a_run_that_cannot_be_gone_on_with_after_its_claim_is_claimed_again(
    house: House, name: str, passing: bool
) -> None:
    door = await house.engine(works=False)
    await house.engine()
    failed = fails_after_claim(house, 1, name, StoreUnavailable("for a moment", passing=passing))
    ticket = await door.submit(order("hi"))
    assert await ended(house, ticket.run) == "completed"
    assert failed and list(house.deeds.values()) == [1]


async def test_P4_a_run_that_a_newer_release_has_gone_on_with_is_left_to_it(house: House) -> None:
    door, older = await house.engine(works=False), await house.engine()
    failed = fails_after_claim(house, 1, "read", NewerEvent("an event of a later release"))
    ticket = await door.submit(order("hi"))
    await until(lambda: failed and not older.stats()["active"], "the failure")
    await house.engine()
    assert await ended(house, ticket.run) == "completed"
    assert older.stats()["held"] == 0 and list(house.deeds.values()) == [1]

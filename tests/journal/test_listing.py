"""Listing runs in their sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from ninelives.core.sessions import SessionTurn, turn_of
from ninelives.core.state import RunState
from ninelives.journal import listing
from ninelives.journal.base import Logger, Sessions
from ninelives.journal.listing import SessionLister
from ninelives.journal.values import Gone
from tests.journals import Pen, spec_of


class Listed:
    """The part of a store's sessions that is called here."""

    def __init__(self, *due: str) -> None:
        self.due = [("alice", run) for run in due]
        self.turns: list[SessionTurn] = []

    async def unlisted(self, owner: str | None, limit: int, *, begun: bool) -> list[Gone]:
        return self.due[:limit]

    async def unlisted_turns(self, owner: str | None, limit: int) -> list[SessionTurn]:
        return []

    async def list_turns(self, turns: list[SessionTurn]) -> None:
        self.turns += turns
        self.due = [each for each in self.due if each[1] not in {turn.run for turn in turns}]


def ended(run: str, text: str = "hi") -> RunState:
    asked = spec_of(input=({"role": "user", "content": text},))
    return Pen(asked, run=run).attempt().text("yes").settle().complete().state


async def test_a_long_request_is_hashed_off_the_loop_and_listed_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    where: dict[str, bool] = {}

    def made(state: RunState) -> SessionTurn:
        where[state.facts.run] = threading.current_thread() is threading.main_thread()
        return turn_of(state)

    monkeypatch.setattr(listing, "turn_of", made)
    states = {run: ended(run, text) for run, text in (("a" * 16, "x" * 300_000), ("b" * 16, "short"))}
    store = Listed(*states)

    async def look(owner: str, run: str) -> RunState:
        return states[run]

    lister = SessionLister(cast(Sessions, store), look, lambda: False, cast(Logger, None))
    await lister.catch_up("alice")
    assert where == {"a" * 16: False, "b" * 16: True}
    assert [turn.run[0] for turn in store.turns] == ["a", "b"]


async def test_runs_are_listed_when_none_has_ended_for_a_while_or_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the loop is real: a calm of an hour never comes."""
    runs = [f"{n:016d}" for n in range(6)]
    store = Listed(*runs)
    lister = SessionLister(cast(Sessions, store), _gone, lambda: False, cast(Logger, None))
    for calm_s, most in ((3600.0, 6), (0.0, 1_000)):
        monkeypatch.setattr(listing, "CALM_S", calm_s)
        monkeypatch.setattr(listing, "MOST_RUNS", most)
        store.due, store.turns = [("alice", run) for run in runs], []
        for run in runs:
            lister.ended(ended(run))
        listing_them = asyncio.create_task(lister.run())
        async with asyncio.timeout(60):
            while len(store.turns) < len(runs):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        listing_them.cancel()
        await asyncio.gather(listing_them, return_exceptions=True)


async def test_runs_wait_for_the_end_of_those_at_work_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "CALM_S", 0.0)
    for busy_s, work in ((3600.0, iter([True] * 50)), (0.0, iter([True] * 1_000_000))):
        monkeypatch.setattr(listing, "BUSY_S", busy_s)
        store, asked = Listed("0" * 16), list[int]()

        def is_busy(work: Iterator[bool] = work, store: Listed = store, asked: list[int] = asked) -> bool:
            asked.append(len(store.turns))
            return next(work, False)

        lister = SessionLister(cast(Sessions, store), _gone, is_busy, cast(Logger, None))
        lister.ended(ended("0" * 16))
        listing_it = asyncio.create_task(lister.run())
        async with asyncio.timeout(60):
            while not store.turns:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        listing_it.cancel()
        await asyncio.gather(listing_it, return_exceptions=True)
        assert len(asked) == (51 if busy_s else 1) and not any(asked)


async def _gone(owner: str, run: str) -> None:
    return None

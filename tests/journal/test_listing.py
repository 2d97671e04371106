"""Listing runs in their sessions."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from ninelives.core.sessions import SessionTurn, turn_of
from ninelives.core.state import RunState
from ninelives.journal import listing
from ninelives.journal.base import Logger, Sessions
from ninelives.journal.listing import SessionLister
from tests.journals import Pen, spec_of


class Listed:
    """The part of a store's sessions that is called here."""

    def __init__(self) -> None:
        self.turns: list[SessionTurn] = []

    async def list_turns(self, turns: list[SessionTurn]) -> None:
        self.turns += turns


async def test_a_long_request_is_hashed_off_the_loop_and_listed_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    where: dict[str, bool] = {}

    def made(state: RunState) -> SessionTurn:
        where[state.facts.run] = threading.current_thread() is threading.main_thread()
        return turn_of(state)

    monkeypatch.setattr(listing, "turn_of", made)
    store = Listed()
    lister = SessionLister(cast(Sessions, store), _gone, cast(Logger, None))
    for run, text in (("a" * 16, "x" * 300_000), ("b" * 16, "short")):
        asked = spec_of(input=({"role": "user", "content": text},))
        lister.ended(Pen(asked, run=run).attempt().text("yes").settle().complete().state)
    await lister._list_ended()
    assert where == {"a" * 16: False, "b" * 16: True}
    assert [turn.run[0] for turn in store.turns] == ["a", "b"]


async def _gone(owner: str, run: str) -> None:
    return None

"""Rounds of forgetting (B6): one run that cannot be forgotten does not keep the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ninelives.core.state import RunState
from ninelives.engine import retention
from ninelives.engine.base import Keep
from ninelives.engine.retention import Retainer
from ninelives.journal.values import Gone, StoreUnavailable

DUE: list[Gone] = [("ann", "one"), ("ann", "two"), ("bob", "three")]


class Desk:
    """A store with runs to forget, and the agent that made them."""

    def __init__(self, fails: Exception | None = None, elsewhere: str = "") -> None:
        self.gone: list[Gone] = []
        self.errors: list[str] = []
        self._fails, self._elsewhere = fails, elsewhere
        readers: Any = SimpleNamespace(count=lambda run: 0, kept=SimpleNamespace(forget=lambda run: None))
        parts: Any = SimpleNamespace(
            durable=SimpleNamespace(upkeep=self, forget=self.forget_runs),
            limits=SimpleNamespace(keep=Keep()),
            agent=SimpleNamespace(forget=self.forget_outputs),
            clock=lambda: lambda: 0,
            log=SimpleNamespace(error=lambda name, **fields: self.errors.append(name)),
        )
        self.retainer = Retainer(parts, readers)

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        assert unstored_ms == 24 * 3_600_000
        return DUE

    async def forget_runs(self, gone: list[Gone]) -> None:
        self.gone += gone

    async def forget_outputs(self, state: Any) -> bool:
        if state.facts.run == "two" and self._fails is not None:
            raise self._fails
        return bool(state.facts.run != self._elsewhere)


@pytest.fixture(autouse=True)
def read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_state(store: object, owner: str, run: str) -> RunState:
        state: Any = SimpleNamespace(facts=SimpleNamespace(run=run, updated_at=0))
        return state

    monkeypatch.setattr(retention, "read_state", read_state)


async def test_b6_an_agent_that_fails_for_one_run_does_not_stop_the_forgetting() -> None:
    desk = Desk(PermissionError("outputs"))
    assert await desk.retainer.forget() == 3
    assert (desk.gone, desk.errors) == (DUE, ["outputs_not_forgotten"])


async def test_b6_a_run_whose_files_are_elsewhere_is_left_to_the_process_there() -> None:
    desk = Desk(elsewhere="two")
    assert await desk.retainer.forget() == 2
    assert desk.gone == [DUE[0], DUE[2]]


async def test_b6_where_the_store_is_away_nothing_is_forgotten_yet() -> None:
    desk = Desk(StoreUnavailable("away", passing=True))
    with pytest.raises(StoreUnavailable):
        await desk.retainer.forget()
    assert desk.gone == []

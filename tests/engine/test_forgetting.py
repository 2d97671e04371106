"""Rounds of forgetting (B6): one run that cannot be forgotten does not keep the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninelives.core.errors import ClientError
from ninelives.core.holding import Holding, fair_room
from ninelives.core.state import RunState
from ninelives.engine import retention
from ninelives.engine.base import Keep, NothingOutside
from ninelives.engine.retention import Retainer
from ninelives.journal.values import MAX_GRANTS, Evicted, Gone, Grant, Retention, StoredAmount, StoreUnavailable

DUE: list[Gone] = [("ann", "one"), ("ann", "two"), ("bob", "three")]


class Desk:
    """A store with runs to forget, and the agents that made them: the one of the run `plain` keeps nothing."""

    def __init__(self, fails: Exception | None = None, elsewhere: str = "", plain: str = "") -> None:
        self.gone: list[Gone] = []
        self.errors: list[str] = []
        agent = SimpleNamespace(forget=self.forget_outputs)
        self._fails, self._elsewhere = fails, elsewhere
        readers: Any = SimpleNamespace(count=lambda run: 0, kept=SimpleNamespace(forget=lambda run: None))
        parts: Any = SimpleNamespace(
            durable=SimpleNamespace(upkeep=self, forget=self.forget_runs),
            limits=SimpleNamespace(keep=Keep()),
            agent_of=lambda accepted: object() if accepted.spec.model == plain else agent,
            outside=NothingOutside(),
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
        accepted = SimpleNamespace(spec=SimpleNamespace(model=run))
        state: Any = SimpleNamespace(facts=SimpleNamespace(run=run, updated_at=0, accepted=accepted))
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


async def test_b6_forgetting_is_asked_of_the_agent_of_the_run() -> None:
    desk = Desk(elsewhere="two", plain="two")
    assert await desk.retainer.forget() == 3, "an agent that leaves nothing behind has nothing to forget"


async def test_b6_where_the_store_is_away_nothing_is_forgotten_yet() -> None:
    desk = Desk(StoreUnavailable("away", passing=True))
    with pytest.raises(StoreUnavailable):
        await desk.retainer.forget()
    assert desk.gone == []


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ValueError("a name of a file")], ids=repr)
async def test_a_round_that_fails_is_told_and_the_next_one_comes(error: Exception) -> None:
    """It ended the server: a command had given a file a name that is not UTF-8."""
    desk, rounds = Desk(), asyncio.Event()
    fails = [error]

    async def fail_once() -> int:
        if fails:
            raise fails.pop()
        rounds.set()
        return 0

    task = asyncio.create_task(desk.retainer._rounds(0.001, fail_once))
    await asyncio.wait_for(rounds.wait(), 60)
    task.cancel()
    assert desk.errors == ["retention_failed"]


# Standing permissions are never evicted, so a new one may be refused


class Granting:
    """A store with standing permissions, and what is fixed outside of it."""

    def __init__(self, grants: int, size: int, workspace: int = 0, owner_bytes: int = 0) -> None:
        self._grants = [Grant("ann", f"g{n}", "", "t", "x" * size, n, "key") for n in range(grants)]
        self._workspace = workspace
        parts: Any = SimpleNamespace(
            durable=SimpleNamespace(upkeep=self, grants=self.grants),
            limits=SimpleNamespace(keep=Keep(owner_bytes=owner_bytes)),
            agent_of=None,
            outside=self,
            clock=lambda: lambda: 0,
            log=SimpleNamespace(info=lambda name, **fields: None),
        )
        self.retainer = Retainer(parts, SimpleNamespace(being_read=lambda: ()))  # type: ignore[arg-type]

    async def grants(self, owner: str) -> list[Grant]:
        return self._grants

    async def survey(self) -> list[Holding]:
        return [Holding("workspace", "ann", "w", self._workspace, fixed=True)]

    async def drop(self, holdings: object) -> None:
        pass

    async def fixed(self) -> dict[str, int]:
        return {"ann": sum(len(grant.arguments) for grant in self._grants)}

    async def touch(self, uses: object) -> None:
        pass

    async def evict(self, rule: Retention, spared: object) -> Evicted:
        self.rule = rule
        return Evicted()


NEW = Grant("ann", "new", "", "t", "x" * 1_000, 1, "key")


async def test_d4_a_permission_without_room_is_refused_with_the_setting_and_what_to_delete() -> None:
    small = Granting(grants=2, size=1_000, owner_bytes=3_000)
    with pytest.raises(ClientError, match=r"hold \d+ bytes, and store\.owner_bytes allows 2250 bytes") as refused:
        await small.retainer.check_grant(NEW)
    assert refused.value.status == 409 and "DELETE /v1/approvals/" in refused.value.message
    await Granting(grants=2, size=1_000, owner_bytes=10_000).retainer.check_grant(NEW)
    await Granting(grants=2, size=1_000).retainer.check_grant(NEW)


async def test_d4_workspaces_leave_permissions_the_rest_of_the_bound() -> None:
    full = Granting(grants=0, size=0, workspace=80_000, owner_bytes=100_000)
    await full.retainer.check_grant(NEW)
    await full.retainer.round()
    with pytest.raises(ClientError, match=r"store\.owner_bytes"):
        await full.retainer.check_grant(NEW)


async def test_d4_the_most_permissions_are_refused_and_none_is_pushed_out() -> None:
    with pytest.raises(ClientError, match=f"There are {MAX_GRANTS} standing permissions"):
        await Granting(grants=MAX_GRANTS, size=1).retainer.check_grant(NEW)
    again = Granting(grants=MAX_GRANTS, size=1)
    await again.retainer.check_grant((await again.grants("ann"))[0])


async def test_p20_what_is_fixed_takes_from_the_room_of_all_else_but_leaves_a_quarter() -> None:
    desk = Granting(grants=0, size=0, workspace=60_000, owner_bytes=100_000)
    await desk.retainer.round()
    assert desk.rule.owner_rooms == {"ann": 40_000}
    desk = Granting(grants=0, size=0, workspace=600_000, owner_bytes=100_000)
    await desk.retainer.round()
    assert desk.rule.owner_rooms == {"ann": 25_000}


class Crowd(Granting):
    """Owners with stored runs of some size."""

    def __init__(self, sizes: dict[str, int], **keep: Any) -> None:
        super().__init__(grants=0, size=0)
        self._sizes = sizes
        self.retainer._keep = Keep(**keep)

    async def fixed(self) -> dict[str, int]:
        return {}

    async def survey(self) -> list[Holding]:
        return [Holding("log", "bob", "l", 50)]

    async def usage(self) -> list[StoredAmount]:
        return [StoredAmount(owner, 1, size, 0) for owner, size in self._sizes.items()]


async def test_p20_where_all_hold_too_much_only_those_who_hold_most_give_way() -> None:
    """A flood of one owner evicted what others had not looked at for a while."""
    crowd = Crowd({"ann": 100, "bob": 250, "flood": 5_000, "tide": 900}, total_bytes=1_200)
    await crowd.retainer.round()
    assert (crowd.rule.owner_rooms, crowd.rule.total_bytes) == ({"bob": 0, "flood": 400, "tide": 400}, 0)
    calm = Crowd({"ann": 100, "flood": 1_000}, total_bytes=1_200)
    await calm.retainer.round()
    assert (calm.rule.owner_rooms, calm.rule.total_bytes) == ({"bob": 0}, 1_200)


async def test_p20_an_owner_may_have_a_bound_of_its_own() -> None:
    crowd = Crowd({"ann": 100, "bob": 5_000}, owner_bytes=1_000, owners={"bob": 3_000, "cid": 0})
    await crowd.retainer.round()
    assert (crowd.rule.owner_bytes, crowd.rule.owner_rooms) == (1_000, {"bob": 3_000, "cid": 0})


@given(st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 20_000))
def test_p20_with_a_fair_room_all_fit_and_nobody_could_have_more(sizes: list[int], total: int) -> None:
    room = fair_room(sizes, total)
    if room == 0:
        assert sum(sizes) <= total
        return
    kept = [min(size, room) for size in sizes]
    assert sum(kept) <= max(total, sum(size > 0 for size in sizes))
    assert sum(min(size, room + 1) for size in sizes) > total

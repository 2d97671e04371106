"""Bugs on purpose, of processes that share a store. Owns: a zombie that may write, a run that is driven twice, a signal
that no beat asks for, a run that stays with the process that lost it, a claim that is driven though the lease was over
when it was answered, one that nobody drives, a run that is told as failed and has moved. Refuses to know: how they are
caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.core.state import apply
from holdfast.engine.approvals import adopt
from holdfast.engine.keeper import entry_of, read_state
from holdfast.engine.writer import Writer
from holdfast.journal.base import Slice, StoreUnavailable, Verdict
from holdfast.testing.shared import SharedMemory
from tests.sim.planted import Planted, kinds
from tests.sim.world import World


def _store(wrong: type[SharedMemory]) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.share(wrong(lambda: world.loop.now, world.now_ms, world.plan.limits.lease_s))

    return plant


def _nothing(world: World) -> None:
    """The bug is in a patch."""


class LetsZombiesWrite(SharedMemory):
    """Whoever held a run once may write to it: the number of the attempt is not looked at."""

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        verdicts = []
        for part in slices:
            run = self._runs.get(part.run)
            if run is None or run.ended or run.hidden or run.attempt == part.attempt:
                verdicts += await super().append([part])
                continue
            moved = [_moved(record, len(run.records) + n) for n, record in enumerate(part.records)]
            verdicts += await super().append([Slice(part.run, run.attempt, moved, part.mark)])
            run.records[len(run.records) - len(moved) :] = moved
        return verdicts


def _moved(record: Any, seq: int) -> Any:
    return type(record)(seq, record.attempt, record.at, record.data)


class GivesRunsTwice(SharedMemory):
    """A run that somebody holds may be claimed all the same."""

    def _held(self, run: Any) -> bool:
        return False


class KeepsWhatIsNotDriven(Writer):
    """A claim that lapsed here is never given back."""

    def give_back(self, run: str, attempt: int, state: Any) -> None:
        """Forgotten."""


def _never_over(lease: Any) -> Callable[[], bool]:
    return lambda: True


async def _moves_or_fails(memory: Any, durable: Any, live: Any, holder: str) -> None:
    """The first answer is taken for the truth."""

    async def ask(opening: Any) -> Any:
        try:
            return await durable.open(opening)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), passing=False) from error

    await adopt(memory, SimpleNamespace(open=ask, find=durable.find, peers=durable.peers), live, holder)  # type: ignore[arg-type]


async def _keeps(keeper: Any, owner: str, state: Any, claim: Any) -> Any:
    """A claim after which the run cannot be read is not given back."""
    if claim.record.seq == state.seq + 1:
        return apply(state, entry_of(claim.run, claim.record))
    return await read_state(keeper._store, owner, claim.run)


async def _blind(scout: Any, urgent: bool) -> None:
    """Nobody looks."""


PLANTED = {
    "a zombie may write": Planted(
        _store(LetsZombiesWrite), kinds("claim", "numbers", "references", "end", "told"), 300
    ),
    "a run is driven twice": Planted(_store(GivesRunsTwice), kinds("claim"), 20),
    "a lapsed claim is kept": Planted(
        _nothing, kinds("stuck"), 300, ("holdfast.engine.drivers.Writer", KeepsWhatIsNotDriven)
    ),
    "a lost ring loses the wish": Planted(
        _nothing, kinds("cancel"), 600, ("holdfast.engine.drivers.Drivers.heard", lambda drivers, run: None)
    ),
    "a claim is driven after the lease": Planted(
        _nothing, kinds("claim"), 1500, ("holdfast.engine.lease.Lease.span", _never_over)
    ),
    "a claim without a driver is kept": Planted(
        _nothing, kinds("stuck"), 1000, ("holdfast.engine.keeper.Keeper._after", _keeps)
    ),
    "a run that has moved is told as failed": Planted(
        _nothing, kinds("end", "told"), 1000, ("holdfast.engine.drivers.adopt", _moves_or_fails)
    ),
    "a free run is never looked for": Planted(
        _nothing, kinds("stuck", "client"), 20, ("holdfast.engine.scout.Scout._look", _blind)
    ),
}
KNOWN = {
    "a zombie may write": (153, 232),
    "a lapsed claim is kept": (186,),
    "a lost ring loses the wish": (256, 547),
    "a claim is driven after the lease": (957,),
    "a claim without a driver is kept": (3175,),
    "a run that has moved is told as failed": (769,),
}
"""Seeds that are tried first: it takes a rare order of events."""

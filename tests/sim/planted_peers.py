"""Bugs on purpose, of processes that share a store. Owns: a zombie that may write, a run that is driven twice, a signal
that no beat asks for, a run that stays with the process that lost it, a claim that is driven though the lease was over
when it was answered, work that nobody looks for, a run that goes on without its caller. Refuses to know: how they are
caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ninelives.engine.writer import Writer
from ninelives.journal.values import Slice, Verdict
from ninelives.testing.shared import SharedMemory
from tests.sim.planted import Planted, kinds
from tests.sim.world import World


def _store(wrong: type[SharedMemory]) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.share(wrong)

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

    def _is_held(self, run: Any) -> bool:
        return False


class WaitsForNoCaller(SharedMemory):
    """A run with store: false is claimed although the process of its caller is known to be dead."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiting._misses_caller = lambda name, now: False  # type: ignore[method-assign]


class KeepsWhatIsNotDriven(Writer):
    """A claim that lapsed here is never given back."""

    def give_back(self, run: str, attempt: int, state: Any) -> None:
        """Forgotten."""


def _always_held(span: Any) -> bool:
    return True


async def _blind(finder: Any, urgent: bool) -> None:
    """Nobody looks."""


PLANTED = {
    "a zombie may write": Planted(
        _store(LetsZombiesWrite), kinds("claim", "numbers", "references", "end", "told"), 300
    ),
    "a run is driven twice": Planted(_store(GivesRunsTwice), kinds("claim"), 20),
    "a run goes on without its caller": Planted(_store(WaitsForNoCaller), kinds("claim"), 1000),
    "a lapsed claim is kept": Planted(
        _nothing, kinds("stuck"), 300, ("ninelives.engine.engine.Writer", KeepsWhatIsNotDriven)
    ),
    "a lost ring loses the wish": Planted(
        _nothing, kinds("cancel"), 600, ("ninelives.engine.workers.Workers.signalled", lambda workers, run: None)
    ),
    "a claim is driven after the lease": Planted(
        _nothing, kinds("claim"), 1500, ("ninelives.engine.base.LeaseSpan.held", _always_held)
    ),
    "a free run is never looked for": Planted(
        _nothing, kinds("stuck", "client"), 20, ("ninelives.engine.work.WorkFinder._look", _blind)
    ),
}
KNOWN: dict[str, tuple[int, ...]] = {
    "a claim is driven after the lease": (159,),
    "a run goes on without its caller": (563,),
}
"""Seeds that are tried first: it takes a rare order of events."""

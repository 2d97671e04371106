"""Which answers arrived, in a memory store. Owns: the same rules as a durable backend. Refuses to know: connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import admission

if TYPE_CHECKING:
    from holdfast.journal.memory import _Run


class MemoryDeliveries:
    """See journal.base.Deliveries."""

    def __init__(self, runs: dict[str, _Run]) -> None:
        self._runs = runs

    def find(self, asked: admission.Asked, at: int) -> str | None:
        """The newest run that was lost and fits."""
        if asked.again is None or not at:
            return None
        again, since = asked.again, max(1, at - asked.again.within_ms)
        for name, run in reversed(self._runs.items()):
            first = run.opening.asked
            if (
                (run.owner, first.fingerprint) == (asked.owner, asked.fingerprint)
                and run.lost_at >= since
                and not run.hidden
                and (first.credential == asked.credential or not again.same_credential)
                and again.session in (None, run.resolved.session or "")
            ):
                return name
        return None

    def take(self, run: _Run) -> None:
        """Somebody waits again."""
        run.waits, run.lost_at = True, 0

    async def answered(self, owner: str, run: str) -> None:
        """See Deliveries.answered."""
        found = self._runs.get(run)
        if found is not None and found.owner == owner:
            found.waits, found.lost_at = False, 0

    async def lost(self, owner: str, run: str, at: int) -> None:
        """See Deliveries.lost."""
        found = self._runs.get(run)
        if found is not None and found.owner == owner and found.waits:
            found.waits, found.lost_at = False, at

    async def strand(self, at: int) -> None:
        """See Deliveries.strand."""
        for run in self._runs.values():
            if run.waits:
                run.waits, run.lost_at = False, at

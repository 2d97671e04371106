"""A planted bug, loaded into a server as a tools module of its user: clients are told what is not committed yet, and
the commit comes a while later. Whoever kills such a server loses what clients have seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ninelives.engine.engine
from ninelives.engine.run import ClaimedRun
from ninelives.engine.writer import Writer
from ninelives.tools.decorator import tool

LATE_S = 0.05


class TellsLongBeforeItWrites(Writer):
    """Write, then tell: the other way round."""

    async def _flush(self, batch: Sequence[ClaimedRun]) -> None:
        taken = [live.take() for live in batch]
        for live, (_, entries, after) in zip(batch, taken, strict=True):
            live.tell(entries, after)
        await asyncio.sleep(LATE_S)
        await self._append([part for part, _, _ in taken])
        self._notifier.ring(live.run for live in batch)


ninelives.engine.engine.Writer = TellsLongBeforeItWrites  # type: ignore[misc]


@tool(effect="read")
async def nothing() -> str:
    """A module of tools has a tool."""
    return "nothing"

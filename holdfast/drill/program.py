"""The order of a drill. Owns: boundaries first, then random kills, and the line that tells how far it is. Refuses to
know: flags, and how results are shown."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.drill.boundaries import die_everywhere, scenario
from holdfast.drill.checks import Finding
from holdfast.drill.own import Own, tools_are_there
from holdfast.drill.processes import Broken
from holdfast.drill.rig import Rig, Tally

BATCH = 5
WIDTH = 30


@dataclass(frozen=True)
class Extent:
    """How much of it."""

    kills: int = 50
    seed: int = 0
    in_flight: int = 4
    boundaries: bool = True
    prompt: str = ""
    """The scenario of a real model."""


class Progress:
    """One line that is written over; nothing where nobody looks."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()

    def tell(self, tally: Tally, words: str, part: float | None = None) -> None:
        """How far it is: a part of the whole where that is known."""
        if not self._shown:
            return
        bar = "" if part is None else f"[{'#' * round(part * WIDTH):-<{WIDTH}}] "
        seconds = time.monotonic() - self._began
        line = f"{bar}{words}  {tally.kills} kills  {tally.runs} runs  {len(tally.found)} violations  {seconds:.0f} s"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def end(self) -> None:
        """The line goes."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


async def drill(own: Own, extent: Extent, folder: Path) -> Tally:
    """All of it, over one data directory."""
    progress = Progress()
    try:
        async with Rig(folder, extent.seed, own.setup) as rig:
            await tools_are_there(rig.server, own.tools)
            try:
                await _all(rig, own, extent, progress)
            except Broken as error:  # it did start at first: that it cannot be asked any more is a result
                rig.tally.found.append(Finding("stuck", "all", str(error)))
            return rig.tally
    finally:
        progress.end()


async def _all(rig: Rig, own: Own, extent: Extent, progress: Progress) -> None:
    if extent.boundaries:
        text = scenario(own.calls) if own.setup.scripted else extent.prompt
        await die_everywhere(rig, text, lambda words: progress.tell(rig.tally, f"boundaries: {words}"))
    await _at_random(rig, extent, progress)


async def _at_random(rig: Rig, extent: Extent, progress: Progress) -> None:
    done = 0
    while done < extent.kills:
        await rig.kill(min(BATCH, extent.kills - done), extent.in_flight)
        done = rig.tally.kills - rig.tally.boundaries
        progress.tell(rig.tally, "random kills", done / extent.kills)

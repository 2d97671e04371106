"""A whole drill. Owns: its order (kills at every write first, then random ones) and the progress line. Refuses to know:
flags, and how results are shown."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ninelives.drill.boundaries import die_everywhere, scenario
from ninelives.drill.checks import Finding
from ninelives.drill.own import Own, tools_are_there
from ninelives.drill.processes import Broken
from ninelives.drill.rig import Rig, Tally

BATCH = 5
WIDTH = 30


@dataclass(frozen=True)
class Extent:
    """How much to do."""

    kills: int = 50
    seed: int = 0
    in_flight: int = 4
    boundaries: bool = True
    prompt: str = ""
    """The scenario for a real model."""


class Progress:
    """A progress line on stderr. Nothing is shown where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()

    def show(self, tally: Tally, words: str, part: float | None = None) -> None:
        """Rewrite the line. `part`: the share that is done, where it is known."""
        if not self._shown:
            return
        bar = "" if part is None else f"[{'#' * round(part * WIDTH):-<{WIDTH}}] "
        seconds = time.monotonic() - self._began
        line = f"{bar}{words}  {tally.kills} kills  {tally.runs} runs  {len(tally.found)} violations  {seconds:.0f} s"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def end(self) -> None:
        """Erase the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


async def drill(own: Own, extent: Extent, folder: Path) -> Tally:
    """Run a drill over one data directory."""
    progress = Progress()
    try:
        async with Rig(folder, extent.seed, own.setup) as rig:
            await tools_are_there(rig.server, own.tools)
            try:
                await _all(rig, own, extent, progress)
            except Broken as error:  # it answered at first, so this is a result
                rig.tally.found.append(Finding("stuck", "all", str(error)))
            return rig.tally
    finally:
        progress.end()


async def _all(rig: Rig, own: Own, extent: Extent, progress: Progress) -> None:
    if extent.boundaries:
        text = scenario(own.calls) if own.setup.scripted else extent.prompt
        await die_everywhere(rig, text, lambda words: progress.show(rig.tally, f"boundaries: {words}"))
    await _at_random(rig, extent, progress)


async def _at_random(rig: Rig, extent: Extent, progress: Progress) -> None:
    done = 0
    while done < extent.kills:
        await rig.kill(min(BATCH, extent.kills - done), extent.in_flight)
        done = rig.tally.kills - rig.tally.boundaries
        progress.show(rig.tally, "random kills", done / extent.kills)

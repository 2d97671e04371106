"""Evidence about runs, from outside. Owns: the setup of a rig (which server, which load, which traces), and collecting
the evidence of one run over HTTP and from the traces of tools. Refuses to know: what is right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninelives.drill.checks import Evidence, Told, calls_of, frames_of, payload, position
from ninelives.drill.loads import EFFECTS, Load, Refused, draw, stream
from ninelives.drill.processes import Launch, Server, launch_clean
from ninelives.drill.wire import all_done

RECOVERY_S = 30.0
"""How long recovery may take (P4)."""
MOST_PLACES = 150
"""A run with more positions is resumed at two of them only."""
CLOCK_SLACK_MS = 5
"""Two timestamps of one moment may differ by this much."""


@dataclass(frozen=True)
class Setup:
    """Which server is killed, under which load, and what is known about it. The defaults are those of our own tests:
    built-in tools, whose terminal leaves traces in the workspace."""

    launch: Launch = field(default_factory=launch_clean)
    scripted: bool = True
    """The model is the drill's own, so its texts are known and its requests are recorded."""
    draw: Callable[[random.Random, int], Load] = draw
    counted: frozenset[str] = frozenset({"terminal"})
    repeatable: frozenset[str] = frozenset()
    traces: Path | None = None
    """The file of the probes: lines of a call id and the time in ms."""
    recovery_s: float = RECOVERY_S
    window_s: float = 0.7
    """A kill under load comes within this time."""


class Witness:
    """Collects evidence about the runs of one data directory."""

    def __init__(self, folder: Path, setup: Setup, chance: random.Random) -> None:
        self._folder = folder
        self._setup = setup
        self._chance = chance

    async def evidence(self, server: Server, load: Load, *, all_places: bool) -> Evidence:
        """The evidence of a run that has ended. Its streams are resumed at all positions, or at two."""
        port = server.port
        shown = await server.shown(run_path(load))
        found = Evidence(load.tag, load.dialect, shown["status"], shown["output"], list(load.told))
        found.counted, found.repeatable = self._setup.counted, self._setup.repeatable
        for dialect in sorted({load.dialect, "runs"}):
            name = load.id if dialect == load.dialect else "run_" + core(load.id)
            found.replay[dialect] = await _replay(found, stream(port, dialect, name), shown)
            places = [position(dialect, frame) for frame in frames_of(found.replay[dialect])]
            ks = sorted({place for place in places if place is not None})
            if load.waited and dialect == "chat":
                ks = ks[:-1]  # a resume at an open question repeats all of its frames, not only the last
            ks = ks if all_places and len(ks) <= MOST_PLACES else self._chance.sample(ks, min(2, len(ks)))
            tails = await all_done(stream(port, dialect, name, k) for k in ks)
            found.tails += [Told(dialect, k, tail) for k, tail in zip(ks, tails, strict=True)]
        if load.dialect == "responses":
            found.body = await server.shown(f"/v1/responses/{load.id}")
        found.effects, found.late = self.effects(load.id), self._late(found.replay["runs"])
        return found

    async def receipt(self, server: Server, load: Load, evidence: Evidence) -> list[str]:
        """Compare the receipt with the stream: the same calls and outcomes, and no second start of a write."""
        receipt = await server.shown(f"{run_path(load)}/receipt")
        told = {call: outcome for call, (_, outcome) in calls_of(evidence.replay["runs"]).items()}
        steps = {step["call_id"]: step for step in receipt["steps"]}
        wrong = [
            f"call {call} has the outcome {told.get(call)!r} in the stream and {step['outcome']!r} in the receipt"
            for call, step in steps.items()
            if told.get(call, "") != ("" if step["outcome"] == "open" else step["outcome"])
        ]
        again = [call for call, step in steps.items() if step["effect"] == "write" and step["starts"] > 1]
        return [*wrong, *(f"call {call} of a write tool was started again, says the receipt" for call in again)]

    def traces(self) -> list[tuple[str, int]]:
        """Calls that really ran, each with its time in ms (0 where unknown)."""
        files = (self._folder / "data" / "workspaces").glob(f"*/{EFFECTS}")
        found = [(line, 0) for path in files for line in path.read_text().split()]
        if self._setup.traces is not None and self._setup.traces.exists():
            lines = [line.split() for line in self._setup.traces.read_text().splitlines()]
            found += [(call, int(at)) for call, at in lines]
        return found

    def effects(self, run: str) -> Counter[str]:
        """How often each call of a run really ran."""
        return Counter(call for call, _ in self.traces() if core(run) in call)

    def _late(self, runs_replay: bytes) -> list[str]:
        """Calls that began after their result was committed."""
        finished = {
            event["toolCallId"]: int(event["timestamp"] * 1000) + CLOCK_SLACK_MS
            for event in map(payload, frames_of(runs_replay))
            if event.get("event") == "tool.completed"
        }
        return [call for call, at in self.traces() if at > finished.get(call, at)]


async def _replay(found: Evidence, reading: Awaitable[bytes], shown: Mapping[str, Any]) -> bytes:
    """A replay. It is empty for a chat that failed before it had said anything."""
    try:
        return await reading
    except Refused as refused:
        if not _is_its_end(refused, shown):
            raise
        found.refused = refused.code
        return b""


def _is_its_end(refused: Refused, shown: Mapping[str, Any]) -> bool:
    """Whether the error is how the run ended, as GET /v1/runs/{id} shows it."""
    if shown["status"] == "cancelled":
        return refused.code == "run_cancelled"
    return shown["status"] == "failed" and refused.message in shown["error"]


def run_path(load: Load) -> str:
    """The path of a run, whatever its dialect."""
    return f"/v1/runs/run_{core(load.id)}"


def core(shown: str) -> str:
    """The part of an id that all dialects share (G7)."""
    return shown.removeprefix("resp_").removeprefix("chatcmpl-").removeprefix("run_")

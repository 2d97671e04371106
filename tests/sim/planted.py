"""Bugs on purpose. Owns: one wrong part per kind of bug, each made by wrapping or patching a real one, so that tests
can show that the simulator catches it. Refuses to know: how it is caught."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from msgspec.structs import replace

from ninelives.agents.base import Turn
from ninelives.agents.loop import LoopAgent
from ninelives.core import events as e
from ninelives.engine.run import ClaimedRun
from ninelives.engine.workers import Worker
from ninelives.engine.writer import Writer
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import Attached, Opened, Opening, Signal, Slice, Verdict
from tests.sim.watch import Kind
from tests.sim.world import World


class Planted(NamedTuple):
    """A bug, the kinds of finding of which one must tell of it, and within how many seeds."""

    plant: Callable[[World], None]
    caught_by: frozenset[Kind]
    seeds: int
    patch: tuple[str, Any] = ("", None)

    @contextmanager
    def sown(self) -> Iterator[None]:
        """While this lasts the bug is there."""
        name, wrong = self.patch
        if not name:
            yield
            return
        with mock.patch(name, wrong):
            yield


def _store(wrong: type[MemoryStore]) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.store = wrong(lambda: world.loop.now + world.lapsed, now_ms=world.steady_ms)

    return plant


def _nothing(world: World) -> None:
    """The bug is in a patch."""


class LosesTheTail(MemoryStore):
    """Says written, and keeps all but the last record of every seventh append."""

    _appends = 0

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        self._appends += 1
        if self._appends % 7 == 0 and len(slices[0].records) > 1:
            kept = [replace(slices[0], records=slices[0].records[:-1]), *slices[1:]]
            return await super().append(kept)
        return await super().append(slices)


class TellsBeforeItWrites(Writer):
    """Readers hear of entries that are not committed yet."""

    async def _flush(self, batch: Sequence[ClaimedRun]) -> None:
        taken = [live.take() for live in batch]
        for live, (_, entries, after) in zip(batch, taken, strict=True):
            live.tell(entries, after)
        await self._append([part for part, _, _ in taken])


class RunsFinishedToolsAgain(LoopAgent):
    """A later attempt carries out again what is settled."""

    async def run(self, turn: Turn) -> AsyncIterator[e.AnyEvent]:
        facts = turn.state.facts
        for call in [call for said in facts.messages for call in said.calls if call.id in facts.results]:
            if self._toolbox.get(call.name) is not None:
                deed = await self._toolbox.prepare(call.name, call.arguments, self._place(turn.state, call.id))
                await deed.run()
        async for event in super().run(turn):
            yield event


class RepeatsInterruptedWrites(LoopAgent):
    """A write that a crash cut off is simply done again."""

    async def _before_start(self, state: Any, call: Any, due: Any, tool: Any) -> Any:
        return await super()._before_start(state, call, None, tool)


class ForgetsTheEnd(Worker):
    """A run that fails is let go without a word."""

    async def _write_failure(self, error: BaseException | None) -> None:
        return


class LeaksTheConversation(MemoryStore):
    """A run that did not complete keeps its conversation."""

    def _mark(self, run: Any, mark: Any) -> None:
        talk = self._conversations.get((run.owner, run.resolved.conversation or ""))
        super()._mark(run, mark)
        if talk is not None and mark.ended and not mark.chains:
            talk.active = run.opening.run


class LosesCancels(MemoryStore):
    """Says that the wish is kept, and forgets it; the poke is lost with it."""

    async def signal(self, owner: str, signal: Signal) -> bool:
        known = await self.find(owner, signal.run)
        return known is not None and not known.ended if signal.kind == "cancel" else await super().signal(owner, signal)


def _no_poke(world: World) -> None:
    _store(LosesCancels)(world)


class ForgetsKeysInARace(MemoryStore):
    """Looks for the key before the other one has written it."""

    async def open(self, opening: Opening) -> Opened | Attached:
        known = self._keys.pop((opening.asked.owner, opening.asked.key or ""), None)
        opened = await super().open(opening)
        if known is not None:
            self._keys[opening.asked.owner, opening.asked.key or ""] = known
        return opened


class JoinsNothing(MemoryStore):
    """The same request, sent again, begins another run."""

    async def open(self, opening: Opening) -> Opened | Attached:
        return await super().open(replace(opening, asked=replace(opening.asked, match="")))


class WaitsForNoCaller(MemoryStore):
    """A run with store: false goes on after a crash, though its caller is gone."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiting._misses_caller = lambda name, now: False  # type: ignore[method-assign]


async def _keeps_all(retainer: Any) -> int:
    """Nothing is ever forgotten."""
    return 0


class BringsBackTheDeleted(MemoryStore):
    """A deleted run stays in the list."""

    async def delete(self, owner: str, run: str) -> bool:
        kept = self._runs.get(run)
        records = list(kept.records) if kept else []
        gone = await super().delete(owner, run)
        if gone and kept is not None:
            kept.hidden, kept.records = False, records
            self._runs[run] = kept
        return gone


class DropsTheQueue(Writer):
    """A fenced run is told to nobody: its worker waits for ever."""

    async def _flush(self, batch: Sequence[ClaimedRun]) -> None:
        taken = [live.take() for live in batch]
        verdicts = await self._append([part for part, _, _ in taken])
        for live, (_, entries, after), verdict in zip(batch, taken, verdicts, strict=True):
            if verdict is Verdict.WRITTEN and not any(isinstance(x.event, e.ToolFinished) for x in entries):
                live.tell(entries, after)


def _agent(wrong: type[LoopAgent]) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.make_agent = wrong

    return plant


def kinds(*names: Kind) -> frozenset[Kind]:
    """Any of these tells of it."""
    return frozenset(names)


def _backwards(run: ClaimedRun) -> list[e.SteerApplied]:
    """Steers are used in the wrong order."""
    used = {steered.applied.id for steered in run.staging.state.facts.steers}.union(run.staging.state.facts.unused)
    return [steer for steer in reversed(run._steers.values()) if steer.id not in used]


PLANTED = {
    "steers are used in the wrong order": Planted(
        _nothing, frozenset({"steer"}), 120, ("ninelives.engine.run.ClaimedRun.pending", _backwards)
    ),
    "loses the tail": Planted(_store(LosesTheTail), kinds("numbers", "told", "references", "end"), 20),
    "tells before it writes": Planted(
        _nothing, kinds("told"), 20, ("ninelives.engine.engine.Writer", TellsBeforeItWrites)
    ),
    "runs a finished tool again": Planted(_agent(RunsFinishedToolsAgain), kinds("rerun"), 30),
    "repeats an interrupted write": Planted(_agent(RepeatsInterruptedWrites), kinds("rerun"), 60),
    "forgets the terminal event": Planted(
        _nothing, kinds("stuck"), 60, ("ninelives.engine.workers.Worker", ForgetsTheEnd)
    ),
    "leaks a conversation": Planted(_store(LeaksTheConversation), kinds("references"), 40),
    "loses a cancel": Planted(
        _no_poke, kinds("cancel"), 150, ("ninelives.engine.workers.Workers.cancel", lambda workers, run: None)
    ),
    "starts two runs for one key": Planted(_store(ForgetsKeysInARace), kinds("key"), 30),
    "joins nothing": Planted(_store(JoinsNothing), kinds("key"), 60),
    "waits for no caller": Planted(_store(WaitsForNoCaller), kinds("claim"), 150),
    "forgets nothing": Planted(
        _nothing, kinds("deleted"), 150, ("ninelives.engine.retention.Retainer.forget", _keeps_all)
    ),
    "brings back a deleted run": Planted(_store(BringsBackTheDeleted), kinds("deleted", "references"), 60),
    "lets a worker wait for ever": Planted(
        _nothing, kinds("stuck"), 20, ("ninelives.engine.engine.Writer", DropsTheQueue)
    ),
}

"""The last message of a run is told ahead of its end, where somebody takes it: both are then one commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from ninelives.agents.base import Turn
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.core import events as e
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text, Thinking
from ninelives.tools.registry import Toolbox
from tests.journals import Pen


class Says:
    """A model that says the same each time."""

    name = "m"

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    async def stream(self, ask: Ask) -> AsyncIterator[Sequence[Part]]:
        yield list(self._parts)


class SaysTwice(Says):
    """The first part comes in a read of its own."""

    async def stream(self, ask: Ask) -> AsyncIterator[Sequence[Part]]:
        yield [self._parts[0]]
        yield list(self._parts[1:])


class Taker:
    """Takes what is told ahead, if it is free."""

    def __init__(self, *, free: bool, read: bool = True) -> None:
        self._free = free
        self._read = read
        self.settled: list[e.MessageCompleted] = []

    def has_room(self) -> bool:
        return self._free

    def is_read(self) -> bool:
        return self._read

    def put(self, delta: e.Delta) -> None:
        raise AssertionError("this model yields")

    def put_last(self, said: e.MessageCompleted) -> None:
        self.settled.append(said)


async def run(model: Says, ahead: Taker | None) -> list[e.AnyEvent]:
    unused: Any = None
    agent = LoopAgent(model, Toolbox([]), LoopSettings(), CallEnvironment(unused, unused, unused), unused)  # type: ignore[arg-type]
    events = []
    async for event in agent.run(Turn(Pen().attempt().state, (), deltas=ahead)):
        events.append(event)
        if len(events) == 4:
            break
    return events


PLAIN = Says(Text("hi"), Finished("stop", e.Usage()))
CUT = Says(Text("hi"), Finished("length", e.Usage()))


@pytest.mark.parametrize(("model", "end"), [(PLAIN, e.RunCompleted()), (CUT, e.RunInterrupted("max_output_tokens"))])
async def test_the_last_message_is_settled_and_only_the_end_is_yielded(model: Says, end: e.AnyEvent) -> None:
    taker = Taker(free=True)
    assert await run(model, taker) == [e.TextDelta("hi"), end]
    assert [said.text for said in taker.settled] == ["hi"]


@pytest.mark.parametrize("ahead", [None, Taker(free=False)])
async def test_where_nobody_takes_it_message_and_end_are_yielded_one_after_the_other(ahead: Taker | None) -> None:
    kinds = [type(event) for event in await run(PLAIN, ahead)]
    assert kinds == [e.TextDelta, e.MessageCompleted, e.RunCompleted]
    assert ahead is None or not ahead.settled


async def test_a_message_with_calls_is_no_last_one() -> None:
    taker = Taker(free=True)
    calls = Says(CallPiece(0, "nothing", "{}"), Finished("tool_calls", e.Usage()))
    events = await run(calls, taker)
    assert isinstance(events[0], e.MessageCompleted)
    assert not taker.settled


async def test_a_message_that_comes_as_a_whole_has_no_deltas_where_nobody_reads_the_run() -> None:
    taker = Taker(free=True, read=False)
    assert await run(Says(Text("hi "), Text("you"), Finished("stop", e.Usage())), taker) == [e.RunCompleted()]
    assert [said.text for said in taker.settled] == ["hi you"]


async def test_a_message_with_thoughts_has_its_deltas_so_that_no_two_events_have_one_number() -> None:
    taker = Taker(free=True, read=False)
    thought = Says(Thinking("hm"), Text("hi"), Finished("stop", e.Usage()))
    assert await run(thought, taker) == [e.ReasoningDelta("hm"), e.TextDelta("hi"), e.RunCompleted()]


async def test_a_message_that_comes_in_two_reads_has_its_deltas_though_nobody_reads_the_run() -> None:
    taker = Taker(free=True, read=False)
    assert await run(SaysTwice(Text("hi "), Text("you"), Finished("stop", e.Usage())), taker) == [
        *(e.TextDelta("hi "), e.TextDelta("you"), e.RunCompleted())
    ]
    assert [said.text for said in taker.settled] == ["hi you"]

"""Kills an agent of one's own after every event, and counts what it did again. Owns: the attempts and the counts.
Refuses to know: frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ninelives.agents.adapters import Surroundings, adapted
from ninelives.agents.base import Agent, Turn
from ninelives.agents.loop import LoopSettings
from ninelives.agents.steps import MODEL, StepFailed
from ninelives.core import events as e
from ninelives.core.state import Called
from ninelives.models.scripted import ScriptedModel
from tests.journals import Pen, spec_of


def agent_of(found: object) -> Agent:
    return adapted(found, Surroundings(ScriptedModel(), LoopSettings(), None))  # type: ignore[arg-type]


async def attempt(agent: Agent, pen: Pen, events: int = 10**9) -> Pen:
    """One attempt, killed after this many events."""
    run: Any = agent.run(Turn(pen.state, ()))
    try:
        async for event in run:
            pen.write(event)
            events -= 1
            if events == 0:
                break
    except StepFailed as error:  # as the engine does
        pen.write(e.RunFailed(code="server_error", message=error.message, reason=error.code))
    finally:
        await run.aclose()
    return pen


@dataclass
class World:
    """What an agent did outside of the journal: each call of a tool, each answer of a model that was asked for."""

    calls: list[str] = field(default_factory=list)
    asked: int = 0


@dataclass
class Killed:
    """What a kill after one event meant."""

    after: str
    state: Any
    calls_again: int
    """Calls beyond one for each finished call, without reads that were in flight."""
    asked_again: int
    """Answers that were asked for again though they were finished."""


def done_in(state: Any) -> tuple[int, int]:
    """How many calls and how many answers of models the journal has finished."""
    facts = state.facts
    started = [item.started.call for item in facts.items if isinstance(item, Called)]
    hidden = {call.id for call in started if call.name == MODEL}
    answers = len([said for said in facts.messages if said.step]) + len(hidden & set(facts.results))
    return len(set(facts.results) - hidden), answers


async def killed_everywhere(make: Callable[[World], object], question: str = "Say hello") -> tuple[Pen, list[Killed]]:
    """The run without a kill, and a kill after each of its events."""
    whole = await attempt(
        agent_of(make(World())), Pen(spec_of(input=({"role": "user", "content": question},))).attempt()
    )
    all_calls, all_answers = done_in(whole.state)
    kills: list[Killed] = []
    for events in range(1, whole.state.seq - 1):
        world = World()
        pen = Pen(spec_of(input=({"role": "user", "content": question},))).attempt()
        await attempt(agent_of(make(world)), pen, events)
        finished, settled = done_in(pen.state)
        calls, asked = len(world.calls), world.asked
        after = type(pen.entries[-1].event).__name__
        await attempt(agent_of(make(world)), pen.crash())
        kills.append(
            Killed(
                after,
                pen.state,
                max(0, len(world.calls) - calls - (all_calls - finished)),
                max(0, world.asked - asked - (all_answers - settled)),
            )
        )
    return whole, kills

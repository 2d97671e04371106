"""Several agents under one roof. Owns: which agent answers which profile. Refuses to know: what an agent does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from holdfast.agents.base import Agent, Turn
from holdfast.core.events import AnyEvent
from holdfast.core.state import RunState


class ByProfile:
    """An Agent that hands each run to the agent of its profile. A profile that is gone since is the default's."""

    def __init__(self, default: Agent, others: Mapping[str, Agent]) -> None:
        self._default = default
        self._others = others
        self.resumable = default.resumable and all(agent.resumable for agent in others.values())

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers."""
        await self._agent_of(state).end_leftovers(state)

    def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        """See Agent.run."""
        return self._agent_of(turn.state).run(turn)

    def _agent_of(self, state: RunState) -> Agent:
        return self._others.get(state.facts.accepted.spec.model, self._default)

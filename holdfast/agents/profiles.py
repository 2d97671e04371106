"""Several agents under one roof. Owns: which agent answers which profile. Refuses to know: what an agent does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from holdfast.agents.base import Agent, Turn
from holdfast.core.events import AnyEvent


class ByProfile:
    """An Agent that hands each run to the agent of its profile. A profile that is gone since is the default's."""

    def __init__(self, default: Agent, others: Mapping[str, Agent]) -> None:
        self._default = default
        self._others = others
        self.resumable = default.resumable and all(agent.resumable for agent in others.values())

    def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        """See Agent.run."""
        name = turn.state.facts.accepted.spec.model
        return self._others.get(name, self._default).run(turn)

"""One agent for each profile. Owns: which agent answers which profile. Refuses to know: what an agent does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from ninelives.agents.base import Agent, RunForgetter, Turn
from ninelives.core.events import AnyEvent, RunAccepted
from ninelives.core.state import RunState


class ByProfile:
    """An Agent that hands each run to the agent of its profile. The default agent answers for a removed profile."""

    resumable = True
    """Of the whole. The engine asks agent_for() for the agent of a run."""

    def __init__(self, default: Agent, others: Mapping[str, Agent]) -> None:
        self.default = default
        self.others = others

    async def end_leftovers(self, state: RunState) -> None:
        """See Agent.end_leftovers."""
        await agent_for(self, state.facts.accepted).end_leftovers(state)

    def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        """See Agent.run."""
        return agent_for(self, turn.state.facts.accepted).run(turn)

    async def forget(self, state: RunState) -> bool:
        """See RunForgetter.forget."""
        agent = agent_for(self, state.facts.accepted)
        return await agent.forget(state) if isinstance(agent, RunForgetter) else True


def agent_for(agent: Agent, accepted: RunAccepted) -> Agent:
    """The agent that answers this run: what it says of itself, such as `resumable`, is true of this run alone."""
    if isinstance(agent, ByProfile):
        return agent.others.get(accepted.spec.model, agent.default)
    return agent

"""Kill an agent of your own in a test of your own. Owns: AgentTrial, one run of an agent in this process, which dies
at a step and goes on. Refuses to know: servers and stores."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from typing import Literal

from ninelives.agents.adapters import Surroundings, adapted
from ninelives.agents.base import Turn
from ninelives.agents.loop import LoopSettings
from ninelives.core import events as e
from ninelives.core.errors import AgentError
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import Called, apply, start
from ninelives.models.base import Model
from ninelives.testing.playbook import PlaybookModel


class AgentTrial:
    """One run of an agent: `trial = AgentTrial(agent, "Book Oslo")`, `await trial.crash_at("book")`,
    `await trial.run()`. `model` is what ctx.ask() asks."""

    def __init__(self, agent: object, question: str, model: Model | None = None) -> None:
        self._agent = adapted(agent, Surroundings(model or PlaybookModel([]), LoopSettings(), None))
        spec = Spec(dialect="responses", model="trial", input=({"role": "user", "content": question},))
        accepted = e.RunAccepted(spec=spec, resolved=Resolved(), owner="test")
        self._times = itertools.count(1)
        self._state = start(e.Entry("0123456789abcdef", 0, 0, 0, accepted))
        self.failure = ""
        """The reason of a failed run, such as `replay_diverged` or `outcome_unknown`."""

    @property
    def status(self) -> str:
        """The status of the run: `in_progress` after a crash, `completed` or `failed` at the end."""
        return self._state.status

    @property
    def text(self) -> str:
        """The last message of the agent."""
        messages = self._state.facts.messages
        return messages[-1].text if messages else ""

    async def crash_at(self, step: str, when: Literal["started", "finished"] = "started") -> None:
        """Run until the journal has the start or the result of a step of this name, and die there. Raises
        AssertionError where the agent never makes it."""
        await self._attempt(step, when)
        if self._state.ended:
            raise AssertionError(f"The run ended ({self.status} {self.failure}) and did not come to {step}.")

    async def run(self) -> None:
        """Run, or go on after a crash, to the end."""
        await self._attempt("", "started")

    async def _attempt(self, step: str, when: str) -> None:
        self._write(e.AttemptStarted(clean=not self._state.facts.attempt))
        try:
            async with aclosing(self._agent.run(Turn(self._state, ()))) as events:  # type: ignore[type-var]
                async for event in events:
                    self._write(event)
                    if step and self._is(event, step, when):
                        return
        except AgentError as error:
            self.failure = error.code
            self._write(e.RunFailed(code="server_error", message=error.message, reason=error.code))

    def _is(self, event: e.AnyEvent, step: str, when: str) -> bool:
        if when == "started":
            return isinstance(event, e.ToolStarted) and event.call.name == step
        called = [item.started.call for item in self._state.facts.items if isinstance(item, Called)]
        made = {call.id for call in called if call.name == step}
        return isinstance(event, e.ToolFinished) and event.call_id in made

    def _write(self, event: e.AnyEvent) -> None:
        attempt = self._state.facts.attempt + isinstance(event, e.AttemptStarted)
        entry = e.Entry(self._state.facts.run, self._state.seq + 1, next(self._times), attempt, event)
        self._state = apply(self._state, entry)

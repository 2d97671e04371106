"""What an agent is. Owns: the Agent Protocol and the Turn that it is given. Refuses to know: where events go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct

from holdfast.core.events import AnyEvent, Delta, MessageCompleted
from holdfast.core.spec import Message
from holdfast.core.state import RunState


class Ahead(Protocol):
    """Takes deltas at once, out of an agent's turn to yield: it spares a wake-up for each of them."""

    def free(self) -> bool:
        """May some be put now? If not, yield them: the agent is then held back until there is room."""
        ...

    def put(self, delta: Delta) -> None:
        """As if it had been yielded. Only between two yields, in the order in which deltas came."""
        ...

    def settle(self, said: MessageCompleted) -> None:
        """The last message, where the end of the run is yielded next, at once: both are committed together, which costs
        half as much as one after the other. Only where `free()`."""
        ...


class Turn(Struct, frozen=True):
    """One run, as an agent sees it when an attempt begins."""

    state: RunState
    """All that is settled. Calls that are due come first: see Agent.run."""
    history: tuple[Message, ...]
    """Settled messages of earlier turns, oldest first, without system prompts."""
    ours: Callable[[], bool] = lambda: True
    """Is the claim still fresh? Asked right before a deed: where it is not, nothing may be begun, and the generator
    will be closed."""
    ahead: Ahead | None = None
    """Nobody need use it."""


class Agent(Protocol):
    """Anything that can answer a turn with events."""

    resumable: bool
    """May `run` be called again for a run whose last attempt died? If not, such a run ends failed."""

    async def end_leftovers(self, state: RunState) -> None:
        """An earlier attempt is over: end whatever its calls that are still due left running (house rule 6.8). Called
        once per later attempt, before anything is settled, also where the run is then cancelled or parked."""
        ...

    def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        """Yield what happens, in the order of the table in core/state.py, up to one terminal event.

        The generator goes on after yielding a fact (anything but a delta) only when that fact is committed (G12):
        so yield ToolStarted, then act. On a later attempt `turn.state` holds the facts of the earlier ones: settle
        what is due by the rule of each tool, then ask the model for the next message. The generator is closed with
        aclose() when the run is cancelled or parked: it must let go of sockets and processes then."""
        ...

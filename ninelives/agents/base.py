"""What an agent is. Owns: Agent, the protocol to implement for an agent of your own, and Turn, what it is given.
Refuses to know: where events go.

A whole agent, with no model and no tools:

    class Echo:
        resumable = True

        async def end_leftovers(self, state: RunState) -> None:
            pass

        async def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
            if not turn.state.facts.messages:
                text = str(turn.state.facts.accepted.spec.input[-1]["content"])
                yield events.TextDelta(text)
                yield events.MessageCompleted(text)
            yield events.RunCompleted()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ninelives.core.events import AnyEvent, Delta, MessageCompleted, SteerApplied
from ninelives.core.spec import Message
from ninelives.core.state import RunState


class DeltaSink(Protocol):
    """A faster way for deltas than to yield them. Its use is optional: it saves a wake-up of the agent per delta."""

    def has_room(self) -> bool:
        """False where too much waits to be written, or where the run is to be parked or stopped. Then yield instead:
        that waits until there is room, or until the agent is stopped."""
        ...

    def is_read(self) -> bool:
        """True while somebody reads the run as it goes. Nobody misses the deltas of a message that comes as a whole."""
        ...

    def put(self, delta: Delta) -> None:
        """The same as to yield it. Call only while has_room() is True, and in the order of the text."""
        ...

    def put_last(self, message: MessageCompleted) -> None:
        """The last message of a run, without waiting for its commit. Yield the terminal event next, at once. Both are
        then one commit. Call only while has_room() is True."""
        ...


class Steering(Protocol):
    """What people write to a run while it works. An agent that never asks is not steered: they are told so at its
    end."""

    def pending(self) -> Sequence[SteerApplied]:
        """The steers that wait, in order. Yield each where the model can read it: between two messages, when no call
        is due. It is no longer pending then."""
        ...


def always_held() -> bool:
    """For a turn outside of a server, such as in a test: nobody else can take the run."""
    return True


class Turn(Struct, frozen=True):
    """One attempt at one run, as it begins."""

    state: RunState
    """The committed facts of the run. Its request is `state.facts.accepted.spec`; the messages and tool results of
    earlier attempts are in `state.facts`. The value does not change while the agent runs."""
    history: tuple[Message, ...]
    """The messages of earlier turns, oldest first, in the form of Chat Completions and without system prompts."""
    holds_claim: Callable[[], bool] = always_held
    """False where this process may have lost the run to another one. Ask right before each side effect. Where the
    answer is False, do nothing and wait: the generator is about to be closed (P11)."""
    deltas: DeltaSink | None = None
    """A faster way for deltas, where there is one."""
    steering: Steering | None = None


@runtime_checkable
class RunForgetter(Protocol):
    """An agent whose tools leave something outside of the journal that must go with the run, such as long outputs in a
    file. Files that a tool was asked to write are not meant: they stay."""

    async def forget(self, state: RunState) -> bool:
        """Delete it. The run has ended and is about to be forgotten (B6). False: another process must do so, because
        what was left is on its machine."""
        ...


@runtime_checkable
class DraftKeeper(Protocol):
    """An agent that can go on with the draft of a process that is gone."""

    @property
    def keeps_calls(self) -> bool:
        """True where answers of its model can outlive this process."""
        ...

    def keeps_draft(self, state: RunState) -> bool:
        """True where the answer of the model, of which the draft is the beginning, was kept."""
        ...


@runtime_checkable
class ToolKnower(Protocol):
    """An agent that can tell its tools from names that a model made up."""

    def has_tool(self, name: str) -> bool:
        """True where it has a tool of this name."""
        ...


class Agent(Protocol):
    """Anything that answers a turn with events. One object serves all runs, many at a time.

    What the server guarantees (G12, P5, P11):

    - Each event that `run` yields is written to the journal of the run, in order.
    - After a fact, which is every event but a delta, the generator continues only when the fact is committed. So yield
      ToolStarted, then act.
    - Deltas do not wait for a commit. They may be ahead of it by a bounded number of bytes.
    - No client sees an event before it is committed.
    - At most one attempt at a run can write. An attempt that lost the run is closed.
    """

    resumable: bool
    """True where `run` may be called again after a crash or a restart, for a run that is not finished. Otherwise such a
    run ends as failed with the reason `agent_not_resumable`."""

    async def end_leftovers(self, state: RunState) -> None:
        """End the processes that calls of an earlier attempt left behind (R8). `state.facts.due` has the calls without
        a result. The server calls it once, at the start of each later attempt, before `run`; also where `run` is not
        called any more. An exception is logged and does not fail the run."""
        ...

    def run(self, turn: Turn) -> AsyncIterator[AnyEvent]:
        """Yield what happens, up to and including one terminal event: RunCompleted, RunFailed or RunInterrupted.

        The table in docs/reference/state.md says which event may come when. An event that it does not allow
        fails the run, and so does an exception. Raise AgentError to choose the code and the message of the failure.

        `turn.state` of a later attempt holds the facts of the earlier ones; their drafts are gone. First settle the
        calls in `turn.state.facts.due`, each with ToolFinished. A call with `started` set may have happened: make it
        again only if its effect is read or idempotent (E3). Then go on with the next message.

        The server closes the generator with aclose() when the run is cancelled or parked, and when its claim is lost.
        Release sockets and processes then (in a `finally`), and yield nothing more."""
        ...

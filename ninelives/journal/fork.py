"""A new run from the beginning of another one. Owns: at which entries a run can be forked, and the facts that the new
run takes over. Refuses to know: stores, and who may fork.

Theory of operation. A fork begins with the facts of another run up to an entry, under its own ids. Only what is settled
is copied: complete messages, calls with their results, steers. So nothing of it is done again. Drafts, attempts and
approvals are left out, and the tokens of copied messages count as nothing, because they were not spent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.errors import ClientError
from ninelives.core.ids import call_id
from ninelives.core.spec import Message
from ninelives.core.state import RunState, apply, in_flight, start
from ninelives.core.table import Phase

SLICE = 512
"""Others run after so many entries."""
SHOWN = 20
"""How many places an error names."""


class ForkPoint(Struct, frozen=True):
    """Where a run is forked, and with what: its state, and its entries but for deltas."""

    seq: int
    state: RunState
    entries: tuple[e.Entry, ...]


def is_legal(state: RunState, *, speaks: bool) -> bool:
    """Whether a fork may begin after this state. `speaks`: with new input, which must not come between a call and its
    result."""
    facts = state.facts
    if state.phase not in (Phase.READY, Phase.ACTING) or state.drafting or in_flight(state) or facts.approvals:
        return False
    handed = any(call.client for said in facts.messages[-1:] for call in said.calls)
    return not speaks or (state.phase is Phase.READY and not handed)


async def fork_at(entries: AsyncIterator[e.Entry], from_seq: int, *, speaks: bool) -> ForkPoint:
    """The last place at or before `from_seq` where the run can be forked. Raises ClientError where there is none. Reads
    no further than it must, and lets others run in between (R12)."""
    state: RunState | None = None
    found: tuple[RunState, int] | None = None
    facts: list[e.Entry] = []
    legal: list[int] = []
    async for entry in entries:
        state = start(entry) if state is None else apply(state, entry)
        if not isinstance(entry.event, e.Delta):
            facts.append(entry)
            if is_legal(state, speaks=speaks):
                legal.append(entry.seq)
                found = (state, len(facts)) if entry.seq <= from_seq else found
        if entry.seq >= from_seq and found is not None:
            return ForkPoint(found[0].seq, found[0], tuple(facts[: found[1]]))
        if not entry.seq % SLICE:
            await asyncio.sleep(0)
    places = ", ".join(map(str, legal[-SHOWN:])) or "none yet"
    words = f"This run cannot be forked at {from_seq}. The last places where it can: {places}."
    raise ClientError("invalid_fork_point", words, param="from_seq")


def copied(fork: ForkPoint, run: str, said: Sequence[Message], by: str) -> list[e.AnyEvent]:
    """The facts of a fork for the new run, and its new input."""
    old, facts, begun = fork.state.facts.run, list[e.AnyEvent](), set[str]()

    def named(shown: str) -> str:
        return call_id(run, 0)[:-4] + shown.removeprefix(f"call_{old}") if shown.startswith(f"call_{old}") else shown

    for entry in fork.entries:
        match entry.event:
            case e.MessageCompleted() as message:
                calls = tuple(replace(call, id=named(call.id)) for call in message.calls)
                facts.append(replace(message, calls=calls, usage=e.Usage()))
            case e.ToolStarted() as started if started.call.id not in begun:
                begun.add(started.call.id)
                call = replace(started.call, id=named(started.call.id))
                facts.append(replace(started, call=call, process=None))
            case e.ToolFinished() as finished:
                facts.append(replace(finished, call_id=named(finished.call_id)))
            case e.SteerApplied() as steer:
                facts.append(steer)
    if said:
        facts.append(e.SteerApplied(id=f"steer_{run}", messages=tuple(said), by=by))
    return facts


def not_stored_fork() -> ClientError:
    """The error for a run with `store: false`: a fork is stored, and would keep what must be forgotten."""
    words = "This run has store: false, so it cannot be forked: a fork is stored. Start another run with store: true."
    return ClientError("run_not_stored", words, status=409)

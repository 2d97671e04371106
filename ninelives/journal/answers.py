"""A person's answer to the question of a run. Owns: the answer as a signal carries it, leaving it for the holder, and
which answer a question has. Only the first one counts. Refuses to know: who is asked, and what an answer permits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ninelives.core import codec
from ninelives.core.errors import ClientError
from ninelives.core.events import ApprovalGiven, Choice
from ninelives.core.state import RunState
from ninelives.journal.base import Store
from ninelives.journal.values import Signal


class PersonAnswer(msgspec.Struct, frozen=True):
    """A person's word, as a signal carries it. `nonce` tells two answers apart: only the first one counts."""

    choice: Choice
    by: str
    nonce: str


def answer_to(state: RunState, signals: Sequence[Signal], *, overdue: bool) -> ApprovalGiven | None:
    """The answer to the open question: a person's, or, where the store says that its time is over, none in time."""
    asked = state.facts.asked
    if asked is None:
        return None
    for signal in signals:
        if signal.kind == "approval" and signal.key == asked.code:
            answer = msgspec.json.decode(signal.payload, type=PersonAnswer)
            return ApprovalGiven(call_id=asked.call.id, choice=answer.choice, by=answer.by)
    return ApprovalGiven(call_id=asked.call.id, choice="expired", by="clock") if overdue else None


def answer_entry_id(state: RunState) -> str:
    """The id of the entry for this answer in the audit log: whoever writes it, it is one entry."""
    asked = state.facts.asked
    return f"{state.facts.run} {asked.code}" if asked is not None else ""


def not_pending() -> ClientError:
    """The one answer where there is nothing to approve."""
    return ClientError(
        "approval_not_pending", "No approval is pending here: it was answered, has expired or never was.", status=409
    )


def not_offered(choices: Sequence[Choice]) -> ClientError:
    """The error for an answer that the question does not take."""
    return ClientError(
        "approval_choice",
        f"This question takes {', '.join(choices)}. `session` needs a chat with an id of its own: send "
        "X-Hermes-Session-Id. Neither `session` nor `always` is possible where a rule of the configuration asks, for a "
        "request with store: false, and for a call over 8,000 characters.",
        param="choice",
    )


async def leave_answer(store: Store, owner: str, state: RunState, answer: PersonAnswer) -> None:
    """Leave a person's answer for the holder; 409 where another came first."""
    asked = state.facts.asked
    run = state.facts.run
    if asked is None:
        raise not_pending()
    signal = Signal(run, "approval", asked.code, msgspec.json.encode(answer))
    if not await store.signal(owner, signal):
        raise not_pending()
    kept = [s for s in await store.signals(run) if s.kind == "approval" and s.key == asked.code]
    if kept[0].payload != signal.payload if kept else not await _was_taken(store, owner, state, answer):
        raise not_pending()


async def _was_taken(store: Store, owner: str, state: RunState, answer: PersonAnswer) -> bool:
    """The run ended before its signals were read: what does its journal say?"""
    asked, after = state.facts.asked, state.seq
    while asked is not None and (page := await store.read(owner, state.facts.run, after)):
        for event in (codec.decode(record.data) for record in page):
            if isinstance(event, ApprovalGiven) and event.call_id == asked.call.id:
                return (event.choice, event.by) == (answer.choice, answer.by)
        after = page[-1].seq
    return False

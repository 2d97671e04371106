"""Questions that wait for a person. Owns: how an answer is found among signals, which runs wait and until when, and
making a run that the connection owned durable before its question is shown (G11). A run that waits holds no task and no
claim: it is parked, and a signal or the clock wakes it. Refuses to know: who asks and how the question looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.admission import Asked
from holdfast.core.errors import ClientError
from holdfast.core.events import ApprovalGiven
from holdfast.core.state import RunState
from holdfast.engine.live import Live
from holdfast.engine.writer import RETRY_S, patiently
from holdfast.journal.base import Opening, Record, Signal, Store, StoreUnavailable

Choice = Literal["once", "session", "always", "deny"]


class Answer(Struct, frozen=True):
    """A person's word, as a signal carries it. `nonce` tells two answers apart: only the first one counts."""

    choice: Choice
    by: str
    nonce: str


def answer_to(state: RunState, signals: Sequence[Signal], now_ms: int) -> ApprovalGiven | None:
    """The answer to the open question: a person's, or the clock's."""
    asked = state.facts.asked
    if asked is None:
        return None
    for signal in signals:
        if signal.kind == "approval" and signal.key == asked.code:
            answer = msgspec.json.decode(signal.payload, type=Answer)
            return ApprovalGiven(call_id=asked.call.id, choice=answer.choice, by=answer.by)
    if now_ms >= asked.expires_at:
        return ApprovalGiven(call_id=asked.call.id, choice="expired", by="clock")
    return None


def concerns(state: RunState, signals: Sequence[Signal]) -> bool:
    """Is there a wish that a waiting run must be woken for? Answers to its earlier questions stay with the store until
    it ends: they are none, or it would be woken for ever."""
    asked = state.facts.asked
    return any(signal.kind != "approval" or (asked is not None and signal.key == asked.code) for signal in signals)


def not_pending() -> ClientError:
    """The one answer where there is nothing to approve."""
    return ClientError(
        "approval_not_pending", "No approval is pending here: it was answered, has expired or never was.", status=409
    )


async def give(store: Store, owner: str, state: RunState, answer: Answer) -> None:
    """Leave a person's answer for the holder; 409 where another came first."""
    asked = state.facts.asked
    run = state.facts.run
    if asked is None:
        raise not_pending()
    wish = Signal(run, "approval", asked.code, msgspec.json.encode(answer))
    if not await store.signal(owner, wish):
        raise not_pending()
    kept = [s for s in await store.signals(run) if s.kind == "approval" and s.key == asked.code]
    if kept[0].payload != wish.payload if kept else not await _was_taken(store, owner, state, answer):
        raise not_pending()


async def _was_taken(store: Store, owner: str, state: RunState, answer: Answer) -> bool:
    """The run ended before its signals were read: what does its journal say?"""
    asked, after = state.facts.asked, state.seq
    while asked is not None and (page := await store.read(owner, state.facts.run, after)):
        for event in (codec.decode(record.data) for record in page):
            if isinstance(event, ApprovalGiven) and event.call_id == asked.call.id:
                return (event.choice, event.by) == (answer.choice, answer.by)
        after = page[-1].seq
    return False


async def adopt(memory: Store, durable: Store, live: Live, holder: str) -> None:
    """Write a run that was in memory only to the durable store, with all its records and under the same id. A shared
    store that does not answer may have written it all the same, and then it goes on there, whoever claims it: it is
    asked until that is known, or the run would be told as failed and live on."""
    kept: list[Record] = []
    while page := await memory.read(live.owner, live.run, len(kept) - 1):
        kept += page
    facts = live.committed.facts
    spec, resolved = facts.accepted.spec, facts.accepted.resolved
    opening = Opening(
        run=live.run,
        at=facts.created_at,
        dialect=spec.dialect,
        model=spec.model,
        asked=Asked(owner=live.owner, fingerprint="", derived_session=resolved.session or ""),
        accept=lambda _: [record.data for record in kept],
        holder=holder,
        metadata=msgspec.json.encode(spec.metadata),
        times=tuple(record.at for record in kept),
    )
    there = False
    while not there:
        try:
            await durable.open(opening)
            return
        except StoreUnavailable as error:
            if not (durable.peers.shared and error.passing):
                raise
        await asyncio.sleep(RETRY_S)
        there = await patiently(lambda: durable.find(live.owner, live.run)) is not None


class Waiting:
    """The runs that wait for a person, and until when."""

    def __init__(self, wake: Callable[[str, str], None]) -> None:
        self._wake = wake
        self._until: dict[str, tuple[str, int]] = {}

    def add(self, owner: str, run: str, until: int) -> None:
        """It waits from now on."""
        self._until[run] = (owner, until)

    def wake(self, run: str) -> bool:
        """There is an answer, or another reason to look; False where it does not wait."""
        waiting = self._until.pop(run, None)
        if waiting is None:
            return False
        self._wake(waiting[0], run)
        return True

    def forget(self, run: str) -> bool:
        """It is looked after; False where somebody else did so first."""
        return self._until.pop(run, None) is not None

    def expire(self, now_ms: int) -> None:
        """Wake those whose time is over."""
        for run, (_owner, until) in list(self._until.items()):
            if until <= now_ms:
                self.wake(run)

    def __len__(self) -> int:
        return len(self._until)

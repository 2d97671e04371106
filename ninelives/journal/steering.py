"""What people write to a run while it works. Owns: a steer as a signal carries it, its number in the run, the bounds on
steers, and which of them a run never used. Refuses to know: dialects, and when a steer is applied (agents/loop.py).

Theory of operation. A steer is one signal. Its key is its number in the run, so the primary key of the table decides
which of two steers at once comes first, in any backend. The holder applies the steers whose ids are not in the journal.
Their rows stay until the run goes: whoever asks later compares them with the journal (`unused`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from ninelives.core.errors import ClientError
from ninelives.core.events import SteerApplied
from ninelives.core.spec import Message
from ninelives.core.state import Facts
from ninelives.journal.base import Store
from ninelives.journal.values import Signal

MAX_STEERS = 64
"""Steers of one run, used or not."""
MAX_BYTES = 256 * 1024
"""Bytes of all of them together."""


class Steer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A steer as a signal carries it."""

    id: str
    messages: tuple[Message, ...]
    by: str = ""
    ends: bool = False
    """Another run follows this one and is told the steer: a holder that hears of it while it works ends the run at its
    next safe point. One that takes the run over applies it as any other, because the writer may be gone."""


def steers_of(signals: Iterable[Signal]) -> list[SteerApplied]:
    """The steers among signals, in order. A request that was sent twice at once counts once."""
    found: dict[str, SteerApplied] = {}
    for signal in signals:
        if signal.kind == "steer":
            steer = msgspec.json.decode(signal.payload, type=Steer)
            found.setdefault(steer.id, SteerApplied(id=steer.id, messages=steer.messages, by=steer.by))
    return list(found.values())


def ends_run(signal: Signal) -> bool:
    """Is this a steer after which the run ends?"""
    return signal.kind == "steer" and msgspec.json.decode(signal.payload, type=Steer).ends


def unused(facts: Facts, signals: Iterable[Signal]) -> list[SteerApplied]:
    """The steers that the run has not used so far."""
    return [steer for steer in steers_of(signals) if steer.id not in facts.steered]


def steer_id_of(run: str, key: str) -> str:
    """The id of a steer that comes with an idempotency key: sent again, it is the same one."""
    return f"steer_{hashlib.sha256(f'{run} {key}'.encode()).hexdigest()[:24]}"


async def leave_steer(store: Store, owner: str, run: str, steer: Steer) -> list[Signal]:
    """Leave a steer for the holder. Returns all signals of the run. Raises ClientError: 409 where the run has ended, or
    is no run of this owner; 429 where it has too many."""
    payload, signals = msgspec.json.encode(steer), await store.signals(run)
    while True:
        waiting = [signal for signal in signals if signal.kind == "steer"]
        for known in steers_of(waiting):
            if known.id == steer.id and known.messages == steer.messages:
                return waiting
            if known.id == steer.id:
                raise ClientError("idempotency_key_conflict", "This key was used for another steer.", status=409)
        if len(waiting) >= MAX_STEERS or sum(len(each.payload) for each in waiting) + len(payload) > MAX_BYTES:
            raise too_many_steers()
        if not await store.signal(owner, Signal(run, "steer", f"{len(waiting):06d}", payload)):
            raise not_accepting()
        signals = await store.signals(run)  # another one may have taken this number


def too_many_steers() -> ClientError:
    """The error for one steer more than a run takes."""
    words = f"A run takes {MAX_STEERS} steers and {MAX_BYTES // 1024} KiB of them. Start another run."
    return ClientError("too_many_pending_steers", words, status=429, retry_after=5)


def not_accepting() -> ClientError:
    """The error where a run cannot be steered any more."""
    words = "This run has ended, so it takes no steer. Start another run that follows it."
    return ClientError("run_not_accepting_steer", words, status=409)

"""Whose turn it is. Owns: the order in which runs of several owners get slots. Refuses to know: stores, and who has
slots and was served (Turns in engine/work.py).

Theory of operation. Every owner has a share of the slots by its weight. The owner with the fewest runs at work for its
weight comes first, and of one owner the oldest run. So whoever floods the queue waits behind himself: each run that he
has at work, or before this one, puts it one turn later. Where runs are short that is not enough: with one slot nobody
has a run at work when it is free. So an owner who was served owes a turn to the others (stride scheduling).

Turns are compared by when they begin, not by when they end: the turns of an owner with a large weight end so early that
others would never have one (start-time fair queueing)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ninelives.journal.values import Gone

EQUAL: Mapping[str, int] = {}
"""The weights of owners who all have the same."""
NO_DEBTS: Mapping[str, float] = {}


class WaitingRun(Struct, frozen=True, gc=False):
    """A run that somebody should claim."""

    owner: str
    run: str
    wished: bool
    """A signal is pending that waits for no slot."""


class Fairness(Struct, frozen=True):
    """What decides between owners, besides what the store knows."""

    weights: Mapping[str, int] = EQUAL
    debts: Mapping[str, float] = NO_DEBTS


FAIR = Fairness()
"""All are equal."""


def in_turn(waiting: Iterable[WaitingRun], held: Counter[str], fairness: Fairness, limit: int) -> list[Gone]:
    """The next runs, from those that wait, oldest first. `held` says how many runs each owner has at work."""
    weights, debts = fairness.weights, fairness.debts
    first: list[Gone] = []
    lines: dict[str, list[str]] = {}
    for each in waiting:
        if each.wished:
            first.append((each.owner, each.run))
        else:
            line = lines.setdefault(each.owner, [])
            if len(line) < limit:
                line.append(each.run)
    turns = [
        ((held[owner] + place) / weights.get(owner, 1) + debts.get(owner, 0.0), owner, run)
        for owner, line in lines.items()
        for place, run in enumerate(line)
    ]
    turns.sort(key=lambda turn: turn[0])  # stable: of equal turns, the owner who has waited for longest comes first
    return [*first, *((owner, run) for _, owner, run in turns)][:limit]

"""One thing that takes space. Owns: its description, which the store, the tools and retention share. Refuses to know:
where it is, and how it is deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

HoldingKind = Literal["output", "log", "workspace", "state"]


class Holding(Struct, frozen=True):
    """A file, a log, a workspace, ... of one owner."""

    kind: HoldingKind
    owner: str
    name: str
    bytes: int
    used_at: int = 0
    """In milliseconds."""
    fixed: bool = False
    """It counts, and is never evicted: its owner deletes it."""


def fixed_limit(bound: int) -> int:
    """How much of a bound things that are never evicted may take: three quarters. So there is always room for runs."""
    return bound - bound // 4


def fair_room(sizes: Iterable[int], total: int) -> int:
    """The most that one owner may hold so that all fit into `total`. Who holds less keeps everything, and those who
    hold more are cut to the same size. 0: all fit as they are."""
    ordered = sorted(sizes)
    for n, size in enumerate(ordered):
        share = total // (len(ordered) - n)
        if size > share:
            return max(share, 1)
        total -= size
    return 0


def evictable_room(bound: int, fixed: int) -> int:
    """How much of a bound is left for all others; 0 means no bound."""
    return max(bound - fixed, bound // 4, 1) if bound else 0

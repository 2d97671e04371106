"""What a store keeps, and for how long. Owns: the Protocol Upkeep and its values; see journal/base.py. Refuses to know:
who decides the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

Use = tuple[str, str, int]
"""(owner, run, when in milliseconds)."""
Gone = tuple[str, str]
"""(owner, run)."""


class Retention(Struct, frozen=True, kw_only=True):
    """What may stay. Only runs that have ended and are not pinned are counted and can go; 0 is no bound."""

    at: int
    """Now, in milliseconds."""
    runs: int = 0
    """Of each owner."""
    owner_bytes: int = 0
    total_bytes: int = 0
    before: int = 0
    """Runs that were last used before this time go."""
    tombstone_ms: int = 30 * 86_400_000
    """How long it is known that a run was there."""


class Kept(Struct, frozen=True):
    """What an owner keeps."""

    owner: str
    runs: int
    bytes: int
    pinned: int


class Upkeep(Protocol):
    """Bounds on what is kept. A chain ages by its youngest member, and an evicted run lends its turn to its
    descendants as a deleted one does."""

    async def touch(self, uses: Sequence[Use]) -> None:
        """These runs were used: they go later."""
        ...

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """Keep a run whatever the bounds say, or no longer; False where there is none."""
        ...

    async def evict(self, rule: Retention, spared: frozenset[str]) -> list[Gone]:
        """Let runs go that the rule has no room for, those used longest ago first, but for `spared` ones, which are
        being read. Each frees its key and its conversation as a deletion does. A round is bounded: call again."""
        ...

    async def expired(self, owner: str, run: str) -> bool:
        """Was there such a run, and retention took it?"""
        ...

    async def usage(self) -> Sequence[Kept]:
        """What each owner keeps, the biggest first."""
        ...

    def short(self) -> str | None:
        """Why nothing new should be stored, though it still could be: room is short."""
        ...

    def trouble(self) -> str | None:
        """What the store's own upkeep cannot do at the moment, for health."""
        ...

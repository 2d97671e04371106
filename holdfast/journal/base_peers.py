"""What a store knows of the other processes that use it. Owns: the Protocol Peers, its values, and Alone for a store
that only one process can open. Refuses to know: what the others do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Replica(Struct, frozen=True):
    """A process that uses the store."""

    holder: str
    name: str
    works: bool
    """It drives stored runs; else it only answers requests."""
    seen_ms: int
    """How long ago it was last heard of."""
    runs: int
    """How many it holds."""


class Peers(Protocol):
    """The processes around one store. Where it is `shared`, runs that nobody holds belong to whoever claims them first,
    and a signal may come from anywhere."""

    @property
    def shared(self) -> bool:
        """May other processes use the store now?"""
        ...

    async def wished(self, holder: str) -> Sequence[tuple[str, str]]:
        """(owner, run) that `holder` holds and for which a signal waits: what a lost ring would have told."""
        ...

    async def queued(self) -> int:
        """How many runs wait to be claimed, whoever took them in."""
        ...

    async def settle(self, owner: str, place: str, home: str) -> str:
        """The home of a workspace: `home` where it has none yet, else the one that it has."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Who is there, the one that was heard of last first."""
        ...


class Alone:
    """The Peers of a store that one process has to itself."""

    shared = False

    async def wished(self, holder: str) -> Sequence[tuple[str, str]]:
        """See Peers.wished. A ring is never lost here."""
        return ()

    async def queued(self) -> int:
        """See Peers.queued. The engine's own queue is all there is."""
        return 0

    async def settle(self, owner: str, place: str, home: str) -> str:
        """See Peers.settle."""
        return home

    async def replicas(self) -> Sequence[Replica]:
        """See Peers.replicas."""
        return ()

"""Values that the engine exchanges with its callers. Owns: the Projection Protocol (a dialect, seen from here), what
a subscription can say next, the order for a run and the engine's limits. Refuses to know: HTTP and any dialect."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from holdfast.core.admission import Asked
from holdfast.core.events import Entry
from holdfast.core.spec import Spec


class Projection(Protocol):
    """A dialect as a fold of its own. Views are immutable values: one may be kept, shared or thrown away."""

    name: str

    def view0(self, after: int) -> Any:
        """The view before the first entry, for a reader who replays and has seen everything up to position `after`
        (-1: nothing). What a position counts is the dialect's own: frames or journal entries."""
        ...

    def step(self, view: Any, entry: Entry) -> tuple[Any, list[bytes]]:
        """The view after an entry, and the frames that it renders to. The last frame of a terminal entry is given
        even to a reader who says that it has seen it (G5)."""
        ...

    def live(self, view: Any) -> tuple[Any, list[bytes]]:
        """The reader has reached the live edge: a view that all live readers share, and frames held back so far."""
        ...

    def over(self, view: Any) -> bool:
        """True when this dialect has nothing more to say, though the run may go on: the stream ends here."""
        ...


@runtime_checkable
class Patient(Protocol):
    """A projection that cannot take text back. At the end of a run that no worker here drives, its readers wait rather
    than see a draft which the next attempt may drop; until they see it grow, by another process."""

    waits_for_worker: Literal[True]


class Log(Protocol):
    """Where the engine says what happened: one event name and fields."""

    def info(self, name: str, **fields: object) -> None:
        """Something happened."""
        ...

    def warning(self, name: str, **fields: object) -> None:
        """Something is not as it should be, and was dealt with."""
        ...

    def error(self, name: str, **fields: object) -> None:
        """Something failed."""
        ...


class Order(Struct, frozen=True, kw_only=True):
    """A request that a dialect has parsed."""

    owner: str
    spec: Spec
    asked: Asked


class Ticket(Struct, frozen=True):
    """The run that answers an order. `attached`: it was there already, by its idempotency key."""

    run: str
    session: str
    attached: bool = False
    waited: bool = False
    """The caller waits on a connection of which a retry may take the place: say how it ended (Handover)."""


class Chunk(Struct, frozen=True, gc=False):
    """Whole frames to send on."""

    data: bytes


class Idle(Struct, frozen=True):
    """Nothing happened for a while: show that the line is alive."""


class Ended(Struct, frozen=True):
    """The run's last frame has been given."""


class Cut(Struct, frozen=True):
    """The stream breaks off here, without an end: the reader should come back."""


class Broken(Struct, frozen=True):
    """The journal cannot be read on (a gap, a vanished run): the stream ends with an error, never as if done."""

    reason: str


News = Chunk | Idle | Ended | Cut | Broken


class Keep(Struct, frozen=True, kw_only=True):
    """How much is kept; 0 is no bound."""

    runs: int = 0
    """Of each owner."""
    owner_bytes: int = 0
    total_bytes: int = 0
    days: float = 0.0
    """Since a run was last used."""
    every_s: float = 30.0


class Limits(Struct, frozen=True, kw_only=True):
    """The engine's bounds."""

    keep: Keep = Keep()

    works: bool = True
    """False: stored runs are left to other processes; those that a connection owns are driven where it ends."""
    concurrent_runs: int = 256
    queue: int = 1024
    chores: int = 8
    subscriber_bytes: int = 1_048_576
    linger_s: float = 0.004
    """Deltas that come sooner than this after the last flush wait for each other: a commit of one delta costs about as
    much as a commit of twenty; where only a few are there, half as long again. Facts do not wait."""
    stage_bytes: int = 1_048_576
    """Bytes of deltas that one run may have waiting for the disk before its agent is held back."""
    keepalive_s: float = 15.0
    stall_s: float = 60.0
    """How long a connection-owned run waits for its one reader."""
    grace_s: float = 5.0
    """How long after the last reader left a run is cancelled, where leaving means stop (C4)."""
    strikes: int = 5
    lease_s: float = 15.0

"""Values that the engine exchanges with its callers and its parts. Owns: the Projection Protocol (a dialect, seen from
here), what a subscription can say next, the order for a run, the engine's limits, what an engine is made of
(EngineParts), what its parts tell it (Notices), and how long a claim may be relied on (LeaseSpan). Refuses to know:
HTTP and any dialect."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from ninelives.agents.base import Agent
from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.events import Budget, Entry, RunAccepted
from ninelives.core.holding import Holding
from ninelives.core.limits import Limits, Price
from ninelives.core.rope import Frame
from ninelives.core.spec import Message, Spec, Strategy
from ninelives.core.state import RunState
from ninelives.engine.alarm import Alarm, LoopAlarm
from ninelives.journal.accounts.trail import NoTrail, Trail
from ninelives.journal.base import Logger, Notifier, Store
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import StoreUnavailable, Subject

if TYPE_CHECKING:
    from ninelives.engine.lease import Lease

T = TypeVar("T")
RETRY_S = 0.25
"""A store that cannot be used now is asked again this much later."""
WORK = "work"
"""The topic of notifications that a run can be claimed."""


class View(Protocol):
    """Where a reader stands, as a dialect sees it: an immutable value, which may be kept, shared or thrown away."""

    @property
    def over(self) -> bool:
        """True when this dialect has nothing more to say, though the run may go on: the stream ends here."""
        ...


class Projection(Protocol):
    """A dialect as a fold of its own. Its views are Views; it gets back the views that it made."""

    name: str

    def view0(self, after: int) -> Any:
        """The view before the first entry, for a reader who replays and has seen everything up to position `after`
        (-1: nothing). What a position counts is the dialect's own: frames or journal entries."""
        ...

    def step(self, view: Any, entry: Entry) -> tuple[Any, Sequence[Frame]]:
        """The view after an entry, and the frames that it renders to. The last frame of a terminal entry is given
        even to a reader who says that it has seen it (G5)."""
        ...

    def live(self, view: Any) -> tuple[Any, Sequence[Frame]]:
        """The reader has reached the live edge: a view that all live readers share, and frames held back so far."""
        ...


@runtime_checkable
class Patient(Protocol):
    """A projection that cannot take text back. At the end of a run that no worker here drives, its readers wait rather
    than see a draft which the next attempt may drop; until they see it grow, by another process."""

    waits_for_worker: Literal[True]

    def stand(self, view: Any, attempt: int) -> Any:
        """The view of a reader who need not wait with drafts of this attempt: it is the last one, or it goes on."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A projection whose readers name a position. A reader that names one which the run has not reached yet waits until
    it has: numbers that it says it has seen are never sent again."""

    def reached(self, view: Any, seq: int) -> bool:
        """Is the reader's position in what was told up to entry `seq`?"""
        ...


class Order(Struct, frozen=True, kw_only=True):
    """A request that a dialect has parsed."""

    owner: str
    spec: Spec
    asked: Asked
    size: int = 0
    """Bytes of the request."""
    strategy: Strategy = "reject"
    """What happens while another run of its conversation or session is active."""
    credential: str = ""
    """The id of the API key. Its limits count."""
    budget: Budget | None = None
    """What the run may spend, by the limits of whoever asks."""
    refusal: ClientError | None = None
    """Why no new run may be started. A request that belongs to a run which is there is answered all the same (R16)."""
    until: float = 0.0
    """How long it may wait for a store that is away, by the clock of the event loop; 0: it has not waited yet."""


class ForkOrder(Struct, frozen=True, kw_only=True):
    """A request to fork a run."""

    from_seq: int
    said: tuple[Message, ...] = ()
    """New input, which the model reads first."""
    by: str = ""
    key: str | None = None
    """The idempotency key, with the fingerprint of the request."""
    fingerprint: str = ""
    credential: str = ""
    """See Order.credential."""


class Ticket(Struct, frozen=True):
    """The run that answers an order. `attached`: it was there already, by its idempotency key."""

    run: str
    session: str
    attached: bool = False
    waited: bool = False
    """The caller waits on a connection, and the same request may take its place: Engine.close says how it ended."""
    rest: bool = False
    """The caller has answered the run's question, and is given the rest of the run (G11)."""
    watches: bool = False
    """A reader of a run that others asked for. Its leaving is no leave of the caller (B6)."""
    in_memory: bool = False
    """Nobody but the caller can read the run: it ends with the request."""
    rates: tuple[tuple[bytes, bytes], ...] = ()
    """The limits of the caller, as headers."""


class Chunk(Struct, frozen=True, weakref=True):
    """Whole frames to send on. Let go of it before you ask for the next one."""

    data: bytes

    def __len__(self) -> int:
        return len(self.data)


class Idle(Struct, frozen=True):
    """Nothing happened for a while: show that the line is alive."""


class StreamEnded(Struct, frozen=True):
    """The run's last frame has been given."""


class Cut(Struct, frozen=True):
    """The stream breaks off here, without an end: the reader should come back."""


class Broken(Struct, frozen=True):
    """The journal cannot be read on (a gap, a vanished run): the stream ends with an error, never as if done."""

    reason: str


News = Chunk | Idle | StreamEnded | Cut | Broken


class Keep(Struct, frozen=True, kw_only=True):
    """How much is kept; 0 is no bound."""

    runs: int = 0
    """Of each owner."""
    owner_bytes: int = 0
    owners: dict[str, int] = {}
    """In place of owner_bytes, for owners who have a bound of their own."""
    total_bytes: int = 0
    days: float = 0.0
    """Since a run was last used."""
    unstored_hours: float = 24.0
    """How long the content of a run is kept whose request left `store` out; 0: until its answer was delivered."""
    every_s: float = 30.0

    def bound_of(self, owner: str) -> int:
        """How many bytes an owner may keep; 0: no bound."""
        return self.owners.get(owner, self.owner_bytes)


class EngineLimits(Struct, frozen=True, kw_only=True):
    """The engine's bounds."""

    keep: Keep = Keep()

    works: bool = True
    """False: journaled runs are left to other processes; those in memory are driven where their connection ends."""
    concurrent_runs: int = 256
    queue: int = 1024
    queue_bytes: int = 1_073_741_824
    """Bytes of the requests that wait for a slot."""
    queue_share: float = 0.75
    """What part of the queue one owner may fill."""
    owner_share: float | None = None
    """What part of the slots one owner may fill. None: all of them, but SHARED where this process had other owners."""
    weights: dict[str, int] = {}
    """The shares of owners who do not have the same as all others (journal/fair.py)."""
    chores: int = 8
    subscriber_bytes: int = 1_048_576
    linger_s: float = 0.0017
    """So long the first delta of a flush waits for others: a commit of one delta costs about as much as a commit of
    twenty. Facts do not wait, nor does a delta after a pause. Where a flush takes long, they wait longer
    (`Writer.linger_s`)."""
    longest_linger_s: float = 0.0020
    """But no longer than this, unless `linger_s` says so."""
    stage_bytes: int = 1_048_576
    """Bytes of deltas that one run may have waiting for the disk before its agent is held back."""
    keepalive_s: float = 15.0
    stall_s: float = 60.0
    """How long a run in memory waits for its one reader."""
    leave_grace_s: float = 2.0
    """How long after its last reader left a run is stopped, where leaving stops it (B6, C4)."""
    strikes: int = 5
    hold_s: float = 0.0
    """How long a new run waits for a store that is away, before its caller gets 503."""
    lease_s: float = math.inf
    """How long a claim holds without a beat. A store that one process has to itself has no leases."""


class Notices(Protocol):
    """What the parts of an engine tell it. They get it when they are made, so nobody is ever without a listener."""

    def lease_lapsed(self) -> None:
        """No beat came through for a whole lease: all claims may be somebody else's."""
        ...

    async def beaten(self) -> None:
        """A beat came through: compare what the store says with what is driven here."""
        ...

    def store_broke(self) -> None:
        """Nothing will be written any more: whoever waits for more must not wait for ever."""
        ...


class Observer(Protocol):
    """Is told what is committed, after the readers. It must be quick, and must not raise."""

    def told(self, state: RunState, entries: Sequence[Entry]) -> None:
        """Entries of a run are committed, and this is its state. All facts are told, and the first delta of each
        message. Other deltas are told only where they were written together with one of these."""
        ...

    def left(self, run: str) -> None:
        """This process does not drive the run any more."""
        ...

    def flushed(self, seconds: float) -> None:
        """A batch was written, which took so long."""
        ...


class NoObserver:
    """The Observer of an engine that nobody watches."""

    def told(self, state: RunState, entries: Sequence[Entry]) -> None:
        """See Observer.told."""

    def left(self, run: str) -> None:
        """See Observer.left."""

    def flushed(self, seconds: float) -> None:
        """See Observer.flushed."""


class Outside(Protocol):
    """What is kept outside of the store and counts towards its bounds. Each process speaks of its own machine."""

    async def survey(self) -> Sequence[Holding]:
        """All of it, with its size."""
        ...

    async def drop(self, holdings: Sequence[Holding]) -> None:
        """Delete what retention takes. What is gone already is no error."""
        ...


class NothingOutside:
    """The Outside of an engine whose agents keep nothing."""

    async def survey(self) -> Sequence[Holding]:
        """See Outside.survey."""
        return ()

    async def drop(self, holdings: Sequence[Holding]) -> None:
        """See Outside.drop."""


Limited = tuple[tuple[Subject, Limits], ...]
"""Who and what a run counts for, each with its limits."""


def no_limits(owner: str, key: str, profile: str) -> Limited:
    """The `limits_of` of an engine without limits."""
    return ()


def unknown_death(touched_at: int) -> int:
    """On a shared store any replica may have died."""
    return 0


class EngineParts(Struct, frozen=True):
    """What an engine is made of; chosen in app/assemble.py."""

    durable: Store
    memory: MemoryStore
    notifier: Notifier
    agent: Agent
    """It answers for every profile that is not in `agents`, also for one that was removed."""
    limits: EngineLimits
    log: Logger
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    steady_ms: Callable[[], int] | None = None
    """By what things expire: a clock that nobody sets while the server runs; None: `now_ms` is such a one."""
    holder: str = ""
    """By what name this process claims; empty: a new id."""
    mask: Callable[[str], str] = str
    """Hides secrets in the text of a failure, before it is stored."""
    outside: Outside = NothingOutside()
    limits_of: Callable[[str, str, str], Limited] = no_limits
    """The limits of an owner, a key and a profile."""
    price_of: Callable[[str], Price | None] | None = None
    """The price of a profile's model; None: no model has one."""
    audit: Trail = NoTrail()
    """Where answers of people are written down, and executed tools of runs in memory (those of others: Slice.audit)."""
    death_of: Callable[[int], int] = unknown_death
    """When the process died that last wrote a run, given the time of its last fact; 0: it is not known."""
    observer: Observer = NoObserver()
    alarm: Callable[[Callable[[], None]], Alarm] = LoopAlarm
    """Makes what wakes a writer, given what it calls."""
    agents: Mapping[str, Agent] = {}
    """By profile."""

    def clock(self) -> Callable[[], int]:
        """The clock by which things expire."""
        return self.steady_ms or self.now_ms

    def store_of(self, run: str) -> Store:
        """The store that has a run."""
        return self.memory if self.memory.has(run) else self.durable

    def agent_of(self, accepted: RunAccepted) -> Agent:
        """The agent that answers a run: what it says of itself, such as `resumable`, is true of this run alone."""
        return self.agents.get(accepted.spec.model, self.agent)


class LeaseSpan:
    """The time from one lapse of a lease to the next. Without a lease (runs in memory, or a store that one process has
    to itself) it has no end."""

    def __init__(self, lease: Lease | None = None) -> None:
        self._lease = lease

    def held(self) -> bool:
        """Whether the lease is held, and was held without a break since this was its span."""
        if self._lease is None:
            return True
        self._lease.check()
        return not self._lease.over and self._lease.span is self


class CutOff(Exception):
    """The server stops: whoever waits is cut without an answer, so that it comes back."""


class Tasks:
    """The tasks of an engine. One that fails is logged, and takes no other with it."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False

    def begin(self) -> None:
        """From now on tasks can be spawned."""
        self._open = True

    async def end(self) -> None:
        """End all of them."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else. CutOff: the engine has not begun, or ends."""
        if not self._open:
            work.close()
            raise CutOff
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, CutOff):  # it wanted more work begun while the engine ends
            self._log.error("worker_failed", error=repr(error))


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store says, when it can be asked again: a trouble that passes costs a run time only (P15)."""
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if not error.passing:
                raise
        await asyncio.sleep(RETRY_S)

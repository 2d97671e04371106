"""What a journal is. Owns: the Protocols Journal (the truth of runs), Catalog (the rows beside it) and Bell ("there
is news"), and the values they exchange. Every backend passes the contract suite in holdfast/testing.py. Refuses to
know: what an event means. An entry is a Record of bytes here; what its writing changes beside the log (status,
claim, conversation, session) comes as a Mark in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Literal, Protocol

from msgspec import Struct

from holdfast.core.admission import Asked
from holdfast.core.spec import Resolved
from holdfast.journal.base_conversations import Conversations
from holdfast.journal.base_peers import Peers
from holdfast.journal.base_upkeep import Upkeep

SignalKind = Literal["cancel", "approval"]


class Record(Struct, frozen=True, gc=False):
    """An entry as it is stored."""

    seq: int
    attempt: int
    at: int
    data: bytes


class Mark(Struct, frozen=True, kw_only=True):
    """What a slice changes beside the log."""

    status: str
    at: int
    ended: bool = False
    """Nothing follows: the claim, the conversation's active slot and pending signals go."""
    parked: bool = False
    """The claim is given back cleanly: the next attempt is no strike."""
    wake_at: int = 0
    """With `parked`: nobody need claim it before this time (in milliseconds), unless a signal waits for it."""
    asks: str = ""
    """With `wake_at`: the key of the approval that ends the wait. Those with other keys answered earlier questions and
    stay until the run ends; a signal of another kind ends the wait always."""
    chains: bool = False
    """Later runs may follow this one; it becomes its conversation's latest_completed."""
    turn: bytes = b""
    """The turn's messages, a cache for chains (JSON list)."""
    session: str = ""
    """The session that takes the turn, where one was named by the caller."""
    void: bool = False
    """It ended without an answer: whoever asks again does not get it."""


class Slice(Struct, frozen=True):
    """Consecutive records of one run, written by one attempt."""

    run: str
    attempt: int
    records: list[Record]
    mark: Mark | None = None


class Verdict(Enum):
    """What became of a slice. A fenced slice never fails another."""

    WRITTEN = "written"
    FENCED = "fenced"


class Opening(Struct, frozen=True, kw_only=True):
    """A run that wants to begin."""

    run: str
    at: int
    dialect: str
    model: str
    asked: Asked
    accept: Callable[[Resolved], list[bytes]]
    """The data of the first records, made in the transaction: RunAccepted, and AttemptStarted when it is claimed
    at once."""
    holder: str | None = None
    """Who claims it at once; None leaves it queued."""
    metadata: bytes = b"{}"
    """The run's, and that of a conversation which is made without a name."""
    ended: Mark | None = None
    """The run is over in the transaction that opens it (its records tell so): there is nothing to carry out. Only
    with a holder."""
    times: tuple[int, ...] = ()
    """When each of the first records happened, where that was before now (a run that was kept elsewhere): what readers
    were told of it must not change. Empty: all at `at`."""

    def first_records(self, data: Sequence[bytes], attempt: int) -> list[Record]:
        """The records that `accept` made."""
        times = self.times or (self.at,) * len(data)
        return [Record(seq, min(seq, attempt), times[seq], item) for seq, item in enumerate(data)]


class Opened(Struct, frozen=True):
    """The run exists now, with these records."""

    run: str
    resolved: Resolved
    records: list[Record]


class Attached(Struct, frozen=True):
    """The idempotency key named a run that exists already; or, `again`, the request took the place of the lost
    connection of one."""

    run: str
    again: bool = False


class Claim(Struct, frozen=True):
    """The right to write for a while; `record` is the AttemptStarted that is committed with it."""

    owner: str
    run: str
    attempt: int
    record: Record


class Signal(Struct, frozen=True):
    """A wish of somebody who does not hold the run: its holder turns it into entries."""

    run: str
    kind: SignalKind
    key: str
    payload: bytes = b""


class Row(Struct, frozen=True, kw_only=True):
    """A run as the catalog lists it: a cache of its journal but for metadata, which is its owner's."""

    owner: str
    run: str
    dialect: str
    model: str
    status: str
    ended: bool
    created_at: int
    updated_at: int
    session: str
    conversation: str | None
    previous: str | None
    key: str | None
    metadata: bytes
    last_seq: int


class Query(Struct, frozen=True, kw_only=True):
    """Which rows, newest first unless `ascending`; `after` is the run that the page before ended with."""

    owner: str
    dialect: str | None = None
    but: str | None = None
    """A dialect whose runs are left out."""
    statuses: tuple[str, ...] = ()
    key: str | None = None
    after: str | None = None
    limit: int = 20
    ascending: bool = False


class StoreUnavailable(Exception):
    """The store cannot be used now. `passing`: space, or the database, may come back, so the same batch is tried
    again. It is safe to: a batch that was written after all is known again by its records."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


class NewerStore(Exception):
    """This release cannot use the store: a newer one wrote it, or the database itself is too old. It is not touched."""


PAGE_BYTES = 256 * 1024
"""A replay reads pages of at most about this many bytes (house rule 6.10)."""


class Journal(Protocol):
    """Where entries live. Nothing that returned can be lost; a call that raised may or may not have happened only
    where it says so."""

    async def open(self, opening: Opening) -> Opened | Attached:
        """Decide (core.admission) and write the run row, key, conversation slot and first records in ONE
        transaction. Raises the ClientError of the decision and leaves no trace then."""
        ...

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """Write all slices in one transaction, one verdict each. A slice is written only if its attempt holds the
        run, the run has not ended and its first seq follows the last: else FENCED. Raises StoreUnavailable with
        nothing written."""
        ...

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """Take a run that has not ended and that nobody holds (never claimed, parked, lease lapsed): its attempt
        goes up by one and the record `first(attempt, clean)` is appended, in one transaction."""
        ...

    async def beat(self, holder: str) -> None:
        """Renew the lease of every run that `holder` holds."""
        ...

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """Records with seq > after, in order, about PAGE_BYTES of them; empty at the end or where the owner has no
        such run. Raises Damaged at a gap or a broken checksum."""
        ...

    async def signal(self, owner: str, signal: Signal) -> bool:
        """Leave a durable wish for the holder; False where the run has ended or is not the owner's. The same
        (run, kind, key) is kept once."""
        ...

    async def delete(self, owner: str, run: str) -> bool:
        """Hide the run for ever: fence it, free its key and conversation, move latest_completed back to the nearest
        ancestor that is not deleted. Its turn stays for descendants. False where there is none."""
        ...


class Catalog(Protocol):
    """Rows beside the journal. Every query names its owner."""

    async def find(self, owner: str, run: str) -> Row | None:
        """One run that is not deleted."""
        ...

    async def rows(self, query: Query) -> list[Row]:
        """A page of runs."""
        ...

    async def resolve(self, asked: Asked) -> Resolved:
        """Decide as open() would, without writing: for runs that are not stored. Raises as open() does."""
        ...

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """The cached turns that come before a run: its chain, or its session. Raises Damaged where one is gone."""
        ...

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        """Add a turn to a session: for runs that are not stored."""
        ...

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """(owner, run) that have not ended and that nobody holds, oldest first. In a shared store those for which a
        signal waits come first, and those are left out that are parked until later (Mark.wake_at)."""
        ...

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """Replace the metadata of a run."""
        ...


class Pending(Protocol):
    """The wishes that wait for a holder, and the standing permissions that spare a question."""

    async def signals(self, run: str) -> list[Signal]:
        """Those of one run."""
        ...

    async def grant(self, owner: str, session: str, tool: str) -> None:
        """A tool need not ask any more: in one session, or, with an empty name, in all of the owner's."""
        ...

    async def granted(self, owner: str, session: str, tool: str) -> bool:
        """Need it not ask, in this session?"""
        ...


class Deliveries(Protocol):
    """Who still waits for which answer. A run that is opened with a credential is waited for from then on. A request
    that is sent again (Asked.again) takes the place of a connection that was lost: open() gives it the newest such
    run, which is waited for again then, so that of two at once each gets its own. Runs that nobody waits for are left
    as they are: an answer is delivered once, and a late word of a loss changes nothing."""

    async def answered(self, owner: str, run: str) -> None:
        """The answer was handed over whole, or is given up: nobody who asks again gets it."""
        ...

    async def lost(self, owner: str, run: str, at: int) -> None:
        """The connection on which somebody waited is gone."""
        ...

    async def strand(self, at: int) -> None:
        """The server begins: all connections of the one before it are lost now."""
        ...


class SessionRow(Struct, frozen=True):
    """A named session."""

    session: str
    title: str
    turns: int
    created_at: int
    updated_at: int


class Sessions(Protocol):
    """Named sessions and their turns. Every query names its owner."""

    async def page(self, owner: str, limit: int, after: str | None) -> Sequence[SessionRow]:
        """A page, the one used last first."""
        ...

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """One of them."""
        ...

    async def turns(self, owner: str, session: str) -> Sequence[bytes]:
        """All its turns, oldest first."""
        ...

    async def rename(self, owner: str, session: str, title: str) -> None:
        """Give it a title."""
        ...

    async def fork(self, owner: str, session: str, copy: str) -> None:
        """Copy it as it is now, under a name that is free."""
        ...

    async def forget(self, owner: str, session: str) -> None:
        """Delete it with its turns, title and permissions."""
        ...


class Bell(Protocol):
    """Says that there is news of a run; never what. A lost ring must cost time only."""

    def ring(self, runs: Iterable[str]) -> None:
        """There is news of these runs."""
        ...

    def listen(self, run: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` at each ring for `run`, until the returned function is called."""
        ...


class Store(Journal, Catalog, Pending, Protocol):
    """A backend has all of them, and looks after itself."""

    @property
    def deliveries(self) -> Deliveries:
        """Its Deliveries."""
        ...

    @property
    def conversations(self) -> Conversations:
        """Its conversations."""
        ...

    @property
    def upkeep(self) -> Upkeep:
        """Its bounds."""
        ...

    @property
    def peers(self) -> Peers:
        """The other processes that use it."""
        ...

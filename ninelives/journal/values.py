"""The arguments and results of a journal. Owns: their types, and the two errors of a store. Refuses to know: what an
event means. An entry is a Record of bytes here. A Mark says what changes beside the log in the same transaction:
status, claim, conversation, session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import Damaged
from ninelives.core.holding import Holding
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.base import AuditEntry

SignalKind = Literal["cancel", "approval", "steer", "interrupt"]
WAKING: frozenset[SignalKind] = frozenset({"cancel", "interrupt"})
"""Signals that end any wait of a run that nobody holds. An approval ends the wait for its own question; a steer ends
none, because it is for the model."""


class Record(Struct, frozen=True, gc=False):
    """A stored entry."""

    seq: int
    attempt: int
    at: int
    data: bytes


class Grant(Struct, frozen=True):
    """A standing permission for one exact call."""

    owner: str
    id: str
    """It says what is covered: see agents.approval.grant_id."""
    session: str
    """Empty: in all sessions of the owner."""
    tool: str
    arguments: str
    at: int
    by: str


MAX_GRANTS = 1000
"""Standing permissions per owner. One more is refused (engine/retention.py). If two come at once, the oldest goes."""


class Mark(Struct, frozen=True, kw_only=True):
    """What a slice changes beside the log (docs/architecture.md, R4)."""

    status: str
    at: int
    ended: bool = False
    """The run is over: the claim, the active slot of its conversation and its pending signals are dropped. Steers stay
    as long as the run: what was accepted and never used can be told."""
    parked: bool = False
    """The claim is given back cleanly. The next attempt is not a strike."""
    wake_at: int = 0
    """Without a holder, the run needs not be claimed before this time (in milliseconds), unless a signal is pending."""
    asks: str = ""
    """With `wake_at`: the key of the approval that ends the wait; Catalog.asking finds the run by it. Approvals with
    other keys answered earlier questions and stay until the run ends. A cancel or an interrupt always ends the wait,
    a steer never."""
    left: bool = False
    """With `parked`: the caller has left. If nobody has joined the run meanwhile, the store sets `wake_at` to the end
    of the time in which the same request joins it (Asked.resend_ms)."""
    chains: bool = False
    """Later runs may follow this one. It becomes the latest_completed of its conversation."""
    turn: bytes = b""
    """The messages of the turn, a cache for chains (JSON list)."""
    session: str = ""
    """The session that gets the turn, if the caller named one."""
    said: bytes = b""
    """The turn without the history that the request brought along, for the session. Empty: it is `turn`."""
    void: bool = False
    """Failed or cancelled. A retried request starts a new run."""
    turns: Callable[[], tuple[bytes, bytes]] | None = None
    """Makes `turn` and `said`, where they are not made yet. Ten megabytes take a while, so do not call it on the event
    loop; filled() calls it."""

    def filled(self) -> Mark:
        """The mark with its turn."""
        if self.turns is None:
            return self
        turn, said = self.turns()
        return replace(self, turn=turn, said=said, turns=None)

    @property
    def session_turn(self) -> bytes:
        """The turn that the session gets."""
        return self.said or self.turn


class Slice(Struct, frozen=True):
    """Consecutive records of one run, written by one attempt."""

    run: str
    attempt: int
    records: list[Record]
    mark: Mark | None = None
    opening: Opening | None = None
    """Opens the run in the same transaction; `records` begin with its first. Only where Catalog.foregone decided."""
    audit: tuple[AuditEntry, ...] = ()
    """What the records did, for the audit log. Written in the same transaction. Only with records."""


class Verdict(Enum):
    """The result of a slice. A fenced slice never fails another (R4)."""

    WRITTEN = "written"
    FENCED = "fenced"
    BEHIND = "behind"
    """Not written: the store has lost records that it had confirmed (a failover), and released the run."""


class Opening(Struct, frozen=True, kw_only=True):
    """A request to open a run."""

    run: str
    at: int
    dialect: str
    model: str
    asked: Asked
    accept: Callable[[Resolved], list[bytes]]
    """Makes the data of the first records, inside the transaction: RunAccepted, and AttemptStarted if the run is
    claimed at once."""
    now: int = 0
    """The time by which things expire, which nobody sets; 0: `at`, the wall clock."""
    holder: str | None = None
    """Who claims the run at once; None leaves it queued."""
    metadata: bytes = b"{}"
    """The metadata of the run, and of a conversation that is created without a name."""
    ended: Mark | None = None
    """Ends the run in the transaction that opens it. Its records must say so too. Only with a holder."""
    foregone: Resolved | None = None
    """What was decided already (Catalog.foregone). Only for Slice.opening."""

    def first_records(self, data: Sequence[bytes]) -> list[Record]:
        """Records from the data that `accept` made."""
        attempt = 1 if self.holder or len(data) > 1 else 0  # a fork has facts, and nobody holds it
        return [Record(seq, min(seq, attempt), self.at, item) for seq, item in enumerate(data)]


class Opened(Struct, frozen=True):
    """The run was opened, with these records."""

    run: str
    resolved: Resolved
    records: list[Record]


class Attached(Struct, frozen=True):
    """The request belongs to an existing run: by its idempotency key, or (`again`) by taking over a run whose
    connection was lost."""

    run: str
    again: bool = False


FirstRecord = Callable[[int, bool, int], bytes]
"""Makes the AttemptStarted of a claim. Its arguments: the attempt, whether the run was parked, and how many events the
store has lost that were shown before (a failover to a standby that was behind)."""


class Claim(Struct, frozen=True):
    """The right to write to a run until the lease ends. `record` is the AttemptStarted that was committed with it."""

    owner: str
    run: str
    attempt: int
    record: Record
    overdue: bool = False
    """The run waited for a person or for its caller, and the time for that is over by the clock of the store."""


class HeldRun(Struct, frozen=True):
    """A run that a process holds, as the store sees it."""

    owner: str
    run: str
    attempt: int
    wished: bool
    """A signal is pending."""
    left_ms: int
    """How long ago its caller left, as a living process saw it. The end of the caller's process is no leave; it counts
    for a run that is kept until its delivery, because that does nothing without a connection (B6). 0 otherwise, and for
    stored runs."""


class Signal(Struct, frozen=True):
    """A request from somebody who does not hold the run. The holder turns it into entries (R3)."""

    run: str
    kind: SignalKind
    key: str
    payload: bytes = b""


class RunRow(Struct, frozen=True, kw_only=True):
    """A run as the catalog lists it. All but `metadata` is a cache of its journal."""

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
    kept: str = "stored"
    """See core.spec.Kept."""


OPEN_STATUSES = frozenset({"queued", "running", "waiting_for_approval", "stopping"})
"""The statuses of runs that have not ended."""


class Query(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first unless `ascending`. `after` is the last run of the page before."""

    owner: str | None
    """None: the runs of all owners, for an admin. Such a list is newest first."""
    dialect: str | None = None
    but: str | None = None
    """A dialect to exclude."""
    statuses: tuple[str, ...] = ()
    stored: bool = False
    """Only runs with `store: true`."""
    key: str | None = None
    after: str | None = None
    limit: int = 20
    ascending: bool = False

    @property
    def plan(self) -> str:
        """The name of the statement that lists these runs. Open runs are few, and have an index."""
        if self.ascending and self.owner is not None:
            return "rows_up"
        if self.statuses and OPEN_STATUSES.issuperset(self.statuses):
            return "rows_open"
        return "rows_of_all" if self.owner is None else "rows_down"


class StoreUnavailable(Exception):
    """The store cannot be used now. `passing` means that the cause may go away (disk space, a database that is down).
    Then the same batch is retried. That is safe: a batch that was written after all is recognised by its records.
    `away` means that nobody answered, so it is not known whether something was written."""

    def __init__(self, message: str, *, passing: bool, away: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        self.away = away


class NewerStore(Exception):
    """This release cannot use the store: a newer release wrote it, or the database server is too old or not safe.
    Nothing was changed."""


PAGE_BYTES = 256 * 1024
"""A replay reads pages of about this many bytes (docs/architecture.md, R10)."""


class SessionRow(Struct, frozen=True):
    """A listed session."""

    session: str
    """Its id. Chats that begin alike share the session id of their runs (`key`), and have an id each."""
    key: str
    made: bool
    """It stays without a run or a turn, because somebody created it."""
    title: str
    preview: str
    source: str
    model: str
    end_reason: str
    turns: int
    messages: int
    input_tokens: int
    output_tokens: int
    created_at: int
    updated_at: int


class SessionQuery(Struct, frozen=True, kw_only=True):
    """Which sessions to list, the one used last first. `after` is the last id of the page before."""

    owner: str
    limit: int = 20
    offset: int = 0
    after: str | None = None
    source: str | None = None
    words: tuple[str, ...] = ()
    """Only sessions with a turn, or a title, in which each of these begins a word (core.sessions.words_of)."""


class SessionHit(Struct, frozen=True):
    """A session of a page, and the text in which a search found its words."""

    row: SessionRow
    text: str = ""


class StoredTurn(Struct, frozen=True):
    """A turn of a named session: a JSON list of messages."""

    at: int
    run: str | None
    turn: bytes


class NewSession(Struct, frozen=True, kw_only=True):
    """A session that is created with these turns: empty, as a copy, or from elsewhere."""

    owner: str
    session: str
    at: int
    title: str = ""
    source: str = ""
    model: str = ""
    end_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    turns: tuple[StoredTurn, ...] = ()


class ConversationRow(Struct, frozen=True):
    """A conversation."""

    id: str
    name: str | None
    created_at: int
    metadata: bytes
    latest: str | None
    active: str | None


class ConversationLink(Struct, frozen=True):
    """A run in the chain of a conversation. `removed` holds the ids of its removed items."""

    run: str
    dialect: str
    deleted: bool
    removed: frozenset[str] = frozenset()


class Removal(Struct, frozen=True):
    """An item to remove from a conversation. `turn` makes the run's turn for this conversation, given all its removed
    items. It is called inside the transaction, so that concurrent removals do not lose each other."""

    run: str
    item: str
    turn: Callable[[frozenset[str]], bytes]


class Replica(Struct, frozen=True):
    """A process that uses the store."""

    holder: str
    name: str
    works: bool
    """Whether it drives stored runs, or only answers requests."""
    seen_ms: int
    """How long ago it was last seen."""
    runs: int
    """How many runs it holds."""


Use = tuple[str, str, int]
"""(owner, run, when in milliseconds)."""

SETTLE_MS = 5_000
"""A delivered run is forgotten this much later, so that other readers of it come to its end."""

Gone = tuple[str, str]
"""(owner, run)."""


class Retention(Struct, frozen=True, kw_only=True):
    """The limits of a store. 0 means no limit. Counted and evicted are ended runs that are not pinned, sessions without
    a run at work, conversations without an active run, and `outside`: all in one order, by their last use."""

    at: int
    """Now, in milliseconds."""
    runs: int = 0
    """Per owner."""
    owner_bytes: int = 0
    owner_rooms: dict[str, int] = {}
    """The limit of bytes of owners for whom it is not owner_bytes."""
    total_bytes: int = 0
    before: int = 0
    """Evict what was last used before this time."""
    outside: tuple[Holding, ...] = ()
    """What is kept elsewhere and counts too. The caller deletes it."""
    tombstone_ms: int = 30 * 86_400_000
    """How long an evicted run is reported as expired."""


class Evicted(Struct, frozen=True):
    """What must go. Runs, sessions and conversations are gone; the caller deletes what is outside of the store."""

    runs: list[Gone] = []
    sessions: list[Gone] = []
    conversations: list[Gone] = []
    outside: list[Holding] = []


ROW_BYTES = 64
"""What a session turn or a conversation counts for, besides its content."""


class StoredAmount(Struct, frozen=True):
    """How much an owner stores."""

    owner: str
    runs: int
    bytes: int
    pinned: int


class Spending(Struct, frozen=True, kw_only=True):
    """What was spent: by an owner, with a key and a model, at a time or on the day that begins then."""

    owner: str
    model: str
    key: str = ""
    at: int
    runs: int = 0
    """How many were started."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    """See core.events.Usage.cost."""
    errors: int = 0
    """How many runs failed."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


SubjectKind = Literal["owner", "key", "model"]
Subject = tuple[SubjectKind, str]
"""Who or what a limit is for."""


class Totals(Struct, frozen=True):
    """What a subject spent today, this month (UTC), and in the last two minutes."""

    day_tokens: int = 0
    day_cost: int = 0
    month_tokens: int = 0
    month_cost: int = 0
    minutes: tuple[tuple[int, int, int], ...] = ()
    """(minutes since 1970, runs, tokens) of this minute and the one before it, as far as there were any."""


def columns_of(spent: Spending) -> tuple[int, ...]:
    """The counts of a row, in the order of the tables."""
    return (
        spent.runs,
        spent.input_tokens,
        spent.output_tokens,
        spent.cached_tokens,
        spent.reasoning_tokens,
        spent.cost,
        spent.errors,
    )


def spending_of(owner: str, day: int, model: str, *counts: int) -> Spending:
    """A row of Ledger.days, with its counts in the order of the tables."""
    runs, asked, answered, cached, reasoning, cost, errors = counts
    return Spending(
        owner=owner,
        model=model,
        at=day * DAY_MS,
        runs=runs,
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        cost=cost,
        errors=errors,
    )


def totals_of(sums: Sequence[int], minutes: Iterable[Sequence[int]]) -> Totals:
    """The totals of a subject, from what a database sums up."""
    day_tokens, day_cost, month_tokens, month_cost = sums
    recent = tuple((minute, runs, tokens) for minute, runs, tokens in minutes)
    return Totals(day_tokens, day_cost, month_tokens, month_cost, recent)


DAY_MS, MINUTE_MS = 86_400_000, 60_000
RECENT_MINUTES = 5
"""Older counts by the minute are dropped."""


def month_start(at: int) -> int:
    """The day, counted from 1970, on which the month of this time began (UTC)."""
    day = datetime.fromtimestamp(at / 1000, UTC).date()
    return day.replace(day=1).toordinal() - date(1970, 1, 1).toordinal()


def next_month(at: int) -> int:
    """When the month after this time begins (UTC), in milliseconds."""
    day = datetime.fromtimestamp(at / 1000, UTC).date().replace(day=28) + timedelta(days=4)
    return (day.replace(day=1).toordinal() - date(1970, 1, 1).toordinal()) * DAY_MS


Judge = Callable[[str, Iterable[Record]], object]
"""Takes the records of a run. Raises Damaged if they are not a legal history."""


class Report(Struct):
    """The result of a check of a store."""

    runs: int = 0
    entries: int = 0
    bytes: int = 0
    schema: int = 0
    problems: list[str] = []


def turns_of_session(resolved: Resolved, rows: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """The turns that a run counted in its session, from what is found with their numbers, which begin at 1. See
    Catalog.turns."""
    for place, (number, _) in enumerate(rows, 1):
        if number != place:
            raise Damaged(
                f"turn {place} of session {resolved.session!r} is missing from the store. Restore a backup "
                "(ninelives store restore), or delete the session to go on without its history"
            )
    return [turn for _, turn in rows] if len(rows) == resolved.session_turns else []

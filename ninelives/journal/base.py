"""The Protocols of a store. Owns: Journal (the log of runs), Catalog (the rows beside it), Pending, Deliveries,
Sessions, Conversations, Upkeep, Peers, Ledger, Notifier and Logger. Every backend passes the contract suite in
ninelives/testing. Refuses to know: what an event means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from ninelives.core.admission import Asked
from ninelives.core.sessions import SessionTurn
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.base import AuditLog, Keys
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.values import (
    Attached,
    Claim,
    ConversationLink,
    ConversationRow,
    Evicted,
    FirstRecord,
    Gone,
    Grant,
    HeldRun,
    NewSession,
    Opened,
    Opening,
    Query,
    Record,
    Removal,
    Replica,
    Retention,
    RunRow,
    SessionHit,
    SessionQuery,
    SessionRow,
    Signal,
    Slice,
    Spending,
    StoredAmount,
    StoredTurn,
    Subject,
    Totals,
    Use,
    Verdict,
)

Unlisten = Callable[[], None]
"""Ends a subscription to notifications."""


class Journal(Protocol):
    """The log of all runs. A call that returned is durable. A call that raised wrote nothing, unless its description
    says otherwise."""

    @property
    def parallel(self) -> bool:
        """Whether appends of different runs may be on their way at the same time."""
        ...

    async def open(self, opening: Opening) -> Opened | Attached:
        """Decide (core.admission), then write the run, its key, its conversation slot and its first records, all in one
        transaction. Raises the ClientError of the decision; then nothing was written."""
        ...

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """Write slices, each whole or not at all, with one verdict each. A slice is FENCED unless its attempt holds
        the run, the run has not ended, and its first seq follows the last. After StoreUnavailable send the same slices
        again: what was written after all is recognised by its records."""
        ...

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """Claim a run that has not ended and that nobody holds: never claimed, parked, or its lease lapsed. The attempt
        goes up by one, and the record `first(attempt, clean, lost)` is appended in the same transaction. The wait for a
        person or a caller ends with it (wake_at and asks). A store may refuse a run that claimable() would omit."""
        ...

    async def beat(self, holder: str) -> None:
        """Renew the lease of every run that `holder` holds. A store without peers has no leases: a claim lasts until
        it is given back or the process ends."""
        ...

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """Records with seq > after, in order, about PAGE_BYTES of them. Empty at the end, or if the owner has no such
        run. Raises Damaged at a gap or a wrong checksum. `seen` is the attempt of the record `after`, where the reader
        has it: WentBack is raised if the store does not have that record any more."""
        ...

    async def signal(self, owner: str, signal: Signal) -> bool:
        """Leave a durable signal for the holder. False if the run has ended or belongs to another owner. The same
        (run, kind, key) is stored once."""
        ...

    async def delete(self, owner: str, run: str) -> bool:
        """Delete a run: fence it, free its key and conversation, and move latest_completed back to the nearest ancestor
        that is not deleted. Its turn stays for descendants. False if there is no such run."""
        ...

    async def forget(self, gone: Sequence[Gone]) -> None:
        """Delete runs without a trace: records, row, signals. Only for runs that are not stored: nothing follows them.
        SQLite overwrites the bytes, and they leave its write-ahead log within a minute (B6)."""
        ...


class Catalog(Protocol):
    """The rows beside the journal. Every query names its owner, but those of an admin."""

    async def find(self, owner: str, run: str) -> RunRow | None:
        """One run that is not deleted."""
        ...

    async def owner_of(self, run: str) -> str | None:
        """Whose run this is, for an admin. None: there is no such run, or it is deleted."""
        ...

    async def rows(self, query: Query) -> list[RunRow]:
        """A page of runs."""
        ...

    async def resolve(self, asked: Asked) -> Resolved:
        """Decide like open(), without writing. For runs that are not stored. Raises like open()."""
        ...

    def foregone(self, asked: Asked) -> Resolved | None:
        """What open() would decide, where this store knows it at once and nothing can change it before the opening is
        written: then the opening may go with the first slice of its run (Slice.opening). Else None. A shared store
        never knows."""
        ...

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """The cached turns before a run, from its chain or its session. Raises Damaged if one of a chain is missing. A
        session with fewer turns than the run counted was deleted since: it gives none. Raises Damaged where there is a
        gap between its turns: a deletion leaves none."""
        ...

    async def asking(self, owner: str, code: str) -> str | None:
        """The owner's run that was marked as asking the question with this code (Mark.asks), by an index. Whether it
        still asks is for its journal to say."""
        ...

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[tuple[str, str]]:
        """(owner, run) of runs that somebody should claim: they have not ended and nobody holds them. Runs with a
        pending signal come first. Then owners take turns (journal.fair). Omitted are runs
        without such a signal that wait

        - until a time after `now` (Mark.wake_at; a shared store goes by its own clock), or
        - for their caller: kept is "delivery", nobody waits at a living process, no question is open, and the time in
          which the same request may join is not over. After that time they are listed, and the claim is overdue.

        A pending signal here is a cancel, an interrupt, or an approval with the key `asks`."""
        ...

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """Replace the metadata of a run."""
        ...


class Pending(Protocol):
    """Signals that wait for a holder, and standing permissions for tools."""

    async def signals(self, run: str) -> list[Signal]:
        """The pending signals of one run, by kind and key; of one that has ended, its steers."""
        ...

    async def grant(self, given: Grant) -> None:
        """Permit a call without asking again. An owner keeps the newest MAX_GRANTS."""
        ...

    async def granted(self, owner: str, ids: Sequence[str]) -> bool:
        """Whether the owner has one of these permissions."""
        ...

    async def grants(self, owner: str) -> list[Grant]:
        """The permissions of an owner, the newest first."""
        ...

    async def revoke(self, owner: str, grant: str) -> bool:
        """Take a permission back. False if there is none with this id."""
        ...


class Deliveries(Protocol):
    """Which callers still wait for an answer. A run that is opened with a credential has a waiting caller. When the
    connection is lost, the same request (Asked.match) takes over: open() gives it the newest such run, which then has
    a waiting caller again, and waits for its caller no longer (wake_at is 0, unless a question is open). Two concurrent
    retries therefore get different runs. A process speaks of its own callers only: calls for runs without a caller that
    waits here change nothing. An answer is delivered once, and a late report of a loss is ignored.

    A process may be taken for gone although it was only frozen. Its callers wait there again from its next beat on,
    unless a retried request has taken their place; and what it reports of them before that counts."""

    async def answered(self, told: Sequence[Gone]) -> None:
        """All that there is was delivered of these runs (owner, run). If a run has ended, a request that is sent again
        starts a new one, and a run that is not stored can be forgotten. A run that ends as failed or cancelled
        (Mark.void) counts as that."""
        ...

    async def rest_given(self, owner: str, run: str) -> None:
        """Somebody who answered the question of this run was given everything that came after it. If the run has ended
        and had delivered its question (nobody waits, and no connection is lost), it is delivered. Else nothing changes.
        Any process may say so."""
        ...

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """The connection of the waiting caller was lost. If nobody holds the run, it is not stored and no question is
        open, it waits for the same request from now on (wake_at). `left`: it was the caller who went, not the server;
        the holder learns it (HeldRun.left_ms)."""
        ...

    async def strand(self, at: int, besides: Collection[Gone] = ()) -> None:
        """The server starts: all connections of the last process are lost, besides those of these runs."""
        ...


class Sessions(Protocol):
    """The listed sessions: every session that owns a run, a turn, or that somebody created. Every query names its
    owner.

    Runs are listed after they were written: `unlisted` finds those that are not, and `list_turns` adds them. A process
    that dies in between leaves them for the next one. A run that goes takes what was listed of it along, unless a named
    session kept its turn. A session goes with its last run, unless it has turns or somebody created it."""

    async def unlisted(self, owner: str | None, limit: int, *, begun: bool) -> list[Gone]:
        """(owner, run) of runs that must be listed, oldest first: those that ended, and with `begun` those that were
        not listed at all. Runs that are kept until their delivery, or in memory, are never listed. None: all owners."""
        ...

    async def unlisted_turns(self, owner: str | None, limit: int) -> list[SessionTurn]:
        """Stored turns that must be listed and whose run is gone or never was here."""
        ...

    async def list_turns(self, turns: Sequence[SessionTurn]) -> None:
        """List them, each once. A run belongs to the session that its caller named, else to its conversation, else to
        the session of the run that it follows. A derived session is one chat for each history: a run belongs to the
        chat that ended as its own history does. Where there is none it is a new chat."""
        ...

    async def page(self, query: SessionQuery) -> list[SessionHit]:
        """A page of sessions."""
        ...

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """One session."""
        ...

    async def runs(self, owner: str, session: str) -> list[RunRow]:
        """Its runs that are not deleted, oldest first."""
        ...

    async def turns(self, owner: str, session: str) -> list[StoredTurn]:
        """The turns that it keeps itself, oldest first. Only a named session has some."""
        ...

    async def change(
        self,
        owner: str,
        session: str,
        *,
        title: str | None = None,
        end_reason: str | None = None,
        model: str | None = None,
    ) -> None:
        """Set the title, why it ended, or the model that it was last asked with; None leaves it."""
        ...

    async def make(self, new: NewSession) -> bool:
        """Create a session. False if there is one with this id."""
        ...

    async def forget(self, owner: str, session: str) -> None:
        """Delete the session with its turns, title and permissions. Its runs stay: delete them first. What is left of
        them is listed again."""
        ...


class Logger(Protocol):
    """Where a part says what happened: one event name and fields."""

    def info(self, name: str, **fields: object) -> None:
        """Something happened."""
        ...

    def warning(self, name: str, **fields: object) -> None:
        """Something is not as it should be, and was dealt with."""
        ...

    def error(self, name: str, **fields: object) -> None:
        """Something failed."""
        ...


class Notifier(Protocol):
    """Notifies listeners that a run changed, without saying how. A lost notification may only cost time."""

    def ring(self, runs: Iterable[str]) -> None:
        """Notify the listeners of these runs."""
        ...

    def listen(self, run: str, heard: Callable[[], None]) -> Unlisten:
        """Call `heard` at each notification for `run`. The returned function ends this."""
        ...


class Conversations(Protocol):
    """Reads and edits conversations; open() creates and extends them. Each method is one transaction. `named` is an id
    or a name. A run in a conversation sees the turns as edited there; a run that follows by previous_response_id sees
    them unedited."""

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """One conversation."""
        ...

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """A page by age. `after` is the last id of the page before. An unknown id gives an empty page."""
        ...

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """Replace the metadata. False if there is no such conversation."""
        ...

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """The runs up to latest_completed, oldest first, with deleted ones. Empty if there is no such conversation."""
        ...

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """Remove an item. False if the run is deleted or not in this conversation, or if the item was removed before.
        Raises like core.admission.editable."""
        ...

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """Delete the conversation and its runs of the dialect `own`, like Journal.delete. All other runs stay. Returns
        the id. Raises like core.admission.editable."""
        ...


class Peers(Protocol):
    """The processes that use one store. If it is `shared`, any process may claim a free run or send a signal."""

    @property
    def shared(self) -> bool:
        """Whether other processes may use the store at the same time."""
        ...

    async def held(self, holder: str) -> Sequence[HeldRun]:
        """The runs that `holder` holds. Makes up for lost notifications, and for claims that nobody drives."""
        ...

    async def queued(self) -> int:
        """How many runs wait to be claimed, whichever process opened them."""
        ...

    async def active(self, owner: str) -> int:
        """How many runs of an owner have not ended, of all processes. Those that wait for a person do not count."""
        ...

    async def settle(self, owner: str, place: str, home: str) -> str:
        """The home of a workspace. It becomes `home` if the workspace has none yet."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """The processes that use the store, most recently seen first."""
        ...


class Alone:
    """What the Peers of stores with a single process have in common."""

    shared = False

    async def settle(self, owner: str, place: str, home: str) -> str:
        """See Peers.settle."""
        return home

    async def replicas(self) -> Sequence[Replica]:
        """See Peers.replicas."""
        return ()


class Upkeep(Protocol):
    """Limits on what is stored. A chain ages by its youngest member (R17). An evicted run keeps its turn for its
    descendants, like a deleted one."""

    async def touch(self, uses: Sequence[Use]) -> None:
        """Note that these runs were used."""
        ...

    async def pin(self, owner: str, run: str, pinned: bool) -> bool:
        """Pin a run against eviction, or unpin it. False if there is no such run."""
        ...

    async def evict(self, rule: Retention, spared: frozenset[str]) -> Evicted:
        """Evict what is beyond the limits of `rule`, least recently used first, but not the runs in `spared`, which are
        being read. A run frees its key and conversation, as a deletion does. A session loses its turns and its title. A
        conversation was last used when its latest run was. One call evicts a bounded number."""
        ...

    async def fixed(self) -> dict[str, int]:
        """The bytes of each owner that count and are never evicted: standing permissions."""
        ...

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """Ended runs that must be forgotten (Journal.forget), oldest first:

        - kept "delivery": delivered at least SETTLE_MS ago; or nobody waits, and the time in which the same request
          joins is over (counted from the loss of the connection, or from the end of the run).
        - kept "hours": ended `unstored_ms` ago. If that is 0, as for "delivery"."""
        ...

    async def expired(self, owner: str, run: str) -> bool:
        """Whether there was such a run and retention evicted it."""
        ...

    async def usage(self) -> Sequence[StoredAmount]:
        """How much each owner stores, the most first."""
        ...

    def short(self) -> str | None:
        """Why nothing new should be stored: free space is low. None if there is enough."""
        ...

    def trouble(self) -> str | None:
        """What fails in the store's own upkeep at the moment, for health. None if all is well."""
        ...


class Ledger(Protocol):
    """What was spent, by day, owner, key and model. It outlives the runs: neither deletion nor retention changes it."""

    async def add(self, spent: Sequence[Spending]) -> None:
        """Add these, and drop counts by the minute that nobody needs any more."""
        ...

    async def days(self, owner: str | None, since: int, until: int) -> list[Spending]:
        """By day, owner and model, keys summed up, the newest day first. Days that begin in [since, until). None: all
        owners."""
        ...

    async def totals(self, subject: Subject, now: int) -> Totals:
        """What a subject spent, of all processes that use the store."""
        ...


class Store(Journal, Catalog, Pending, Protocol):
    """Everything that a backend provides."""

    @property
    def deliveries(self) -> Deliveries:
        """The deliveries."""
        ...

    @property
    def conversations(self) -> Conversations:
        """The conversations."""
        ...

    @property
    def sessions(self) -> Sessions:
        """The listed sessions."""
        ...

    @property
    def upkeep(self) -> Upkeep:
        """Retention and health."""
        ...

    @property
    def peers(self) -> Peers:
        """The other processes that use the store."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        ...

    @property
    def keys(self) -> Keys:
        """The API keys of all owners."""
        ...

    @property
    def audit(self) -> AuditLog:
        """What was done, by whom."""
        ...

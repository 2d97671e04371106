"""Moving a store to another backend. Owns: the canonical rows that describe the whole content of a store, their order,
the checksum over them, and the Protocol Carrier. Refuses to know: how a backend stores a row.

Theory of operation. The rows leave out what belongs to one backend: row numbers, sizes, how records are packed, who
holds a run. Two stores with the same rows behave alike. The rows have one order: the secret; the runs, oldest first,
each followed by its records; then everything else, each kind ordered by its key as bytes. So one pass on each side
compares two stores. The checksum does not depend on how many records one row carries."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from ninelives.core.errors import Damaged
from ninelives.journal.values import Record, StoreUnavailable


class Carried(Struct, frozen=True, array_like=True, tag=True):
    """One canonical row."""


class CarriedSecret(Carried, frozen=True):
    """The value that the secret of the store is derived from."""

    value: bytes


class CarriedRun(Carried, frozen=True, kw_only=True):
    """A run or its tombstone (`hidden`: 1 deleted, 2 expired)."""

    owner: str
    id: str
    dialect: str
    model: str
    status: str
    attempt: int
    parked: bool
    ended: bool
    chains: bool
    hidden: int
    last_seq: int
    """The last seq of its log, also for an unfinished run."""
    created_at: int
    updated_at: int
    used_at: int
    session: str
    conversation: str | None
    previous: str | None
    key: str | None
    metadata: bytes
    turn: bytes | None
    fingerprint: str
    credential: str
    waits: bool
    lost_at: int
    pinned: bool
    kept: str
    resend_ms: int
    delivered: bool
    entry: str
    listed: int


class CarriedLog(Carried, frozen=True):
    """Records of the preceding run, in order. A log may span several rows."""

    run: str
    records: list[Record]


class CarriedKey(Carried, frozen=True):
    """An idempotency key."""

    owner: str
    key: str
    fingerprint: str
    run: str


class CarriedConversation(Carried, frozen=True):
    """A conversation."""

    owner: str
    id: str
    name: str | None
    latest: str | None
    active: str | None
    created_at: int
    metadata: bytes


class CarriedEdit(Carried, frozen=True):
    """Items that were removed from a run's turn in a conversation (`removed` is a JSON list)."""

    owner: str
    conversation: str
    run: str
    removed: bytes
    turn: bytes


class CarriedTurn(Carried, frozen=True):
    """A turn of a named session."""

    owner: str
    session: str
    n: int
    at: int
    run: str | None
    turn: bytes
    listed: int


class CarriedSession(Carried, frozen=True):
    """A listed session."""

    owner: str
    id: str
    session: str
    made: bool
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
    used_at: int


class CarriedText(Carried, frozen=True):
    """What a search finds of a turn or a title."""

    owner: str
    entry: str
    run: str
    mark_all: str
    mark_user: str
    text: str


class CarriedSignal(Carried, frozen=True):
    """A pending signal."""

    owner: str
    run: str
    kind: str
    key: str
    payload: bytes


class CarriedGrant(Carried, frozen=True):
    """A standing permission. Those of older releases, for a whole tool, stay behind: nobody reads them."""

    owner: str
    id: str
    session: str
    tool: str
    arguments: str
    at: int
    given_by: str


class CarriedUsage(Carried, frozen=True):
    """What was spent on a day. Counts by the minute stay behind."""

    owner: str
    day: int
    model: str
    key: str
    runs: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: int
    errors: int


class CarriedApiKey(Carried, frozen=True):
    """An API key (journal.accounts.base.COLUMNS)."""

    id: str
    digest: bytes
    owner: str
    name: str
    scopes: str
    profile: str
    models: str
    limits: str
    acts_for: str
    expires_at: int
    revoked_at: int
    created_by: str
    created_at: int
    last_used_at: int


class CarriedAudit(Carried, frozen=True):
    """An entry of the audit log. It gets a new number."""

    at: int
    owner: str
    key: str
    action: str
    object: str
    result: str
    remote: str
    detail: str
    id: str


_NOUNS: dict[type[Carried], str] = {
    CarriedSecret: "secrets",
    CarriedRun: "runs",
    CarriedKey: "keys",
    CarriedConversation: "conversations",
    CarriedEdit: "edits",
    CarriedTurn: "session turns",
    CarriedSession: "sessions",
    CarriedText: "session texts",
    CarriedSignal: "signals",
    CarriedGrant: "grants",
    CarriedUsage: "days of usage",
    CarriedApiKey: "API keys",
    CarriedAudit: "audit entries",
}


class Digest:
    """The checksum over rows, and the number of rows of each kind."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self.counts: dict[str, int] = {}

    def add(self, row: Carried) -> None:
        """Add the next row."""
        if isinstance(row, CarriedLog):
            for record in row.records:
                self._add(
                    "records", msgspec.msgpack.encode([row.run, record.seq, record.attempt, record.at, record.data])
                )
        else:
            self._add(_NOUNS[type(row)], msgspec.msgpack.encode(row))

    def _add(self, kind: str, data: bytes) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._sum.update(b"%d:" % len(data))
        self._sum.update(data)

    @property
    def checksum(self) -> str:
        """The checksum over all rows so far."""
        return self._sum.hexdigest()


class InUse(Exception):
    """The store is used by another process, or holds something that must not be lost. The message says what to do."""


class HalfMoved(Exception):
    """Both sides may hold everything, and both could be served. The message says what to do."""


class Carrier(Protocol):
    """One side of a move. The source is a store that is not in use; the target is empty."""

    async def lend(self) -> None:
        """Start as the source. Nobody else may write to the store until `close`. Raises InUse."""
        ...

    async def receive(self) -> None:
        """Start as the target. The store must be empty. Raises InUse."""
        ...

    def rows(self) -> AsyncIterator[Carried]:
        """All rows, in canonical order. Raises Damaged if a log is damaged."""
        ...

    async def put(self, row: Carried) -> None:
        """Write the next row, in canonical order."""
        ...

    async def keep(self) -> None:
        """Commit all rows at once. Raises HalfMoved if the outcome is unknown."""
        ...

    async def retire(self) -> str:
        """Keep the moved source from being served again. Returns a sentence that says how."""
        ...

    async def close(self) -> None:
        """Release the store. Without `keep`, nothing was written."""
        ...


class Moved(Struct, frozen=True):
    """The result of a move."""

    checksum: str
    counts: dict[str, int]
    source: str
    """What was done with the source (Carrier.retire)."""


async def move(source: Carrier, target: Carrier, progress: Callable[[Carried], None] | None = None) -> Moved:
    """Copy `source` to `target`, and compare both before anything is committed. An error before that leaves the target
    empty. Then the source is retired: two servers on two copies would both carry out the unfinished runs. Raises
    HalfMoved if that may have failed. `progress` is called with each row."""
    await source.lend()
    await target.receive()
    read, written = Digest(), Digest()
    async for row in source.rows():
        read.add(row)
        await target.put(row)
        if progress is not None:
            progress(row)
    async for row in target.rows():
        written.add(row)
    if read.checksum != written.checksum:
        raise Damaged(f"what was written is not what was read (read {read.counts}, written {written.counts})")
    await target.keep()
    try:
        retired = await source.retire()
    except (StoreUnavailable, OSError) as error:
        raise HalfMoved(
            f"everything was moved and committed, but the old store could not be retired ({error}). Never serve it "
            "again: unfinished runs would be carried out in both places. Drop it, or move its files away."
        ) from error
    return Moved(written.checksum, written.counts, retired)

"""What moves when a store moves. Owns: the canonical rows of a store, in which every backend can tell all that it holds
and from which it can be made again; their order; the checksum over them; and the Protocol Carrier. Refuses to know: how
any backend keeps a row.

Theory of operation. What is a row's own (numbers of rows, sizes, how records are packed, who holds a run) is left out:
two stores with the same rows behave alike. Rows come in one order: the secret, then the runs from the oldest on, each
followed by its records, then what hangs on them, each kind by its key as bytes. So one pass on each side is enough to
compare them, and the checksum does not depend on how many records come together."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast.journal.base import Record


class Carried(Struct, frozen=True, array_like=True, tag=True):
    """One row."""


class Secret(Carried, frozen=True):
    """What the store's own secret is made from."""

    value: bytes


class Run(Carried, frozen=True, kw_only=True):
    """A run, or what is left of one (`hidden`: 1 deleted, 2 expired)."""

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
    """Of its log: an unfinished run is told as far as it is written."""
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


class Log(Carried, frozen=True):
    """Records of the run before it, in order; as many as come together."""

    run: str
    records: list[Record]


class Key(Carried, frozen=True):
    """An idempotency key."""

    owner: str
    key: str
    fingerprint: str
    run: str


class Conversation(Carried, frozen=True):
    """A conversation."""

    owner: str
    id: str
    name: str | None
    latest: str | None
    active: str | None
    created_at: int
    metadata: bytes


class Edit(Carried, frozen=True):
    """What was taken out of a run's turn in a conversation (`removed` is a JSON list)."""

    owner: str
    conversation: str
    run: str
    removed: bytes
    turn: bytes


class SessionTurn(Carried, frozen=True):
    """A turn of a named session."""

    owner: str
    session: str
    n: int
    at: int
    run: str | None
    turn: bytes


class SessionTitle(Carried, frozen=True):
    """The title of a named session."""

    owner: str
    session: str
    title: str


class Wish(Carried, frozen=True):
    """A signal that waits for a holder."""

    owner: str
    run: str
    kind: str
    key: str
    payload: bytes


class Grant(Carried, frozen=True):
    """A standing permission."""

    owner: str
    session: str
    tool: str


_NOUNS: dict[type[Carried], str] = {
    Secret: "secrets",
    Run: "runs",
    Key: "keys",
    Conversation: "conversations",
    Edit: "edits",
    SessionTurn: "session turns",
    SessionTitle: "session titles",
    Wish: "signals",
    Grant: "grants",
}


class Digest:
    """The checksum of rows, and how many there were of each kind."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self.counts: dict[str, int] = {}

    def add(self, row: Carried) -> None:
        """The next row."""
        if isinstance(row, Log):
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
        """Of all rows so far."""
        return self._sum.hexdigest()


class InUse(Exception):
    """Somebody else uses the store, or something is in it that must not be lost; the text says what to do."""


class HalfMoved(Exception):
    """Both sides may hold all of it, and both could be served; the text says what to do."""


class Carrier(Protocol):
    """One side of a move, from a store that is not in use to one that is empty."""

    async def lend(self) -> None:
        """Begin as the side that is read: nobody else may write to it until `close`. Raises InUse."""
        ...

    async def receive(self) -> None:
        """Begin as the side that is written: it must be empty. Raises InUse."""
        ...

    def rows(self) -> AsyncIterator[Carried]:
        """All rows in their order. Raises Damaged where a log does not hold."""
        ...

    async def put(self, row: Carried) -> None:
        """The next row, in their order."""
        ...

    async def keep(self) -> None:
        """All that was put becomes true, at once. HalfMoved where it cannot be found out whether it did."""
        ...

    async def retire(self) -> str:
        """It has moved: keep it from being served again; how, in words."""
        ...

    async def close(self) -> None:
        """Let go. Without `keep`, nothing was put."""
        ...

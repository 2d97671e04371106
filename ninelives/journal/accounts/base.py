"""Who may call, and who did what. Owns: the rows of API keys and of the audit log, and the Protocols Keys and AuditLog.
Refuses to know: how a secret is checked, and what a scope permits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

ActsFor = Literal["no", "yes", "optional"]
"""Whether requests with a key name an end user: never, always, or where they like."""
MAX_KEYS = 10_000
"""Stored keys, those that have ended included."""
ENDED_MS = 90 * 86_400_000
"""How long a key that was revoked or has expired stays listed."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=10**12)]


class KeyLimits(Struct, frozen=True, omit_defaults=True):
    """What a key may use. None: no limit of its own."""

    runs: Whole | None = None
    """Runs at the same time."""
    requests_per_minute: Whole | None = None
    tokens_per_run: Whole | None = None
    tokens_per_day: Whole | None = None
    tokens_per_month: Whole | None = None
    money_per_run: Amount | None = None
    money_per_day: Amount | None = None
    money_per_month: Amount | None = None

    def within(self, other: KeyLimits) -> bool:
        """Whether no limit is looser than that of `other`."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return all(theirs is None or (own is not None and own <= theirs) for own, theirs in pairs)


NO_LIMITS = KeyLimits()


class KeyRow(Struct, frozen=True, kw_only=True):
    """A stored key. Times are in milliseconds; 0: never."""

    id: str
    digest: bytes
    """SHA-256 of the whole secret."""
    owner: str
    name: str
    scopes: tuple[str, ...]
    profile: str = ""
    """Its default profile. Empty: that of the server."""
    models: tuple[str, ...] = ()
    """The profiles that it may use. Empty: all that its owner may."""
    limits: KeyLimits = NO_LIMITS
    acts_for: ActsFor = "no"
    expires_at: int = 0
    revoked_at: int = 0
    created_by: str = ""
    """The id of the key that made it."""
    created_at: int = 0
    last_used_at: int = 0
    """To the minute."""
    version: int = 0
    """Goes up with each change of any key. A change names the version that it replaces."""

    def ended(self, now: int) -> bool:
        """Whether it is not valid any more."""
        return self.revoked_at > 0 or 0 < self.expires_at <= now


COLUMNS = tuple(name for name in KeyRow.__struct_fields__ if name != "version")
"""The columns of a key, in the order of `columns_of`."""


def columns_of(row: KeyRow) -> tuple[Any, ...]:
    """A key as it is stored."""
    stored = {"scopes": " ".join(row.scopes), "models": _encode(row.models), "limits": _encode(row.limits)}
    return tuple(stored.get(name, getattr(row, name)) for name in COLUMNS)


def row_of(columns: Sequence[Any], version: int) -> KeyRow:
    """A key from what is stored. Limits that a newer release added are ignored."""
    stored: dict[str, Any] = dict(zip(COLUMNS, columns, strict=True))
    stored["scopes"] = tuple(stored["scopes"].split())
    stored["models"] = msgspec.json.decode(stored["models"], type=tuple[str, ...])
    stored["limits"] = msgspec.json.decode(stored["limits"], type=KeyLimits)
    return KeyRow(**stored, version=version)


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Keys(Protocol):
    """The stored keys of all owners. A change and its entry in the audit log are written in one transaction: a process
    that is killed has done both or none."""

    async def add(self, row: KeyRow, entry: AuditEntry | None = None, old: KeyRow | None = None) -> bool:
        """Store a new key. False if its id is taken. `old` is another key, replaced by this row at the same time: False
        and no new key if it was changed meanwhile. Keys that ended ENDED_MS before the creation are deleted."""
        ...

    async def replace(self, row: KeyRow, entry: AuditEntry | None = None) -> bool:
        """Change a key. False if there is none with this id and version: it was changed meanwhile. When it was last
        used, by whom and when it was made, and its digest do not change."""
        ...

    async def find(self, key: str) -> KeyRow | None:
        """One key."""
        ...

    async def page(self, limit: int, after: str = "") -> list[KeyRow]:
        """A page of keys, the newest first. `after` is the last id of the page before; an unknown one gives none."""
        ...

    async def since(self, version: int) -> list[KeyRow]:
        """The keys with a higher version, in its order. -1 gives all."""
        ...

    async def count(self) -> int:
        """How many there are."""
        ...

    async def used(self, at: Mapping[str, int]) -> None:
        """When keys were last used. This is not a change: the version stays."""
        ...


class AuditEntry(Struct, frozen=True, kw_only=True):
    """What somebody did, without content."""

    owner: str
    key: str
    """The id of the key. Empty: the server itself."""
    action: str
    """Such as `key.create`, `run.approve` or `tool.execute`."""
    object: str
    """The id of what it was done to."""
    result: str
    """`ok`, or the code of the error."""
    remote: str = ""
    """The address of the caller."""
    detail: str = ""
    """A name that is no content: of a tool, a scope, a choice."""
    at: int = 0
    """When, in milliseconds."""
    n: int = 0
    """Its number, given by the store."""
    id: str = ""
    """An entry whose id is there already is not written again. Empty: it has none."""


class AuditQuery(Struct, frozen=True, kw_only=True):
    """A page of the audit log. Empty texts match everything."""

    limit: int = 100
    after: int = 0
    """Entries with a higher number."""
    before: int = 0
    """Entries with a lower number; 0: all."""
    newest: bool = True
    """The newest first."""
    owner: str = ""
    key: str = ""
    action: str = ""
    """An action, or the beginning of some up to a dot: `key` finds `key.create`."""
    object: str = ""


class AuditLog(Protocol):
    """What was done, in order. Entries are added and forgotten by age or number, never changed."""

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries, in their order. One that was added before (by its id) is left out."""
        ...

    async def page(self, query: AuditQuery) -> list[AuditEntry]:
        """A page of entries."""
        ...

    async def trim(self, before: int, keep: int) -> int:
        """Forget entries older than `before` (milliseconds), and all but the newest `keep`. Returns how many. One call
        forgets a bounded number."""
        ...

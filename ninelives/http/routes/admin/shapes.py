"""The JSON of /api/keys and /api/audit. Owns: its Structs. Refuses to know: routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.dialects.fields import Seconds
from ninelives.journal.accounts.base import ActsFor, KeyLimits

Scope = Literal["chat", "responses:read", "responses:write", "tools:approve", "admin"]
KeyName = Annotated[str, Meta(min_length=1, max_length=100)]
OwnerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@+=-]{1,128}$")]
Names = Annotated[list[str], Meta(max_length=100)]
Moment = Annotated[float, Meta(ge=0, le=4_102_444_800)]
Span = Annotated[float, Meta(gt=0, le=3_153_600_000)]
Grace = Annotated[float, Meta(ge=0, le=31_536_000)]


class RequestedLimits(KeyLimits, frozen=True, forbid_unknown_fields=True):
    """Limits in a request. A name that is not known is an error: a limit with a typing error would limit nothing."""


class NewKeyRequest(Struct, forbid_unknown_fields=True):
    """A new key. What is left out: the owner of the key that asks, the usual scopes, no expiry, no limits."""

    name: KeyName = ""
    owner: OwnerName | None = None
    scopes: list[Scope] | None = None
    profile: str | None = None
    models: Names | None = None
    limits: RequestedLimits | None = None
    acts_for: ActsFor = "no"
    expires_at: Moment | None = None
    expires_in_s: Span | None = None


class KeyChange(Struct, forbid_unknown_fields=True):
    """What can be changed of a key. `expires_at: null` removes the expiry, `limits: null` all limits."""

    name: KeyName | UnsetType = UNSET
    scopes: list[Scope] | UnsetType = UNSET
    profile: str | UnsetType | None = UNSET
    models: Names | UnsetType | None = UNSET
    limits: RequestedLimits | UnsetType | None = UNSET
    acts_for: ActsFor | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET


class Rotation(Struct, forbid_unknown_fields=True):
    """How long the old key stays valid beside the new one."""

    grace_s: Grace = 0.0


class ApiKeyObject(Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    object: Literal["api_key"]
    id: str
    name: str
    owner: str
    scopes: list[str]
    profile: str | None
    models: list[str]
    limits: KeyLimits
    acts_for: ActsFor
    status: Literal["active", "expired", "revoked"]
    created_at: Seconds
    created_by: str
    """The id of the key that made it."""
    expires_at: Seconds | None
    revoked_at: Seconds | None
    last_used_at: Seconds | None


class NewApiKey(ApiKeyObject, frozen=True, kw_only=True):
    """A key with its secret, which is shown this once."""

    key: str


class AuditObject(Struct, frozen=True, kw_only=True):
    """What somebody did."""

    object: Literal["audit.entry"]
    id: str
    """Its number. Numbers go up."""
    at: Seconds
    owner: str
    key: str
    """The id of the key; empty: the server itself."""
    action: str
    target: str
    """The id of what it was done to."""
    result: str
    """`ok`, or the code of the error."""
    remote: str
    """The address of the caller."""
    detail: str
    """The name of a tool, a choice, or what was changed."""

"""API keys. Owns: the keys of the configuration that this process accepts, kept as digests, and the parsing of the
Authorization header. A secret is hashed first, then compared in constant time with the digest of every key of the
configuration, and with that of the stored key which it names. An unknown secret and a nearly right one therefore take
the same time. Refuses to know: what a key may do with a route, and where keys are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.dialects.clients import Policy
from ninelives.http.edge.scopes import ADMIN
from ninelives.journal.accounts.base import NO_LIMITS, ActsFor, KeyLimits

_BEARER = re.compile(rb"bearer +([!-~]{1,512})", re.IGNORECASE)
"""One credential of visible ASCII. A second one, joined by a comma and a space, does not match."""


PLAIN = Policy()


class ApiKey(Struct, frozen=True):
    """A credential of an owner. Logs may show its `id`, nothing else."""

    id: str
    owner: str
    scopes: frozenset[str]
    settings: Policy = PLAIN
    """How to treat callers with this key. It overrides the profile and the table of clients."""
    profile: str = ""
    """The profile that it belongs to: its default model. Empty: none."""
    models: frozenset[str] = frozenset()
    """The profiles that it may use. Empty: all that its owner may."""
    limits: KeyLimits = NO_LIMITS
    acts_for: ActsFor = "no"
    """Whether its requests name an end user."""
    expires_at: int = 0
    """In milliseconds; 0: never."""
    stored: bool = False
    """It is in the store, so it can be revoked."""

    @property
    def admin(self) -> bool:
        """Whether it may do everything, also for others."""
        return ADMIN in self.scopes


class KeySource(Protocol):
    """Keys that come and go (stored_keys.py)."""

    def find(self, secret: bytes, digest: bytes) -> ApiKey | None:
        """The valid key with this secret."""
        ...

    def named(self, name: str) -> ApiKey | None:
        """The valid key with this id."""
        ...

    def doubts(self, key: ApiKey | None, credentials: Sequence[bytes]) -> bool:
        """Whether `confirm` may give another result than this one."""
        ...

    async def confirm(self, key: ApiKey | None) -> None:
        """Learn what changed, before this result counts."""
        ...

    def during(self, key: ApiKey, end: Callable[[], None]) -> AbstractContextManager[None]:
        """While a request with such a key is served: `end` is called when the key ends."""
        ...


class Keyring:
    """The keys that are valid now: those of the configuration, and those of `stored`."""

    def __init__(self, stored: KeySource | None = None) -> None:
        self._keys: dict[bytes, ApiKey] = {}
        self.stored = stored

    def add(
        self, secret: str, owner: str, scopes: Iterable[str], settings: Policy = PLAIN, profile: str = ""
    ) -> ApiKey:
        """Accept a secret from now on. Only its digest is kept."""
        digest = hashlib.sha256(secret.encode("utf-8")).digest()
        key = ApiKey(digest.hex()[:8], owner, frozenset(scopes), settings, profile)
        if self._keys.setdefault(digest, key) != key:
            raise ValueError(
                f"key {key.id} already exists with another owner, scopes, settings or profile: create a new key"
            )
        return key

    def match(self, authorization: Sequence[bytes]) -> ApiKey | None:
        """The key of a request, or None. `authorization`: its credentials, each as in an Authorization header."""
        named = _BEARER.fullmatch(authorization[0].strip()) if len(authorization) == 1 else None
        if named is None:
            return None
        secret = named[1]
        digest = hashlib.sha256(secret).digest()
        hits = [key for known, key in self._keys.items() if hmac.compare_digest(known, digest)]
        if hits or self.stored is None:
            return hits[0] if hits else None
        return self.stored.find(secret, digest)

    def named(self, name: str) -> ApiKey | None:
        """The valid key with this id, for a request that another process let in."""
        found = next((key for key in self._keys.values() if key.id == name), None)
        return found if found is not None or self.stored is None else self.stored.named(name)


def missing_key(authorization: Sequence[bytes]) -> ClientError:
    """The error where there is no valid key."""
    return ClientError("invalid_api_key", _advice(authorization), status=401)


def _advice(authorization: Sequence[bytes]) -> str:
    """What the caller should do. It says nothing about existing keys."""
    if not authorization:
        return "No API key was sent. Send it in one header: Authorization: Bearer YOUR_KEY"
    if len(authorization) > 1:
        return "More than one credential was sent. Send one header: Authorization: Bearer YOUR_KEY (or x-api-key)"
    return "The API key is not valid. Send one that this server knows: Authorization: Bearer YOUR_KEY"

"""Who is calling. Owns: the keys that this process accepts, kept as digests, and the reading of the Authorization
header. A secret is hashed before anything is compared, and is compared with every stored digest in constant time,
so an unknown secret and a nearly right one take the same path. Refuses to know: what a key may do with a route, and
where keys are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.core.errors import ClientError
from holdfast.dialects.clients import Policy

_BEARER = re.compile(rb"bearer +([!-~]{1,512})", re.IGNORECASE)
"""One credential of visible ASCII: a second one, joined by a comma and a space, does not match."""


PLAIN = Policy()


class Key(Struct, frozen=True):
    """A credential of an owner. `id` is all that logs may show of it."""

    id: str
    owner: str
    scopes: frozenset[str]
    settings: Policy = PLAIN
    """What is special about callers with this key: it goes before the profile and the table of clients."""


class Keyring:
    """The keys that are valid now."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}

    def add(self, secret: str, owner: str, scopes: Iterable[str], settings: Policy = PLAIN) -> Key:
        """Accept a secret from now on. The secret itself is not kept."""
        digest = hashlib.sha256(secret.encode("utf-8")).digest()
        key = Key(digest.hex()[:8], owner, frozenset(scopes), settings)
        if self._keys.setdefault(digest, key) != key:
            raise ValueError(f"key {key.id} already belongs to somebody, or has other scopes: make a new one")
        return key

    def match(self, authorization: Sequence[bytes]) -> Key | None:
        """The key that the credentials of one request name, each in the form of an Authorization header, or None when
        they do not name one."""
        found = _BEARER.fullmatch(authorization[0].strip()) if len(authorization) == 1 else None
        if found is None:
            return None
        digest = hashlib.sha256(found[1]).digest()
        hits = [key for known, key in self._keys.items() if hmac.compare_digest(known, digest)]
        return hits[0] if hits else None

    def find(self, authorization: Sequence[bytes]) -> Key:
        """The same, for where a key is required."""
        key = self.match(authorization)
        if key is None:
            raise ClientError("invalid_api_key", _words(authorization), status=401)
        return key


def _words(authorization: Sequence[bytes]) -> str:
    """What to do about it, without telling anything about the keys."""
    if not authorization:
        return "No API key was sent. Send it in one header: Authorization: Bearer YOUR_KEY"
    if len(authorization) > 1:
        return "More than one credential was sent. Send one header: Authorization: Bearer YOUR_KEY (or x-api-key)"
    return "The API key is not valid. Send one that this server knows: Authorization: Bearer YOUR_KEY"

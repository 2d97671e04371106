"""API keys. Owns: the keys of the configuration that this process accepts, kept as digests; those of the store as this
process knows them: their copy in memory, how old it may be, when a key was last used, and the requests that end with
their key; and the parsing of the Authorization header. Refuses to know: what a key may do with a route.

A secret is hashed first, then compared in constant time with the digest of every key of the configuration, and with
that of the stored key which it names. An unknown secret and a nearly right one therefore take the same time.

All stored keys are in memory, so a request costs a lookup and never a query. Where only this process writes, the copy
is right. In a shared store it is renewed after a notification and every WATCH_S. A request whose key is not found there
waits until it is renewed, at most once in RENEW_S. If that fails for STALE_S, stored keys are refused with 503, because
one of them may have been revoked."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.core.limits import Limits
from ninelives.dialects.clients import Policy
from ninelives.http.edge.scopes import ADMIN
from ninelives.journal.accounts.base import NO_LIMITS as NO_KEY_LIMITS
from ninelives.journal.accounts.base import ActsFor, KeyLimits, KeyRow, Keys
from ninelives.journal.base import Logger, Notifier
from ninelives.journal.values import StoreUnavailable

_BEARER = re.compile(rb"bearer +([!-~]{1,512})", re.IGNORECASE)
"""One credential of visible ASCII. A second one, joined by a comma and a space, does not match."""


PLAIN = Policy()
TOPIC = "keys"
WATCH_S = 5.0
"""How often open requests are checked, and a shared store is read: well within a keepalive."""
RENEW_S = 1.0
STALE_S = 15.0
USED_S = 60.0
_LIMITS = set(Limits.__struct_fields__) & set(KeyLimits.__struct_fields__)
_SECRET = re.compile(rb"nl_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


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
    limits: KeyLimits = NO_KEY_LIMITS
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


def new_secret() -> tuple[str, str]:
    """A new key: its id and its secret."""
    name = secrets.token_hex(6)
    return name, f"nl_{name}_{secrets.token_urlsafe(32)}"


def key_of(row: KeyRow) -> ApiKey:
    """A stored key, as requests see it."""
    return ApiKey(
        id=row.id,
        owner=row.owner,
        scopes=frozenset(row.scopes),
        profile=row.profile,
        models=frozenset(row.models),
        limits=row.limits,
        acts_for=row.acts_for,
        expires_at=row.expires_at,
        stored=True,
    )


class _KnownKey(Struct, frozen=True):
    row: KeyRow
    key: ApiKey


class StoredKeys:
    """The copy of the keys. Call `start` before the first request."""

    def __init__(self, keys: Keys, now_ms: Callable[[], int], log: Logger, notifier: Notifier | None = None) -> None:
        """`notifier`: the store is shared, and this tells of changes by others."""
        self._keys = keys
        self._now_ms = now_ms
        self._log = log
        self._notifier = notifier
        self._known: dict[str, _KnownKey] = {}
        self.limits: dict[str, Limits] = {}
        """Of keys that have any, by id. A key of the configuration has none: its owner has."""
        self._version = -1
        self._nobody = secrets.token_bytes(32)
        """Compared where there is no such key, so that this takes the same time."""
        self._touched: set[str] = set()
        self._open: dict[str, dict[object, Callable[[], None]]] = {}
        self._renewed_at = float("-inf")
        self._tried_at = float("-inf")
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all keys, and begin to watch."""
        await self.renew()
        self._watching = asyncio.create_task(self._watch(), name="keys")

    async def stop(self) -> None:
        """Stop watching, and write down when keys were used."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        with suppress(StoreUnavailable):  # the times are for people; a minute of them may be lost
            await self._write_uses()

    def find(self, secret: bytes, digest: bytes) -> ApiKey | None:
        """The valid key with this secret and the digest of it. Unknown and wrong secrets take the same way."""
        named = _SECRET.fullmatch(secret)
        known = self._known.get(named[1].decode()) if named else None
        same = hmac.compare_digest(self._nobody if known is None else known.row.digest, digest)
        if known is None or not same or known.row.ended(self._now_ms()):
            return None
        self._touched.add(known.key.id)
        return known.key

    def named(self, name: str) -> ApiKey | None:
        """The valid key with this id."""
        known = self._known.get(name)
        return None if known is None or known.row.ended(self._now_ms()) else known.key

    def doubts(self, key: ApiKey | None, credentials: Sequence[bytes]) -> bool:
        """Whether the store should be asked before this result of `find` counts."""
        if self._notifier is None or (key is not None and not key.stored):
            return False
        if key is None:
            return any(_SECRET.search(each) for each in credentials)
        return asyncio.get_running_loop().time() - self._renewed_at > STALE_S

    async def confirm(self, key: ApiKey | None) -> None:
        """Read the store, for an unknown key at most once in RENEW_S. Who comes in between waits for the next time: the
        key may have been made at another process a moment ago."""
        loop = asyncio.get_running_loop()
        asked_at, wait_s = loop.time(), self._tried_at + RENEW_S - loop.time()
        if key is None and wait_s > 0:
            await asyncio.sleep(wait_s)
            async with self._lock:
                if self._renewed_at > asked_at:  # another request has read meanwhile
                    return
        await self.renew()

    async def renew(self) -> None:
        """Read what changed, and end requests of keys that ended. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            self._tried_at = asked_at = loop.time()
            for row in await self._keys.since(self._version):
                old = self._known.get(row.id)
                made = key_of(row)
                key = old.key if old is not None and old.key == made else made  # one object while nothing changed
                self._known[row.id] = _KnownKey(row, key)
                if row.limits == NO_KEY_LIMITS:
                    self.limits.pop(row.id, None)
                else:
                    self.limits[row.id] = Limits(**{field: getattr(row.limits, field) for field in _LIMITS})
                self._version = max(self._version, row.version)
            self._renewed_at = asked_at
        self._end_requests()

    @contextmanager
    def during(self, key: ApiKey, end: Callable[[], None]) -> Iterator[None]:
        """While a request with a stored key is served: `end` is called when the key ends."""
        mark = object()
        mine = self._open.setdefault(key.id, {})
        mine[mark] = end
        try:
            yield
        finally:
            mine.pop(mark, None)
            if not mine:
                self._open.pop(key.id, None)

    def _end_requests(self) -> None:
        now = self._now_ms()
        for name in list(self._open):
            known = self._known.get(name)
            if known is not None and known.row.ended(now):
                ends = self._open.pop(name)
                self._log.info("key_ended", key=name, requests=len(ends))
                for end in ends.values():
                    end()

    async def _watch(self) -> None:
        unlisten = self._notifier.listen(TOPIC, self._news.set) if self._notifier is not None else None
        written_at = asyncio.get_running_loop().time()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_S):
                        await self._news.wait()
                self._news.clear()
                try:
                    if self._notifier is not None:
                        await self.renew()
                    if self._touched and asyncio.get_running_loop().time() - written_at > USED_S:
                        written_at = asyncio.get_running_loop().time()
                        await self._write_uses()
                except StoreUnavailable as error:
                    self._log.warning("keys_not_read", reason=str(error))
                self._end_requests()
        finally:
            if unlisten is not None:
                unlisten()

    async def _write_uses(self) -> None:
        used, self._touched = self._touched, set()
        if used:
            await self._keys.used(dict.fromkeys(used, self._now_ms()))


class Keyring:
    """The keys that are valid now: those of the configuration, and those of `stored`."""

    def __init__(self, stored: StoredKeys | None = None) -> None:
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

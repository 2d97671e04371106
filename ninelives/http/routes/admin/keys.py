"""API keys over HTTP, for admin keys only (A4). Owns: /api/keys, and that nobody makes a key with more rights than
their own. Refuses to know: how a secret is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import ClientError, ServerError, not_found
from ninelives.dialects import fields
from ninelives.dialects.asking import Context
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import AFTER, LIMIT, Endpoint, Operation
from ninelives.http.describe.shapes import ListPage
from ninelives.http.edge.keys import ApiKey, StoredKeys, new_secret
from ninelives.http.edge.scopes import ADMIN, DEFAULT_SCOPES, SCOPES, entry_of, permits
from ninelives.http.routes.admin.shapes import ApiKeyObject, KeyChange, NewApiKey, NewKeyRequest, Rotation
from ninelives.http.routes.base import Routes
from ninelives.journal.accounts.base import MAX_KEYS, NO_LIMITS, KeyLimits, KeyRow

NOUN = "key"
TRIES = 10
"""How often a change is tried while others change the same key."""


class KeyRoutes(Routes):
    """/api/keys."""

    tag = "Keys"
    base = "/api/keys"

    def __init__(self, parts: RouteParts, stored: StoredKeys) -> None:
        self._parts = parts
        self._stored = stored
        self._keys = parts.engine.durable.keys
        self._now_ms = parts.engine.now_ms

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "", self.list, LIST),
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("GET", "/{id}", self.retrieve, RETRIEVE),
            Endpoint("PATCH", "/{id}", self.change, CHANGE),
            Endpoint("DELETE", "/{id}", self.revoke, REVOKE),
            Endpoint("POST", "/{id}/rotate", self.rotate, ROTATE),
        ]

    async def list(self, request: Request) -> Response:
        """GET all stored keys, the newest first."""
        limit, now = query.limit_of(request, 100, 1000), self._now_ms()
        rows = await self._keys.page(limit + 1, request.query_params.get("after", ""))
        return answering.answer(query.page([_shown(row, now) for row in rows], limit))

    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return answering.answer(_shown(await self._find(request), self._now_ms()))

    async def create(self, request: Request) -> Response:
        """POST: a new key. Its secret is in this answer and nowhere else."""
        given = fields.decode(await answering.body_of(request, self._parts), NewKeyRequest)
        maker = _maker(request)
        if given.expires_at is not None and given.expires_in_s is not None:
            raise ClientError("invalid_value", "Send expires_at or expires_in_s, not both.", param="expires_in_s")
        until = _milliseconds(given.expires_at)
        if given.expires_in_s is not None:
            until = self._now_ms() + int(given.expires_in_s * 1000)
        row = KeyRow(
            id="",
            digest=b"",
            owner=given.owner or maker.owner,
            name=fields.required(given.name or None, "name"),
            scopes=_scopes(DEFAULT_SCOPES if given.scopes is None else tuple(given.scopes)),
            profile=given.profile or "",
            models=tuple(given.models or ()),
            limits=_limits(given.limits),
            acts_for=given.acts_for,
            expires_at=until,
        )
        self._check(request, maker, row)
        return await self._add(request, row)

    async def change(self, request: Request) -> Response:
        """PATCH what a key may do."""
        given = fields.decode(await answering.body_of(request, self._parts), KeyChange)
        maker = _maker(request)

        def changed(row: KeyRow) -> KeyRow:
            new = _changed(row, given)
            if new.ended(0):
                raise ClientError("key_revoked", "This key was revoked. Make a new one.", status=409)
            self._check(request, maker, row)
            self._check(request, maker, new)
            return new

        return answering.answer(_shown(await self._replace(request, "key.change", changed), self._now_ms()))

    async def revoke(self, request: Request) -> Response:
        """DELETE: the key is not valid any more. Its open streams end too."""
        now = self._now_ms()

        def revoked(row: KeyRow) -> KeyRow:
            return row if row.revoked_at else replace(row, revoked_at=now)

        return answering.answer(_shown(await self._replace(request, "key.revoke", revoked), now))

    async def rotate(self, request: Request) -> Response:
        """POST: a new key with the same rights. The old one ends now, or after a while."""
        given = fields.decode(await answering.optional_body_of(request, self._parts), Rotation)
        old, now = await self._find(request), self._now_ms()
        if old.ended(now):
            raise ClientError("key_revoked", "This key is not valid any more. Make a new one.", status=409)
        self._check(request, _maker(request), old)
        until = now + int(given.grace_s * 1000)
        ends = {"expires_at": min(old.expires_at or until, until)} if given.grace_s else {"revoked_at": now}
        return await self._add(request, replace(old, version=0, last_used_at=0), replace(old, **ends))

    # What several of them share

    async def _find(self, request: Request) -> KeyRow:
        shown = request.path_params["id"]
        row = await self._keys.find(shown)
        if row is None:
            raise not_found(NOUN, shown)
        return row

    async def _add(self, request: Request, row: KeyRow, old: KeyRow | None = None) -> Response:
        """A new key with the rights of a row. `old`: the key that it replaces, as it is after that."""
        if await self._keys.count() >= MAX_KEYS:
            words = f"There are {MAX_KEYS} keys. Revoke some: they are deleted 90 days after their end."
            raise ClientError("too_many_keys", words, status=409)
        name, secret = new_secret()
        digest, now = hashlib.sha256(secret.encode()).digest(), self._now_ms()
        new = replace(row, id=name, digest=digest, created_by=_maker(request).id, created_at=now)
        entry = entry_of(request, "key.create", f"owner {row.owner}", name, now)
        if old is not None:
            entry = entry_of(request, "key.rotate", f"owner {row.owner}, new key {name}", old.id, now)
        if not await self._keys.add(new, entry, old):
            words = "The new key could not be stored, or others change the old one at the same time. Try again."
            raise ServerError("key_not_made", words, retry_after=1)
        request.state.audit_kept = True
        await self._stored.renew()
        return answering.answer(_shown(new, now, secret), 201)

    async def _replace(self, request: Request, action: str, change: Callable[[KeyRow], KeyRow]) -> KeyRow:
        for _ in range(TRIES):
            row = await self._find(request)
            new = change(row)
            if new == row:
                return row
            entry = entry_of(request, action, f"owner {row.owner}", row.id, self._now_ms())
            if await self._keys.replace(new, entry):
                request.state.audit_kept = True
                await self._stored.renew()
                return new
        raise ServerError("key_not_changed", "Others change this key at the same time. Try again.", retry_after=1)

    def _check(self, request: Request, maker: ApiKey, row: KeyRow) -> None:
        """A key has no more rights than the one that makes it."""
        _check_profiles(answering.context_of(request, self._parts), row)
        if row.acts_for != "no" and ADMIN in row.scopes:
            words = "A key that names end users cannot have the scope admin: each of them would be an admin."
            raise ClientError("invalid_value", words, param="acts_for")
        for what, allowed in {
            "scopes": all(permits(maker.scopes, scope) for scope in row.scopes),
            "models": not (maker.models or maker.profile) or bool(row.models or row.profile),
            "limits": row.limits.within(maker.limits),
            "expires_at": not maker.expires_at or 0 < row.expires_at <= maker.expires_at,
        }.items():
            if not allowed:
                words = f"A key cannot make one with more rights than its own: {what} goes beyond those of {maker.id}."
                raise ClientError("rights_exceeded", words, status=403, param=what)


def _maker(request: Request) -> ApiKey:
    key: ApiKey = request.scope["state"]["key"]
    return key


def _check_profiles(maker: Context, row: KeyRow) -> None:
    """The profiles that a key names exist, are within reach of who names them, and of its owner."""
    known = {maker.profile.name: maker.profile, **maker.others}
    for param, name in [
        *(("models", each) for each in row.models),
        *([("profile", row.profile)] if row.profile else []),
    ]:
        if name not in known:
            words = f"There is no profile '{name}' for this key. Known: {', '.join(known)}."
            raise ClientError("profile_not_found", words, param=param)
        if known[name].owner not in ("", row.owner) and ADMIN not in row.scopes:
            words = f"The profile '{name}' belongs to another owner than the key: {known[name].owner}."
            raise ClientError("profile_of_another_owner", words, param=param)
    if row.profile and row.models and row.profile not in row.models:
        raise ClientError("invalid_value", "profile must be one of models.", param="profile")


def _scopes(given: tuple[str, ...]) -> tuple[str, ...]:
    if not given:
        raise ClientError("invalid_value", f"scopes must name at least one of {', '.join(SCOPES)}.", param="scopes")
    return tuple(scope for scope in SCOPES if scope in given)


def _limits(given: KeyLimits | None) -> KeyLimits:
    if given is None:
        return NO_LIMITS
    return KeyLimits(**{name: getattr(given, name) for name in KeyLimits.__struct_fields__})


def _milliseconds(moment: float | None) -> int:
    return 0 if moment is None else max(1, int(moment * 1000))


def _changed(row: KeyRow, given: KeyChange) -> KeyRow:
    new: dict[str, object] = {}
    for name in ("name", "acts_for"):
        if (value := getattr(given, name)) is not UNSET:
            new[name] = value
    if given.scopes is not UNSET:
        new["scopes"] = _scopes(tuple(given.scopes))
    if given.profile is not UNSET:
        new["profile"] = given.profile or ""
    if given.models is not UNSET:
        new["models"] = tuple(given.models or ())
    if given.limits is not UNSET:
        new["limits"] = _limits(given.limits)
    if given.expires_at is not UNSET:
        new["expires_at"] = _milliseconds(given.expires_at)
    return replace(row, **new)


def _shown(row: KeyRow, now: int, secret: str = "") -> ApiKeyObject:
    common = {
        "object": "api_key",
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "scopes": list(row.scopes),
        "profile": row.profile or None,
        "models": list(row.models),
        "limits": row.limits,
        "acts_for": row.acts_for,
        "status": "revoked" if row.revoked_at else "expired" if row.ended(now) else "active",
        "created_at": row.created_at / 1000,
        "created_by": row.created_by,
        "expires_at": row.expires_at / 1000 if row.expires_at else None,
        "revoked_at": row.revoked_at / 1000 if row.revoked_at else None,
        "last_used_at": row.last_used_at / 1000 if row.last_used_at else None,
    }
    return NewApiKey(**common, key=secret) if secret else ApiKeyObject(**common)  # type: ignore[arg-type]


LIST = Operation(
    summary="List keys",
    doc="Stored keys of all owners, the newest first. Keys of the configuration are not among them.",
    answers={200: ListPage[ApiKeyObject]},
    params=(LIMIT, AFTER),
    errors=(403,),
)
CREATE = Operation(
    summary="Create a key",
    doc="The secret is in this answer only. A key has no more rights than the one that makes it.",
    answers={201: NewApiKey},
    body=NewKeyRequest,
    required=("name",),
    errors=(403, 409),
    example={"name": "laptop of anna", "owner": "anna"},
)
RETRIEVE = Operation(summary="Retrieve a key", answers={200: ApiKeyObject}, errors=(403, 404))
CHANGE = Operation(
    summary="Change a key",
    doc="Fields that are left out stay as they are.",
    answers={200: ApiKeyObject},
    body=KeyChange,
    errors=(403, 404, 409),
)
REVOKE = Operation(
    summary="Revoke a key",
    doc="It is not valid any more. Its open streams and websockets end within 15 seconds.",
    answers={200: ApiKeyObject},
    errors=(403, 404),
)
ROTATE = Operation(
    summary="Rotate a key",
    doc="A new key with the same rights. The old one ends at once, or after grace_s.",
    answers={201: NewApiKey},
    body=Rotation,
    body_optional=True,
    errors=(403, 404, 409),
)

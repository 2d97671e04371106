"""What a key may do (A4). Owns: the scopes, and the scope that each route needs. A route without a row needs `admin`,
so a new route is closed until somebody decides. Refuses to know: how keys are stored, and whose rows a request sees."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.journal.accounts.base import AuditEntry

CHAT, READ, WRITE, APPROVE, ADMIN = "chat", "responses:read", "responses:write", "tools:approve", "admin"
SCOPES = (CHAT, READ, WRITE, APPROVE, ADMIN)
DEFAULT_SCOPES = (CHAT, READ, WRITE)
"""Those of a new key."""
USER_SCOPES = frozenset({CHAT, READ, WRITE, APPROVE})
"""All that a person needs for work of their own."""
ANY_KEY, NO_KEY = "any key", "no key"
"""Not scopes: the route says nothing of anybody's runs; it is open."""
OPEN_PATHS = frozenset(
    {"/", "/livez", "/readyz", "/health", "/v1/health", "/health/detailed", "/api/status", "/docs", "/openapi.json"}
)
OPEN_PREFIXES = ("/static/",)

_CHAT_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens")
_PLAIN_PATHS = (
    "/metrics",
    "/v1/models",
    "/v1/models/{id:path}",
    "/v1/capabilities",
    "/v1/toolsets",
    "/v1/skills",
    "/api/model/options",
)
_STORED_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/conversations", "/v1/runs", "/api/runs", "/api/sessions")
"""How the paths of stored things begin."""
_EXACT: Mapping[tuple[str, str], str] = {
    **{("POST", path): CHAT for path in _CHAT_PATHS},
    **{("GET", path): ANY_KEY for path in _PLAIN_PATHS},
    ("POST", "/v1/responses/input_tokens"): READ,
    ("GET", "/v1/responses"): WRITE,  # the websocket
    ("POST", "/api/sessions/{id:path}/chat"): CHAT,
    ("POST", "/api/sessions/{id:path}/chat/stream"): CHAT,
    ("GET", "/v1/approvals"): READ,
    ("GET", "/api/usage"): READ,
    ("POST", "/api/markdown"): ANY_KEY,
    ("GET", "/api/exit"): READ,
    ("DELETE", "/v1/approvals/{id}"): APPROVE,
    ("POST", "/v1/runs/{id}/approval"): APPROVE,
}
AUDITED: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/runs/{id}/approval"): "run.answer",
    ("POST", "/v1/runs/{id}/stop"): "run.cancel",
    ("POST", "/v1/runs/{id}/steer"): "run.steer",
    ("POST", "/v1/runs/{id}/fork"): "run.fork",
    ("POST", "/v1/responses/{id}/cancel"): "run.cancel",
    ("DELETE", "/v1/responses/{id}"): "run.delete",
    ("DELETE", "/v1/chat/completions/{id}"): "run.delete",
    ("DELETE", "/v1/conversations/{id:path}"): "conversation.delete",
    ("DELETE", "/api/sessions/{id:path}"): "session.delete",
    ("GET", "/api/sessions/{id:path}/export"): "session.export",
    ("DELETE", "/v1/approvals/{id}"): "approval.revoke",
    ("POST", "/api/keys"): "key.create",
    ("PATCH", "/api/keys/{id}"): "key.change",
    ("DELETE", "/api/keys/{id}"): "key.revoke",
    ("POST", "/api/keys/{id}/rotate"): "key.rotate",
    ("GET", "/api/audit"): "audit.read",
}
"""What each of these routes is called in the audit log. Requests that start runs are not there: the runs are stored."""
_ADMIN_PATHS = ("/api/keys", "/api/audit", "/api/elsewhere")


def scope_of(method: str, path: str) -> str | None:
    """What a route needs: a scope, ANY_KEY or NO_KEY. None: it has no row, and only an admin key may use it. `path` is
    the pattern of the route."""
    if path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
        return NO_KEY
    asked = "GET" if method == "HEAD" else method
    found = _EXACT.get((asked, path))
    if found is not None:
        return found
    if _is_below(path, _ADMIN_PATHS):
        return ADMIN
    if _is_below(path, _STORED_PATHS):
        return READ if asked == "GET" else WRITE
    return None


def is_plain(path: str) -> bool:
    """Whether a path (of a request) shows nothing that belongs to an owner: models, capabilities, toolsets."""
    return path in _PLAIN_PATHS or path.startswith("/v1/models/")


def _is_below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(top + "/") for top in tops)


def permits(held: Collection[str], scope: str) -> bool:
    """Whether a key with these scopes may use what needs this one. `admin` contains all others."""
    return scope in held or ADMIN in held or scope == ANY_KEY


def missing_scope(scope: str, held: Collection[str]) -> ClientError:
    """The error for a key that may not do this."""
    has = ", ".join(each for each in SCOPES if each in held) or "none"
    words = f"This key lacks the scope {scope} (it has: {has}). Use another key: an admin makes one with the scope."
    return ClientError("insufficient_scope", words, status=403)


def note(request: Any, action: str, result: str, detail: str = "", target: str = "") -> None:
    """Write into the audit log what a request did, without waiting: it was refused, or it only looked."""
    request.scope["state"]["audit"].note(_entry(request, action, result, detail, target))


async def keep(request: Any, action: str, detail: str = "", target: str = "") -> None:
    """The same for what was done, and wait until it is stored. A route says more in `audit_target`, `audit_detail` and
    `audit_id` of the state of its request. `audit_kept`: the route has stored the entry together with what it did."""
    state = request.scope["state"]
    entry = replace(_entry(request, action, "ok", detail, target), id=state.get("audit_id", ""))
    await state["audit"].keep([entry])


def entry_of(request: Any, action: str, detail: str, target: str, at: int) -> AuditEntry:
    """The entry of what a request does, for a route that stores it together with that."""
    return replace(_entry(request, action, "ok", detail, target), at=at, id=os.urandom(16).hex())


def _entry(request: Any, action: str, result: str, detail: str, target: str) -> AuditEntry:
    scope = request.scope
    state = scope["state"]
    key = state["key"]
    return AuditEntry(
        owner=key.owner,
        key=key.id,
        action=action,
        object=target or state.get("audit_target") or scope.get("path_params", {}).get("id", ""),
        result=result,
        remote=state.get("remote", ""),
        detail=detail or state.get("audit_detail", ""),
    )

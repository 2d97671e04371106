"""The gate in front of every route. Owns: the checks of a request before a route sees it (host, origin, key, size), and
the headers of every response, streams and errors included (request id, the fixed headers, CORS). A route needs a key
unless its path is listed as open (A4). An error that a route raises becomes JSON here; a bug becomes a logged 500
without its cause. Refuses to know: routes, bodies, and what a key may do."""

from __future__ import annotations

import asyncio
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninelives.core.errors import ClientError, NinelivesError, store_unavailable
from ninelives.core.hosts import is_loopback
from ninelives.dialects.asking import is_session_name
from ninelives.http.api_style import OPENAI, STYLE_CHARS, STYLES, ApiStyle
from ninelives.http.body import too_large
from ninelives.http.edge.access import ProfileAccess, split_path
from ninelives.http.edge.early import CLOSE, FIXED, MAX_HEADERS, head_too_large
from ninelives.http.edge.end_users import USER_HEADERS, EndUsers
from ninelives.http.edge.kept import KeptRequest
from ninelives.http.edge.keys import ApiKey, Keyring, KeySource, missing_key
from ninelives.http.edge.proxies import TrustedProxies
from ninelives.http.errors import Headers, error_response, unexpected
from ninelives.journal.accounts.trail import NoTrail, Trail
from ninelives.journal.base import Logger
from ninelives.journal.values import StoreUnavailable

_METHODS = b"GET, POST, PATCH, DELETE, OPTIONS"
_EXPOSED = (
    b"X-Hermes-Session-Id, x-request-id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_CALLER_HEADERS = (
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "x-hermes-session-id",
    "x-hermes-session-key",
    "x-hermes-user-id",
    "x-end-user-id",
    "x-multitask-strategy",
    "x-on-disconnect",
    "x-tool-items",
    "x-tool-progress",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
)
_STAINLESS = re.compile(r"x-stainless-[a-z0-9-]{1,64}")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_POLICY_VIOLATION = 1008
_CLOSING = frozenset({408, 413, 431})
"""After these the connection is closed: the request was not read, or its sender is not to be trusted with another."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_HEADERS = (b"x-request-id", b"traceparent")

Seen = Mapping[bytes, list[bytes]]
"""The headers that the gate reads, each with all its values, because duplicates must be refused."""

_SESSION_KEY = b"x-hermes-session-key"
_READ = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"x-api-key",
        b"content-length",
        b"access-control-request-headers",
        _SESSION_KEY,
        *USER_HEADERS,
        *_TRACE_HEADERS,
    },
)


class Rules(Struct, frozen=True, kw_only=True):
    """The settings of a gate. `loopback`: the server listens on this machine only. Open paths need no key for GET and
    HEAD; a prefix ends with a slash."""

    loopback: bool
    max_body: int
    max_head: int = 65_536
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    open_paths: frozenset[str] = frozenset()
    open_prefixes: tuple[str, ...] = ()
    end_users: EndUsers = EndUsers("", time.time)
    audit: Trail = NoTrail()
    proxies: TrustedProxies = TrustedProxies()
    mask: Callable[[str], str] = str
    """Hides secrets in the text of an error."""
    now: Callable[[], float] = time.monotonic


class GoingOn(Protocol):
    """Goes on with answers that another process has begun (adopt.py)."""

    def answer(self, kept: KeptRequest, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer on."""

    def cut(self, kept: KeptRequest, scope: Scope) -> Awaitable[None]:
        """The client is not to be answered."""


class _GatedAnswer(Struct):
    """Adds headers to one response. Only its first message is changed."""

    pass_on: Send
    style: ApiStyle
    headers: Headers
    state: dict[str, Any]
    """That of the request. A route may add `rates`: headers with the limits of the caller."""
    started: bool = False
    status: int = 0
    ended: bool = False
    """The key of the request has ended, so nothing more is sent."""

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message. The first one gets the headers, which replace the route's own of the same name."""
        self.started = True
        if self.ended:
            raise ClientDisconnect
        if message["type"] in _STARTS:
            ours = dict(self.headers)
            ours.pop(b"vary", None)
            theirs = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*theirs, *self.headers, *self.state.get("rates", ())]}
            self.status = message.get("status", 101)
        return self.pass_on(message)

    async def whole(self, status: int, headers: Headers, body: bytes, prefix: str = "") -> None:
        """Send a complete response."""
        await self.send({"type": f"{prefix}http.response.start", "status": status, "headers": headers})
        await self.send({"type": f"{prefix}http.response.body", "body": body})


class Gate:
    """Pure ASGI middleware, the outermost layer. It handles every exception, so Starlette's error layers are not needed
    around it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keyring: Keyring,
        rules: Rules,
        new_id: Callable[[], str],
        log: Logger,
        profiles: ProfileAccess | None = None,
    ) -> None:
        self.inside = app
        self._keyring = keyring
        self._profiles = profiles
        self._rules = rules
        self._origins = frozenset(origin.encode("ascii", "replace") for origin in rules.cors_origins)
        self._hosts = frozenset(host.lower() for host in rules.allowed_hosts)
        self._new_id = new_id
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here. Sets request_id, key (None on open paths), reach (the profiles that the
        key may use) and, for a websocket, key_ended in scope["state"]. The profile in a path, /p/NAME/..., is taken out
        of it."""
        if scope["type"] not in ("http", "websocket"):
            await self.inside(scope, receive, send)
            return
        named, scope["path"] = split_path(scope["path"])
        seen: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in _READ:
                seen.setdefault(name, []).append(value)
        request_id, trace = traced(seen, self._new_id)
        style, state = STYLES.get(scope["path"][:STYLE_CHARS], OPENAI), scope.setdefault("state", {})
        remote = self._rules.proxies.client_of(scope)
        state.update(
            request_id=request_id, trace=trace, key=None, profile=named, audit=self._rules.audit, remote=remote
        )
        ids = [(name, request_id.encode("ascii")) for name in style.request_ids]
        answer = _GatedAnswer(send, style, [*FIXED, *ids], scope["state"])
        state["headers"] = answer.headers
        await self._answer(scope, answer, self._enter(scope, seen, receive, answer))

    async def resume(self, going_on: GoingOn, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on with a request that another process of this server let in, and has begun to answer. Its key is looked
        at again: a connection whose key has ended is cut."""
        state, kept = scope["state"], KeptRequest.read(scope["state"]["note"])
        scope["path"] = kept.path
        known = {"request_id": kept.request_id, "trace": kept.trace, "remote": kept.remote}
        state.update(known, key=None, audit=self._rules.audit)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
        answer = _GatedAnswer(send, STYLES.get(kept.path[:STYLE_CHARS], OPENAI), headers, state)
        key = self._keyring.named(kept.key)
        if key is None:
            self._log.info("client_cut", request_id=kept.request_id, run=kept.run, why="its key has ended")
            await going_on.cut(kept, scope)
            return
        state["key"] = replace(key, owner=kept.owner)
        work = going_on.answer(kept, scope, receive, answer.send)
        await self._answer(scope, answer, self._during(scope, answer, work))

    async def _answer(self, scope: Scope, answer: _GatedAnswer, work: Awaitable[None]) -> None:
        """Let a request be answered. Its errors become answers."""
        began, request_id = self._rules.now(), scope["state"]["request_id"]
        try:
            await work
            self._note(scope, answer, began)
        except ClientDisconnect:
            self._log.info("client_left", **_fields(scope))
        except NinelivesError as error:
            log = self._log.warning if error.status >= 500 or answer.started else self._log.info
            log("request_refused", **_fields(scope), code=error.code, status=error.status)
            if answer.started:
                raise
            await _refuse(scope, answer, error)
        except StoreUnavailable as error:
            self._log.warning("request_refused", **_fields(scope), code="store_unavailable", reason=str(error))
            if answer.started:
                raise
            await _refuse(scope, answer, store_unavailable(self._rules.mask(str(error))))
        except Exception as error:
            self._log.error("request_failed", **_fields(scope), trace="".join(traceback.format_exception(error)))
            if answer.started:
                raise
            await _refuse(scope, answer, unexpected(error, request_id))

    def _note(self, scope: Scope, answer: _GatedAnswer, began: float) -> None:
        """One line for each request. Health checks and the files of pages would drown the others."""
        if not self._is_open(scope):
            took = round(self._rules.now() - began, 4)
            self._log.info("request", **_fields(scope), status=answer.status, seconds=took)

    async def _enter(self, scope: Scope, seen: Seen, receive: Receive, answer: _GatedAnswer) -> None:
        """Check the head. It is refused where it has too many headers, or where the HTTP server lets it be too long."""
        headers, rules = scope["headers"], self._rules
        size = len(scope["path"]) + len(scope.get("query_string", b"")) + sum(map(len, chain.from_iterable(headers)))
        if len(headers) > MAX_HEADERS or size > rules.max_head:
            raise head_too_large(rules.max_head)
        if b"origin" in seen:
            answer.headers += self._cors(seen)
        if rules.loopback:
            self._check_host(seen.get(b"host", []))
        if scope.get("method") == "OPTIONS":
            await answer.whole(204, self._preflight(seen), b"")
            return
        await self._identify(scope, seen, answer)
        for length in seen.get(b"content-length", []):  # refused before the body is read; body.py counts what comes
            if not length.isdigit():
                raise ClientError("invalid_content_length", "Content-Length must be a number of bytes.")
            if len(length) > 18 or int(length) > rules.max_body:
                raise too_large(rules.max_body)
        if scope["type"] == "websocket":
            scope["state"]["key_ended"] = asyncio.Event()
        await self._during(scope, answer, self.inside(scope, receive, answer.send))

    def _during(self, scope: Scope, answer: _GatedAnswer, work: Awaitable[None]) -> Awaitable[None]:
        """Let the routes answer. The request ends with its key, if that can end."""
        key, stored = scope["state"]["key"], self._keyring.stored
        return work if key is None or not key.stored or stored is None else _until_end(stored, scope, answer, work)

    def _cors(self, seen: Seen) -> Headers:
        """The CORS headers of a response. A page of a foreign origin that is not listed is refused (A5)."""
        origins = seen[b"origin"]
        origin = origins[0]
        if len(origins) == 1 and (b"*" in self._origins or origin in self._origins):
            shown = b"*" if b"*" in self._origins else origin
            return [(b"access-control-allow-origin", shown), (b"access-control-expose-headers", _EXPOSED)]
        if len(origins) == 1 and _is_own_page(origin, seen):
            return []
        words = "This page's origin may not call the server: add it to server.cors_origins (API_SERVER_CORS_ORIGINS)."
        raise ClientError("origin_not_allowed", words, status=403)

    def _preflight(self, seen: Seen) -> Headers:
        """The headers of a preflight response. It may not hold patterns, so it repeats the allowed names that were
        requested."""
        headers: Headers = [(b"allow", _METHODS)]
        if b"origin" in seen and self._origins:
            asked = b",".join(seen.get(b"access-control-request-headers", [])).decode("latin-1").lower().split(",")
            names = [name.strip() for name in asked]
            allowed = [name for name in names if name in _CALLER_HEADERS or _STAINLESS.fullmatch(name)]
            headers += [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", ", ".join(allowed or _CALLER_HEADERS).encode("ascii")),
                (b"access-control-max-age", b"600"),
            ]
        return headers

    def _check_host(self, hosts: list[bytes]) -> None:
        """On loopback, refuse foreign host names: a web page may have pointed its own name here (DNS rebinding)."""
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        name = found[1].decode("ascii").lower().strip("[]").rstrip(".") if found else ""
        if not (name and (is_loopback(name) or name in self._hosts)):
            words = f"This server does not answer for the host {name!r:.100}: add it to server.allowed_hosts."
            raise ClientError("host_not_allowed", words, status=421)

    async def _identify(self, scope: Scope, seen: Seen, answer: _GatedAnswer) -> None:
        """The key of a request, the profiles that it may use, and the session key that is echoed. x-api-key is read
        where there is no Authorization, or where the API style allows both. More than one credential is an error."""
        credentials = list(seen.get(b"authorization", []))
        if answer.style.api_key or not credentials:
            credentials += [b"Bearer " + secret for secret in seen.get(b"x-api-key", [])]
        state, is_open = scope["state"], self._is_open(scope)
        key, stored = self._keyring.match(credentials), self._keyring.stored
        if stored is not None and credentials and stored.doubts(key, credentials):
            await stored.confirm(key)
            key = self._keyring.match(credentials)
        state["key"] = key
        if key is None:
            if not is_open:
                raise missing_key(credentials)
            return
        if _SESSION_KEY in seen:
            answer.headers += _session_key(seen[_SESSION_KEY])
        if self._profiles is not None and not is_open:
            state["key"], state["reach"] = self._profiles.enter(key, state["profile"])
            user = self._rules.end_users.of(key, seen, scope["path"])
            if user is not None:
                state["key"], state["reach"] = self._profiles.act_for(state["key"], state["reach"], user)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        listed = path in self._rules.open_paths or path.startswith(self._rules.open_prefixes)
        return listed and scope["type"] == "http" and scope["method"] in ("GET", "HEAD")


async def _until_end(stored: KeySource, scope: Scope, answer: _GatedAnswer, work: Awaitable[None]) -> None:
    with stored.during(scope["state"]["key"], partial(_end, scope, answer)):
        await work


def _end(scope: Scope, answer: _GatedAnswer) -> None:
    """End a request whose key has ended. A stream breaks off without its end; a websocket closes itself."""
    if scope["type"] == "websocket":
        scope["state"]["key_ended"].set()
        return
    answer.ended = True
    abort_connection = scope.get("extensions", {}).get("ninelives.abort")
    if abort_connection is not None:
        abort_connection()


def _is_own_page(origin: bytes, seen: Seen) -> bool:
    """True where the page came from this server. Also over https, because a proxy may terminate TLS."""
    hosts = seen.get(b"host", [])
    return len(hosts) == 1 and origin.lower() in (b"http://" + hosts[0].lower(), b"https://" + hosts[0].lower())


def _fields(scope: Scope) -> dict[str, object]:
    """The log fields of a request: the key by its id only, and no headers."""
    state = scope["state"]
    key: ApiKey | None = state["key"]
    method = scope.get("method", "WEBSOCKET")
    fields = {
        "request_id": state["request_id"],
        "method": method,
        "path": scope["path"][:200],
        "key": key and key.id,
        "remote": state["remote"],
    }
    return {**fields, "trace_id": state["trace"][3:35]} if state["trace"] else fields


def _session_key(named: list[bytes]) -> Headers:
    """X-Hermes-Session-Key, which an authenticated caller gets back."""
    valid = len(named) == 1 and is_session_name(named[0].decode("latin-1"))
    return [(b"x-hermes-session-key", named[0])] if valid else []


def _session(scope: Scope) -> Headers:
    """The session header of an authenticated caller, which errors return too (D2)."""
    named = [value for name, value in scope["headers"] if name == b"x-hermes-session-id"]
    known = scope["state"]["key"] is not None and len(named) == 1 and is_session_name(named[0].decode("latin-1"))
    return [(b"x-hermes-session-id", named[0])] if known else []


async def _refuse(scope: Scope, answer: _GatedAnswer, error: NinelivesError) -> None:
    """Respond with an error. A websocket that is not open yet gets an HTTP response, where the server supports it."""
    answer.headers += _session(scope)
    made = error_response(error, answer.style, scope["state"]["request_id"])
    if scope["type"] == "http":
        made[1].extend([CLOSE] if error.status in _CLOSING else [])
        await answer.whole(*made)
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await answer.whole(*made, prefix="websocket.")
    else:
        await answer.send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.code})


def traced(seen: Seen, new_id: Callable[[], str]) -> tuple[str, str]:
    """The id of a request, the caller's own where it is a plain word, and its traceparent (W3C Trace Context), or an
    empty text. Where a header was sent twice, the last one counts."""
    request_id, trace = [seen[name][-1] if name in seen else b"" for name in _TRACE_HEADERS]
    known = request_id.decode() if request_id and _REQUEST_ID.fullmatch(request_id) else new_id()
    told = trace.decode("latin-1")
    return known, told if trace and _TRACEPARENT.fullmatch(told) else ""

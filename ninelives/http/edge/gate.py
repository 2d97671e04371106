"""The gate in front of every route. Owns: the checks of a request before a route sees it (host, origin, key, size), and
the headers of every response, streams and errors included (request id, the fixed headers, CORS). A route needs a key
unless its path is listed as open (A4). An error that a route raises becomes JSON here; a bug becomes a logged 500
without its cause. Refuses to know: routes, bodies, and what a key may do."""

from __future__ import annotations

import asyncio
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninelives.core.errors import ClientError, NinelivesError, store_unavailable
from ninelives.core.hosts import is_loopback
from ninelives.dialects.asking import is_session_name
from ninelives.http.api_style import OPENAI, STYLE_CHARS, STYLES, ApiStyle
from ninelives.http.body import too_large
from ninelives.http.edge.access import PATH, ProfileAccess, split_path
from ninelives.http.edge.early import CLOSE, MAX_HEADERS, head_too_large
from ninelives.http.edge.end_users import USER_HEADERS, EndUsers
from ninelives.http.edge.kept import KeptRequest
from ninelives.http.edge.keys import ApiKey, Keyring, StoredKeys, missing_key
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
_REQUEST_ID_HEADER, _TRACE_HEADER = b"x-request-id", b"traceparent"
_TRACE_HEADERS = frozenset({_REQUEST_ID_HEADER, _TRACE_HEADER})
_READING = ("GET", "HEAD")
MOST_HOSTS = 64
"""Host headers that are remembered."""

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


class _GatedRequest(Struct):
    """One request, and its answer. Headers are added to the first message of the answer only."""

    scope: Scope
    receive: Receive
    pass_on: Send
    style: ApiStyle
    headers: Headers
    """Those of every answer to it."""
    more: Headers = []
    """CORS, and what is echoed."""
    seen: Seen = {}
    is_open: bool = False
    """It needs no key."""
    started: bool = False
    status: int = 0
    ended: bool = False
    """The key of the request has ended, so nothing more is sent."""

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message. The first one gets the headers, which replace the route's own of the same name. A route may
        add `rates` to the state: headers with the limits of the caller."""
        self.started = True
        if self.ended:
            raise ClientDisconnect
        if message["type"] in _STARTS:
            ours, theirs = self.headers + self.more, message.get("headers", ())
            names = dict(ours)
            names.pop(b"vary", None)
            if not names.keys().isdisjoint(dict(theirs)):
                theirs = [pair for pair in theirs if pair[0] not in names]
            message = {**message, "headers": [*theirs, *ours, *self.scope["state"].get("rates", ())]}
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
        self._hosts_seen: set[bytes] = set()
        """Host headers that were checked and are allowed."""
        self._proxied = rules.proxies != TrustedProxies()
        self._new_id = new_id
        self._log = log

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass a request on, or answer it here. Sets request_id, key (None on open paths), reach (the profiles that the
        key may use) and, for a websocket, key_ended in scope["state"]. The profile in a path, /p/NAME/..., is taken out
        of it."""
        if scope["type"] not in ("http", "websocket"):
            return self.inside(scope, receive, send)
        rules, named = self._rules, None
        if scope["path"].startswith(PATH):
            named, scope["path"] = split_path(scope["path"])
        seen: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in _READ:
                seen.setdefault(name, []).append(value)
        if _TRACE_HEADERS.isdisjoint(seen):
            request_id, trace = self._new_id(), ""
        else:
            request_id, trace = traced(seen, self._new_id)
        peer = scope.get("client")
        remote = rules.proxies.client_of(scope) if self._proxied else peer[0] if peer else ""
        style = STYLES.get(scope["path"][:STYLE_CHARS], OPENAI)
        request = _GatedRequest(scope, receive, send, style, style.headers(request_id), seen=seen)
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, trace=trace, key=None, profile=named, audit=rules.audit, remote=remote)
        state["headers"] = request.more
        return self._answer(request, self._enter)

    async def resume(self, going_on: GoingOn, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on with a request that another process of this server let in, and has begun to answer. Its key is looked
        at again: a connection whose key has ended is cut."""
        state, kept = scope["state"], KeptRequest.read(scope["state"]["note"])
        scope["path"] = kept.path
        known = {"request_id": kept.request_id, "trace": kept.trace, "remote": kept.remote}
        state.update(known, key=None, audit=self._rules.audit)
        style = STYLES.get(kept.path[:STYLE_CHARS], OPENAI)
        own = style.headers(kept.request_id)
        request = _GatedRequest(scope, receive, send, style, own, kept.more_headers(own))
        key = self._keyring.named(kept.key)
        if key is None:
            self._log.info("client_cut", request_id=kept.request_id, run=kept.run, why="its key has ended")
            await going_on.cut(kept, scope)
            return
        state["key"] = replace(key, owner=kept.owner)
        stored = self._keyring.stored if key.stored else None

        def go_on(request: _GatedRequest) -> Awaitable[None]:
            answer = going_on.answer(kept, scope, receive, request.send)
            return answer if stored is None else _until_end(stored, request, answer)

        await self._answer(request, go_on)

    async def _answer(self, request: _GatedRequest, work: Callable[[_GatedRequest], Awaitable[None]]) -> None:
        """Let a request be answered. Its errors become answers. It has one line in the log; those of health checks and
        the files of pages would drown the others."""
        began, scope = self._rules.now(), request.scope
        try:
            await work(request)
            if not request.is_open:
                took = round(self._rules.now() - began, 4)
                self._log.info("request", **_fields(scope), status=request.status, seconds=took)
        except ClientDisconnect:
            self._log.info("client_left", **_fields(scope))
        except NinelivesError as error:
            log = self._log.warning if error.status >= 500 or request.started else self._log.info
            log("request_refused", **_fields(scope), code=error.code, status=error.status)
            if request.started:
                raise
            await _refuse(request, error)
        except StoreUnavailable as error:
            self._log.warning("request_refused", **_fields(scope), code="store_unavailable", reason=str(error))
            if request.started:
                raise
            await _refuse(request, store_unavailable(self._rules.mask(str(error))))
        except Exception as error:
            self._log.error("request_failed", **_fields(scope), trace="".join(traceback.format_exception(error)))
            if request.started:
                raise
            await _refuse(request, unexpected(error, scope["state"]["request_id"]))

    def _enter(self, request: _GatedRequest) -> Awaitable[None]:
        """Check the head, then the key. x-api-key is a credential where there is no Authorization, or where the API
        style allows both. More than one credential is an error."""
        self._check_head(request)
        seen = request.seen
        if request.scope.get("method") == "OPTIONS":
            return request.whole(204, self._preflight(seen), b"")
        credentials = seen.get(b"authorization", [])
        if b"x-api-key" in seen and (request.style.api_key or not credentials):
            credentials = [*credentials, *(b"Bearer " + secret for secret in seen[b"x-api-key"])]
        key, stored = self._keyring.match(credentials), self._keyring.stored
        if stored is not None and (key is None or key.stored) and stored.doubts(key, credentials):
            return self._confirm(request, stored, key, credentials)
        return self._let_in(request, key, credentials)

    def _check_head(self, request: _GatedRequest) -> None:
        """A head is refused where it has too many headers, or where the HTTP server lets it be too long."""
        scope, seen, rules = request.scope, request.seen, self._rules
        headers = scope["headers"]
        size = len(scope["path"]) + len(scope.get("query_string", b"")) + sum(map(len, chain.from_iterable(headers)))
        if len(headers) > MAX_HEADERS or size > rules.max_head:
            raise head_too_large(rules.max_head)
        if b"origin" in seen:
            request.more += self._cors(seen)
        hosts = seen.get(b"host", [])
        if rules.loopback and (len(hosts) != 1 or hosts[0] not in self._hosts_seen):
            self._check_host(hosts)

    async def _confirm(
        self, request: _GatedRequest, stored: StoredKeys, key: ApiKey | None, credentials: Sequence[bytes]
    ) -> None:
        """The store may know better whether this key is valid."""
        await stored.confirm(key)
        await self._let_in(request, self._keyring.match(credentials), credentials)

    def _let_in(self, request: _GatedRequest, key: ApiKey | None, credentials: Sequence[bytes]) -> Awaitable[None]:
        """Pass on a request with this key, if it has one or needs none. It ends with its key, if that can end."""
        scope, seen, state, rules = request.scope, request.seen, request.scope["state"], self._rules
        path = scope["path"]
        if scope.get("method") in _READING:
            request.is_open = path in rules.open_paths or path.startswith(rules.open_prefixes)
        state["key"] = key
        if key is not None:
            self._settle_profile(request, key)
        elif not request.is_open:
            raise missing_key(credentials)
        for length in seen.get(b"content-length", []):  # refused before the body is read; body.py counts what comes
            if not length.isdigit() or len(length) > 18 or int(length) > rules.max_body:
                raise _bad_length(length, rules.max_body)
        if scope["type"] == "websocket":
            state["key_ended"] = asyncio.Event()
        stored = self._keyring.stored if key is not None and key.stored else None
        answer = self.inside(scope, request.receive, request.send)
        return answer if stored is None else _until_end(stored, request, answer)

    def _settle_profile(self, request: _GatedRequest, key: ApiKey) -> None:
        """Which profiles a request may use, and for whom it acts. Its session key is echoed."""
        seen, state = request.seen, request.scope["state"]
        if _SESSION_KEY in seen:
            request.more += _session_key(seen[_SESSION_KEY])
        profiles, named = self._profiles, state["profile"]
        if profiles is None or request.is_open:
            return
        if profiles.only is None or named is not None or key.profile or key.models:
            state["key"], state["reach"] = profiles.enter(key, named)
        else:
            state["reach"] = profiles.only
        user = None if key.acts_for == "no" else self._rules.end_users.of(key, seen, request.scope["path"])
        if user is not None:
            state["key"], state["reach"] = profiles.act_for(state["key"], state["reach"], user)

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
        if len(self._hosts_seen) < MOST_HOSTS:
            self._hosts_seen.add(hosts[0])


async def _until_end(stored: StoredKeys, request: _GatedRequest, work: Awaitable[None]) -> None:
    with stored.during(request.scope["state"]["key"], partial(_end, request)):
        await work


def _end(request: _GatedRequest) -> None:
    """End a request whose key has ended. A stream breaks off without its end; a websocket closes itself."""
    scope = request.scope
    if scope["type"] == "websocket":
        scope["state"]["key_ended"].set()
        return
    request.ended = True
    abort_connection = scope.get("extensions", {}).get("ninelives.abort")
    if abort_connection is not None:
        abort_connection()


def _bad_length(length: bytes, most: int) -> ClientError:
    if not length.isdigit():
        return ClientError("invalid_content_length", "Content-Length must be a number of bytes.")
    return too_large(most)


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


async def _refuse(request: _GatedRequest, error: NinelivesError) -> None:
    """Respond with an error. A websocket that is not open yet gets an HTTP response, where the server supports it."""
    scope = request.scope
    request.more += _session(scope)
    made = error_response(error, request.style, scope["state"]["request_id"])
    if scope["type"] == "http":
        made[1].extend([CLOSE] if error.status in _CLOSING else [])
        await request.whole(*made)
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await request.whole(*made, prefix="websocket.")
    else:
        await request.send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.code})


def traced(seen: Seen, new_id: Callable[[], str]) -> tuple[str, str]:
    """The id of a request, the caller's own where it is a plain word, and its traceparent (W3C Trace Context), or an
    empty text. Where a header was sent twice, the last one counts."""
    request_id, trace = seen.get(_REQUEST_ID_HEADER, [b""])[-1], seen.get(_TRACE_HEADER, [b""])[-1]
    known = request_id.decode() if request_id and _REQUEST_ID.fullmatch(request_id) else new_id()
    told = trace.decode("latin-1")
    return known, told if trace and _TRACEPARENT.fullmatch(told) else ""

"""The context of a request. Owns: Context, the caller as the dialects see it; what callers may wish in headers; the
order of what decides an answer: headers, then the key, then the profile, then the table of clients (clients.py); and
the fields that make a fingerprint (G4). Refuses to know: HTTP frameworks; headers come as a plain mapping."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import compress, repeat
from operator import is_not
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import astuple, replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.spec import DERIVED_SESSION, Kept, OnDisconnect, Strategy, ToolItems, ToolProgress
from ninelives.dialects.clients import (
    TABLE,
    ClientTools,
    HostedTools,
    Policy,
    Rows,
    StoreFalse,
    first_of,
)

_SESSION = re.compile(r"\A[A-Za-z0-9._:@/+=-]{1,256}\Z")
_SESSION_RULE = "must be 1 to 256 letters, digits or ._:@/+=-."
CALLER_IDS = (
    "x-openwebui-user-id",
    "x-openwebui-chat-id",
    "x-hermes-session-id",
    "x-hermes-session-key",
    "x-hermes-user-id",
    "x-end-user-id",
)
"""Headers that tell people and chats behind one key apart. Those that are sent are part of the match (B8)."""
SESSION_HEADERS = frozenset({"x-hermes-session-id", "x-hermes-session-key"})
Sent = list[tuple[str, object]]
"""Fields of a request, each with its value."""
NOT_IN_FINGERPRINT = frozenset({"stream", "stream_options"})


class Wish(Struct, frozen=True):
    """A header in which a caller may wish something."""

    header: str
    """In lower case."""
    fits: re.Pattern[str]
    code: str
    """Of the error for a value that does not fit."""
    rule: str
    param: str | None = None


KEY = Wish(
    "idempotency-key",
    re.compile(r"\A[\x21-\x7e]{1,255}\Z"),
    "invalid_idempotency_key",
    "Idempotency-Key must be 1 to 255 visible ASCII characters.",
)
"""The idempotency key (C5)."""
SESSION = Wish(
    "x-hermes-session-id",
    _SESSION,
    "invalid_session_id",
    f"X-Hermes-Session-Id {_SESSION_RULE}",
    "X-Hermes-Session-Id",
)
"""The session."""
MEMORY_SCOPE = Wish(
    "x-hermes-session-key",
    re.compile(r"\A[A-Za-z0-9._:@/+=-]{0,256}\Z"),
    "invalid_session_key",
    f"X-Hermes-Session-Key {_SESSION_RULE}",
)
"""The scope of the memory tool."""
STRATEGY = Wish(
    "x-multitask-strategy",
    re.compile(rf"\A(?:{'|'.join(get_args(Strategy))})\Z"),
    "invalid_multitask_strategy",
    f"X-Multitask-Strategy must be one of {', '.join(get_args(Strategy))}.",
    "X-Multitask-Strategy",
)
"""What to do while another run of the conversation or session is active (C7)."""
TOOL_ITEMS = Wish(
    "x-tool-items",
    re.compile(r"\A(?:auto|function_call|mcp_call)\Z"),
    "invalid_tool_items",
    "X-Tool-Items must be auto, function_call or mcp_call.",
)
TOOL_PROGRESS = Wish(
    "x-tool-progress",
    re.compile(r"\A(?:compatible|bare|off)?\Z"),
    "invalid_tool_progress",
    "X-Tool-Progress must be compatible, bare or off.",
)
ON_DISCONNECT = Wish(
    "x-on-disconnect",
    re.compile(r"\A(?:detach|cancel)\Z"),
    "invalid_on_disconnect",
    "X-On-Disconnect must be detach or cancel.",
)


@lru_cache(4)
def _keyed(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod="sha256")


def is_session_name(named: str) -> bool:
    """Is this a valid name for a session?"""
    return _SESSION.match(named) is not None


class Profile(Struct, frozen=True):
    """The agent as callers see it, and the defaults of its answers."""

    name: str
    tool_items: str = "auto"
    tool_progress: ToolProgress = "compatible"
    output_bound: int = 16384
    store_false: StoreFalse = "journal"
    """Where runs with `store: false` are: in the journal until their answer is delivered, or in memory only (B6)."""
    owner: str = ""
    """Whose profile it is. Only keys of this owner and admin keys reach it, and its runs belong to this owner. Empty:
    it is shared, and a run belongs to the owner of the key."""
    unknown_model: str = "default"
    """What happens to a request for a model that is no profile: the default profile answers, or an error does (A2)."""
    client_tools: str = "auto"
    on_disconnect: str = "auto"
    searches: bool = False
    """It has a tool web_search."""
    resend_ms: int = 900_000
    """How long after a lost connection the same request joins its run (B8)."""
    resend_anonymous_ms: int = 120_000
    """The same where nothing tells whose request it is."""


@lru_cache(64)
def policy_of(profile: Profile) -> Policy:
    """The policy of a profile; `auto` sets nothing."""
    items, tools, leaving = profile.tool_items, profile.client_tools, profile.on_disconnect
    return Policy(
        tool_items=None if items == "auto" else items,  # type: ignore[arg-type]
        client_tools=None if tools == "auto" else tools,  # type: ignore[arg-type]
        on_disconnect=None if leaving == "auto" else leaving,  # type: ignore[arg-type]
    )


def checked_session(named: str, where: str) -> str:
    """The name of a session from the header or field `where`, checked."""
    if not _SESSION.match(named):
        raise ClientError("invalid_session_id", f"{where} {_SESSION_RULE}", param=where)
    return named


def sent_fields(request: Struct) -> Sent:
    """The fields of a request that are not null, in their order."""
    values = astuple(request)
    sent = list(map(is_not, values, repeat(None)))  # in C: a request has fifty fields, and most are not sent
    return list(zip(compress(request.__struct_fields__, sent), compress(values, sent), strict=True))


def unknown_model(asked: str, known: Iterable[str]) -> ClientError:
    """The error for an unknown model."""
    message = f"The model '{asked}' does not exist. Known models: {', '.join(known)}."
    return ClientError("model_not_found", message, status=404, param="model")


class Context(Struct, frozen=True):
    """One request, as a dialect sees it."""

    owner: str
    headers: Mapping[str, str]
    """Lower-case names."""
    profile: Profile
    secret: bytes
    """For derived session names, so that no caller can guess those of another owner."""
    others: Mapping[str, Profile] = {}
    """The other profiles that the caller may use, by name; `profile` is the default until `under` has chosen."""
    credential: str = ""
    """The id of the API key."""
    settings: Policy = Policy()
    """The policy of that key."""
    clients: Rows = TABLE
    caller: Policy | None = None
    """The policy from the table of clients, if it was looked up already."""
    special: Policy | None = None
    """The result of known() under this profile, if it was computed already. None: call known()."""
    bound: bool = False
    """The path or the key has a default profile of its own."""

    def profiles(self) -> list[str]:
        """The names of all profiles that the caller may use, the default first."""
        return [self.profile.name, *self.others]

    def under(self, asked: str | None) -> Context:
        """The same request under the profile that it names (A2). For an unknown name the default profile answers, or an
        error does. An admin key that names the profile of an owner acts for this owner."""
        if asked is None or asked == self.profile.name:
            return self
        if asked in self.others:
            chosen = self.others[asked]
            return replace(self, profile=chosen, owner=chosen.owner or self.owner, special=None)
        if self.profile.unknown_model == "default":
            return self
        raise unknown_model(asked, self.profiles())

    def known_fields(self, sent: Sent, defaults: Mapping[str, object]) -> dict[str, object]:
        """The sent fields that differ from the documented default of the API, without those that only concern delivery.
        The model is the profile that answers: the same for all names that lead to it. Where neither the request nor its
        path or key names one, there is none: so the fingerprint is that of earlier releases. The values are those of
        the request: a conversation is not copied."""
        known = {name: value for name, value in sent if name not in NOT_IN_FINGERPRINT and value != defaults.get(name)}
        if self.bound or "model" in known:
            known["model"] = self.profile.name
        return known

    def wish(self, wish: Wish) -> Any:  # Any: what fits is of the type of the field that it becomes
        """What a header of the request asks for, checked. None: it was not sent."""
        value = self.headers.get(wish.header)
        if value is not None and wish.fits.match(value) is None:
            raise ClientError(wish.code, wish.rule, param=wish.param)
        return value

    def derived_session(self, system: str | None, first_user: str) -> str:
        """The session of a request that names none: for workspace and grouping only (D2)."""
        chat = self.headers.get("x-openwebui-chat-id")
        if chat and _SESSION.match(chat):
            return f"owui-{chat}"
        text = "\0".join((self.owner, system or "", first_user)).encode("utf-8", "replace")
        signed = _keyed(self.secret).copy()  # hmac.digest lets go of the interpreter: 40 us while the writer works
        signed.update(text)
        return DERIVED_SESSION + signed.hexdigest()[:32]

    def known(self) -> Policy:
        """The policy for this caller, without the headers of this request."""
        return first_of(self.settings, policy_of(self.profile), self._recognised())

    def _recognised(self) -> Policy:
        return self.clients.recognise(self.headers) if self.caller is None else self.caller

    def tool_items(self) -> ToolItems:
        """How server tools appear as items (C9)."""
        wanted: ToolItems | Literal["auto"] | None = self.wish(TOOL_ITEMS)
        if wanted is None:
            return self.known().tool_items or "function_call"
        return (self._recognised().tool_items or "function_call") if wanted == "auto" else wanted

    def tool_progress(self) -> ToolProgress:
        """Which tool progress a stream carries. A client that breaks on it gets none, whatever the profile says."""
        wanted: ToolProgress | None = self.wish(TOOL_PROGRESS)
        return wanted or (self.special or self.known()).tool_progress or self.profile.tool_progress

    def kept(self, store: bool | None, default: Kept) -> Kept:
        """What is kept of the run (B6). `default` is for a request that leaves `store` out."""
        if store is None:
            return "stored" if KEY.header in self.headers else default
        if store:
            return "stored"
        said = first_of(self.settings, self._recognised()).store_false or self.profile.store_false
        return "memory" if said == "memory" else "delivery"

    def on_disconnect(self, kept: Kept, *, asked_to_store: bool = False) -> OnDisconnect:
        """What a disconnect does. A run that was asked to be stored goes on. Otherwise it is cancelled where that is
        the only way in which its client can stop; a run that is not stored is parked for the next try (B6, C4)."""
        wanted: OnDisconnect | None = self.wish(ON_DISCONNECT)
        if wanted is None and not asked_to_store:
            wanted = (self.special or self.known()).on_disconnect
        if wanted is None:
            return "detach" if kept == "stored" else "park"
        return "cancel" if wanted == "cancel" else "detach"

    def client_tools(self) -> ClientTools:
        """How the tools of the caller are treated (B5)."""
        return self.known().client_tools or "pass"

    def hosted_tools(self) -> HostedTools:
        """What becomes of tools that this server would have to run, and does not have (G17)."""
        return self.known().hosted_tools or "refuse"

    def is_chore(self, text: str) -> bool:
        """Is a request with this one text a chore of a front end (B7)? Its text must begin like one, and the caller
        must be a front end, or the text must quote a chat as front ends do. A request that names a session is not."""
        if SESSION_HEADERS & self.headers.keys() or not text.lstrip().startswith("### Task:"):
            return False
        chores = self.known().chores
        return "<chat_history>" in text if chores is None else chores

    def waiting(self, asked: Asked) -> Asked:
        """The question of a caller who waits on a connection. When that is lost, the same request joins the run (B8);
        so does the retry of an SDK, which counts its tries (G13)."""
        named = not self.headers.keys().isdisjoint(CALLER_IDS)  # nearly no request has one
        ids = [f"{name}={value}" for name in CALLER_IDS if (value := self.headers.get(name))] if named else []
        lost_ms = self.profile.resend_ms if ids or asked.user else self.profile.resend_anonymous_ms
        if asked.key is not None or asked.kept == "memory":
            return replace(asked, resend_ms=lost_ms)
        same = "\0".join((asked.fingerprint, asked.kept, self.profile.name, *ids)).encode("utf-8", "replace")
        count = self.headers.get("x-stainless-retry-count", "")
        counted = count.isascii() and count.isdigit() and count.strip("0") != ""
        match = hashlib.sha256(same).hexdigest()
        return replace(asked, credential=self.credential, match=match, counted=counted, resend_ms=lost_ms)

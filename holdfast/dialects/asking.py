"""What a dialect is told about a request besides its body. Owns: Context, the caller as the dialects see it, and who
decides how it is answered: its headers, then its key, then the profile, then the table of clients (clients.py).
Refuses to know: HTTP frameworks; headers come as a plain mapping."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.admission import RETRY_MS, Again, Asked
from holdfast.core.errors import ClientError
from holdfast.core.spec import OnDisconnect, ToolItems, ToolProgress
from holdfast.dialects.clients import TABLE, Client, ClientTools, Policy, first_of, recognise

if TYPE_CHECKING:
    from hashlib import _Hash

_SESSION = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")


def is_session_name(named: str) -> bool:
    """May a session be called so?"""
    return _SESSION.match(named) is not None


class Profile(Struct, frozen=True):
    """The agent as callers know it, and the defaults of its answers."""

    name: str
    tool_items: str = "auto"
    tool_progress: ToolProgress = "compatible"
    output_bound: int = 16384
    durable_chat: bool = False
    unknown_model: str = "error"
    client_tools: str = "auto"
    on_disconnect: str = "auto"
    resend_ms: int = 900_000
    """How long after a durable chat broke off the same messages go on with it (B8)."""

    def policy(self) -> Policy:
        """What the profile itself says; auto says nothing."""
        items, tools, leaving = self.tool_items, self.client_tools, self.on_disconnect
        return Policy(
            tool_items=None if items == "auto" else items,  # type: ignore[arg-type]
            client_tools=None if tools == "auto" else tools,  # type: ignore[arg-type]
            on_disconnect=None if leaving == "auto" else leaving,  # type: ignore[arg-type]
        )


def checked_session(named: str, where: str) -> str:
    """A session's name that the caller gave in the header or field `where`."""
    if not _SESSION.match(named):
        message = f"{where} must be 1 to 256 letters, digits or ._:@/+=-."
        raise ClientError("invalid_session_id", message, param=where)
    return named


def unknown_model(asked: str, known: Iterable[str]) -> ClientError:
    """The one answer for a model that nobody serves."""
    message = f"The model '{asked}' does not exist. Known models: {', '.join(known)}."
    return ClientError("model_not_found", message, status=404, param="model")


class Context(Struct, frozen=True):
    """One request, as a dialect sees it."""

    owner: str
    headers: Mapping[str, str]
    """Lower-case names."""
    profile: Profile
    secret: bytes
    """For derived session names: nobody can guess another owner's."""
    others: Mapping[str, Profile] = {}
    """Further profiles, by name; `profile` is the default until `under` has chosen."""
    credential: str = ""
    """The key that asks, by its id."""
    settings: Policy = Policy()
    """What is special about that key."""
    clients: tuple[Client, ...] = TABLE
    caller: Policy | None = None
    """What the table says of it, where somebody has looked already."""
    special: Policy | None = None
    """What is known() of the caller under this profile, likewise."""

    def under(self, asked: str | None) -> Context:
        """The same request to the profile that it names; 404 for one that nobody serves (A2)."""
        if asked is None or asked == self.profile.name:
            return self
        if asked in self.others:
            return replace(self, profile=self.others[asked], special=None)
        if self.profile.unknown_model == "default":
            return self
        raise unknown_model(asked, (self.profile.name, *self.others))

    def session(self) -> str | None:
        """The session that the caller names."""
        named = self.headers.get("x-hermes-session-id")
        return None if named is None else checked_session(named, "X-Hermes-Session-Id")

    def memory_scope(self) -> str:
        """What narrows the memory tool: X-Hermes-Session-Key."""
        named = self.headers.get("x-hermes-session-key", "")
        if named and not _SESSION.match(named):
            raise ClientError(
                "invalid_session_key", "X-Hermes-Session-Key must be 1 to 256 letters, digits or ._:@/+=-."
            )
        return named

    def key(self) -> str | None:
        """The idempotency key, checked (C5)."""
        key = self.headers.get("idempotency-key")
        if key is not None and not _KEY.match(key):
            raise ClientError("invalid_idempotency_key", "Idempotency-Key must be 1 to 255 visible ASCII characters.")
        return key

    def derived_session(self, system: str | None, first_user: str) -> str:
        """A session for those who name none: workspace and grouping only (D2)."""
        chat = self.headers.get("x-openwebui-chat-id")
        if chat and _SESSION.match(chat):
            return f"owui-{chat}"
        text = "\0".join((self.owner, system or "", first_user)).encode("utf-8", "replace")
        return "auto-" + _hmac_sha256(self.secret, text).hex()[:32]

    def known(self) -> Policy:
        """What is special about this caller, but for what its request says itself."""
        if self.special is not None:
            return self.special
        return first_of(self.settings, self.profile.policy(), self._recognised())

    def _recognised(self) -> Policy:
        return recognise(self.headers, self.clients) if self.caller is None else self.caller

    def tool_items(self) -> ToolItems:
        """How server tools appear as items: see C9."""
        match self.headers.get("x-tool-items"):
            case None:
                return self.known().tool_items or "function_call"
            case "auto":
                return self._recognised().tool_items or "function_call"
            case "function_call" | "mcp_call" as wanted:
                return wanted
            case _:
                raise ClientError("invalid_tool_items", "X-Tool-Items must be auto, function_call or mcp_call.")

    def tool_progress(self) -> ToolProgress:
        """Which tool progress a stream carries; a client that breaks on it gets none, whatever the profile says."""
        wanted = self.headers.get("x-tool-progress") or self.known().tool_progress or self.profile.tool_progress
        if wanted not in ("compatible", "bare", "off"):
            raise ClientError("invalid_tool_progress", "X-Tool-Progress must be compatible, bare or off.")
        return wanted  # type: ignore[return-value]

    def on_disconnect(self, store_given: bool) -> OnDisconnect:
        """Does leaving mean stop? Only where `store` was left out and the caller has no other stop button (C4), or
        where the request says so."""
        wanted = self.headers.get("x-on-disconnect")
        if wanted not in (None, "detach", "cancel"):
            raise ClientError("invalid_on_disconnect", "X-On-Disconnect must be detach or cancel.")
        if wanted is None:
            wanted = "detach" if store_given else self.known().on_disconnect
        return "cancel" if wanted == "cancel" else "detach"

    def client_tools(self) -> ClientTools:
        """What becomes of the caller's tools (B5)."""
        return self.known().client_tools or "pass"

    def chores(self) -> bool:
        """May a request be an errand of a front end (B7)?"""
        return self.known().chores is not False

    def durable_chat(self) -> bool:
        """Are chat completions stored where the request says nothing (B6)?"""
        said = first_of(self.settings, self._recognised()).durable_chat
        return self.profile.durable_chat if said is None else said

    def resent(self, session: str) -> Again:
        """The same messages once more, after a durable chat broke off, in the same chat as far as that can be told."""
        return Again(self.profile.resend_ms, same_credential=False, session=session)

    def waiting(self, asked: Asked) -> Asked:
        """The question of a caller who waits on a connection, of which an SDK's retry may take the place (G13)."""
        if asked.key is not None or not asked.store:
            return asked
        count = self.headers.get("x-stainless-retry-count", "")
        retried = count.isascii() and count.isdigit() and count.strip("0") != ""
        again = asked.again or (Again(RETRY_MS) if retried else None)
        return replace(asked, credential=self.credential, again=again)


def _hmac_sha256(secret: bytes, text: bytes) -> bytes:
    """The same as hmac.digest(), which gives the interpreter away each time and waits for it while the writer works."""
    inner, outer = (half.copy() for half in _halves(secret))
    inner.update(text)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=4)
def _halves(secret: bytes) -> tuple[_Hash, _Hash]:
    """HMAC's two hashes with the key in them (RFC 2104)."""
    key = (secret if len(secret) <= 64 else hashlib.sha256(secret).digest()).ljust(64, b"\0")
    return hashlib.sha256(bytes(b ^ 0x36 for b in key)), hashlib.sha256(bytes(b ^ 0x5C for b in key))

"""What a dialect is told about a request besides its body. Owns: Context, the caller as the dialects see it, and client
recognition in one small table. Refuses to know: HTTP frameworks; headers come as a plain mapping."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import ClientError
from holdfast.core.spec import OnDisconnect, ToolItems, ToolProgress

_SESSION = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_RUNS_CALLS_ITSELF = ("openai/", "ai-sdk", "ai/", "codex", "agents/")


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

    def under(self, asked: str | None) -> Context:
        """The same request to the profile that it names; 404 for one that nobody serves (A2)."""
        if asked is None or asked == self.profile.name:
            return self
        if asked in self.others:
            return replace(self, profile=self.others[asked])
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
        return "auto-" + hmac.new(self.secret, text, hashlib.sha256).hexdigest()[:32]

    def tool_items(self) -> ToolItems:
        """How server tools appear as items: see C9."""
        wanted = self.headers.get("x-tool-items") or self.profile.tool_items
        if wanted == "mcp_call":
            return "mcp_call"
        if wanted == "function_call":
            return "function_call"
        if wanted != "auto":
            raise ClientError("invalid_tool_items", "X-Tool-Items must be auto, function_call or mcp_call.")
        agents = self.headers.get("user-agent", "").lower().split()
        sdk = any(name.startswith("x-stainless-") for name in self.headers)
        return "mcp_call" if sdk or any(word.startswith(_RUNS_CALLS_ITSELF) for word in agents) else "function_call"

    def tool_progress(self) -> ToolProgress:
        """Which tool progress a chat stream carries; openai-node 4 breaks on any custom event (B4)."""
        wanted = self.headers.get("x-tool-progress") or self.profile.tool_progress
        old_node = self.headers.get("x-stainless-lang") == "js" and self.headers.get(
            "x-stainless-package-version", ""
        ).startswith("4.")
        if old_node and "x-tool-progress" not in self.headers:
            return "off"
        if wanted not in ("compatible", "bare", "off"):
            raise ClientError("invalid_tool_progress", "X-Tool-Progress must be compatible, bare or off.")
        return wanted  # type: ignore[return-value]

    def on_disconnect(self, store_given: bool) -> OnDisconnect:
        """Does leaving mean stop? Only where `store` was left out and the caller has no other stop button (C4)."""
        return "cancel" if self.from_open_webui() and not store_given else "detach"

    def from_open_webui(self) -> bool:
        """The caller says that it is Open WebUI."""
        return any(name.startswith("x-openwebui-") for name in self.headers)

    def from_aiohttp(self) -> bool:
        """The caller may be Open WebUI, which says so only when it is told to."""
        agent = self.headers.get("user-agent", "")
        return agent.startswith("Python/") and "aiohttp/" in agent

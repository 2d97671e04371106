"""What was asked. Owns: Spec, the normal form of a request in any dialect, and the canonical fingerprint by which
two requests are called the same (G4). Refuses to know: how a dialect spells its fields, and what time it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

Dialect = Literal["chat", "responses", "runs", "messages", "conversations"]
ToolItems = Literal["function_call", "mcp_call"]
ToolProgress = Literal["compatible", "bare", "off"]
OnDisconnect = Literal["detach", "cancel"]
Message = dict[str, object]
"""A message in the form of Chat Completions: the one form in which history is kept and sent upstream."""


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request, normalised. It is written in RunAccepted, so everything that can change a frame is in it."""

    dialect: Dialect
    model: str
    input: tuple[Message, ...] = ()
    """The new turn, as chat messages."""
    history: tuple[Message, ...] = ()
    """Earlier messages that the caller sent along (chat resends all; runs have conversation_history)."""
    instructions: str | None = None
    sampling: dict[str, object] = {}
    """Fields that reach the upstream as they are (temperature, stop, response_format ...)."""
    client_tools: tuple[dict[str, object], ...] = ()
    """Tools that the caller runs itself, in the form of Chat Completions."""
    tool_choice: str | dict[str, object] | None = None
    allowed_tools: tuple[str, ...] | None = None
    """The only tools, ours or the caller's, that may be offered or carried out; None: all of them."""
    chore: bool = False
    """A front end's own errand (a title, tags): one plain model call, no tools, no session (B7)."""
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    store: bool = True
    background: bool = False
    include_usage: bool = False
    tool_items: ToolItems = "function_call"
    tool_progress: ToolProgress = "compatible"
    output_bound: int = 16384
    """Bytes of tool output shown in events; the journal keeps all of it."""
    on_disconnect: OnDisconnect = "detach"
    memory_scope: str = ""
    """Whose memory it is, where the caller narrows it (X-Hermes-Session-Key)."""
    projection: int = 1
    """Version of the projections that render this run (house rule 6.1)."""
    echo: dict[str, object] = {}
    """Fields of the dialect's own request that its body shows again."""
    items: tuple[dict[str, object], ...] = ()
    """The input in the dialect's own form, for GET input_items."""


class Resolved(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What open() found out in its transaction and what later turns of the world must not change."""

    previous: str | None = None
    """The run whose chain comes before this one (by previous_response_id or by the conversation)."""
    conversation: str | None = None
    session: str | None = None
    session_turns: int | None = None
    """How many turns of the session are this run's history; None where the session gives no history (D2)."""
    remember: bool = False
    """The caller named the session: it takes the finished turn."""


FINGERPRINT_VERSION = 1


def fingerprint(dialect: str, fields: Mapping[str, object], session: str | None) -> str:
    """The same request gives the same value on every machine and in every release that knows this version.

    `fields` are the parsed known fields without those equal to the API's documented default, without stream,
    stream_options and whatever was recognised about the client (G4)."""
    canonical = msgspec.json.encode([FINGERPRINT_VERSION, dialect, session, fields], order="sorted")
    return f"{FINGERPRINT_VERSION}:{hashlib.sha256(canonical).hexdigest()}"

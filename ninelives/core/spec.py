"""What was asked. Owns: Spec, the normal form of a request in any dialect, and the canonical fingerprint by which
two requests count as the same (G4). Refuses to know: how a dialect spells its fields, and what time it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Raw

ToolItems = Literal["function_call", "mcp_call"]
ToolProgress = Literal["compatible", "bare", "off"]
OnDisconnect = Literal["detach", "cancel", "park"]
"""detach: the run goes on. cancel: it is cancelled. park: it waits for the same request (B6)."""
Kept = Literal["stored", "hours", "delivery", "memory"]
"""What is kept of a run, by the value of `store` (B6).

- stored: `store: true`. Kept until retention takes it, and listed.
- hours: `store` left out on chat and messages. Its content goes after `store.unstored_hours`.
- delivery: `store: false`. Journaled while it runs; it goes when its answer was delivered.
- memory: `store: false` with `store_false = "memory"`, and chores. Never written to the disk."""
Strategy = Literal["reject", "enqueue", "interrupt", "steer"]
"""What happens to a request while another run of its conversation or session is active (C7)."""
Message = dict[str, object]
"""A message in the form of Chat Completions: the one form in which history is kept and sent upstream."""
Piece = bytes | memoryview
NO_MESSAGES = Raw(b"[]")
_messages = msgspec.json.Decoder(tuple[Message, ...])
canonical_json = msgspec.json.Encoder(order="sorted").encode
"""The form of a fingerprint."""


def messages_json(messages: Sequence[object]) -> Raw:
    """Messages as canonical JSON. So a long conversation is encoded once for all uses."""
    return Raw(canonical_json(messages)) if messages else NO_MESSAGES


def json_list(*lists: Raw | bytes) -> list[Piece]:
    """One JSON list with the elements of these lists, in pieces. Long lists are not copied."""
    pieces: list[Piece] = []
    for each in lists:
        if len(each) > len(b"[]"):
            pieces += (b"," if pieces else b"[", memoryview(each)[1:-1])
    return [*pieces, b"]"] if pieces else [b"[]"]


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request, normalised. It is written in RunAccepted, so everything that can change a frame is in it."""

    dialect: str
    """The name of a row of the DIALECTS table. Other packages may add dialects, so it is no closed set."""
    model: str
    input: tuple[Message, ...] = ()
    """The new turn, as chat messages."""
    history_json: Raw = msgspec.field(default=NO_MESSAGES, name="history")
    """Earlier messages in the request (chat resends all; runs have conversation_history), as JSON. There may be
    thousands, and on their way to journal and model nobody looks into them. Made by messages_json()."""
    instructions: str | None = None
    sampling: dict[str, object] = {}
    """Fields that go to the upstream unchanged (temperature, stop, response_format ...)."""
    client_tools: tuple[dict[str, object], ...] = ()
    """Tools that the caller executes, in the form of Chat Completions."""
    ignored_tools: tuple[str, ...] = ()
    """Types of tools that the request named and this server does not have (G17)."""
    tool_choice: str | dict[str, object] | None = None
    allowed_tools: tuple[str, ...] | None = None
    """The only tools, the server's or the caller's, that may be offered or executed. None: all."""
    chore: bool = False
    """A request of a front end for itself (a title, tags): one model call, no tools, no session (B7)."""
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    store: bool = True
    """Whether the API of the request finds the run again: `kept` is "stored"."""
    kept: Kept = "stored"
    background: bool = False
    include_usage: bool = False
    tool_items: ToolItems = "function_call"
    tool_progress: ToolProgress = "compatible"
    output_bound: int = 16384
    """Most bytes of tool output in a frame. The journal has all of it."""
    on_disconnect: OnDisconnect = "detach"
    memory_scope: str = ""
    """The scope of the memory tool (X-Hermes-Session-Key)."""
    trace: str = ""
    """The `traceparent` of the request, for traces (docs/observability.md)."""
    projection: int = 1
    """Version of the projections that render this run (R1)."""
    echo: dict[str, object] = {}
    """Fields of the request that the dialect shows again in its answers."""
    items: tuple[dict[str, object], ...] = ()
    """The input in the dialect's own form, for GET input_items."""

    @property
    def history(self) -> tuple[Message, ...]:
        """Earlier messages in the request. They are decoded on each call."""
        return _messages.decode(self.history_json)

    @property
    def has_history(self) -> bool:
        """Whether the request brought earlier messages."""
        return len(self.history_json) > len(NO_MESSAGES)

    def for_readers(self) -> Spec:
        """All but what can be long and no frame shows: what is kept of a request for as long as somebody reads."""
        less = {"input": (), "history_json": NO_MESSAGES, "items": (), "instructions": None, "client_tools": ()}
        return msgspec.structs.replace(self, **less)


def keeps_content(kept: Kept) -> bool:
    """Whether what was said may stay after its answer. It may not with `store: false` (B6)."""
    return kept in ("stored", "hours")


SHORT_MESSAGES, SHORT_TEXT, SHORT_HISTORY = 32, 8192, 65_536


def is_short(spec: Spec) -> bool:
    """Whether to encode or hash a request takes no time to speak of. Longer ones are left to a thread."""
    if len(spec.history_json) > SHORT_HISTORY or len(spec.input) > SHORT_MESSAGES:
        return False
    if len(spec.instructions or "") > SHORT_TEXT:
        return False
    for message in spec.input:
        text = message.get("content") or ""
        if not isinstance(text, str) or len(text) > SHORT_TEXT:
            return False
    return not spec.client_tools


def forked_spec(spec: Spec, earlier: Iterable[Message]) -> Spec:
    """The request of a run, for a fork of it that stands alone: stored, with the whole history in it."""
    history = Raw(b"".join(json_list(messages_json(tuple(earlier)), spec.history_json)))
    return msgspec.structs.replace(
        spec, history_json=history, store=True, kept="stored", background=True, on_disconnect="detach"
    )


class Resolved(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What open() found in its transaction. It is stored, so later changes elsewhere do not change the run (R1)."""

    previous: str | None = None
    """The run whose chain comes before this one (by previous_response_id or by the conversation)."""
    conversation: str | None = None
    session: str | None = None
    session_turns: int | None = None
    """How many turns of the session are the history of this run. None: the session gives no history (D2)."""
    remember: bool = False
    """The caller named the session, so the finished turn is added to it."""


DERIVED_SESSION = "auto-"
"""How the name of a session begins that was derived from the first words of a chat, since the request named none."""


def is_one_chat(session: str) -> bool:
    """Whether a session is a single chat. Two chats that begin with the same words share a derived session."""
    return bool(session) and not session.startswith(DERIVED_SESSION)


FINGERPRINT_VERSION = 1
_GAP = b"\0"
"""JSON has no such byte."""


def fingerprint(
    dialect: str, fields: Mapping[str, object], session: str | None, messages: Iterable[Piece] | None = None
) -> str:
    """The same request gives the same value, on every machine and in every release with this version.

    `fields` are the known fields of the request, without those that equal the documented default of the API, and
    without stream, stream_options and how the client was recognised (G4). `messages` are those of the request as
    canonical JSON, in pieces, where they are encoded already."""
    if messages is not None:
        fields = {**fields, "messages": Raw(_GAP)}
    before, _, after = canonical_json([FINGERPRINT_VERSION, dialect, session, fields]).partition(_GAP)
    digest = hashlib.sha256(before)
    for piece in (*(messages or ()), after):
        digest.update(piece)
    return f"{FINGERPRINT_VERSION}:{digest.hexdigest()}"

"""Whether a request may begin a run. Owns: the question (Asked), what a store found for it (Found), and `decide`, the
pure rule for idempotency keys, retried requests, chains, conversations and sessions. Every store calls it in the
transaction that then writes the run. So all backends decide alike, and no race can come between. Refuses to know: how
rows are found or written."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ninelives.core.errors import ClientError, not_found
from ninelives.core.ids import wire_id
from ninelives.core.spec import Kept, Resolved

Use = Literal["join", "make", "extend"]
"""join: an unknown name creates a conversation. make: always create one, without a name. extend: it must exist."""


class Asked(Struct, frozen=True, kw_only=True):
    """What a request wants to join: a key, a chain, a conversation, a session."""

    owner: str
    fingerprint: str
    key: str | None = None
    previous: str | None = None
    conversation: str | None = None
    """A name, or an id that begins with conv_."""
    fresh_conversation: str = ""
    """The id for a conversation that this request creates."""
    conversation_use: Use = "join"
    session: str | None = None
    """The session that the caller named (X-Hermes-Session-Id). It gives the history and gets the finished turn (D2)."""
    derived_session: str = ""
    """The session where nothing else names one: for workspace and grouping only (D2)."""
    kept: Kept = "stored"
    credential: str = ""
    """The API key of the request, where a caller waits on a connection that can be lost."""
    match: str = ""
    """Equal for two requests of which the second asks for the answer of the first (B8): a hash of the fingerprint, what
    is kept, the model, and the ids of end user and chat that were sent. Empty: nothing can be joined."""
    user: bool = False
    """The body names the end user."""
    resend_ms: int = 0
    """How long after its connection was lost the run can be joined."""
    counted: bool = False
    """An SDK says that it sends the request again (G13). It then joins also a run whose caller still waits at another
    process, if it comes with the same API key."""
    alone: bool = False
    """No other run of the named session may be active (X-Multitask-Strategy)."""
    history_given: bool = False
    """The request has its own history, so a named session gives none."""


class KeyFound(Struct, frozen=True):
    """An idempotency key that is in use."""

    run: str
    fingerprint: str


class RunFound(Struct, frozen=True):
    """The run that previous_response_id names."""

    chains: bool
    session: str
    conversation: str | None = None
    expired: bool = False
    """Retention removed it."""


class ConversationFound(Struct, frozen=True):
    """The conversation that the request names."""

    id: str
    latest: str | None
    active: str | None


class Found(Struct, frozen=True):
    """What the store has for a question, read in one transaction."""

    key: KeyFound | None = None
    previous: RunFound | None = None
    conversation: ConversationFound | None = None
    session_turns: int = 0
    session_active: str | None = None
    """Where `alone` is asked: the newest run of the session that has not ended."""
    lost: str | None = None
    """The newest run with the same `match` whose connection was lost, or that a counted retry takes over."""


class Attach(Struct, frozen=True):
    """The answer is an existing run: the key is known, or the request is a retry."""

    run: str
    again: bool = False


class Accept(Struct, frozen=True):
    """A new run may begin."""

    resolved: Resolved


def decide(asked: Asked, found: Found) -> Attach | Accept:
    """Attach, accept, or raise ClientError. Idempotency comes first (R16)."""
    if asked.key is not None and found.key is not None:
        if found.key.fingerprint != asked.fingerprint:
            raise ClientError(
                "idempotency_key_conflict",
                "This Idempotency-Key was used for another request. Use a new key, or send the same request.",
                status=409,
            )
        return Attach(found.key.run)
    if asked.key is None and found.lost is not None:
        return Attach(found.lost, again=True)
    return Accept(_resolved(asked, found))


def _resolved(asked: Asked, found: Found) -> Resolved:
    """What a new run follows. Raises ClientError."""
    if found.session_active is not None:
        raise _busy(found.session_active, "session")
    # The finished turn is added to the session that the caller named, unless `store` is false (D2).
    remember = asked.session is not None and asked.kept in ("stored", "hours")
    if asked.previous is not None:
        return _after_previous(asked, found.previous, remember=remember)
    if asked.conversation_use == "make":
        return Resolved(conversation=asked.fresh_conversation, session=asked.fresh_conversation)
    if asked.conversation is not None:
        return _in_conversation(asked, found.conversation, remember=remember)
    turns = found.session_turns if asked.session and not asked.history_given else None
    session = asked.session or asked.derived_session
    return Resolved(session=session, session_turns=turns, remember=remember)


def resolve_without_store(asked: Asked) -> Resolved | None:
    """Resolve a request that names nothing in a store; None where the store must be asked."""
    if (
        asked.alone
        or asked.key
        or asked.match
        or asked.previous
        or asked.conversation
        or (asked.session and not asked.history_given)
    ):
        return None
    return _resolved(asked, Found()) if asked.conversation_use == "join" else None


def _after_previous(asked: Asked, previous: RunFound | None, *, remember: bool) -> Resolved:
    shown = wire_id("responses", asked.previous or "")
    if previous is None or previous.expired:
        error = not_found("response", shown, expired=previous is not None)
        error.param = "previous_response_id"
        raise error
    if not previous.chains:
        raise ClientError(
            "previous_response_not_completed",
            f"Response {shown} is not completed, so nothing can follow it. Wait for it, or use an earlier one.",
            status=409,
            param="previous_response_id",
        )
    return Resolved(
        previous=asked.previous,
        session=asked.session or previous.session,
        remember=remember,
    )


def _in_conversation(asked: Asked, conversation: ConversationFound | None, *, remember: bool) -> Resolved:
    name = asked.conversation or ""
    if conversation is None:
        if asked.conversation_use == "extend":
            raise not_found("conversation", name)
        if name.startswith("conv_"):
            error = not_found("conversation", name)
            error.param = "conversation"
            raise error
        made = asked.fresh_conversation if asked.kept == "stored" else None  # a turn that is not stored creates nothing
        session = asked.session or made or asked.derived_session
        return Resolved(conversation=made, session=session, remember=remember)
    if conversation.active is not None and asked.kept == "stored":
        raise _busy(conversation.active)
    return Resolved(
        previous=conversation.latest,
        conversation=conversation.id,
        session=asked.session or conversation.id,
        remember=remember,
    )


class RunActive(ClientError):
    """Another run of the conversation or session has not ended. `run` is that one."""

    def __init__(self, run: str, where: str) -> None:
        super().__init__(
            f"{where}_response_not_completed",
            f"Response {wire_id('responses', run)} is still running in this {where}. "
            f"Wait for it, cancel it, send X-Multitask-Strategy, or use another {where}.",
            status=409,
            param=where,
        )
        self.run = run


def _busy(active: str, where: str = "conversation") -> RunActive:
    return RunActive(active, where)


def editable(named: str, conversation: ConversationFound | None) -> ConversationFound:
    """The conversation, if it exists and has no active run; else raises ClientError. Call it, like `decide`, in the
    transaction that then writes."""
    if conversation is None:
        raise not_found("conversation", named)
    if conversation.active is not None:
        raise _busy(conversation.active)
    return conversation

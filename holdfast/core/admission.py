"""Who may begin a run, decided once. Owns: the question (Asked), what a store found for it (Found) and `decide`,
the pure rule for idempotency keys, requests sent again, chains, conversations and sessions. Every journal calls it
inside the one transaction that then writes the run, so no backend can decide otherwise and no race can come between.
Refuses to know: how rows are found or written."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from holdfast.core.errors import ClientError, not_found
from holdfast.core.ids import wire_id
from holdfast.core.spec import Resolved

RETRY_MS = 30_000
"""How long ago the connection of a request may have been lost that an SDK sends again by itself (G13)."""


class Again(Struct, frozen=True):
    """The request may be one that was sent before: it takes the place of a connection that was lost."""

    within_ms: int
    """How long ago that may have been."""
    same_credential: bool = True
    """It must come with the key of the first one (G13); else any key of the owner will do (B8)."""
    session: str | None = None
    """It must belong to this session too."""


Use = Literal["join", "make", "extend"]
"""Join: a name that is not known makes its conversation. Make: a new one, without a name. Extend: one that is there."""


class Asked(Struct, frozen=True, kw_only=True):
    """What a request wants to join: a key, a chain, a conversation, a session."""

    owner: str
    fingerprint: str
    key: str | None = None
    previous: str | None = None
    conversation: str | None = None
    """A name, or an id that begins with conv_."""
    fresh_conversation: str = ""
    """The id to give to a conversation that is made by this request."""
    conversation_use: Use = "join"
    session: str | None = None
    """The session named by the caller (X-Hermes-Session-Id): it gives history and takes the finished turn."""
    derived_session: str = ""
    """The session to use where nothing else names one: workspace and grouping only (D2)."""
    store: bool = True
    credential: str = ""
    """The key that asks, where somebody waits for the answer on a connection that can be lost."""
    again: Again | None = None
    history_given: bool = False
    """The request brings its history along: the session, though named, gives none."""


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
    """Retention took it."""


class ConversationFound(Struct, frozen=True):
    """The conversation that was named."""

    id: str
    latest: str | None
    active: str | None


class Found(Struct, frozen=True):
    """What the store holds for a question, read in one transaction."""

    key: KeyFound | None = None
    previous: RunFound | None = None
    conversation: ConversationFound | None = None
    session_turns: int = 0
    lost: str | None = None
    """The newest run of the same fingerprint whose connection was lost as `again` says."""


class Attach(Struct, frozen=True):
    """The key is known, or the request takes the place of one that was lost: the answer is that run."""

    run: str
    again: bool = False


class Accept(Struct, frozen=True):
    """A new run may begin, with this settled about it."""

    resolved: Resolved


def decide(asked: Asked, found: Found) -> Attach | Accept:
    """Attach, accept, or raise the error of the one who asked. Idempotency comes first (house rule 6.16)."""
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
    if asked.previous is not None:
        return Accept(_after_previous(asked, found.previous))
    if asked.conversation_use == "make":
        return Accept(Resolved(conversation=asked.fresh_conversation, session=asked.fresh_conversation))
    if asked.conversation is not None:
        return Accept(_in_conversation(asked, found.conversation))
    turns = found.session_turns if asked.session and not asked.history_given else None
    session = asked.session or asked.derived_session
    return Accept(Resolved(session=session, session_turns=turns, remember=asked.session is not None))


def settled(asked: Asked) -> Resolved | None:
    """What is settled about a request that names nothing which a store could hold; None where one must be asked."""
    if asked.key or asked.again or asked.previous or asked.conversation or asked.session:
        return None
    decision = decide(asked, Found()) if asked.conversation_use == "join" else None
    return decision.resolved if isinstance(decision, Accept) else None


def _after_previous(asked: Asked, previous: RunFound | None) -> Resolved:
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
        remember=asked.session is not None,
    )


def _in_conversation(asked: Asked, conversation: ConversationFound | None) -> Resolved:
    name = asked.conversation or ""
    if conversation is None:
        if asked.conversation_use == "extend":
            raise not_found("conversation", name)
        if name.startswith("conv_"):
            error = not_found("conversation", name)
            error.param = "conversation"
            raise error
        made = asked.fresh_conversation if asked.store else None  # a turn that is not stored makes nothing
        session = asked.session or made or asked.derived_session
        return Resolved(conversation=made, session=session, remember=asked.session is not None)
    if conversation.active is not None and asked.store:
        raise _busy(conversation.active)
    return Resolved(
        previous=conversation.latest,
        conversation=conversation.id,
        session=asked.session or conversation.id,
        remember=asked.session is not None,
    )


def _busy(active: str) -> ClientError:
    return ClientError(
        "conversation_response_not_completed",
        f"Response {wire_id('responses', active)} is still running in this conversation. "
        "Wait for it, cancel it, or use another conversation.",
        status=409,
        param="conversation",
    )


def editable(named: str, conversation: ConversationFound | None) -> ConversationFound:
    """The conversation, where it is there and no run is active in it; else the error of the one who asked. Like
    `decide`, it is called inside the transaction that then writes."""
    if conversation is None:
        raise not_found("conversation", named)
    if conversation.active is not None:
        raise _busy(conversation.active)
    return conversation

"""Who may begin a run, decided once. Owns: the question (Asked), what a store found for it (Found) and `decide`,
the pure rule for idempotency keys, chains, conversations and sessions. Every journal calls it inside the one
transaction that then writes the run, so no backend can decide otherwise and no race can come between. Refuses to
know: how rows are found or written."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.errors import ClientError, not_found
from holdfast.core.ids import wire_id
from holdfast.core.spec import Resolved


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
    session: str | None = None
    """The session named by the caller (X-Hermes-Session-Id): it gives history and takes the finished turn."""
    derived_session: str = ""
    """The session to use where nothing else names one: workspace and grouping only (D2)."""
    store: bool = True


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


class Attach(Struct, frozen=True):
    """The key is known: the answer is that run."""

    run: str


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
    if asked.previous is not None:
        return Accept(_after_previous(asked, found.previous))
    if asked.conversation is not None:
        return Accept(_in_conversation(asked, found.conversation))
    turns = found.session_turns if asked.session else None
    session = asked.session or asked.derived_session
    return Accept(Resolved(session=session, session_turns=turns, remember=asked.session is not None))


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
        if name.startswith("conv_"):
            error = not_found("conversation", name)
            error.param = "conversation"
            raise error
        made = asked.fresh_conversation if asked.store else None  # a turn that is not stored makes nothing
        session = asked.session or made or asked.derived_session
        return Resolved(conversation=made, session=session, remember=asked.session is not None)
    if conversation.active is not None and asked.store:
        raise ClientError(
            "conversation_response_not_completed",
            f"Response {wire_id('responses', conversation.active)} is still running in this conversation. "
            "Wait for it, cancel it, or use another conversation.",
            status=409,
            param="conversation",
        )
    return Resolved(
        previous=conversation.latest,
        conversation=conversation.id,
        session=asked.session or conversation.id,
        remember=asked.session is not None,
    )

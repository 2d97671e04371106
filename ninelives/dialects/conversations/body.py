"""A conversation as JSON. Owns: the conversation object. Refuses to know: engines and HTTP."""

from __future__ import annotations

from ninelives.dialects.conversations.shapes import ConversationObject


def conversation(shown: str, name: str | None, created_at: int, metadata: dict[str, str]) -> ConversationObject:
    """A conversation as JSON."""
    return ConversationObject(
        id=shown, object="conversation", created_at=created_at // 1000, metadata=metadata, name=name
    )

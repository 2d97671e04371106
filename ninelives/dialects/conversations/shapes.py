"""The JSON of a conversation. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
A field that is always sent has no default. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class ConversationObject(Struct, frozen=True):
    """A line of runs under one id."""

    id: Annotated[str, Meta(pattern="^conv_")]
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
    name: str | None

"""The JSON of a text completion. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.dialects.chat.shapes import ChatUsage, FinishReason


class TextChoice(Struct, frozen=True):
    """The one choice. In a stream, `text` is a piece."""

    text: str
    index: Literal[0]
    logprobs: None
    finish_reason: FinishReason | None


class TextCompletion(Struct, frozen=True):
    """A text completion, or a piece of one in a stream."""

    id: Annotated[str, Meta(pattern="^cmpl-")]
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Annotated[list[TextChoice], Meta(max_length=1)]
    usage: ChatUsage | UnsetType | None = UNSET

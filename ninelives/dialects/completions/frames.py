"""Completions as a stream. Owns: how the chunks of a chat are spelled as pieces of text. Refuses to know: engines and
HTTP.

Theory of operation. The projection is that of a chat. So which text is shown, and when, cannot differ from a chat; only
the spelling of each chunk does. Chunks without text and without an end (the role, reasoning) are left out. Errors and
the end mark stay as they are."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ninelives.core import events as e
from ninelives.core.ids import run_of, wire_id
from ninelives.dialects.chat.frames import ChatProjection, ChatView
from ninelives.dialects.chat.shapes import ChatUsage, FinishReason
from ninelives.dialects.completions.shapes import TextChoice, TextCompletion
from ninelives.dialects.sse import DONE, data_frame

_DATA = b"data: "


class ChunkDelta(Struct):
    """What a completion shows of a delta."""

    content: str | None = None
    refusal: str | None = None


class ChunkChoice(Struct):
    """What it shows of a choice."""

    delta: ChunkDelta
    finish_reason: FinishReason | None = None


class ChatChunk(Struct):
    """What it shows of a chunk."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None


_chunk = msgspec.json.Decoder(ChatChunk)


class CompletionsProjection(ChatProjection):
    """See engine.Projection: a chat, spelled in another way."""

    name = "completions"

    def live(self, view: ChatView) -> tuple[ChatView, list[bytes]]:
        """See Projection.live."""
        view, frames = super().live(view)
        return view, _spelled(frames)

    def step(self, view: ChatView, entry: e.Entry) -> tuple[ChatView, list[bytes]]:
        """See Projection.step."""
        view, frames = super().step(view, entry)
        return view, _spelled(frames)


def _spelled(frames: list[bytes]) -> list[bytes]:
    """The frames of a chat as frames of a completion. One frame may have the end mark behind it."""
    return [spelled for frame in frames if (spelled := _frame(frame))]


def _frame(frame: bytes) -> bytes:
    if not frame.startswith(_DATA) or frame.startswith(b'data: {"error"') or frame == DONE:
        return frame
    ends = frame.endswith(DONE)
    chunk = _chunk.decode(frame[len(_DATA) : -len(DONE)] if ends else frame[len(_DATA) :])
    return _piece(chunk) + (DONE if ends else b"")


def _piece(chunk: ChatChunk) -> bytes:
    choices = [
        TextChoice((choice.delta.content or "") + (choice.delta.refusal or ""), 0, None, choice.finish_reason)
        for choice in chunk.choices
    ]
    if choices and not choices[0].text and choices[0].finish_reason is None:
        return b""
    piece = TextCompletion(
        id=wire_id("completions", run_of("chat", chunk.id) or ""),
        object="text_completion",
        created=chunk.created,
        model=chunk.model,
        choices=choices,
    )
    return data_frame(piece if choices else msgspec.structs.replace(piece, usage=chunk.usage))

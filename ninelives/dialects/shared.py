"""What dialects share. Owns: how tool calls are shown (bounded output, arguments as an object, hidden names), held
frames, the shape of an error, and the error in place of an answer. Refuses to know: any one dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from ninelives.core.errors import AgentError, ClientError, NinelivesError, ServerError
from ninelives.core.events import RunCancelled, RunFailed
from ninelives.core.history import text_of
from ninelives.core.spec import Message, Spec
from ninelives.core.state import RunState
from ninelives.dialects.sse import data_frame

PROJECTION = 4
"""Version of the projections that render a new run. A stored run keeps its own, so its frames never change (G1, R1).

- 2: Responses names the response in content_part events, and a failed one has an error type.
- 3: tools of this server carry the label "ninelives"; until then it was "holdfast".
- 4: approval.request of the Runs API names the command, as front ends of hermes-agent show it."""


def server_label(spec: Spec) -> str:
    """The name under which a dialect shows the tools that this server runs."""
    return "ninelives" if spec.projection >= 3 else "holdfast"


Held = tuple[Any, bytes] | None  # Any: mypy has no recursive aliases here
"""Frames of a draft as cells (rest, frame), so that holding one more is O(1)."""


def released(held: Held) -> list[bytes]:
    """The held frames, in the order in which they were held."""
    frames = []
    while held is not None:
        held, frame = held
        frames.append(frame)
    frames.reverse()
    return frames


def messages_text(messages: Iterable[Message]) -> str:
    """The texts of messages as one."""
    return "\n".join(text_of(message.get("content")) for message in messages)


def hidden(name: str) -> bool:
    """Tools whose name begins with _ are never shown (B3)."""
    return name.startswith("_")


def bounded(output: str, limit: int) -> tuple[str, bool]:
    """At most `limit` bytes of an output, and whether something is missing; the journal keeps all of it (B4)."""
    raw = output.encode("utf-8", "replace")
    if len(raw) <= limit:
        return output, False
    cut = raw[:limit].decode("utf-8", "ignore")
    return f"{cut}\n[truncated: {len(raw)} bytes in all]", True


def arguments_object(text: str) -> dict[str, object]:
    """A call's arguments as an object, whatever the model wrote."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return {"raw": text}
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def joined(texts: Iterable[str]) -> str:
    """The texts of several messages as one, paragraphs between them."""
    text = ""
    for piece in texts:
        if piece:
            text += ("\n\n" if text and not text[-1].isspace() else "") + piece
    return text


class ErrorDetail(Struct, frozen=True):
    """What went wrong; the message says what to do next."""

    message: str
    type: str
    param: str | None
    code: str


class Error(Struct, frozen=True):
    """The one shape of an error."""

    error: ErrorDetail


def error_object(error: NinelivesError) -> ErrorDetail:
    """An error as every OpenAI client expects it (A7)."""
    return ErrorDetail(error.message, error.kind, error.param, error.code)


def failure_object(failed: RunFailed) -> ErrorDetail:
    """A run's failure in the same shape, with our own code."""
    kind = "rate_limit_error" if failed.code == "rate_limit_exceeded" else "server_error"
    return ErrorDetail(failed.message, kind, None, failed.reason or failed.code)


def error_frame(code: str, message: str) -> bytes:
    """A frame that ends a stream with an error of the server."""
    return data_frame(Error(ErrorDetail(message, "server_error", None, code)))


def broken_frame(reason: str) -> bytes:
    """The last frame of a stream whose journal cannot be read further."""
    return error_frame("stream_broken", reason)


def refusal(state: RunState) -> NinelivesError | None:
    """The error in place of the body of a failed or cancelled run."""
    match state.facts.end:
        case RunFailed() as failed:
            if failed.status == 400:  # the request cannot be honoured: a retry would not help
                return ClientError(failed.reason or failed.code, failed.message)
            if failed.status in (429, 500, 502, 503, 504):
                made: NinelivesError = AgentError(failed.reason or failed.code, failed.message, status=failed.status)
            else:
                made = ServerError(failed.reason or failed.code, failed.message, status=500)
            return made
        case RunCancelled():
            return ClientError("run_cancelled", "The run was cancelled.", status=409)
        case _:
            return None

"""What all dialects say alike. Owns: how tool calls are shown (bounded output, arguments as an object, hidden names),
the shape of an error and the error that stands for an answer. Refuses to know: any one dialect."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.errors import AgentError, ClientError, HoldfastError, ServerError
from holdfast.core.events import RunCancelled, RunFailed
from holdfast.core.state import RunState
from holdfast.dialects.sse import data_frame


def hidden(name: str) -> bool:
    """Tools whose name begins with _ are shown to nobody (B3)."""
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


def error_object(error: HoldfastError) -> dict[str, object]:
    """An error as every OpenAI client expects it (A7)."""
    return {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}


def failure_object(failed: RunFailed) -> dict[str, object]:
    """A run's failure in the same shape; the code is our own word for it."""
    kind = "rate_limit_error" if failed.code == "rate_limit_exceeded" else "server_error"
    return {"message": failed.message, "type": kind, "param": None, "code": failed.reason or failed.code}


def broken_frame(reason: str) -> bytes:
    """The last frame of a stream whose journal cannot be read on."""
    return data_frame({"error": {"message": reason, "type": "server_error", "param": None, "code": "stream_broken"}})


def refusal(state: RunState) -> HoldfastError | None:
    """The error that a failed or cancelled run is answered with, where an answer was awaited."""
    match state.facts.end:
        case RunFailed() as failed:
            if failed.status == 400:  # what was asked cannot be done: asking again would not help
                return ClientError(failed.reason or failed.code, failed.message)
            if failed.status in (429, 500, 502, 503, 504):
                made: HoldfastError = AgentError(failed.reason or failed.code, failed.message, status=failed.status)
            else:
                made = ServerError(failed.reason or failed.code, failed.message, status=500)
            return made
        case RunCancelled():
            return ClientError("run_cancelled", "The run was cancelled.", status=409)
        case _:
            return None

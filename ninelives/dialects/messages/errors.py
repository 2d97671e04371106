"""Errors as clients of the Messages API expect them. Owns: their shape and their types. Our own code goes along, as it
says more than a type. Refuses to know: why something failed."""

from __future__ import annotations

from msgspec.structs import asdict

from ninelives.core.errors import NinelivesError
from ninelives.core.events import RunFailed
from ninelives.dialects.messages.shapes import AnthropicError, AnthropicErrorDetail
from ninelives.dialects.sse import encode, named_frame

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    """The type that goes with a status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def error_body(error: NinelivesError, request_id: str) -> dict[str, object]:
    """An error as the answer to a request."""
    detail = AnthropicErrorDetail(error_type(error.status), error.message, error.code)
    return asdict(AnthropicError("error", detail, request_id))


def error_frame(kind: str, message: str, code: str) -> bytes:
    """An error as the last frame of a stream. A frame names no request."""
    return named_frame(b"error", encode({"type": "error", "error": AnthropicErrorDetail(kind, message, code)}))


def failure_frame(failed: RunFailed) -> bytes:
    """A run's failure as the last frame of a stream."""
    status = 429 if failed.code == "rate_limit_exceeded" else max(failed.status, 500)
    return error_frame(error_type(status), failed.message, failed.reason or failed.code)


def broken_frame(reason: str) -> bytes:
    """The last frame of a stream whose journal cannot be read further."""
    return error_frame("api_error", reason, "stream_broken")

"""What callers of an API expect at the door. Owns: by the path's first part, the shape of an error, whether the key may
come as x-api-key beside or instead of Authorization, and the name of the request id's header. Refuses to know: keys,
routes and bodies."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.core.errors import HoldfastError
from holdfast.dialects.messages.errors import error_body
from holdfast.dialects.shared import error_object


class Manners(Struct, frozen=True, kw_only=True):
    """Of one API."""

    error: Callable[[HoldfastError, str], dict[str, object]]
    """The body of an error, given the request's id."""
    api_key: bool = False
    """x-api-key is a credential here even beside Authorization, so that two of them are one too many."""
    request_id: bytes | None = None
    """Under which name the request's id is told, beside x-request-id."""


OPENAI = Manners(error=lambda error, _: {"error": error_object(error)})
ANTHROPIC = Manners(error=error_body, api_key=True, request_id=b"request-id")


def manners_of(path: str) -> Manners:
    """Those of the API that a path belongs to."""
    return ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else OPENAI

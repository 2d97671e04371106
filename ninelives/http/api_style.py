"""How the OpenAI and Anthropic APIs differ outside of bodies. Owns: the shape of an error (A7), the header that carries
the key (A4) and the header that carries the request id, by path. Refuses to know: keys, routes and bodies."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ninelives.core.errors import NinelivesError
from ninelives.dialects.messages.errors import error_body
from ninelives.dialects.shared import error_object
from ninelives.http.edge.early import FIXED, Headers


class ApiStyle(Struct, frozen=True, kw_only=True):
    """The style of one API."""

    error: Callable[[NinelivesError, str], dict[str, object]]
    """Makes the body of an error, given the request id."""
    api_key: bool = False
    """x-api-key counts as a credential even beside Authorization, so a request with both is refused."""
    request_ids: tuple[bytes, ...] = (b"x-request-id",)
    """The headers that carry the request id."""

    def headers(self, request_id: str) -> Headers:
        """The headers of every answer to a request."""
        shown = request_id.encode("ascii")
        return [*FIXED, *[(name, shown) for name in self.request_ids]]


OPENAI = ApiStyle(error=lambda error, _: {"error": error_object(error)})
ANTHROPIC = ApiStyle(error=error_body, api_key=True, request_ids=(b"x-request-id", b"request-id"))
STYLES = {"/v1/messages": ANTHROPIC, "/v1/messages/": ANTHROPIC}
"""By the first STYLE_CHARS characters of a path: the path itself, and all below it. Any other path: OPENAI."""
STYLE_CHARS = len("/v1/messages/")


def style_of(path: str) -> ApiStyle:
    """The style of the API that a path belongs to."""
    return STYLES.get(path[:STYLE_CHARS], OPENAI)

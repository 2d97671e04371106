"""A parsed request. Owns: ParsedRequest, what the parse function of every dialect returns. Refuses to know: any one
dialect."""

from __future__ import annotations

from msgspec import Struct

from ninelives.core.admission import Asked
from ninelives.core.spec import Spec
from ninelives.dialects.approval import Reply


class ParsedRequest(Struct, frozen=True):
    """A request that passed all checks that need no store."""

    spec: Spec
    asked: Asked
    stream: bool = False
    reply: Reply | None = None
    """The last message answers a question (G11)."""
    got: tuple[str, bool] = ("", False)
    """The caller sends back the beginning of an answer that broke off: the last call in it, and whether its result is
    there too (B8)."""
    unmatched: tuple[str, ...] = ()
    """Call ids of tool results whose call is not in the request. It must be in the history (G17)."""

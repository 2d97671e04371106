"""How bytes of a tool become text for a model and a journal. Owns: the byte bound, its note, and the characters that
are not let through. Refuses to know: which tool made them."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]")
"""Control characters that mean nothing in text, take six bytes each in JSON and, as NUL, fit in no SQL text."""


def bounded(data: bytes, limit: int, total: int | None = None) -> str:
    """`data` as text of at most `limit` bytes, and a note where that is not all of the `total` that there was."""
    total = len(data) if total is None else total
    text = _CONTROL.sub("\ufffd", data[:limit].decode("utf-8", "replace"))
    encoded = text.encode()
    if total <= limit and len(encoded) <= limit:
        return text
    text = encoded[:limit].decode("utf-8", "ignore")
    return f"{text}\n[output cut: the first {limit} bytes of {total} are shown]"

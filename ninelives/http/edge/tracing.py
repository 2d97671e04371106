"""By what a request is known elsewhere. Owns: the ids that a request brings along: X-Request-Id, and the trace of its
caller (traceparent, W3C Trace Context). Refuses to know: what is done with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traced(headers: Iterable[tuple[bytes, bytes]], new_id: Callable[[], str]) -> tuple[str, str]:
    """The id of a request, the caller's own where it is a plain word, and its traceparent, or an empty text."""
    request_id = trace = b""
    for name, value in headers:
        if name == b"x-request-id":
            request_id = value
        elif name == b"traceparent":
            trace = value
    known = request_id.decode() if request_id and _REQUEST_ID.fullmatch(request_id) else new_id()
    return known, valid_trace(trace.decode("latin-1")) if trace else ""


def valid_trace(traceparent: str) -> str:
    """The traceparent, or an empty text where it is none."""
    return traceparent if _TRACEPARENT.fullmatch(traceparent) else ""

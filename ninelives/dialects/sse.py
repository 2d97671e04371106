"""The byte format of server-sent events. Owns: how a frame is spelled. Data is one line of JSON, event names come from
a fixed set, and no id line is ever written (G6). Refuses to know: what is inside."""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder().encode
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


def data_frame(body: object) -> bytes:
    """A frame without a name."""
    return b"data: " + encode(body) + b"\n\n"


def named_frame(name: bytes, body: bytes) -> bytes:
    """A frame with a name and encoded data."""
    return b"".join((b"event: ", name, b"\ndata: ", body, b"\n\n"))


def encoded_frame(name: bytes, body: object, after: bytes = b"") -> bytes:
    """A frame with a name, and what comes right after it, in one buffer: it may hold a whole run."""
    return b"".join((b"event: ", name, b"\ndata: ", encode(body), b"\n\n", after))

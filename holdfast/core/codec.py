"""Events as bytes and back. Owns: the stored form (one line of JSON per event), its version gate and the upcasters
that lift old events to today's shape. Refuses to know: where the bytes go. An unknown kind is never skipped: the
reader is too old for this journal and must say so (house rule 6.18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from holdfast.core.errors import Damaged, NewerEvent
from holdfast.core.events import AnyEvent

FORMAT = 1
"""Store-wide version of the event kinds; raised only by a migration, before a new kind may be written."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_list_decoder: msgspec.json.Decoder[list[AnyEvent]] = msgspec.json.Decoder(list[AnyEvent])

_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyEvent))


class _Tagged(msgspec.Struct):
    type: str


_tag_decoder = msgspec.json.Decoder(_Tagged)

UPCASTERS: dict[int, Callable[[bytes], bytes]] = {}
"""Format n -> how its events become those of format n + 1."""

encode: Callable[[AnyEvent], bytes] = _encoder.encode


def decode(data: bytes, fmt: int = FORMAT) -> AnyEvent:
    """The event in `data`; Damaged when it is of a kind or shape that this release does not know."""
    for version in range(fmt, FORMAT):
        data = UPCASTERS[version](data)
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        kind = _kind_of(data)
        if kind is not None and kind not in _KINDS:
            raise NewerEvent(f"an event of kind {kind!r} was written by a newer release") from error
        raise Damaged(f"an event cannot be read: {error}") from error


def decode_all(data: Sequence[bytes]) -> list[AnyEvent]:
    """The same for many, in one call: half the cost. Where that does not work out, each by itself, which says why."""
    try:
        events = _list_decoder.decode(b"[%b]" % b",".join(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        events = []
    return events if len(events) == len(data) else [decode(one) for one in data]


def _kind_of(data: bytes) -> str | None:
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None

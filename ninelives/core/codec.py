"""Events as bytes and back. Owns: the stored form of an event (one line of JSON) and the number of that format.
Refuses to know: where the bytes go.

Formats have a gate (R18). A store writes down the format of its events, and a release that knows only older formats
refuses the store when it starts. While releases are mixed, a running process can still meet a kind that it does not
know. It raises NewerEvent then; it never skips an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from ninelives.core.errors import Damaged, NewerEvent
from ninelives.core.events import AnyEvent

FORMAT = 4
"""Raise it when a kind of event is added, or a field that changes the fold (4: AttemptStarted.keeps). Other fields do
not count: older readers ignore them."""

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_list_decoder: msgspec.json.Decoder[list[AnyEvent]] = msgspec.json.Decoder(list[AnyEvent])

_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyEvent))


class _Tagged(msgspec.Struct):
    type: str


_tag_decoder = msgspec.json.Decoder(_Tagged)

encode: Callable[[AnyEvent], bytes] = msgspec.json.Encoder().encode


def decode(data: bytes) -> AnyEvent:
    """The event in `data`. Raises NewerEvent for a kind that this release does not know, Damaged for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        kind = _kind_of(data)
        if kind is not None and kind not in _KINDS:
            words = f"a newer release of the server wrote an event of kind {kind!r}"
            raise NewerEvent(f"{words}. Ask again: another replica may know it; or upgrade this one") from error
        raise Damaged(f"an event cannot be read: {error}") from error


def decode_all(data: Sequence[bytes]) -> list[AnyEvent]:
    """Decode many events in one call, for half the cost. Raises as decode() does."""
    if len(data) == 1:  # it may be very large: no copy
        return [decode(data[0])]
    try:
        events = _list_decoder.decode(b"[%b]" % b",".join(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        events = []
    # Damage can join or split events and still be JSON. Then each is read alone, which says what is wrong.
    return events if len(events) == len(data) else [decode(one) for one in data]


def _kind_of(data: bytes) -> str | None:
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None

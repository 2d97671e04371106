"""Responses over a websocket, as values (C8). Owns: the frames of a client, the frames of the server (the events of a
stream, one JSON text each, without an end mark), errors as frames, and requests that continue a response which only the
connection remembers. Refuses to know: sockets, engines and how long anything is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from ninelives.core.errors import ClientError, NinelivesError
from ninelives.core.history import call_ids
from ninelives.core.spec import Message, messages_json
from ninelives.dialects import fields
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses.input import input_items, messages_of
from ninelives.dialects.responses.refs import Item
from ninelives.dialects.shared import error_object

_REFUSED = ("stream", "stream_options", "background")
_DONE = b"[DONE]"


class _Kind(Struct):
    """What a frame is."""

    type: object = None


class _Head(Struct):
    """The fields of a frame that are needed before its turn."""

    type: str | None = None
    stream_id: Annotated[str, Meta(max_length=256)] | None = None
    previous_response_id: str | None = None
    model: str | None = None
    store: object = None
    stream: object = None
    stream_options: object = None
    background: object = None
    generate: object = None


class Create(Struct, frozen=True):
    """response.create: a request for a new response."""

    raw: bytes
    stream_id: str | None = None
    previous: str | None = None
    """The id of the response that it continues."""
    stored: bool = True
    model: str | None = None


class FrameRefused(Struct, frozen=True):
    """A frame that is answered with an error."""

    error: ClientError
    stream_id: str | None = None


class SteerFrame(Struct, frozen=True):
    """response.steer: what the user says while a response is under way."""

    previous: str
    """The id of that response, as it was given."""
    input: object
    """As it was given: a failure returns it."""
    items: tuple[Item, ...] = ()
    error: ClientError | None = None
    """Why it is refused, whatever the response does."""
    id: str | None = None
    """Given when it is accepted."""

    def messages(self) -> tuple[Message, ...]:
        """What it says."""
        return tuple(messages_of(list(self.items)))


class Held(Struct, frozen=True):
    """A finished response that only the connection remembers."""

    messages: tuple[Message, ...]
    """The part of its history that only the connection knows, its own turn included."""
    base: str | None
    """The stored run whose chain comes before that."""
    session: str
    named: bool = False
    """The caller named the session: it has the history, and this turn too."""
    owner: str = ""
    """Whose it is. An admin key may act for several owners on one connection."""


def read_frame(raw: bytes, max_parts: int) -> Create | SteerFrame | FrameRefused:
    """A client's frame; `raw` is known to be a JSON object."""
    if msgspec.json.decode(raw, type=_Kind).type == "response.steer":
        return _read_steer(raw, max_parts)
    try:
        head = fields.decode(raw, _Head)
    except ClientError as error:
        return FrameRefused(error)
    if head.type != "response.create":
        words = "type must be response.create or response.steer: this server accepts no other frame."
        return FrameRefused(ClientError("unknown_frame_type", words, param="type"), head.stream_id)
    for name in _REFUSED:
        if getattr(head, name) is not None:
            words = f"Leave '{name}' out: a websocket always streams, and its responses are not in the background."
            return FrameRefused(ClientError("unsupported_parameter", words, param=name), head.stream_id)
    if head.generate is False:
        words = "generate=false is not supported: there is nothing to warm up. Send the request when it should run."
        return FrameRefused(ClientError("unsupported_parameter", words, param="generate"), head.stream_id)
    return Create(raw, head.stream_id, head.previous_response_id, head.store is not False, head.model)


def _read_steer(raw: bytes, max_parts: int) -> SteerFrame:
    given = msgspec.json.decode(raw)
    shown, said = given.get("previous_response_id"), given.get("input")
    try:
        if not isinstance(shown, str):
            raise ClientError("invalid_input", "previous_response_id must name the response to steer.")
        if not isinstance(said, str) and not (isinstance(said, list) and all(isinstance(each, dict) for each in said)):
            raise ClientError("invalid_input", "input must be a text, or messages of the user.")
        items = input_items(said, max_parts)
        if any((item.get("type") or "message", item.get("role")) != ("message", "user") for item in items):
            raise ClientError("invalid_input", "A steer has messages of the user only.")
    except ClientError as error:
        refused = ClientError("invalid_input", error.message)
        return SteerFrame(shown if isinstance(shown, str) else "", said, error=refused)
    return SteerFrame(shown, said, tuple(items))


def successor(frame: Create, steers: Sequence[SteerFrame]) -> Create:
    """The request that follows a steered response: the same settings, and what the user said meanwhile."""
    body = msgspec.json.decode(frame.raw)
    body["input"] = [item for steer in steers for item in steer.items]
    if body.get("conversation") is None:
        body["previous_response_id"] = steers[0].previous
    previous = body.get("previous_response_id")
    return replace(frame, raw=msgspec.json.encode(body), previous=previous)


def steer_text(number: int, steer: SteerFrame, stream_id: str | None, error: NinelivesError | None = None) -> str:
    """What became of a steer: accepted, or failed with an error. `number` counts such frames of a connection."""
    told: dict[str, object] = {"previous_response_id": steer.previous}
    if steer.id is not None:
        told["id"] = steer.id
    body: dict[str, object] = {"type": "response.steer.accepted", "sequence_number": number, "steer": told}
    if error is not None:
        told["input"] = steer.input
        shown = {"type": "invalid_request_error", "code": error.code, "message": error.message}
        body |= {"type": "response.steer.failed", "error": shown}
    if stream_id is not None:
        body["stream_id"] = stream_id
    return msgspec.json.encode(body).decode()


def continued(parsed: ParsedRequest, held: Held, shown: str) -> ParsedRequest:
    """The request as a continuation of a response that is not stored. Its spec carries the history."""
    by_session = held.named and held.base is None and parsed.asked.session is not None
    earlier = () if by_session else held.messages
    echo = {**parsed.spec.echo, "previous_response_id": shown}
    return replace(
        parsed,
        unmatched=tuple(call for call in parsed.unmatched if call not in call_ids(earlier)),
        spec=replace(parsed.spec, history_json=messages_json((*earlier, *parsed.spec.history)), echo=echo),
        asked=replace(
            parsed.asked,
            previous=held.base,
            derived_session=held.session,
            history_given=not by_session,
        ),
    )


def unknown_previous(shown: str) -> ClientError:
    """The error for a response that neither the store nor this connection knows."""
    words = (
        f"Previous response not found: {shown}. A response with store=false is known on its own connection only, and "
        "only as long as the connection remembers it: send the whole input without previous_response_id."
    )
    return ClientError("previous_response_not_found", words, param="previous_response_id")


def texts(data: bytes, stream_id: str | None) -> list[str]:
    """Whole frames of a stream as texts for a websocket."""
    tail = b""
    if stream_id is not None:
        tail = b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"
    shown: list[str] = []
    for block in data.split(b"\n\n"):
        _, found, text = block.partition(b"data: ")
        if found and text != _DONE:
            shown.append((text[:-1] + tail if tail else text).decode())
    return shown


def error_text(error: NinelivesError, stream_id: str | None) -> str:
    """An error as a frame: the codes are those of HTTP."""
    message = error.message.encode("utf-8", "replace").decode()
    inner = replace(error_object(error), message=message)
    body: dict[str, object] = {"type": "error", "status": error.status, "error": inner}
    if stream_id is not None:
        body["stream_id"] = stream_id
    return msgspec.json.encode(body).decode()

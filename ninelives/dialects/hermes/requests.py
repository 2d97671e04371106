"""A chat in a session as a Spec. Owns: the fields of such a request, and how it becomes a request of the Runs API in
that session. Refuses to know: engines and HTTP."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.spec import Message
from ninelives.dialects import fields as f
from ninelives.dialects.asking import Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.runs.parse import RunsRequest, parse_request


class SessionChatRequest(Struct):
    """The known fields; others are ignored. `message` is text, or the parts of a message."""

    message: str | list[dict[str, object]] | None = None
    input: str | list[dict[str, object]] | None = None
    """Another name for message."""
    system_message: str | None = None
    instructions: str | None = None
    """Another name for system_message."""
    model: str | None = None


class NewSessionRequest(Struct):
    """The known fields; others are ignored."""

    id: str | None = None
    session_id: str | None = None
    """Another name for id."""
    title: str | None = None
    model: str | None = None
    system_prompt: str | None = None


class SessionModelRequest(Struct):
    """The model that answers in the session from now on."""

    model: str | None = None


class SessionPlace(Struct, frozen=True):
    """The session that a chat goes on in."""

    id: str
    key: str
    """The session of its runs."""
    model: str
    """The model that it was last asked with."""
    previous: str = ""
    """The run that the chat follows, by its id on the wire."""
    history: tuple[Message, ...] | None = None
    """What was said so far. Without it and `previous`, the session keeps its turns itself, and gets the new one."""


def parse(raw: bytes, context: Context, place: SessionPlace, max_parts: int) -> ParsedRequest:
    """A chat in a session. The run goes on when the caller leaves, unless the caller said otherwise (C4)."""
    request = f.decode(raw, SessionChatRequest)
    said = request.message or request.input
    if not said:
        raise ClientError("missing_message", "Missing required parameter: 'message'.", param="message")
    asked = RunsRequest(
        input=said if isinstance(said, str) else [{"role": "user", "content": said}],
        instructions=request.system_message or request.instructions,
        session_id=None if place.previous or place.history is not None else place.id,
        previous_response_id=place.previous or None,
        conversation_history=None if place.history is None else list(place.history),
        model=request.model or place.model or None,
    )
    headers = {name: value for name, value in context.headers.items() if name != "x-hermes-session-id"}
    parsed = parse_request(asked, replace(context, headers=headers), max_parts)
    return replace(
        parsed,
        spec=replace(parsed.spec, on_disconnect=context.on_disconnect("stored")),
        asked=replace(parsed.asked, derived_session=place.key),
    )

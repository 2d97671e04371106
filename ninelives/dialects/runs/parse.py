"""A Runs request as a Spec. Owns: its fields, and how an earlier conversation becomes history. Refuses to know: engines
and HTTP."""

from __future__ import annotations

from msgspec import Struct

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError, not_found
from ninelives.core.history import SYSTEM_ROLES, results_without_call, split_turn, text_of
from ninelives.core.ids import run_of_any
from ninelives.core.spec import NO_MESSAGES, Message, Spec, fingerprint, messages_json
from ninelives.dialects import fields as f
from ninelives.dialects.asking import KEY, MEMORY_SCOPE, SESSION, Context, checked_session, sent_fields
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses.input import input_items, messages_of
from ninelives.dialects.responses.refs import Item
from ninelives.dialects.shared import PROJECTION

_DEFAULTS: dict[str, object] = {"metadata": {}, "conversation_history": []}


class RunsRequest(Struct):
    """The known fields; others are ignored."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    session_id: str | None = None
    previous_response_id: str | None = None
    conversation_history: list[dict[str, object]] | None = None
    model: str | None = None
    metadata: f.Metadata | None = None


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid."""
    return parse_request(f.decode(raw, RunsRequest), context, max_parts)


def parse_request(request: RunsRequest, context: Context, max_parts: int) -> ParsedRequest:
    """The same for a request that was read. A conversation_history wins over what its session has; the finished turn is
    added to the session all the same (D1)."""
    context = context.under(request.model)
    named = request.session_id
    session = context.wish(SESSION) if named is None else checked_session(named, "session_id")
    given: str | list[Item] = f.required(request.input, "input")  # type: ignore[assignment]
    items = input_items(given, max_parts)
    system, earlier, turn = split_turn(messages_of(items))
    before, history = _history(request.conversation_history or [])
    given_history = bool(request.conversation_history)
    history += earlier
    layers = [layer for layer in (request.instructions, *before, system) if layer]
    spec = Spec(
        dialect="runs",
        model=context.profile.name,
        input=tuple(turn),
        history_json=NO_MESSAGES if session and not given_history else messages_json(history),
        instructions="\n\n".join(layers) or None,
        metadata=request.metadata or {},
        background=True,
        tool_items=context.tool_items(),
        output_bound=context.profile.output_bound,
        memory_scope=context.wish(MEMORY_SCOPE) or "",
        items=tuple(items),
        projection=PROJECTION,
    )
    known = context.known_fields(sent_fields(request), _DEFAULTS)
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("runs", known, session),
        key=context.wish(KEY),
        previous=_previous(request.previous_response_id),
        session=session,
        history_given=given_history,
        derived_session=context.derived_session(spec.instructions, text_of(turn[0].get("content")) if turn else ""),
    )
    return ParsedRequest(spec, asked, unmatched=results_without_call((*spec.history, *spec.input)))


class SteerRequest(Struct):
    """What is written to a run. One of the three; `input` may also be a list of user messages."""

    input: str | list[Item] | None = None
    message: str | None = None
    text: str | None = None


def steer_messages(raw: bytes, max_parts: int) -> list[Message]:
    """The user messages of a steer. Raises ClientError when they are none."""
    request = f.decode(raw, SteerRequest)
    given: str | list[Item] = f.required(request.input or request.message or request.text, "input")  # type: ignore[assignment]
    return user_messages(given, max_parts)


class ForkRequest(Struct):
    """Where a run is forked, and what the user says there."""

    from_seq: int | None = None
    input: str | list[Item] | None = None


def fork_request(raw: bytes, max_parts: int) -> tuple[int, list[Message], str]:
    """The entry, the new messages of the user, and the fingerprint. Raises ClientError."""
    request = f.decode(raw, ForkRequest)
    from_seq: int = f.required(request.from_seq, "from_seq")
    said = user_messages(request.input, max_parts) if request.input is not None else []
    return from_seq, said, fingerprint("fork", {**dict(sent_fields(request)), "model": ""}, None)


def user_messages(given: str | list[Item], max_parts: int) -> list[Message]:
    """Input that may hold messages of the user only."""
    messages = messages_of(input_items(given, max_parts))
    if not messages or any(message.get("role") != "user" for message in messages):
        raise ClientError("invalid_value", "A steer has messages of the user only.", param="input")
    return messages


def _history(messages: list[Message]) -> tuple[list[str], list[Message]]:
    """The system prompts of an earlier conversation, which become layers, and the rest of it."""
    for n, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant", "tool", "system", "developer"):
            text = f"conversation_history[{n}].role is missing or unknown."
            raise ClientError("invalid_value", text, param="conversation_history")
    systems = [text_of(message.get("content")) for message in messages if message.get("role") in SYSTEM_ROLES]
    return systems, [message for message in messages if message.get("role") not in SYSTEM_ROLES]


def _previous(shown: str | None) -> str | None:
    if shown is None:
        return None
    run = run_of_any(shown)
    if run is None:
        error = not_found("response", shown)
        error.param = "previous_response_id"
        raise error
    return run

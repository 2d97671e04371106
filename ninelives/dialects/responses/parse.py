"""A Responses request as a Spec. Owns: its fields, its input items as messages, and the rules of store, background,
conversation and chain. Refuses to know: engines and HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.history import SYSTEM_ROLES, results_without_call, text_of
from ninelives.core.spec import Message, Spec, fingerprint
from ninelives.dialects import client_tools
from ninelives.dialects import fields as f
from ninelives.dialects.asking import KEY, MEMORY_SCOPE, SESSION, Context, sent_fields
from ninelives.dialects.chat.parse import is_chore
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import options
from ninelives.dialects.responses.compaction import unseal_items
from ninelives.dialects.responses.input import input_items, messages_of
from ninelives.dialects.responses.refs import Item, previous_run, with_references
from ninelives.dialects.shared import PROJECTION

_DEFAULTS: dict[str, object] = {
    "store": True,
    "background": False,
    "parallel_tool_calls": True,
    "temperature": 1,
    "top_p": 1,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "truncation": "disabled",
    "tool_choice": "auto",
    "service_tier": "auto",
    "text": {"format": {"type": "text"}},
    "metadata": {},
    "include": [],
    "tools": [],
}
_SHOWN = re.compile(r"\A(?:msg|rs|mcp)_([0-9a-f]{24})[0-9a-f]{6}\Z")
"""The id of an item that a run of this server showed."""


class ResponsesRequest(Struct):
    """The known fields; others are ignored."""

    model: str | None = None
    input: f.Input | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, object] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, object] | None = None
    background: bool | None = None
    tools: f.Tools | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=16, le=2**31)] | None = None
    max_tool_calls: f.Positive | None = None
    temperature: f.Temperature | None = None
    top_p: f.Share | None = None
    top_logprobs: f.TopLogprobs | None = None
    presence_penalty: f.Penalty | None = None
    frequency_penalty: f.Penalty | None = None
    text: dict[str, object] | None = None
    reasoning: dict[str, object] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: f.Metadata | None = None
    include: list[str] | None = None
    service_tier: str | None = None
    prompt_cache_key: f.CacheKey | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None


def read(raw: bytes) -> ResponsesRequest:
    """The fields of a request, each of its type."""
    return f.decode(raw, ResponsesRequest)


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec, if it names no items of earlier responses. Raises ClientError when it is not valid."""
    return parse_request(read(raw), context, max_parts, {})


def parse_request(
    request: ResponsesRequest, context: Context, max_parts: int, known: Mapping[str, Item]
) -> ParsedRequest:
    """The same for a request that was read. `known` holds the items that it names by id."""
    f.required(request.input, "input")
    return _parsed(request, context.under(request.model), _items(request, max_parts, known))


def parse_counted(
    request: ResponsesRequest, context: Context, max_parts: int, known: Mapping[str, Item]
) -> ParsedRequest:
    """The same for a request whose tokens are counted. Nothing is stored, and the input may be missing."""
    items = [] if request.input is None else _items(request, max_parts, known)
    headers = {name: value for name, value in context.headers.items() if name != "idempotency-key"}
    context = replace(context.under(request.model), headers=headers)
    return _parsed(replace(request, store=False, background=False), context, items)


def _items(request: ResponsesRequest, max_parts: int, known: Mapping[str, Item]) -> list[Item]:
    return input_items(with_references(request.input or [], known), max_parts)


def _parsed(request: ResponsesRequest, context: Context, items: list[Item]) -> ParsedRequest:
    key, session = context.wish(KEY), context.wish(SESSION)
    _check_store(request, key)
    kept = context.kept(request.store, "stored")
    messages = messages_of(unseal_items(items, context))
    tools, ignored = client_tools.nested(request.tools, context), client_tools.hosted(request.tools, context)
    choice, allowed = options.tool_choice(request.tool_choice, context)
    chore = _is_chore(request, context, messages)
    if chore:
        session, kept = None, "memory"
    spec = Spec(
        dialect="responses",
        model=context.profile.name,
        input=tuple(_new_turn(messages) if session else messages),
        instructions=request.instructions or None,
        sampling=options.sampling(request),
        client_tools=tools,
        ignored_tools=ignored,
        tool_choice=choice,
        allowed_tools=allowed,
        chore=chore,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        store=kept == "stored",
        kept=kept,
        background=bool(request.background),
        tool_items=context.tool_items(),
        output_bound=context.profile.output_bound,
        memory_scope=context.wish(MEMORY_SCOPE) or "",
        on_disconnect=context.on_disconnect(kept, asked_to_store=request.store is True or bool(request.background)),
        projection=PROJECTION,
        echo=options.echo(request, ignored),
        items=tuple(items),
    )
    fields = context.known_fields(sent_fields(request), _DEFAULTS)
    if key is None and isinstance(request.input, list):
        fields["input"] = _without_beginning(request.input)
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("responses", fields, session),
        key=key,
        previous=previous_run(request.previous_response_id),
        conversation=_conversation(request),
        session=session,
        derived_session=_derived_session(request, context, messages),
        kept=kept,
        user=bool(request.user),
    )
    return ParsedRequest(spec, asked, bool(request.stream), unmatched=results_without_call(spec.input))


def _without_beginning(items: list[Item]) -> list[Item]:
    """The items without the beginning of an answer at their end. When a stream broke off, Codex sends the items that it
    got whole along with the same request (B8)."""
    end, runs = len(items), set()
    while end and (shown := _SHOWN.match(str(items[end - 1].get("id")))):
        runs.add(shown[1])
        end -= 1
    return items[:end] if len(runs) == 1 else items


def _new_turn(messages: list[Message]) -> list[Message]:
    """What a resent conversation adds to its session: the messages after the last one of the assistant, or that one
    itself when it is the last (D2)."""
    last = max((n for n, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return messages[min(last + 1, max(len(messages) - 1, 0)) :]


def _derived_session(request: ResponsesRequest, context: Context, messages: list[Message]) -> str:
    system = [text_of(message.get("content")) for message in messages if message.get("role") in SYSTEM_ROLES]
    layers = [layer for layer in (request.instructions, *system) if layer]
    first = next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), "")
    return context.derived_session("\n\n".join(layers) or None, first)


def _check_store(request: ResponsesRequest, key: str | None) -> None:
    if request.store is False and key is not None:
        raise ClientError("idempotency_requires_store", "An Idempotency-Key needs store=true.", param="store")
    if request.store is False and request.background:
        raise ClientError("background_requires_store", "background=true needs store=true.", param="background")
    if request.previous_response_id is not None and request.conversation is not None:
        message = "previous_response_id and conversation cannot be used together: send one of them."
        raise ClientError("mutually_exclusive_parameters", message, param="conversation")


def _is_chore(request: ResponsesRequest, context: Context, messages: list[Message]) -> bool:
    joins = request.previous_response_id or request.conversation or request.background or context.wish(KEY)
    plain = not joins and request.store is None and not request.stream and not request.tools
    return plain and is_chore(context, messages)


def _conversation(request: ResponsesRequest) -> str | None:
    named = request.conversation.get("id") if isinstance(request.conversation, dict) else request.conversation
    if named is None and request.conversation is None:
        return None
    if not isinstance(named, str) or not 1 <= len(named) <= 256 or not named.isprintable():
        message = "conversation must be a name or an id of 1 to 256 characters."
        raise ClientError("invalid_value", message, param="conversation")
    return named
